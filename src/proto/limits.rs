//! Every limit on what a peer may send, by name. Decoders check it before they allocate memory.

/// The longest frame, without its head, of all message kinds except two ([`OPENING_MAX_BYTES`]). Directory listings are
/// cut into much shorter frames.
pub const FRAME_MAX_BYTES: usize = 16 << 20;
/// The longest frame of the two opening messages, which cannot be cut: [`super::Message::Setup`] and
/// [`super::Message::Roots`].
pub const OPENING_MAX_BYTES: usize = 1 << 30;
/// The longest frame with text for the user: files that are not sent, the end of the run.
pub const REPORT_MAX_BYTES: usize = 512 << 10;
/// The longest frame with only a few numbers.
pub const SHORT_MAX_BYTES: usize = 512;
/// Approximate length of the frames into which entries and attributes of a listing are cut.
pub const LIST_FRAME_BYTES: usize = 256 << 10;
/// The longest piece of file content in one frame.
pub const DATA_MAX_BYTES: usize = 256 << 10;
/// Files up to this length are sent in one message.
pub const WHOLE_MAX_BYTES: usize = 64 << 10;
/// One name. Linux file systems permit 255 bytes, but vfat, exFAT, NTFS and CIFS 255 characters of UTF-16, so up to 765
/// bytes.
pub const NAME_MAX_BYTES: usize = 1024;
/// The path that a client guesses to be the destination, see [`crate::proto::message::Greeting`].
pub const GUESS_MAX_BYTES: usize = 255;
/// One path of a transfer. Longer than the kernel's PATH_MAX, because the walk opens one directory at a time.
pub const PATH_MAX_BYTES: usize = 64 << 10;
/// The target of a symlink.
pub const TARGET_MAX_BYTES: usize = 4096;
/// Entries of a listing in one frame.
pub const LIST_ENTRIES_MAX: usize = 65_536;
/// Entries of one directory, in all of its frames: its names stay below 4 GiB, its indexes below 32 bits.
pub const DIR_ENTRIES_MAX: usize = 1 << 24;
/// One directory listing, in all of its frames. It is assembled before it is processed, regardless of its window.
pub const DIR_MAX_BYTES: usize = 1 << 30;
/// Directories in one [`super::Message::Digests`].
pub const DIGESTS_MAX: usize = 65_536;
/// Lines or problems in one frame, each.
pub const LINES_MAX: usize = 65_536;
/// Names of ids in one frame. A directory is announced with all of them that are new, and one with the homes of a large
/// organization has a user and a group for each.
pub const IDS_MAX: usize = 1 << 20;
/// Extended attributes of one entry, and of all entries in one frame.
pub const XATTRS_MAX: usize = 65_536;
/// One value of an extended attribute, or one ACL.
pub const XATTR_MAX_BYTES: usize = 1 << 20;
/// One line of text for the user.
pub const LINE_MAX_BYTES: usize = 256 << 10;
/// One word of a command line, one filter rule, or one name of `--files-from`: no line of a file that is read is longer.
pub const WORD_MAX_BYTES: usize = 64 << 20;
/// Approximate length of the frames into which a plan is cut, in bytes of its lines.
pub const PLAN_PIECE_BYTES: usize = 64 << 10;
/// One action of a plan, as a line. In it, each byte of a path can take six, and there are several paths.
pub const PLANNED_MAX_BYTES: usize = 4 << 20;
/// Actions in one [`super::Message::Plan`].
pub const PLAN_ACTIONS_MAX: usize = 65_536;
/// The memory that a receiver takes for a plan: compressed actions and an index.
pub const PLAN_MAX_BYTES: usize = 512 << 20;
/// The content of a `~/.cvsignore` or `CVSIGNORE`.
pub const CVS_MAX_BYTES: usize = 64 << 20;
/// The length of a file, or an offset in it: the range of the kernel's `off_t`.
pub const FILE_MAX_BYTES: u64 = i64::MAX.cast_unsigned();
/// How far the content of a file may exceed twice its listed length. Files can grow while they are sent; this bounds
/// the growth.
pub const GROWTH_MAX_BYTES: u64 = 1 << 30;
/// The maximum of any count of entries, so that sums of a peer's counts cannot overflow.
pub const COUNT_MAX: u64 = 1 << 48;
/// The maximum total length of all files.
pub const TOTAL_MAX_BYTES: u64 = 1 << 58;
/// The words of a command line, rules, or names of `--files-from`, each.
pub const WORDS_MAX: usize = 1 << 24;
/// The bits that a umask can have.
pub const UMASK_MAX: u32 = 0o777;
/// The program name in a greeting.
pub const PROGRAM_MAX_BYTES: usize = 256;
/// A greeting, without magic and length field.
pub const GREETING_MAX_BYTES: usize = 1024;
/// The output of a login shell before the greeting.
pub const NOISE_MAX_BYTES: usize = 64 << 10;
/// Addresses in one [`super::Message::Meet`].
pub const ADDRESSES_MAX: usize = 16;
/// The block signature of one basis file.
pub const BASIS_MAX_BYTES: usize = FRAME_MAX_BYTES - 64;
/// The roles that a closing line can name.
pub const ROLES: [&str; 5] = ["client", "sender", "receiver", "generator", "Receiver"];
/// The bytes that one [`super::Message::Grant`] can grant.
pub const GRANT_MAX_BYTES: u64 = 1 << 40;
/// The initial window of each class in bytes, in the order of [`super::Class::ALL`]: Digests, Dirs, Wants, Events,
/// Unrequested, Requested, Again.
pub const INITIAL_WINDOWS: [u64; 7] = [
    1 << 20,
    4 << 20,
    4 << 20,
    1 << 20,
    8 << 20,
    8 << 20,
    1 << 20,
];
/// The largest window of each class, reached when the producer waits for grants although the consumer keeps up: file
/// content on a path that holds more than the initial windows. 64 MiB is one gigabit per second for half a second.
pub const WINDOWS_MAX: [u64; 7] = [
    1 << 20,
    4 << 20,
    4 << 20,
    1 << 20,
    64 << 20,
    64 << 20,
    1 << 20,
];

/// Returns the maximum number of content bytes of a file with this listed length. The sender stops there.
pub fn content_max_bytes(listed_bytes: u64) -> u64 {
    listed_bytes
        .saturating_mul(2)
        .saturating_add(GROWTH_MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_may_be_twice_as_long_as_listed_and_some_more() {
        assert_eq!(content_max_bytes(0), GROWTH_MAX_BYTES);
        assert_eq!(content_max_bytes(1000), 2000 + GROWTH_MAX_BYTES);
        assert_eq!(content_max_bytes(u64::MAX), u64::MAX);
    }
}
