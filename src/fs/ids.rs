//! Names of users and groups, each looked up once with the system's name service, or with a converter.
//!
//! What the names are used for is left to the caller; see `plan::idmap`.

use crate::plan::idmap::IdClass;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::hash::Hash;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use uzers::os::unix::UserExt as _;

/// A name as returned by the name service.
pub type Name = Arc<[u8]>;

/// A query for the names or numbers of users and groups.
#[derive(Debug, Clone, Copy)]
pub enum NameQuery<'a> {
    /// The name of a user or group.
    Name(IdClass, u32),
    /// The number of a user or group.
    Id(IdClass, &'a [u8]),
}

/// Answers a query; `None` if there is no such user or group.
type ConvertName = Box<dyn Fn(NameQuery<'_>) -> Option<Vec<u8>> + Send + Sync>;

/// Answers instead of the name service of the system. See the page of [`super`].
static NAME_CONVERTER: OnceLock<ConvertName> = OnceLock::new();

/// From now on, `convert` answers instead of the system's name service. Call it once.
pub fn convert_names_by(convert: ConvertName) {
    let was_set = NAME_CONVERTER.set(convert);
    assert!(was_set.is_ok(), "this process has a name converter already");
}

/// A cache of lookups, including failed ones. Threads can share it: a slow lookup (LDAP) blocks only other lookups of
/// the same kind.
#[derive(Debug, Default)]
pub struct Ids {
    /// By [`IdClass`].
    names: [Lookups<u32, Name>; 2],
    ids: [Lookups<Box<[u8]>, u32>; 2],
}

/// The results of lookups of one kind.
type Lookups<K, V> = Mutex<HashMap<K, Option<V>>>;

fn once<K: Hash + Eq, V: Clone>(
    cache: &Lookups<K, V>,
    key: K,
    look: impl FnOnce(&K) -> Option<V>,
) -> Option<V> {
    let mut cache = cache.lock();
    if let Some(known) = cache.get(&key) {
        return known.clone();
    }
    let found = look(&key);
    cache.insert(key, found.clone());
    found
}

impl Ids {
    /// Creates an empty cache.
    pub fn new() -> Ids {
        Ids::default()
    }

    /// Creates a cache in which all lookups that it can answer were made: those of users, then those of groups.
    #[cfg(test)]
    pub fn knowing(
        names: [Vec<(u32, Option<Name>)>; 2],
        ids: [Vec<(Name, Option<u32>)>; 2],
    ) -> Ids {
        let ids = ids.map(|ids| {
            ids.into_iter()
                .map(|(name, id)| (name.to_vec().into(), id))
                .collect()
        });
        Ids {
            names: names.map(|names| Mutex::new(names.into_iter().collect())),
            ids: ids.map(Mutex::new),
        }
    }

    /// Returns the name of a user or group.
    pub fn name(&self, class: IdClass, id: u32) -> Option<Name> {
        once(&self.names[class as usize], id, |&id| {
            match (NAME_CONVERTER.get(), class) {
                (Some(convert), _) => convert(NameQuery::Name(class, id)).map(Name::from),
                (None, IdClass::User) => {
                    uzers::get_user_by_uid(id).map(|user| user.name().as_bytes().into())
                }
                (None, IdClass::Group) => {
                    uzers::get_group_by_gid(id).map(|group| group.name().as_bytes().into())
                }
            }
        })
    }

    /// Returns the number of a user or group.
    pub fn id(&self, class: IdClass, name: &[u8]) -> Option<u32> {
        once(&self.ids[class as usize], name.into(), |name| {
            match (NAME_CONVERTER.get(), class) {
                (Some(convert), _) => number(convert(NameQuery::Id(class, name))?.trim_ascii()),
                (None, IdClass::User) => {
                    uzers::get_user_by_name(c_name(name)?).map(|user| user.uid())
                }
                (None, IdClass::Group) => {
                    uzers::get_group_by_name(c_name(name)?).map(|group| group.gid())
                }
            }
        })
    }
}

/// Returns the home directory of a user; `None` if there is no user of this name.
pub fn home_of(user: &[u8]) -> Option<Vec<u8>> {
    uzers::get_user_by_name(c_name(user)?)
        .map(|user| user.home_dir().as_os_str().as_bytes().to_vec())
}

/// Returns the names of the groups of a user; none if there is no user of this name.
pub fn group_names_of(user: &[u8]) -> Vec<Vec<u8>> {
    let groups = c_name(user)
        .and_then(uzers::get_user_by_name)
        .and_then(|user| user.groups());
    groups
        .into_iter()
        .flatten()
        .map(|group| group.name().as_bytes().to_vec())
        .collect()
}

/// Returns the numbers of the groups of a user, its primary one first; `None` if there is no such user.
pub fn group_ids_of(uid: u32) -> Option<Vec<u32>> {
    let user = uzers::get_user_by_uid(uid)?;
    let primary = user.primary_group_id();
    let others = user
        .groups()
        .into_iter()
        .flatten()
        .map(|group| group.gid())
        .filter(|&gid| gid != primary);
    Some(std::iter::once(primary).chain(others).collect())
}

/// A user of this machine, with one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The number of the user.
    pub uid: u32,
    /// The number of the group.
    pub gid: u32,
    /// The home directory.
    pub home: OsString,
}

/// Finds the account of `USER` or `USER:GROUP`, which are names or numbers; without a group, it has the primary one of the
/// user. On failure, returns what does not exist.
pub fn account(owner: &str) -> Result<Account, &'static str> {
    let (user, group) = owner
        .split_once(':')
        .map_or((owner, None), |(user, group)| (user, Some(group)));
    let by_name = c_name(user.as_bytes()).and_then(uzers::get_user_by_name);
    let user = by_name
        .or_else(|| uzers::get_user_by_uid(user.parse().ok()?))
        .ok_or("no such user")?;
    let gid = match group {
        None => user.primary_group_id(),
        Some(group) => {
            let by_name = c_name(group.as_bytes()).and_then(uzers::get_group_by_name);
            by_name
                .or_else(|| uzers::get_group_by_gid(group.parse().ok()?))
                .ok_or("no such group")?
                .gid()
        }
    };
    Ok(Account {
        uid: user.uid(),
        gid,
        home: user.home_dir().as_os_str().to_owned(),
    })
}

/// Finds the user and the groups that `--copy-as` names: `USER[:GROUP]`, names or numbers. Without a group, it is all
/// groups of the user, the primary one first. On failure, returns rsync's message.
pub fn copy_as(spec: &[u8]) -> Result<(u32, Vec<u32>), Vec<u8>> {
    let at = spec.iter().position(|&byte| byte == b':');
    let (user, group) = at.map_or((spec, None), |at| (&spec[..at], Some(&spec[at + 1..])));
    let invalid =
        |kind: &str, name: &[u8]| [format!("Invalid copy-as {kind}: ").as_bytes(), name].concat();
    let uid = number(user)
        .or_else(|| Ids::new().id(IdClass::User, user))
        .ok_or_else(|| invalid("user", user))?;
    if let Some(group) = group {
        let gid = number(group)
            .or_else(|| Ids::new().id(IdClass::Group, group))
            .ok_or_else(|| invalid("group", group))?;
        return Ok((uid, vec![gid]));
    }
    let user = uzers::get_user_by_uid(uid).ok_or("rsync: [sender] getpwuid failed: Success (0)")?;
    let primary = user.primary_group_id();
    let all = uzers::get_user_groups(user.name(), primary).unwrap_or_default();
    let others = all
        .iter()
        .map(uzers::Group::gid)
        .filter(|&gid| gid != primary);
    Ok((uid, std::iter::once(primary).chain(others).collect()))
}

fn number(name: &[u8]) -> Option<u32> {
    if !name.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(name).ok()?.parse().ok()
}

/// Returns the home directory of the user who runs this process, regardless of HOME; `None` if the system does not know
/// the user.
pub fn own_home() -> Option<OsString> {
    let uid = rustix::process::geteuid().as_raw();
    uzers::get_user_by_uid(uid).map(|user| user.home_dir().as_os_str().to_owned())
}

/// Converts a name for the name service, which takes C strings: a name with NUL does not exist.
fn c_name(name: &[u8]) -> Option<&OsStr> {
    (!name.contains(&0)).then(|| OsStr::from_bytes(name))
}

/// Returns the groups that this process may assign to its files without super-user rights: its effective and
/// supplementary groups, sorted.
pub fn own_groups() -> Vec<u32> {
    let mut groups: Vec<u32> = rustix::process::getgroups()
        .unwrap_or_default()
        .into_iter()
        .map(|gid| gid.as_raw())
        .collect();
    groups.push(rustix::process::getegid().as_raw());
    groups.sort_unstable();
    groups.dedup();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_ids_map_both_ways_and_unknown_ones_to_none() {
        let ids = Ids::new();
        for _ in 0..2 {
            assert_eq!(
                ids.name(IdClass::User, 0).as_deref(),
                Some(b"root".as_slice())
            );
            assert_eq!(ids.id(IdClass::User, b"root"), Some(0));
            assert_eq!(
                ids.id(IdClass::Group, &ids.name(IdClass::Group, 0).unwrap()),
                Some(0)
            );
            assert_eq!(ids.name(IdClass::User, 3_999_999_999), None);
            assert_eq!(ids.id(IdClass::User, b"no such user"), None);
            assert_eq!(ids.id(IdClass::Group, b"a\0b"), None);
        }
    }

    #[test]
    fn an_account_is_found_by_name_and_by_number() {
        let root = account("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        for same in ["0", "root:0", "0:root", "root:root"] {
            assert_eq!(account(same).as_ref(), Ok(&root), "{same}");
        }
        assert_eq!(account("no such user"), Err("no such user"));
        assert_eq!(account("3999999999"), Err("no such user"));
        assert_eq!(account("root:3999999999"), Err("no such group"));
        assert_eq!(account("ro\0ot:root"), Err("no such user"));
    }

    #[test]
    fn own_groups_include_the_effective_group() {
        assert!(own_groups().contains(&rustix::process::getegid().as_raw()));
    }
}
