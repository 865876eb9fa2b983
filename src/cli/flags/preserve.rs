//! Options for attributes that are kept, mapped or changed in the copy.

use crate::cli::args::{Args, GivenMap};
use crate::cli::flag::{Arity, Effect, Flag, Support};
use crate::cli::value::{chmod, refuse};
use crate::error::Result;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag {
        long: "links",
        short: Some('l'),
        negations: &["no-links", "no-l"],
        help: "copy symlinks as symlinks",
        effect: Effect::Switch(|args| &mut args.preserve.links),
        ..Flag::SWITCH
    },
    Flag {
        long: "safe-links",
        help: "skip symlinks that point outside the tree",
        effect: Effect::Switch(|args| &mut args.preserve.safe_links),
        ..Flag::SWITCH
    },
    Flag {
        long: "insecure-links",
        negations: &["no-insecure-links"],
        help: "follow symlinks of any owner in paths given by options",
        man: "Applies to the destination path, too. Without this option, symlinks in these paths are followed only if \
              they belong to root or to the user who runs the program. The option applies only to this end, and its \
              position on the command line does not matter.",
        effect: Effect::Switch(|args| &mut args.insecure_links),
        ..Flag::LOCAL
    },
    Flag {
        long: "munge-links",
        negations: &["no-munge-links"],
        help: "store symlinks in an unusable form; restore them when sending",
        effect: Effect::Switch(|args| &mut args.preserve.munge_links),
        ..Flag::LOCAL
    },
    Flag {
        long: "keep-dirlinks",
        short: Some('K'),
        help: "treat a symlink to a directory at the destination as that directory",
        effect: Effect::Switch(|args| &mut args.preserve.keep_dirlinks),
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
        effect: Effect::Switch(|args| &mut args.preserve.hard_links),
        ..Flag::SWITCH
    },
    Flag {
        long: "perms",
        short: Some('p'),
        negations: &["no-perms", "no-p"],
        help: "preserve permissions",
        man: "Without this option, a new file gets the default mode of new files. rsync 3.5.0 uses the mode of the \
              basis file of --fuzzy, or of the symlink or device that the file replaces.",
        effect: Effect::Switch(|args| &mut args.preserve.perms),
        ..Flag::SWITCH
    },
    Flag {
        long: "executability",
        short: Some('E'),
        help: "preserve executability",
        effect: Effect::Switch(|args| &mut args.preserve.executability),
        ..Flag::SWITCH
    },
    Flag {
        long: "chmod",
        arity: Arity::Value("CHMOD"),
        help: "change permissions in the transfer",
        man: "CHMOD is as in chmod(1); a leading D or F limits it to directories or files. The option can be repeated.",
        effect: Effect::Argument(|args, given| {
            match chmod::parse(given.value, args.umask) {
                Some(changes) => args.preserve.chmod.extend(changes),
                None => {
                    return Err(refuse([b"Invalid argument passed to --chmod (", given.value, b")"].concat()));
                }
            }
            Ok(())
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "acls",
        short: Some('A'),
        negations: &["no-acls", "no-A"],
        help: "preserve ACLs (implies --perms)",
        effect: Effect::Either(
            |args| {
                args.preserve.acls = true;
                args.preserve.perms = true;
            },
            |args| args.preserve.acls = false,
        ),
        ..Flag::SWITCH
    },
    Flag {
        long: "xattrs",
        short: Some('X'),
        negations: &["no-xattrs", "no-X"],
        help: "preserve extended attributes; -XX: also those that rsync uses",
        effect: Effect::Either(
            |args| args.preserve.xattrs = args.preserve.xattrs.saturating_add(1).min(2),
            |args| args.preserve.xattrs = 0,
        ),
        ..Flag::SWITCH
    },
    Flag {
        long: "owner",
        short: Some('o'),
        negations: &["no-owner", "no-o"],
        help: "preserve the owner (super-user only)",
        effect: Effect::Switch(|args| &mut args.preserve.owner),
        ..Flag::SWITCH
    },
    Flag {
        long: "group",
        short: Some('g'),
        negations: &["no-group", "no-g"],
        help: "preserve the group",
        effect: Effect::Switch(|args| &mut args.preserve.group),
        ..Flag::SWITCH
    },
    Flag {
        long: "devices",
        negations: &["no-devices"],
        help: "preserve device files (super-user only)",
        effect: Effect::Switch(|args| &mut args.preserve.devices),
        ..Flag::SWITCH
    },
    Flag {
        long: "specials",
        negations: &["no-specials"],
        help: "preserve named pipes and sockets",
        effect: Effect::Switch(|args| &mut args.preserve.specials),
        ..Flag::SWITCH
    },
    Flag {
        short: Some('D'),
        negations: &["no-D"],
        help: "same as --devices --specials",
        effect: Effect::Switches(&[|args| &mut args.preserve.devices, |args| &mut args.preserve.specials]),
        ..Flag::SWITCH
    },
    Flag {
        long: "drop-D",
        negations: &["no-drop-D"],
        help: "create no devices or special files at the destination",
        effect: Effect::Switch(|args| &mut args.preserve.drop_devices),
        ..Flag::LOCAL
    },
    Flag {
        long: "write-devices",
        negations: &["no-write-devices"],
        help: "write file data into existing devices (implies --inplace)",
        man: "Data on the device after the end of the file is kept. A block device is synced before the file is \
              reported as copied. A server rejects the option for keys that are limited to some directories (--root).",
        effect: Effect::Switch(|args| &mut args.preserve.write_devices),
        ..Flag::SWITCH
    },
    Flag {
        long: "times",
        short: Some('t'),
        negations: &["no-times", "no-t"],
        help: "preserve modification times",
        effect: Effect::Switch(|args| &mut args.preserve.times),
        ..Flag::SWITCH
    },
    Flag {
        long: "atimes",
        short: Some('U'),
        negations: &["no-atimes", "no-U"],
        help: "preserve access times; -UU implies --open-noatime",
        effect: Effect::Either(
            |args| {
                args.atimes = args.atimes.saturating_add(1);
                if args.atimes > 1 {
                    args.select.open_noatime = true;
                }
            },
            |args| args.atimes = 0,
        ),
        ..Flag::SWITCH
    },
    Flag {
        long: "crtimes",
        short: Some('N'),
        negations: &["no-crtimes", "no-N"],
        help: "preserve creation times (not supported on this system)",
        support: Support::Refused,
        effect: Effect::Argument(|_, _| Err(refuse("This rsync does not support --crtimes (-N)"))),
        ..Flag::SWITCH
    },
    Flag {
        long: "omit-dir-times",
        short: Some('O'),
        negations: &["no-omit-dir-times", "no-O"],
        help: "do not set the times of directories",
        effect: Effect::Switch(|args| &mut args.preserve.omit_dir_times),
        ..Flag::SWITCH
    },
    Flag {
        long: "omit-link-times",
        short: Some('J'),
        negations: &["no-omit-link-times", "no-J"],
        help: "do not set the times of symlinks",
        effect: Effect::Switch(|args| &mut args.preserve.omit_link_times),
        ..Flag::SWITCH
    },
    Flag {
        long: "super",
        negations: &["no-super"],
        help: "attempt operations that require the super-user",
        effect: Effect::Either(
            |args| (args.preserve.super_user, args.preserve.fake_super) = (Some(true), false),
            |args| (args.preserve.super_user, args.preserve.fake_super) = (Some(false), false),
        ),
        ..Flag::SWITCH
    },
    Flag {
        long: "fake-super",
        help: "store privileged attributes in extended attributes",
        man: "The last of --fake-super, --super and --no-super takes effect. Without -o or -g, the owner or group of \
              the source is not stored; rsync 3.5.0 stores a number without meaning.",
        effect: Effect::Set(|args| {
            (args.preserve.super_user, args.preserve.fake_super) = (None, true);
        }),
        ..Flag::LOCAL
    },
    Flag {
        long: "numeric-ids",
        negations: &["no-numeric-ids"],
        help: "preserve owner and group by number, not by name",
        effect: Effect::Switch(|args| &mut args.preserve.numeric_ids),
        ..Flag::SWITCH
    },
    Flag {
        long: "usermap",
        arity: Arity::Value("STRING"),
        help: "map owners: FROM:TO,...",
        effect: Effect::Argument(|args, given| set_map(args, Map::User, given.value, false)),
        ..Flag::SWITCH
    },
    Flag {
        long: "groupmap",
        arity: Arity::Value("STRING"),
        help: "map groups: FROM:TO,...",
        effect: Effect::Argument(|args, given| set_map(args, Map::Group, given.value, false)),
        ..Flag::SWITCH
    },
    Flag {
        long: "chown",
        arity: Arity::Value("USER:GROUP"),
        help: "set USER and GROUP as the owner of all files",
        effect: Effect::Argument(|args, given| {
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
        }),
        ..Flag::SWITCH
    },
    Flag {
        long: "copy-as",
        arity: Arity::Value("USER[:GROUP]"),
        help: "run the copy as USER",
        man: "In a copy to or from another machine, only this end is concerned; -M--copy-as=USER is for the other end.",
        effect: Effect::Text(|args| &mut args.copy_as),
        ..Flag::LOCAL
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
        Map::User => args.preserve.owner = true,
        Map::Group => args.preserve.group = true,
    }
    Ok(())
}
