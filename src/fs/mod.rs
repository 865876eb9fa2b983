//! The only code that accesses files: system calls, and operations built on them.
//!
//! # State of the process
//!
//! The state below belongs to the process, not to a run. A process serves one session and has one peer, so one value is
//! right for all of its system calls. As a parameter, each value would pass through every walk, applier and worker down
//! to the call, and one call site that forgets it would leave the sandbox. Each value is set once, before the threads
//! of the session start, or is a fact about the machine that any thread may find out.
//!
//! There is no other state of this kind in the crate; `tests/tidy.rs` compares this list with the code. The hooks of
//! debug builds (`hooks.rs`) are apart: they belong to the tests.
//!
//! - `SANDBOX` in `sandbox.rs`: the directories to which the process is confined. Set by a server's session, a module of
//!   a daemon and `--confine-root`, before the first message of the client is acted on. Never changed: a confinement
//!   that can be lifted is none.
//! - `CONFINE_ROOT` in `trusted_path.rs`: the directory of `--confine-root`, which limits where paths of options lead.
//!   Set by [`trusted_path::confine`] when the options are settled, after the files that the user names were read.
//! - `NAME_CHARSET` in `charset.rs`: the conversion of `--iconv`. Set when the options are settled, at a daemon before the
//!   arguments are read. Names are converted at each entrance to the wire, and the wire is that of the process.
//! - `NAME_CONVERTER` in `ids.rs`: the program of `name converter`. Set by a daemon's session after it has taken on the
//!   identity of the module, before the first name is looked up.
//! - `HAS_NEW_ROOT` in `sys/proc_dir.rs`: the process has changed its root. Set just before the change, since paths
//!   through `/proc` would lead out of the new root.
//! - `UNSEEN_WORK` in `sys.rs`: whether the process has worked since an observer asked last. Set by every system call,
//!   cleared by its observers in the reader and the writer of the link, for keepalives and timeouts.
//! - `WRITING_BACK` in `sys.rs`: how many threads are in a call that writes back all data of a file. Such a call counts as
//!   work until it ends, for the same observers.
//! - `NO_DESCRIPTOR_WAIT` in `sys.rs`: calls do not wait for a free file descriptor. Set by a server at its start, or by a
//!   call that has waited in vain; cleared when a call that waited succeeds. The limit is one of the process.
//! - `NO_TMPFILE` in `write.rs`: new files get temporary names at once. Set by the first file for which the file system
//!   refuses `O_TMPFILE` or its link, so that not every file pays for the attempt. A destination on several file systems
//!   loses nothing but a system call.
//! - `SETS_BOTH_TIMES` in `sys/attributes.rs`: a call that sets one time of an entry sets the other one to what it is. Set
//!   when a destination on a file system of FUSE is opened. On other file systems this costs a system call.
//! - `CAN_LINK_IN_CHROOT` in `sys/open.rs` and `HAS_PROC` in `sys/proc_dir.rs`: facts about the kernel and `/proc`, found
//!   out at the first use.

#[cfg(debug_assertions)]
mod hooks;
pub mod sandbox;
pub mod sys;

pub mod trusted_path;

pub mod acl;
pub mod charset;
pub mod compare;
pub mod copy;
pub mod errno;
pub mod fake_super;
pub mod glob;
pub mod ids;
pub mod landlock;
pub mod leftover;
pub mod medium;
pub mod overflow_file;
pub mod probe;
pub mod read;
pub mod real_path;
pub mod replace;
pub mod root;
pub mod source_reader;
pub mod temp_name;
pub mod unnamed_file;
pub mod write;
pub mod xattr;
