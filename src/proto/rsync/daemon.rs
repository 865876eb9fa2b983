//! The start of a conversation with a daemon: lines, authentication, arguments.
