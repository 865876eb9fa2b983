//! Every bound of what a peer may say, by name. A decoder checks before it takes memory.

/// The longest frame, without its head. A directory's list is cut into frames far shorter than this.
pub const FRAME_MAX_BYTES: usize = 16 << 20;
/// Entries and attributes of a list are cut into frames of about this length.
pub const LIST_FRAME_BYTES: usize = 256 << 10;
/// The longest piece of a file in one frame.
pub const DATA_MAX_BYTES: usize = 256 << 10;
/// Files up to this length travel in one message.
pub const WHOLE_MAX_BYTES: usize = 64 << 10;
/// One name.
pub const NAME_MAX_BYTES: usize = 255;
/// One path of a transfer; longer than the kernel's PATH_MAX, because a walk goes from directory to directory.
pub const PATH_MAX_BYTES: usize = 64 << 10;
/// A symlink's value.
pub const TARGET_MAX_BYTES: usize = 4096;
/// Extended attributes of one entry.
pub const XATTRS_MAX: usize = 65_536;
/// One value of an extended attribute, and one ACL.
pub const XATTR_MAX_BYTES: usize = 1 << 20;
/// One line that is told.
pub const LINE_MAX_BYTES: usize = 256 << 10;
/// The words of a command line, rules, and names of `--files-from`, each.
pub const WORDS_MAX: usize = 1 << 20;
/// The program's name in a greeting.
pub const PROGRAM_MAX_BYTES: usize = 256;
/// What may stand before the greeting: a login shell's words.
pub const NOISE_MAX_BYTES: usize = 64 << 10;
/// The blocks of one basis file.
pub const BASIS_MAX_BYTES: usize = FRAME_MAX_BYTES - 64;
/// The roles that a closing line may name.
pub const ROLES: [&str; 5] = ["client", "sender", "receiver", "generator", "Receiver"];
