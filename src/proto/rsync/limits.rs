//! Every limit on what a stock rsync may send, by name. Decoders check it before they allocate memory.

/// One path of a list, without a terminator.
pub const PATH_MAX_BYTES: usize = 4095;
/// The target of a symlink.
pub const TARGET_MAX_BYTES: usize = 4095;
/// A string with a length of one or two bytes.
pub const VSTRING_MAX_BYTES: usize = 32_767;
/// The payload of a frame: its length field has 24 bits.
pub const FRAME_MAX_BYTES: usize = (1 << 24) - 1;
/// The payload of the data frames that we send. Stock peers stay below it too.
pub const FRAME_SENT_MAX_BYTES: usize = 32 << 10;
/// The text of one message for the user.
pub const TEXT_MAX_BYTES: usize = 5119;
/// One filter rule.
pub const RULE_MAX_BYTES: usize = 5119;
/// The rules of one filter list.
pub const RULES_MAX: usize = 1 << 20;
/// The text of all rules of one filter list.
pub const RULES_MAX_BYTES: usize = 64 << 20;
/// The memory that the names of one `--files-from` list may take.
pub const LISTED_NAMES_MAX_BYTES: usize = 1 << 30;
/// The length of a block from protocol 30 on.
pub const BLOCK_MAX_BYTES: i32 = 128 << 10;
/// The length of a block before protocol 30.
pub const OLD_BLOCK_MAX_BYTES: i32 = 1 << 29;
/// The blocks of one sum head: their sums stay below 2 GiB.
pub const BLOCKS_MAX: i32 = 1 << 26;
/// The strong sum of a block.
pub const STRONG_SUM_MAX_BYTES: usize = 16;
/// The ids of one id list.
pub const IDS_MAX: usize = 1 << 20;
/// The entries of one access control list.
pub const ACL_ENTRIES_MAX: usize = 1 << 16;
/// The extended attributes of one entry.
pub const XATTRS_MAX: usize = 65_536;
/// The name of an extended attribute, with its NUL.
pub const XATTR_NAME_MAX_BYTES: usize = 4096;
/// The value of an extended attribute.
pub const XATTR_VALUE_MAX_BYTES: usize = 128 << 20;
/// Names and values of all extended attributes of one entry.
pub const XATTR_LIST_MAX_BYTES: usize = 512 << 20;
/// A value up to this length is in the list; of longer ones the list has a digest.
pub const XATTR_SHORT_MAX_BYTES: usize = 32;
/// The entries of all lists of a connection: indices have 31 bits.
pub const ENTRIES_MAX: i32 = i32::MAX - 1;
/// One compressed data frame of a token stream: its length field has 14 bits.
pub const PACKED_MAX_BYTES: usize = 16_383;
/// The literal data that a decoder returns at a time, and the most that one lz4 block may contain.
pub const LITERAL_MAX_BYTES: usize = 64 << 10;
/// The window of a zstd stream, as a power of two. A decoder allocates this much at most.
pub const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Each deletion count of the statistics.
pub const DELETIONS_MAX: i32 = 1 << 28;
/// One line of a daemon conversation.
pub const DAEMON_LINE_MAX_BYTES: usize = 5119;
/// The header lines of a proxy's answer.
pub const PROXY_HEADERS_MAX: usize = 1000;
/// All arguments that a client sends to a daemon.
pub const DAEMON_ARGS_MAX: usize = 16_000;
/// The bytes of all arguments that a client sends.
pub const DAEMON_ARGS_MAX_BYTES: usize = 16 << 20;
/// The most bytes of a daemon client's arguments that are read, also if they are not accepted.
pub const DAEMON_ARGS_SKIPPED_MAX_BYTES: usize = 256 << 20;
/// The early input of a client.
pub const EARLY_INPUT_MAX_BYTES: usize = 5120;
/// One allocation that is made before its bytes have arrived.
pub const PREALLOCATED_MAX_BYTES: usize = 64 << 10;
/// The timeout that a daemon may set.
pub const TIMEOUT_MAX_SECS: i32 = 86_400;
