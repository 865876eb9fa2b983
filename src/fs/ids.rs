//! Names of users and groups, each looked up once with the system's name service.
//!
//! What the names are used for is left to the caller; see `plan::idmap`.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::hash::Hash;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use uzers::os::unix::UserExt as _;

/// A name as returned by the name service.
pub type Name = Arc<[u8]>;

/// A cache of lookups, including failed ones. Threads can share it: a slow lookup (LDAP) blocks only other lookups of
/// the same kind.
#[derive(Debug, Default)]
pub struct Ids {
    user_names: Mutex<HashMap<u32, Option<Name>>>,
    group_names: Mutex<HashMap<u32, Option<Name>>>,
    user_ids: Mutex<HashMap<Box<[u8]>, Option<u32>>>,
    group_ids: Mutex<HashMap<Box<[u8]>, Option<u32>>>,
}

fn once<K: Hash + Eq, V: Clone>(cache: &Mutex<HashMap<K, V>>, key: K, look: impl FnOnce(&K) -> V) -> V {
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

    /// Returns a user's name.
    pub fn user_name(&self, uid: u32) -> Option<Name> {
        once(&self.user_names, uid, |&uid| uzers::get_user_by_uid(uid).map(|user| user.name().as_bytes().into()))
    }

    /// Returns a group's name.
    pub fn group_name(&self, gid: u32) -> Option<Name> {
        once(&self.group_names, gid, |&gid| uzers::get_group_by_gid(gid).map(|group| group.name().as_bytes().into()))
    }

    /// Returns a user's id.
    pub fn user_id(&self, name: &[u8]) -> Option<u32> {
        once(&self.user_ids, name.into(), |name| {
            let name = speakable(name)?;
            uzers::get_user_by_name(name).map(|user| user.uid())
        })
    }

    /// Returns a group's id.
    pub fn group_id(&self, name: &[u8]) -> Option<u32> {
        once(&self.group_ids, name.into(), |name| {
            let name = speakable(name)?;
            uzers::get_group_by_name(name).map(|group| group.gid())
        })
    }
}

/// Returns the home directory of a user; `None` if there is no user of this name.
pub fn home_of(user: &[u8]) -> Option<Vec<u8>> {
    uzers::get_user_by_name(speakable(user)?).map(|user| user.home_dir().as_os_str().as_bytes().to_vec())
}

/// Returns the home directory of the user who runs this process, regardless of HOME; `None` if the system does not know
/// the user.
pub fn own_home() -> Option<OsString> {
    let uid = rustix::process::geteuid().as_raw();
    uzers::get_user_by_uid(uid).map(|user| user.home_dir().as_os_str().to_owned())
}

/// Converts a name for the name service, which takes C strings: a name with NUL does not exist.
fn speakable(name: &[u8]) -> Option<&OsStr> {
    (!name.contains(&0)).then(|| OsStr::from_bytes(name))
}

/// Returns the groups that this process may assign to its files without super-user rights: its effective and
/// supplementary groups, sorted.
pub fn own_groups() -> Vec<u32> {
    let mut groups: Vec<u32> =
        rustix::process::getgroups().unwrap_or_default().into_iter().map(|gid| gid.as_raw()).collect();
    groups.push(rustix::process::getegid().as_raw());
    groups.sort_unstable();
    groups.dedup();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_both_ways_and_strangers_are_not() {
        let ids = Ids::new();
        for _ in 0..2 {
            assert_eq!(ids.user_name(0).as_deref(), Some(b"root".as_slice()));
            assert_eq!(ids.user_id(b"root"), Some(0));
            assert_eq!(ids.group_id(&ids.group_name(0).unwrap()), Some(0));
            assert_eq!(ids.user_name(3_999_999_999), None);
            assert_eq!(ids.user_id(b"no such user"), None);
            assert_eq!(ids.group_id(b"a\0b"), None);
        }
    }

    #[test]
    fn own_groups_hold_the_effective_one() {
        assert!(own_groups().contains(&rustix::process::getegid().as_raw()));
    }
}
