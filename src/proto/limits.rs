//! Every bound of what a peer may say, by name. A decoder checks before it takes memory.

/// The longest frame, without its head, of all but two kinds ([`OPENING_MAX_BYTES`]). A directory's list is cut into
/// frames far shorter than this.
pub const FRAME_MAX_BYTES: usize = 16 << 20;
/// The longest frame of the two messages that open the conversation and cannot be cut: [`super::Message::Setup`] and
/// [`super::Message::Roots`].
pub const OPENING_MAX_BYTES: usize = 1 << 30;
/// The longest frame of what is told to a human: events, a file that does not come, the end of the run.
pub const TELLING_MAX_BYTES: usize = 512 << 10;
/// The longest frame of what has but a few numbers in it.
pub const SHORT_MAX_BYTES: usize = 512;
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
/// Entries of the list in one frame.
pub const LIST_ENTRIES_MAX: usize = 65_536;
/// Entries of one directory, in all of its frames together: its names stay below 4 GiB, its indexes below 32 bits.
pub const DIR_ENTRIES_MAX: usize = 1 << 24;
/// One directory in all of its frames together: it is put together before anybody takes it, whatever its window says.
pub const DIR_MAX_BYTES: usize = 1 << 30;
/// Directories in one [`super::Message::Digests`].
pub const DIGESTS_MAX: usize = 65_536;
/// Lines, problems and names of ids in one frame, of each.
pub const LINES_MAX: usize = 65_536;
/// Extended attributes of one entry, and of all entries in one frame.
pub const XATTRS_MAX: usize = 65_536;
/// One value of an extended attribute, and one ACL.
pub const XATTR_MAX_BYTES: usize = 1 << 20;
/// One line that is told.
pub const LINE_MAX_BYTES: usize = 256 << 10;
/// One word of a command line, one rule.
pub const WORD_MAX_BYTES: usize = 256 << 10;
/// The content of a `~/.cvsignore` or `CVSIGNORE`.
pub const CVS_MAX_BYTES: usize = 1 << 20;
/// A file's length, and a place in it: what the kernel's `off_t` holds.
pub const FILE_MAX_BYTES: u64 = i64::MAX.cast_unsigned();
/// By how many bytes the content of a file may come to more than twice the length that was told: files grow while they
/// are sent, but none comes without an end.
pub const GROWTH_MAX_BYTES: u64 = 1 << 30;
/// How many entries anything can be counted to: sums of what peers count cannot overflow.
pub const COUNT_MAX: u64 = 1 << 48;
/// How many bytes all files together can be counted to.
pub const TOTAL_MAX_BYTES: u64 = 1 << 58;
/// The words of a command line, rules, and names of `--files-from`, each.
pub const WORDS_MAX: usize = 1 << 24;
/// The bits that a umask may have.
pub const UMASK_MAX: u32 = 0o777;
/// The program's name in a greeting.
pub const PROGRAM_MAX_BYTES: usize = 256;
/// A greeting, without magic and length.
pub const GREETING_MAX_BYTES: usize = 1024;
/// What may stand before the greeting: a login shell's words.
pub const NOISE_MAX_BYTES: usize = 64 << 10;
/// The addresses of one [`super::Message::Meet`].
pub const ADDRESSES_MAX: usize = 16;
/// The blocks of one basis file.
pub const BASIS_MAX_BYTES: usize = FRAME_MAX_BYTES - 64;
/// The roles that a closing line may name.
pub const ROLES: [&str; 5] = ["client", "sender", "receiver", "generator", "Receiver"];
/// What one [`super::Message::Grant`] may grant.
pub const GRANT_MAX_BYTES: u64 = 1 << 40;
/// How many bytes of each class ([`super::Class::ALL`]) may be under way before the first grant: Digests, Dirs, Wants,
/// Events, Early, Asked, Again.
pub const INITIAL_WINDOWS: [u64; 7] = [1 << 20, 4 << 20, 4 << 20, 1 << 20, 8 << 20, 8 << 20, 1 << 20];
/// How many bytes of each may be under way where the producer waited for grants, and the consumer took all that came: the
/// content of files on a path that holds more than the first windows. 64 MiB are a gigabit for half a second.
pub const WINDOWS_MAX: [u64; 7] = [1 << 20, 4 << 20, 4 << 20, 1 << 20, 64 << 20, 64 << 20, 1 << 20];

/// The most that may come of a file that was told with this length, in bytes. Whoever sends it ends it there.
pub fn content_max_bytes(told_bytes: u64) -> u64 {
    told_bytes.saturating_mul(2).saturating_add(GROWTH_MAX_BYTES)
}
