//! The user, the root and the sandbox of a connection.

use super::{DaemonConnection, ModulePlace, Refusal, failed, refuse};
use crate::cmd::input_files;
use crate::cmd::rsync_daemon::policy::config::Module;
use crate::cmd::rsync_daemon::policy::module_path::{self, ModulePath};
use crate::cmd::rsync_daemon::policy::params::{Param, Values};
use crate::filter::{ModuleRules, Parsed, split_rules};
use crate::flist::Kind;
use crate::fs::charset::{self, NameCharset};
use crate::fs::{ids, sandbox, sys, trusted_path};
use crate::options::{LinkOwners, RuleArg};
use crate::plan::idmap::IdClass;
use crate::plan::safelink;
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
        let values = &module.values;
        // Users, rules and character sets are looked up first: below another root, the system may not find its tables.
        let identity = self.identity(values)?;
        let path_value = self.configured_path(module)?;
        let chroot = ChrootUse::for_module(values, &path_value);
        let path = ModulePath::parse(&path_value, chroot != ChrootUse::Never);
        self.set_var("RSYNC_MODULE_PATH", path.outside_of_chroot());
        self.set_var("RSYNC_PID", std::process::id().to_string());
        let rules = self.read_rules(values)?;
        let charset = self.open_charset(values)?;
        let hooks = self.start_hooks(values, early_input)?;

        let owners = if values.flag(Param::InsecureLinks) {
            LinkOwners::Anyone
        } else {
            LinkOwners::Trusted
        };
        let path = match self.enter_root(&path, chroot)? {
            EnteredRoot::OfModule => path,
            EnteredRoot::Unchanged => ModulePath::parse(&path_value, false),
        };
        self.enter_dir(&path, owners)?;
        let munges = self.munges_links(values, &path)?;

        let rules = ModuleRules::new(rules, &path.dir).map(Arc::new);
        let hidden = rules.clone().map(|rules| -> sandbox::HiddenPaths {
            Box::new(move |path, is_dir| rules.exclude(path, is_dir))
        });
        let sandbox_root = if values.flag(Param::InsecureLinks) {
            b"/".to_vec()
        } else {
            path.dir.clone()
        };
        // The path is not followed again: its symlinks may have changed since.
        let open_root = move |_: &[u8]| trusted_path::open_dir_to_search(b".", owners);
        // This comes before the identity: the module's user need not be able to search the directories above the module.
        if let Err(error) = sandbox::confine_module(&[sandbox_root], read_only, hidden, &open_root)
        {
            self.log.put(&failed("openat2", &path.dir, &error));
            return refuse("chdir failed");
        }
        self.take_identity(&identity)?;
        Ok(ModulePlace {
            path,
            munges,
            rules,
            hooks,
            charset,
        })
    }

    /// Returns the value of `path`, which must be absolute.
    fn configured_path(&self, module: &Module) -> Result<Vec<u8>, Refusal> {
        let name = &module.name[..];
        let Some(path) = self.text(&module.values, Param::Path) else {
            let line = [b"No path specified for module ", name].concat();
            self.log.put(&line);
            return refuse("no path setting.");
        };
        if !path.starts_with(b"/") {
            let line = [b"the path of module ", name, b" is not absolute: ", &path].concat();
            self.log.put(&line);
            return refuse("no path setting.");
        }
        Ok(path)
    }

    /// Opens the conversion of names for clients that use `--iconv`, if the module has one.
    fn open_charset(&self, values: &Values) -> Result<Option<NameCharset>, Refusal> {
        let Some(name) = self.text(values, Param::Charset) else {
            return Ok(None);
        };
        match charset::open(&name) {
            Ok(charset) => Ok(Some(charset)),
            Err(line) => {
                self.log.put(&line);
                refuse("invalid charset")
            }
        }
    }

    /// Changes the root of this process to that of the module, if it has one.
    fn enter_root(&self, path: &ModulePath, chroot: ChrootUse) -> Result<EnteredRoot, Refusal> {
        let Some(root) = &path.chroot else {
            return Ok(EnteredRoot::OfModule);
        };
        let Err(error) = sys::enter_root(root) else {
            return Ok(EnteredRoot::OfModule);
        };
        self.log.put(&failed("chroot", root, &error));
        if chroot == ChrootUse::Required || error.kind() == io::ErrorKind::NotFound {
            return refuse("chroot failed");
        }
        Ok(EnteredRoot::Unchanged)
    }

    /// Changes the working directory to that of the module.
    fn enter_dir(&self, path: &ModulePath, owners: LinkOwners) -> Result<(), Refusal> {
        // In a chroot, links cannot lead out; as in rsync, their owners do not matter.
        let entered = match path.chroot {
            Some(_) => sys::change_dir(&path.dir),
            None => trusted_path::open_dir_to_search(&path.dir, owners)
                .and_then(|dir| sys::change_to_dir(dir.as_fd())),
        };
        let Err(error) = entered else {
            return Ok(());
        };
        if trusted_path::is_refused(&error) {
            self.log.put(trusted_path::REFUSAL);
        }
        let start = b"rsync: [Receiver] chdir ".as_slice();
        let line = [start, &path.dir, b" failed: ", &errno_words(&error)].concat();
        self.log.put(&line);
        refuse("chdir failed")
    }

    /// Returns whether the values of symlinks are munged in the module, which is this process' working directory.
    fn munges_links(&self, values: &Values, path: &ModulePath) -> Result<bool, Refusal> {
        let munges = values
            .optional_flag(Param::MungeSymlinks)
            .unwrap_or(!path.is_whole_root());
        let prefix = safelink::MUNGED;
        let prefix_leads_somewhere = sys::stat_path(prefix, true)
            .is_ok_and(|stat| Kind::of_mode(stat.mode) == Some(Kind::Dir));
        if munges && prefix_leads_somewhere {
            let start = b"Symlink munging is unsafe when a ".as_slice();
            let line = [start, prefix, b" directory exists."].concat();
            self.log.put(&line);
            return refuse("daemon security issue -- contact admin");
        }
        Ok(munges)
    }

    /// Takes on the user and the groups that serve the module.
    fn take_identity(&self, identity: &ModuleIdentity) -> Result<(), Refusal> {
        let Err((call, error)) = sys::take_identity(identity.uid, &identity.gids) else {
            return Ok(());
        };
        let number = match call {
            "setuid" => identity.uid,
            "setgid" => identity.gids.first().copied(),
            _ => None,
        };
        let call_and_number = match number {
            Some(number) => format!("{call} {number}"),
            None => call.to_owned(),
        };
        let start = b"rsync: [Receiver] ".as_slice();
        let reason = errno_words(&error);
        let line = [start, call_and_number.as_bytes(), b" failed: ", &reason].concat();
        self.log.put(&line);
        refuse(format!("{call} failed"))
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
            if element == b"*" && index == 0 {
                let Some(all) = ids::group_ids_of(uid.unwrap_or(sys::ids().0)) else {
                    return invalid("gid", element);
                };
                gids.extend(all);
                continue;
            }
            match known.group(element) {
                Some(gid) => gids.push(gid),
                None => return invalid("gid", element),
            }
        }
        Ok(ModuleIdentity { uid, gids })
    }

    /// Reads the rules of a module.
    fn read_rules(&self, values: &Values) -> Result<Vec<Parsed>, Refusal> {
        let listed = |param: Param, rule: fn(Vec<u8>) -> RuleArg| {
            let text = self.text(values, param).unwrap_or_default();
            split_rules(&text, param == Param::Filter)
                .into_iter()
                .map(rule)
                .collect::<Vec<_>>()
        };
        let file = |param: Param, rule: fn(Vec<u8>) -> RuleArg| {
            self.text(values, param).map(rule).into_iter().collect()
        };
        let args = [
            listed(Param::Filter, RuleArg::Filter),
            file(Param::IncludeFrom, RuleArg::IncludeFrom),
            listed(Param::Include, RuleArg::Include),
            file(Param::ExcludeFrom, RuleArg::ExcludeFrom),
            listed(Param::Exclude, RuleArg::Exclude),
        ];
        let parsed = input_files::module_rules(self.env, &args.concat()).map_err(|error| {
            let lines = [
                error.message,
                final_error::error_line(error.exit, "Receiver"),
            ];
            for line in &lines {
                self.log.put(line);
            }
            Refusal::Over
        })?;
        for parsed in &parsed {
            if let Parsed::TooLong(warning) = parsed {
                self.log.put(warning);
            }
        }
        Ok(parsed)
    }
}

/// Whether a module's directory becomes the root of the process that serves it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChrootUse {
    /// The module is not served without it.
    Required,
    /// The module is served without it if the system does not permit it.
    IfPermitted,
    Never,
}

impl ChrootUse {
    /// `path`: the value of `path`. A marker `/./` in it requires a new root, unless `use chroot` is set.
    fn for_module(values: &Values, path: &[u8]) -> ChrootUse {
        match values.optional_flag(Param::UseChroot) {
            Some(true) => ChrootUse::Required,
            Some(false) => ChrootUse::Never,
            None if module_path::split_marker(path).is_some() => ChrootUse::Required,
            None if sys::ids().0 == 0 => ChrootUse::IfPermitted,
            None => ChrootUse::Never,
        }
    }
}

/// The root of this process after [`DaemonConnection::enter_root`].
enum EnteredRoot {
    /// The one that the module wants.
    OfModule,
    /// That of the daemon, because the system does not permit to change it.
    Unchanged,
}

/// The user and the groups that serve a module.
struct ModuleIdentity {
    /// `None`: this process keeps its user.
    uid: Option<u32>,
    /// The first one is the primary group. If there are none, this process keeps its groups.
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
