//! Tests over recorded conversations.
