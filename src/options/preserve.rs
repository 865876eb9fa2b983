//! Which attributes are kept, mapped or changed on the way.

/// One comma-separated part of `--chmod`, parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeChange {
    /// Applies to directories.
    pub dirs: bool,
    /// Applies to everything else.
    pub files: bool,
    /// Bits cleared first.
    pub and: u32,
    /// Bits set then.
    pub or: u32,
    /// `X`: the execute bits of `or_x` are set when the entry is a directory or had any before the first
    /// of all changes.
    pub or_x: u32,
    /// `u`, `g` or `o` on the right (`g=u`): permission bits copied from this class (shift 6, 3 or 0)
    /// into the classes of `copy_to`, a mask of `0o100 | 0o010 | 0o001`: the three bits times that mask.
    /// They are read before `and` clears.
    pub copy_from_shift: Option<u32>,
    /// See `copy_from_shift`.
    pub copy_to: u32,
    /// The bits that may be copied: all, or all but the umask's when no class was named (`+u`).
    pub copy_mask: u32,
    /// `-` with a copied class removes the bits instead of adding them.
    pub copy_removes: bool,
}

/// Whose symlinks may lie on a path that the command line names: the destination, and the directories and files of
/// options. What source operands lead to is copied whoever made the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkOwners {
    /// Root's, and those of the user who runs this.
    #[default]
    Trusted,
    /// Anybody's: `--insecure-links`.
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
    /// What it matches at the sender.
    pub from: IdFrom,
    /// What it becomes.
    pub to: IdTo,
}

/// Which attributes are kept, mapped or changed on the way.
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
    /// `--numeric-ids`
    pub numeric_ids: bool,
    /// `--usermap`, and `--chown`'s user.
    pub usermap: Vec<IdMap>,
    /// `--groupmap`, and `--chown`'s group.
    pub groupmap: Vec<IdMap>,
    /// `--super` (`Some(true)`), `--no-super` (`Some(false)`); `None`: super-user work if uid is 0.
    pub super_user: Option<bool>,
    /// `--fake-super`
    pub fake_super: bool,
    /// `--safe-links`
    pub safe_links: bool,
    /// `--munge-links`
    pub munge_links: bool,
    /// Whether set-ID bits and `security.` attributes from a peer are dropped. A grant with roots sets this, no option does.
    pub strips_privileges: bool,
    /// Whether symlinks from a peer are munged, and unmunged when sent to it. A grant with roots sets this, no option does.
    pub munges_for_peer: bool,
    /// `-K`
    pub keep_dirlinks: bool,
    /// Which symlinks may lie on the paths that the command line names: `--insecure-links`.
    pub link_owners: LinkOwners,
}
