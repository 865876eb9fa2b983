//! Options for attributes that are kept, mapped or changed in the copy.

use crate::cli::args::{Args, GivenMap};
use crate::cli::flag::{Arity, Flag, FlagScope, Support};
use crate::cli::value::{chmod, refuse};
use crate::error::Result;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "links",
        short: Some('l'),
        negations: &["no-links", "no-l"],
        help: "copy symlinks as symlinks",
        set: |args, _| {
            args.links = true;
            Ok(())
        },
        unset: |args| args.links = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "safe-links",
        help: "skip symlinks that point outside the tree",
        set: |args, _| {
            args.safe_links = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "insecure-links",
        negations: &["no-insecure-links"],
        help: "follow symlinks of any owner in paths given by options",
        man: "Applies to the destination path, too. Without this option, symlinks in these paths are followed only if \
              they belong to root or to the user who runs the program. The option applies only to this end, and its \
              position on the command line does not matter.",
        set: |args, _| {
            args.insecure_links = true;
            Ok(())
        },
        unset: |args| args.insecure_links = false,
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "munge-links",
        negations: &["no-munge-links"],
        help: "store symlinks in an unusable form; restore them when sending",
        set: |args, _| {
            args.munge_links = true;
            Ok(())
        },
        unset: |args| args.munge_links = false,
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "keep-dirlinks",
        short: Some('K'),
        help: "treat a symlink to a directory at the destination as that directory",
        set: |args, _| {
            args.keep_dirlinks = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "hard-links",
        short: Some('H'),
        negations: &["no-hard-links", "no-H"],
        help: "preserve hard links",
        man: "A name that replaces an entry of another kind is reported as new. If the destination has none of the \
              names of a file, the file is transferred under the last of its names within the lookahead: at most \
              10,000 entries in 1,000 directories after its first name. rsync has a shorter lookahead. With \
              --no-inc-recursive, it is the last of all names.",
        set: |args, _| {
            args.hard_links = true;
            Ok(())
        },
        unset: |args| args.hard_links = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "perms",
        short: Some('p'),
        negations: &["no-perms", "no-p"],
        help: "preserve permissions",
        man: "Without this option, a new file gets the default mode of new files. rsync 3.5.0 uses the mode of the \
              basis file of --fuzzy, or of the symlink or device that the file replaces.",
        set: |args, _| {
            args.perms = true;
            Ok(())
        },
        unset: |args| args.perms = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "executability",
        short: Some('E'),
        help: "preserve executability",
        set: |args, _| {
            args.executability = true;
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "chmod",
        arity: Arity::Value("CHMOD"),
        help: "change permissions in the transfer",
        man: "CHMOD is as in chmod(1); a leading D or F limits it to directories or files. The option can be repeated.",
        set: |args, given| {
            match chmod::parse(given.value, args.umask) {
                Some(changes) => args.chmod.extend(changes),
                None => {
                    return Err(refuse([b"Invalid argument passed to --chmod (", given.value, b")"].concat()));
                }
            }
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "acls",
        short: Some('A'),
        negations: &["no-acls", "no-A"],
        help: "preserve ACLs (implies --perms)",
        set: |args, _| {
            args.acls = true;
            args.perms = true;
            Ok(())
        },
        unset: |args| args.acls = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "xattrs",
        short: Some('X'),
        negations: &["no-xattrs", "no-X"],
        help: "preserve extended attributes; -XX: also those that rsync uses",
        set: |args, _| {
            args.xattrs = args.xattrs.saturating_add(1).min(2);
            Ok(())
        },
        unset: |args| args.xattrs = 0,
        ..Flag::SWITCH
    },
    Flag {
        long: "owner",
        short: Some('o'),
        negations: &["no-owner", "no-o"],
        help: "preserve the owner (super-user only)",
        set: |args, _| {
            args.owner = true;
            Ok(())
        },
        unset: |args| args.owner = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "group",
        short: Some('g'),
        negations: &["no-group", "no-g"],
        help: "preserve the group",
        set: |args, _| {
            args.group = true;
            Ok(())
        },
        unset: |args| args.group = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "devices",
        negations: &["no-devices"],
        help: "preserve device files (super-user only)",
        set: |args, _| {
            args.devices = true;
            Ok(())
        },
        unset: |args| args.devices = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "specials",
        negations: &["no-specials"],
        help: "preserve named pipes and sockets",
        set: |args, _| {
            args.specials = true;
            Ok(())
        },
        unset: |args| args.specials = false,
        ..Flag::SWITCH
    },
    Flag {
        short: Some('D'),
        negations: &["no-D"],
        help: "same as --devices --specials",
        set: |args, _| {
            args.devices = true;
            args.specials = true;
            Ok(())
        },
        unset: |args| {
            args.devices = false;
            args.specials = false;
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "drop-D",
        negations: &["no-drop-D"],
        help: "create no devices or special files at the destination",
        set: |args, _| {
            args.drop_devices = true;
            Ok(())
        },
        unset: |args| args.drop_devices = false,
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "write-devices",
        negations: &["no-write-devices"],
        help: "write file data into existing devices (implies --inplace)",
        man: "Data on the device after the end of the file is kept. A block device is synced before the file is \
              reported as copied. A server rejects the option for keys that are limited to some directories (--root).",
        set: |args, _| {
            args.write_devices = true;
            Ok(())
        },
        unset: |args| args.write_devices = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "times",
        short: Some('t'),
        negations: &["no-times", "no-t"],
        help: "preserve modification times",
        set: |args, _| {
            args.times = true;
            Ok(())
        },
        unset: |args| args.times = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "atimes",
        short: Some('U'),
        negations: &["no-atimes", "no-U"],
        help: "preserve access times; -UU implies --open-noatime",
        set: |args, _| {
            args.atimes = args.atimes.saturating_add(1);
            if args.atimes > 1 {
                args.open_noatime = true;
            }
            Ok(())
        },
        unset: |args| args.atimes = 0,
        ..Flag::SWITCH
    },
    Flag {
        long: "crtimes",
        short: Some('N'),
        negations: &["no-crtimes", "no-N"],
        help: "preserve creation times (not supported on this system)",
        support: Support::Refused,
        set: |_, _| Err(refuse("This rsync does not support --crtimes (-N)")),
        ..Flag::SWITCH
    },
    Flag {
        long: "omit-dir-times",
        short: Some('O'),
        negations: &["no-omit-dir-times", "no-O"],
        help: "do not set the times of directories",
        set: |args, _| {
            args.omit_dir_times = true;
            Ok(())
        },
        unset: |args| args.omit_dir_times = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "omit-link-times",
        short: Some('J'),
        negations: &["no-omit-link-times", "no-J"],
        help: "do not set the times of symlinks",
        set: |args, _| {
            args.omit_link_times = true;
            Ok(())
        },
        unset: |args| args.omit_link_times = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "super",
        negations: &["no-super"],
        help: "attempt operations that require the super-user",
        set: |args, _| {
            (args.super_user, args.fake_super) = (Some(true), false);
            Ok(())
        },
        unset: |args| (args.super_user, args.fake_super) = (Some(false), false),
        ..Flag::SWITCH
    },
    Flag {
        long: "fake-super",
        help: "store privileged attributes in extended attributes",
        man: "The last of --fake-super, --super and --no-super takes effect. Without -o or -g, the owner or group of \
              the source is not stored; rsync 3.5.0 stores a number without meaning.",
        set: |args, _| {
            (args.super_user, args.fake_super) = (None, true);
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
    Flag {
        long: "numeric-ids",
        negations: &["no-numeric-ids"],
        help: "preserve owner and group by number, not by name",
        set: |args, _| {
            args.numeric_ids = true;
            Ok(())
        },
        unset: |args| args.numeric_ids = false,
        ..Flag::SWITCH
    },
    Flag {
        long: "usermap",
        arity: Arity::Value("STRING"),
        help: "map owners: FROM:TO,...",
        set: |args, given| set_map(args, Map::User, given.value, false),
        ..Flag::SWITCH
    },
    Flag {
        long: "groupmap",
        arity: Arity::Value("STRING"),
        help: "map groups: FROM:TO,...",
        set: |args, given| set_map(args, Map::Group, given.value, false),
        ..Flag::SWITCH
    },
    Flag {
        long: "chown",
        arity: Arity::Value("USER:GROUP"),
        help: "set USER and GROUP as the owner of all files",
        set: |args, given| {
            let (user, group) = match given.value.iter().position(|&b| b == b':') {
                Some(colon) => (&given.value[..colon], &given.value[colon + 1..]),
                None => (given.value, &b""[..]),
            };
            if !user.is_empty() {
                set_map(args, Map::User, &[b"*:", user].concat(), true)?;
            }
            if !group.is_empty() {
                set_map(args, Map::Group, &[b"*:", group].concat(), true)?;
            }
            Ok(())
        },
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-as",
        arity: Arity::Value("USER[:GROUP]"),
        help: "run the copy as USER",
        man: "In a copy to or from another machine, only this end is concerned; -M--copy-as=USER is for the other end.",
        set: |args, given| {
            args.copy_as = Some(given.value.to_vec());
            Ok(())
        },
        reach: FlagScope::Local,
        ..Flag::SWITCH
    },
];

#[derive(Clone, Copy)]
enum Map {
    User,
    Group,
}

fn set_map(args: &mut Args, map: Map, text: &[u8], by_chown: bool) -> Result<()> {
    let (slot, name, affecting) = match map {
        Map::User => (&mut args.usermap, "usermap", "user"),
        Map::Group => (&mut args.groupmap, "groupmap", "group"),
    };
    if let Some(prior) = slot {
        return Err(refuse(match (prior.by_chown, by_chown) {
            (false, false) => format!("You can only specify --{name} once."),
            (true, true) => format!("You can only specify a {affecting}-affecting --chown once."),
            (false, true) => format!("--chown conflicts with prior --{name}."),
            (true, false) => format!("--{name} conflicts with prior --chown."),
        }));
    }
    *slot = Some(GivenMap { by_chown, text: text.to_vec() });
    match map {
        Map::User => args.owner = true,
        Map::Group => args.group = true,
    }
    Ok(())
}
