//! Names of users and groups, looked up through the system's name service once each.
//!
//! What is done with a name is the caller's; see `plan::idmap`.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::hash::Hash;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};
use uzers::os::unix::UserExt as _;

/// A name as the name service spells it.
pub type Name = Arc<[u8]>;

/// Remembers every answer, also that there was none. May be shared between threads; a lookup that takes
/// long (LDAP) holds up only those who ask in the same direction.
#[derive(Debug, Default)]
pub struct Ids {
    user_names: Mutex<HashMap<u32, Option<Name>>>,
    group_names: Mutex<HashMap<u32, Option<Name>>>,
    user_ids: Mutex<HashMap<Box<[u8]>, Option<u32>>>,
    group_ids: Mutex<HashMap<Box<[u8]>, Option<u32>>>,
}

fn once<K: Hash + Eq, V: Clone>(cache: &Mutex<HashMap<K, V>>, key: K, look: impl FnOnce(&K) -> V) -> V {
    // Every insert is whole, so a map behind a poisoned lock is still right.
    let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = cache.get(&key) {
        return known.clone();
    }
    let found = look(&key);
    cache.insert(key, found.clone());
    found
}

impl Ids {
    /// An empty memory.
    pub fn new() -> Ids {
        Ids::default()
    }

    /// A user's name.
    pub fn user_name(&self, uid: u32) -> Option<Name> {
        once(&self.user_names, uid, |&uid| uzers::get_user_by_uid(uid).map(|user| user.name().as_bytes().into()))
    }

    /// A group's name.
    pub fn group_name(&self, gid: u32) -> Option<Name> {
        once(&self.group_names, gid, |&gid| uzers::get_group_by_gid(gid).map(|group| group.name().as_bytes().into()))
    }

    /// A user's number.
    pub fn user_id(&self, name: &[u8]) -> Option<u32> {
        once(&self.user_ids, name.into(), |name| {
            let name = speakable(name)?;
            uzers::get_user_by_name(name).map(|user| user.uid())
        })
    }

    /// A group's number.
    pub fn group_id(&self, name: &[u8]) -> Option<u32> {
        once(&self.group_ids, name.into(), |name| {
            let name = speakable(name)?;
            uzers::get_group_by_name(name).map(|group| group.gid())
        })
    }
}

/// The home directory of a user; `None`: nobody has that name.
pub fn home_of(user: &[u8]) -> Option<Vec<u8>> {
    uzers::get_user_by_name(speakable(user)?).map(|user| user.home_dir().as_os_str().as_bytes().to_vec())
}

/// The home directory of the user who runs this process, whatever HOME says; `None`: the system does not know that user.
pub fn own_home() -> Option<OsString> {
    let uid = rustix::process::geteuid().as_raw();
    uzers::get_user_by_uid(uid).map(|user| user.home_dir().as_os_str().to_owned())
}

/// The name service takes C strings: a name with NUL exists nowhere.
fn speakable(name: &[u8]) -> Option<&OsStr> {
    (!name.contains(&0)).then(|| OsStr::from_bytes(name))
}

/// The groups that this process may give to its files without being super-user: its effective group
/// and its supplementary ones, sorted.
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
