//! Which attributes are kept, mapped or changed in the transfer.

/// One comma-separated part of a `--chmod` argument, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeChange {
    /// Applies to directories.
    pub dirs: bool,
    /// Applies to everything else.
    pub files: bool,
    /// Bits cleared first.
    pub and: u32,
    /// Bits set afterwards.
    pub or: u32,
    /// `X`: the execute bits of `or_x` are set if the entry is a directory or had any execute bit before the first
    /// change.
    pub or_x: u32,
    /// `u`, `g` or `o` on the right (`g=u`): permission bits copied from this class (shift 6, 3 or 0) into the classes
    /// of `copy_to`, a mask of `0o100 | 0o010 | 0o001`: the three bits times that mask. They are read before `and`
    /// clears them.
    pub copy_from_shift: Option<u32>,
    /// See `copy_from_shift`.
    pub copy_to: u32,
    /// The bits that may be copied: all, or all except the umask's if no class was given (`+u`).
    pub copy_mask: u32,
    /// `-` with a copied class removes the bits instead of adding them.
    pub copy_removes: bool,
}

/// What a receiver does about the values of symlinks from a peer that it does not trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PeerLinks {
    /// Nothing.
    #[default]
    AsSent,
    /// It munges them. A sender restores munged values.
    Munged,
    /// It changes values that lead out of the transfer.
    Sanitized,
}

/// Which owners of symlinks are accepted on paths from the command line: the destination, and the directories and files
/// of options. Source operands may contain any user's symlinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkOwners {
    /// Root and the user who runs the process.
    #[default]
    Trusted,
    /// Any user: `--insecure-links`.
    Anyone,
}

/// The left side of one `--usermap` / `--groupmap` pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdFrom {
    /// A number, or a range of numbers, both ends included.
    Range(u32, u32),
    /// A name, or a name with wildcards. An id without a name is matched by `""`.
    Name(Vec<u8>),
}

/// The right side of one pair: looked up on the receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdTo {
    /// A number.
    Id(u32),
    /// A name.
    Name(Vec<u8>),
}

/// One pair of `--usermap` or `--groupmap`; the first match wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdMap {
    /// The ids to map, as the sender knows them.
    pub from: IdFrom,
    /// The id that they become at the receiver.
    pub to: IdTo,
}

/// Which attributes are kept, mapped or changed in the transfer.
#[derive(Debug, Clone, Default)]
pub struct Preserve {
    /// `-l`
    pub links: bool,
    /// `-p`
    pub perms: bool,
    /// `-E` (without `-p`)
    pub executability: bool,
    /// `-o`
    pub owner: bool,
    /// `-g`
    pub group: bool,
    /// `-t`
    pub times: bool,
    /// `-U`
    pub atimes: bool,
    /// `-O`
    pub omit_dir_times: bool,
    /// `-J`
    pub omit_link_times: bool,
    /// `--devices`
    pub devices: bool,
    /// `--specials`
    pub specials: bool,
    /// `--drop-D`: this receiver never creates devices or specials.
    pub drop_devices: bool,
    /// `--write-devices`: file data is written into an existing device.
    pub write_devices: bool,
    /// `-H`
    pub hard_links: bool,
    /// `-A`
    pub acls: bool,
    /// `-X`: 0, 1, or 2 (also rsync's own `user.rsync.*`).
    pub xattrs: u8,
    /// `--chmod`, in order.
    pub chmod: Vec<ModeChange>,
    /// Changes that a receiver without `-p` makes to the mode of every entry (`incoming chmod` of a module): to that of an
    /// existing one, and to that which a new one gets by the umask.
    pub required_modes: Vec<ModeChange>,
    /// `--numeric-ids`
    pub numeric_ids: bool,
    /// `--usermap`, and `--chown`'s user.
    pub usermap: Vec<IdMap>,
    /// `--groupmap`, and `--chown`'s group.
    pub groupmap: Vec<IdMap>,
    /// `--super` (`Some(true)`), `--no-super` (`Some(false)`); `None`: acts as super-user if the uid is 0.
    pub super_user: Option<bool>,
    /// `--fake-super`
    pub fake_super: bool,
    /// `--safe-links`
    pub safe_links: bool,
    /// `--munge-links`
    pub munge_links: bool,
    /// Whether set-ID bits and `security.` attributes from a peer are dropped. Set by a grant with roots, not by an
    /// option.
    pub strips_privileges: bool,
    /// What is done about symlinks from a peer. Set by a grant with roots or a module, not by an option.
    pub peer_links: PeerLinks,
    /// `-K`
    pub keep_dirlinks: bool,
    /// Which symlinks are accepted on paths from the command line: `--insecure-links`.
    pub link_owners: LinkOwners,
}
