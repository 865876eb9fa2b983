//! The user, the root and the sandbox of a connection.

use super::{DaemonConnection, ModulePlace, Refusal, failed, refuse};
use crate::cmd::input_files;
use crate::cmd::rsync_daemon::policy::config::Module;
use crate::cmd::rsync_daemon::policy::module_path::{self, ModulePath};
use crate::cmd::rsync_daemon::policy::params::{Param, Values};
use crate::filter::{ModuleRules, Parsed, split_rules};
use crate::fs::{charset, ids, sandbox, sys, trusted_path};
use crate::options::{LinkOwners, RuleArg};
use crate::plan::idmap::IdClass;
use crate::report::event::errno_words;
use crate::report::final_error;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

/// The unprivileged user, and the names of its group, that serve clients if none are configured.
const DEFAULT_USER: &[u8] = b"nobody";
const DEFAULT_GROUPS: [&[u8]; 2] = [b"nobody", b"nogroup"];

impl DaemonConnection<'_> {
    /// Carries out `daemon chroot`, `daemon gid` and `daemon uid`.
    pub(super) fn confine_daemon(&mut self, globals: &Values) -> Result<(), Refusal> {
        if let Some(root) = self.text(globals, Param::DaemonChroot)
            && let Err(error) = sys::enter_root(&root)
        {
            self.log.put(&failed("daemon chroot", &root, &error));
            return Err(Refusal::Over);
        }
        let gid = self.text(globals, Param::DaemonGid);
        let uid = self.text(globals, Param::DaemonUid);
        let known = ModuleIds::new();
        let gid = gid.map(|name| known.group(&name).ok_or(name)).transpose();
        let uid = uid.map(|name| known.user(&name).ok_or(name)).transpose();
        let (gid, uid) = match (gid, uid) {
            (Ok(gid), Ok(uid)) => (gid, uid),
            (Err(name), _) | (_, Err(name)) => {
                self.log
                    .put(&[b"Invalid daemon uid or gid ", &name[..]].concat());
                return Err(Refusal::Over);
            }
        };
        sys::take_identity(uid, gid.as_slice()).map_err(|(what, error)| {
            self.log.put(
                &[
                    b"daemon ",
                    what.as_bytes(),
                    b" failed: ",
                    &errno_words(&error)[..],
                ]
                .concat(),
            );
            Refusal::Over
        })
    }

    /// Takes on the identity in which a module is served, and confines this process to its directory.
    pub(super) fn enter(
        &mut self,
        module: &Module,
        early_input: &[u8],
        read_only: bool,
    ) -> Result<ModulePlace, Refusal> {
        let name = &module.name[..];
        let values = &module.values;
        let identity = self.identity(values)?;
        let Some(path) = self.text(values, Param::Path) else {
            self.log
                .put(&[b"No path specified for module ", name].concat());
            return refuse("no path setting.");
        };
        if !path.starts_with(b"/") {
            self.log.put(
                &[
                    b"the path of module ",
                    name,
                    b" is not absolute: ",
                    &path[..],
                ]
                .concat(),
            );
            return refuse("no path setting.");
        }
        let wanted = values.optional_flag(Param::UseChroot);
        let must_chroot = wanted.unwrap_or(module_path::split_marker(&path).is_some());
        let tries_chroot = must_chroot || wanted.is_none() && sys::ids().0 == 0;
        let mut place = ModulePath::parse(&path, tries_chroot);
        let shown_path = match &place.chroot {
            Some(root) if !place.is_whole_root() => crate::path::join(root, &place.dir[1..]),
            Some(root) => root.clone(),
            None => place.dir.clone(),
        };
        self.set_var("RSYNC_MODULE_PATH", shown_path);
        self.set_var("RSYNC_PID", std::process::id().to_string());
        let rules = self.read_rules(values)?;
        // Below another root, the system may not find its tables.
        let charset = self
            .text(values, Param::Charset)
            .map(|name| charset::open(&name))
            .transpose();
        let charset = charset.or_else(|line| {
            self.log.put(&line);
            refuse("invalid charset")
        })?;
        let hooks = self.start_hooks(values, early_input)?;
        if let Some(root) = place.chroot.clone()
            && let Err(error) = sys::enter_root(&root)
        {
            self.log.put(&failed("chroot", &root, &error));
            if must_chroot || error.kind() == io::ErrorKind::NotFound {
                return refuse("chroot failed");
            }
            place = ModulePath::parse(&path, false);
        }
        let owners = if values.flag(Param::InsecureLinks) {
            LinkOwners::Anyone
        } else {
            LinkOwners::Trusted
        };
        // In a chroot, links cannot lead out; as in rsync, their owners do not matter.
        let entered = match place.chroot {
            Some(_) => sys::change_dir(&place.dir),
            None => trusted_path::open_dir_to_search(&place.dir, owners)
                .and_then(|dir| sys::change_to_dir(dir.as_fd())),
        };
        if let Err(error) = entered {
            if trusted_path::is_refused(&error) {
                self.log.put(trusted_path::REFUSAL);
            }
            self.log.put(
                &[
                    b"rsync: [Receiver] chdir ",
                    &place.dir[..],
                    b" failed: ",
                    &errno_words(&error),
                ]
                .concat(),
            );
            return refuse("chdir failed");
        }
        let munges = values
            .optional_flag(Param::MungeSymlinks)
            .unwrap_or(!place.is_whole_root());
        let prefix = crate::plan::safelink::MUNGED;
        if munges
            && sys::stat_path(prefix, true).is_ok_and(|stat| stat.mode & 0o170_000 == 0o040_000)
        {
            self.log.put(
                &[
                    b"Symlink munging is unsafe when a ",
                    prefix,
                    b" directory exists.",
                ]
                .concat(),
            );
            return refuse("daemon security issue -- contact admin");
        }
        // The module's user need not be able to search the directories above the module.
        let roots = if values.flag(Param::InsecureLinks) {
            b"/".to_vec()
        } else {
            place.dir.clone()
        };
        let rules = ModuleRules::new(rules, &place.dir).map(Arc::new);
        let hidden = rules.clone().map(|rules| -> sandbox::HiddenPaths {
            Box::new(move |path, is_dir| rules.exclude(path, is_dir))
        });
        // The path is not followed again: its symlinks may have changed since.
        let open_root = move |_: &[u8]| trusted_path::open_dir_to_search(b".", owners);
        if let Err(error) = sandbox::confine_module(&[roots], read_only, hidden, &open_root) {
            self.log.put(&failed("openat2", &place.dir, &error));
            return refuse("chdir failed");
        }
        if let Err((what, error)) = sys::take_identity(identity.uid, &identity.gids) {
            let number = match what {
                "setuid" => identity.uid,
                "setgid" => identity.gids.first().copied(),
                _ => None,
            };
            let number = number.map_or_else(String::new, |number| format!(" {number}"));
            self.log.put(
                &[
                    b"rsync: [Receiver] ",
                    what.as_bytes(),
                    number.as_bytes(),
                    b" failed: ",
                    &errno_words(&error)[..],
                ]
                .concat(),
            );
            return refuse(format!("{what} failed"));
        }
        Ok(ModulePlace {
            path: place,
            munges,
            rules,
            hooks,
            charset,
        })
    }

    /// Returns the user and the groups that serve the module. A process that is not privileged keeps its own unless the
    /// module names others, which it cannot take on.
    fn identity(&self, values: &Values) -> Result<ModuleIdentity, Refusal> {
        let known = ModuleIds::new();
        let invalid = |what: &str, name: &[u8]| {
            self.log
                .put(&[b"Invalid ", what.as_bytes(), b" ", name].concat());
            refuse([b"invalid ", what.as_bytes(), b" ", name].concat())
        };
        let is_root = sys::ids().0 == 0;
        let default_user = is_root.then(|| DEFAULT_USER.to_vec());
        let uid = match self.text(values, Param::Uid).or(default_user) {
            None => None,
            Some(name) => match known.user(&name) {
                None => return invalid("uid", &name),
                uid => uid,
            },
        };
        let Some(list) = self.text(values, Param::Gid) else {
            if !is_root {
                return Ok(ModuleIdentity {
                    uid,
                    gids: Vec::new(),
                });
            }
            return match DEFAULT_GROUPS.iter().find_map(|name| known.group(name)) {
                None => invalid("gid", DEFAULT_USER),
                Some(gid) => Ok(ModuleIdentity {
                    uid,
                    gids: vec![gid],
                }),
            };
        };
        let mut gids = Vec::new();
        for (index, element) in crate::cmd::rsync_daemon::policy::list_elements(&list).enumerate() {
            match known.group(element) {
                _ if element == b"*" && index == 0 => {
                    let all = ids::group_ids_of(uid.unwrap_or(sys::ids().0));
                    let Some(all) = all else {
                        return invalid("gid", element);
                    };
                    gids.extend(all);
                }
                Some(gid) => gids.push(gid),
                None => return invalid("gid", element),
            }
        }
        Ok(ModuleIdentity { uid, gids })
    }

    /// Reads the rules of a module.
    fn read_rules(&self, values: &Values) -> Result<Vec<Parsed>, Refusal> {
        let listed = |param: Param, of: fn(Vec<u8>) -> RuleArg| {
            let text = self.text(values, param).unwrap_or_default();
            split_rules(&text, param == Param::Filter)
                .into_iter()
                .map(of)
                .collect::<Vec<_>>()
        };
        let file = |param: Param, of: fn(Vec<u8>) -> RuleArg| {
            self.text(values, param).map(of).into_iter().collect()
        };
        let args = [
            listed(Param::Filter, RuleArg::Filter),
            file(Param::IncludeFrom, RuleArg::IncludeFrom),
            listed(Param::Include, RuleArg::Include),
            file(Param::ExcludeFrom, RuleArg::ExcludeFrom),
            listed(Param::Exclude, RuleArg::Exclude),
        ];
        input_files::module_rules(self.env, &args.concat()).map_err(|error| {
            let lines = [
                error.message,
                final_error::error_line(error.exit, "Receiver"),
            ];
            for line in &lines {
                self.log.put(line);
            }
            Refusal::Over
        })
    }
}

/// Who serves a module.
struct ModuleIdentity {
    /// `None`: the user of this process.
    uid: Option<u32>,
    /// The first one is the primary group. If there are none, those of this process stay.
    gids: Vec<u32>,
}

/// Finds users and groups by name or number.
struct ModuleIds(ids::Ids);

impl ModuleIds {
    fn new() -> ModuleIds {
        ModuleIds(ids::Ids::new())
    }

    fn user(&self, name: &[u8]) -> Option<u32> {
        number(name).or_else(|| self.0.id(IdClass::User, name))
    }

    fn group(&self, name: &[u8]) -> Option<u32> {
        number(name).or_else(|| self.0.id(IdClass::Group, name))
    }
}

fn number(text: &[u8]) -> Option<u32> {
    str::from_utf8(text).ok()?.parse().ok()
}
