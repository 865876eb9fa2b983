//! Options for attributes that are kept, mapped or changed in the copy.

use crate::cli::args::{Args, GivenMap};
use crate::cli::flag::{Effect, Flag, Support};
use crate::cli::value::{chmod, refuse};
use crate::error::Result;

/// The options of this file, in the order of `--help`.
pub const FLAGS: &[Flag] = &[
    Flag::switch("links", "copy symlinks as symlinks")
        .short('l')
        .negations(&["no-links", "no-l"])
        .effect(Effect::Switch(|args| &mut args.preserve.links)),
    Flag::switch("safe-links", "skip symlinks that point outside the tree")
        .effect(Effect::Switch(|args| &mut args.preserve.safe_links)),
    Flag::switch("insecure-links", "follow symlinks of any owner in paths given by options")
        .negations(&["no-insecure-links"])
        .effect(Effect::Switch(|args| &mut args.insecure_links))
        .local()
        .man(
            "Applies to the destination path, too. Without this option, symlinks in these paths are followed only if \
             they belong to root or to the user who runs the program. The option applies only to this end, and its \
             position on the command line does not matter.",
        ),
    Flag::switch("munge-links", "store symlinks in an unusable form; restore them when sending")
        .negations(&["no-munge-links"])
        .effect(Effect::Switch(|args| &mut args.preserve.munge_links))
        .local(),
    Flag::switch("keep-dirlinks", "treat a symlink to a directory at the destination as that directory")
        .short('K')
        .effect(Effect::Switch(|args| &mut args.preserve.keep_dirlinks)),
    Flag::switch("hard-links", "preserve hard links")
        .short('H')
        .negations(&["no-hard-links", "no-H"])
        .effect(Effect::Switch(|args| &mut args.preserve.hard_links))
        .man(
            "A name that replaces an entry of another kind is reported as new. If the destination has none of the \
             names of a file, the file is transferred under the last of its names within the lookahead: at most \
             10,000 entries in 1,000 directories after its first name. rsync has a shorter lookahead. With \
             --no-inc-recursive, it is the last of all names.",
        ),
    Flag::switch("perms", "preserve permissions")
        .short('p')
        .negations(&["no-perms", "no-p"])
        .effect(Effect::Switch(|args| &mut args.preserve.perms))
        .man(
            "Without this option, a new file gets the default mode of new files. rsync 3.5.0 uses the mode of the \
             basis file of --fuzzy, or of the symlink or device that the file replaces.",
        ),
    Flag::switch("executability", "preserve executability")
        .short('E')
        .effect(Effect::Switch(|args| &mut args.preserve.executability)),
    Flag::value("chmod", "CHMOD", "change permissions in the transfer")
        .effect(Effect::Argument(|args, given| {
            match chmod::parse(given.value, args.umask) {
                Some(changes) => args.preserve.chmod.extend(changes),
                None => {
                    return Err(refuse([b"Invalid argument passed to --chmod (", given.value, b")"].concat()));
                }
            }
            Ok(())
        }))
        .man(
            "CHMOD is as in chmod(1); a leading D or F limits it to directories or files. The option can be repeated.",
        ),
    Flag::switch("acls", "preserve ACLs (implies --perms)").short('A').negations(&["no-acls", "no-A"]).effect(
        Effect::Either(
            |args| {
                args.preserve.acls = true;
                args.preserve.perms = true;
            },
            |args| args.preserve.acls = false,
        ),
    ),
    Flag::switch("xattrs", "preserve extended attributes; -XX: also those that rsync uses")
        .short('X')
        .negations(&["no-xattrs", "no-X"])
        .effect(Effect::Either(
            |args| args.preserve.xattrs = args.preserve.xattrs.saturating_add(1).min(2),
            |args| args.preserve.xattrs = 0,
        )),
    Flag::switch("owner", "preserve the owner (super-user only)")
        .short('o')
        .negations(&["no-owner", "no-o"])
        .effect(Effect::Switch(|args| &mut args.preserve.owner)),
    Flag::switch("group", "preserve the group")
        .short('g')
        .negations(&["no-group", "no-g"])
        .effect(Effect::Switch(|args| &mut args.preserve.group)),
    Flag::switch("devices", "preserve device files (super-user only)")
        .negations(&["no-devices"])
        .effect(Effect::Switch(|args| &mut args.preserve.devices)),
    Flag::switch("specials", "preserve named pipes and sockets")
        .negations(&["no-specials"])
        .effect(Effect::Switch(|args| &mut args.preserve.specials)),
    Flag::switch("", "same as --devices --specials")
        .short('D')
        .negations(&["no-D"])
        .effect(Effect::Switches(&[|args| &mut args.preserve.devices, |args| &mut args.preserve.specials])),
    Flag::switch("drop-D", "create no devices or special files at the destination")
        .negations(&["no-drop-D"])
        .effect(Effect::Switch(|args| &mut args.preserve.drop_devices))
        .local(),
    Flag::switch("write-devices", "write file data into existing devices (implies --inplace)")
        .negations(&["no-write-devices"])
        .effect(Effect::Switch(|args| &mut args.preserve.write_devices))
        .man(
            "Data on the device after the end of the file is kept. A block device is synced before the file is \
             reported as copied. A server rejects the option for keys that are limited to some directories (--root).",
        ),
    Flag::switch("times", "preserve modification times")
        .short('t')
        .negations(&["no-times", "no-t"])
        .effect(Effect::Switch(|args| &mut args.preserve.times)),
    Flag::switch("atimes", "preserve access times; -UU implies --open-noatime")
        .short('U')
        .negations(&["no-atimes", "no-U"])
        .effect(Effect::Either(
            |args| {
                args.atimes = args.atimes.saturating_add(1);
                if args.atimes > 1 {
                    args.select.open_noatime = true;
                }
            },
            |args| args.atimes = 0,
        )),
    Flag::switch("crtimes", "preserve creation times (not supported on this system)")
        .short('N')
        .negations(&["no-crtimes", "no-N"])
        .effect(Effect::Argument(|_, _| Err(refuse("This rsync does not support --crtimes (-N)"))))
        .support(Support::Refused),
    Flag::switch("omit-dir-times", "do not set the times of directories")
        .short('O')
        .negations(&["no-omit-dir-times", "no-O"])
        .effect(Effect::Switch(|args| &mut args.preserve.omit_dir_times)),
    Flag::switch("omit-link-times", "do not set the times of symlinks")
        .short('J')
        .negations(&["no-omit-link-times", "no-J"])
        .effect(Effect::Switch(|args| &mut args.preserve.omit_link_times)),
    Flag::switch("super", "attempt operations that require the super-user").negations(&["no-super"]).effect(
        Effect::Either(
            |args| (args.preserve.super_user, args.preserve.fake_super) = (Some(true), false),
            |args| (args.preserve.super_user, args.preserve.fake_super) = (Some(false), false),
        ),
    ),
    Flag::switch("fake-super", "store privileged attributes in extended attributes")
        .effect(Effect::Set(|args| {
            (args.preserve.super_user, args.preserve.fake_super) = (None, true);
        }))
        .local()
        .man(
            "The last of --fake-super, --super and --no-super takes effect. Without -o or -g, the owner or group of \
             the source is not stored; rsync 3.5.0 stores a number without meaning.",
        ),
    Flag::switch("numeric-ids", "preserve owner and group by number, not by name")
        .negations(&["no-numeric-ids"])
        .effect(Effect::Switch(|args| &mut args.preserve.numeric_ids)),
    Flag::value("usermap", "STRING", "map owners: FROM:TO,...")
        .effect(Effect::Argument(|args, given| set_map(args, Map::User, given.value, false))),
    Flag::value("groupmap", "STRING", "map groups: FROM:TO,...")
        .effect(Effect::Argument(|args, given| set_map(args, Map::Group, given.value, false))),
    Flag::value("chown", "USER:GROUP", "set USER and GROUP as the owner of all files").effect(Effect::Argument(
        |args, given| {
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
    )),
    Flag::value("copy-as", "USER[:GROUP]", "run the copy as USER")
        .effect(Effect::Text(|args| &mut args.copy_as))
        .local()
        .man(
            "In a copy to or from another machine, only this end is concerned; -M--copy-as=USER is for the other end.",
        ),
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
    *slot = Some(GivenMap {
        by_chown,
        text: text.to_vec(),
    });
    // The letters for a server state what is kept. With --no-o or --no-g after the map, the client sends no owners.
    match map {
        Map::User => args.preserve.owner |= !args.server,
        Map::Group => args.preserve.group |= !args.server,
    }
    Ok(())
}
