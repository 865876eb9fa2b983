//! Maps owners and groups: by `--usermap`, `--groupmap` or `--chown`, else by name, else by number.
//!
//! Name lookups ([`IdNames`]) and setting ids are left to the caller.

use crate::filter;
use crate::options::{IdFrom, IdMap, IdTo, Preserve};
use parking_lot::RwLock;
use std::collections::HashMap;

/// Whether an id is a user's or a group's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdClass {
    /// A user.
    User,
    /// A group.
    Group,
}

impl IdClass {
    /// Returns the class of the ids that a flag for groups marks.
    pub fn new(is_group: bool) -> IdClass {
        if is_group {
            IdClass::Group
        } else {
            IdClass::User
        }
    }
}

/// User and group names on both sides. In a local copy both sides are the same.
pub trait IdNames {
    /// Returns the sender's name for an id that is not 0. Never called under `--numeric-ids`.
    fn source_name(&self, class: IdClass, id: u32) -> Option<Vec<u8>>;
    /// Returns the name of id 0: the one at the sender, or that of the receiver if the sender does not send names of id 0.
    fn name_of_zero(&self, class: IdClass) -> Option<Vec<u8>>;
    /// Returns the receiver's id for a name.
    fn dest_id(&self, class: IdClass, name: &[u8]) -> Option<u32>;
}

/// A name on the right side of a map that the receiver does not know. Its pair is ignored, the line is printed once,
/// and the exit code does not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// The map that contains it.
    pub class: IdClass,
    pub name: Vec<u8>,
}

impl Unknown {
    /// Returns the whole line for stderr.
    pub fn line(&self) -> Vec<u8> {
        let option: &[u8] = match self.class {
            IdClass::User => b"usermap",
            IdClass::Group => b"groupmap",
        };
        [b"Unknown --", option, b" name on receiver: ", &self.name].concat()
    }
}

/// The privileges of the receiving process.
#[derive(Debug, Clone, Copy)]
pub struct Privileges<'a> {
    /// Whether it acts as super-user: uid 0 without `--no-super`, `--super`, or `--fake-super`.
    pub is_super: bool,
    /// The process's groups, sorted. Used only if `is_super` is false.
    pub groups: &'a [u32],
}

/// Maps ids and caches the results. Can be shared between threads.
#[derive(Debug)]
pub struct IdMapper {
    numeric_ids: bool,
    keeps_owner: bool,
    keeps_group: bool,
    users: Table,
    groups: Table,
}

#[derive(Debug)]
struct Table {
    class: IdClass,
    pairs: Vec<(IdFrom, u32)>,
    known: RwLock<HashMap<u32, u32>>,
}

impl IdMapper {
    /// Resolves the right sides of the maps. The caller reports the unknown names.
    pub fn new(preserve: &Preserve, names: &dyn IdNames) -> (IdMapper, Vec<Unknown>) {
        let mut unknown = Vec::new();
        let users = Table::new(IdClass::User, &preserve.usermap, names, &mut unknown);
        let groups = Table::new(IdClass::Group, &preserve.groupmap, names, &mut unknown);
        let mapper = IdMapper {
            numeric_ids: preserve.numeric_ids,
            keeps_owner: preserve.owner,
            keeps_group: preserve.group,
            users,
            groups,
        };
        (mapper, unknown)
    }

    /// Returns the local id for an id of the source, whether or not it may be set.
    pub fn map(&self, class: IdClass, id: u32, names: &dyn IdNames) -> u32 {
        let table = match class {
            IdClass::User => &self.users,
            IdClass::Group => &self.groups,
        };
        if self.numeric_ids && table.pairs.is_empty() {
            return id;
        }
        if let Some(known) = table.known.read().get(&id) {
            return *known;
        }
        let mapped = table.look(id, self.numeric_ids, names);
        table.known.write().insert(id, mapped);
        mapped
    }

    /// Like `map`, for a user or group in an ACL: under `--numeric-ids` rsync does not map these.
    pub fn map_in_acl(&self, class: IdClass, id: u32, names: &dyn IdNames) -> u32 {
        if self.numeric_ids {
            id
        } else {
            self.map(class, id, names)
        }
    }

    /// Returns the owner and group that an entry should have. `None` means that this one is neither changed nor
    /// compared.
    ///
    /// Without super-user powers the owner is never changed, and the group only to one that the process is in.
    pub fn wanted(
        &self,
        uid: u32,
        gid: u32,
        privileges: Privileges<'_>,
        names: &dyn IdNames,
    ) -> (Option<u32>, Option<u32>) {
        let uid =
            (self.keeps_owner && privileges.is_super).then(|| self.map(IdClass::User, uid, names));
        let gid = self
            .keeps_group
            .then(|| self.map(IdClass::Group, gid, names))
            .filter(|gid| privileges.is_super || privileges.groups.binary_search(gid).is_ok());
        (uid, gid)
    }
}

impl Table {
    fn new(
        class: IdClass,
        maps: &[IdMap],
        names: &dyn IdNames,
        unknown: &mut Vec<Unknown>,
    ) -> Table {
        let mut pairs = Vec::new();
        for map in maps {
            match &map.to {
                IdTo::Id(id) => pairs.push((map.from.clone(), *id)),
                IdTo::Name(name) => match names.dest_id(class, name) {
                    Some(id) => pairs.push((map.from.clone(), id)),
                    None => unknown.push(Unknown {
                        class,
                        name: name.clone(),
                    }),
                },
            }
        }
        Table {
            class,
            pairs,
            known: RwLock::default(),
        }
    }

    fn look(&self, id: u32, numeric_ids: bool, names: &dyn IdNames) -> u32 {
        let name = match (numeric_ids, id) {
            (true, _) => None,
            (false, 0) => names.name_of_zero(self.class),
            (false, _) => names.source_name(self.class, id),
        };
        let by_map = first_match(&self.pairs, |(from, _)| from, id, name.as_deref());
        match (by_map, name) {
            (Some((_, to)), _) => *to,
            (None, Some(name)) if id != 0 => names.dest_id(self.class, &name).unwrap_or(id),
            (None, Some(_) | None) => id,
        }
    }
}

/// Returns the first of `pairs` whose left side matches an id of the sender and its name.
pub fn first_match<'p, P>(
    pairs: &'p [P],
    from: impl Fn(&P) -> &IdFrom,
    id: u32,
    name: Option<&[u8]>,
) -> Option<&'p P> {
    pairs.iter().find(|pair| match from(pair) {
        IdFrom::Range(low, high) => (*low..=*high).contains(&id),
        // Only a text with `*`, `?` or `[` is a pattern.
        IdFrom::Name(pattern) => filter::name_matches(pattern, name.unwrap_or_default()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Sender: 5 games, 7 lp, 9 moved. Receiver: root 0, daemon 1, games 5, moved 90.
    #[derive(Default)]
    struct Two {
        lookups: Cell<usize>,
    }

    impl IdNames for Two {
        fn source_name(&self, _: IdClass, id: u32) -> Option<Vec<u8>> {
            assert_ne!(id, 0, "the name of id 0 is never looked up");
            self.lookups.set(self.lookups.get() + 1);
            [(5, "games"), (7, "lp"), (9, "moved")]
                .iter()
                .find(|(i, _)| *i == id)
                .map(|(_, n)| n.as_bytes().to_vec())
        }

        fn name_of_zero(&self, _: IdClass) -> Option<Vec<u8>> {
            Some(b"root".to_vec())
        }

        fn dest_id(&self, _: IdClass, name: &[u8]) -> Option<u32> {
            [("root", 0), ("daemon", 1), ("games", 5), ("moved", 90)]
                .iter()
                .find(|(n, _)| n.as_bytes() == name)
                .map(|(_, id)| *id)
        }
    }

    fn pair(from: &str, to: u32) -> IdMap {
        let from = match from.split_once('-').map(|(l, h)| (l.parse(), h.parse())) {
            Some((Ok(low), Ok(high))) => IdFrom::Range(low, high),
            _ => from
                .parse()
                .map_or_else(|_| IdFrom::Name(from.into()), |id| IdFrom::Range(id, id)),
        };
        IdMap {
            from,
            to: IdTo::Id(to),
        }
    }

    fn mapped(numeric_ids: bool, maps: &[(&str, u32)]) -> [u32; 5] {
        let usermap = maps.iter().map(|(from, to)| pair(from, *to)).collect();
        let preserve = Preserve {
            numeric_ids,
            usermap,
            owner: true,
            ..Preserve::default()
        };
        let names = Two::default();
        let (mapper, unknown) = IdMapper::new(&preserve, &names);
        assert!(unknown.is_empty());
        [0, 5, 7, 9, 12345].map(|id| mapper.map(IdClass::User, id, &names))
    }

    #[test]
    fn ids_map_by_name_without_a_map() {
        assert_eq!(mapped(false, &[]), [0, 5, 7, 90, 12345]);
        assert_eq!(mapped(true, &[]), [0, 5, 7, 9, 12345]);
    }

    #[test]
    fn root_stays_root_whatever_id_its_name_has() {
        struct Renumbered;

        impl IdNames for Renumbered {
            fn source_name(&self, _: IdClass, _: u32) -> Option<Vec<u8>> {
                None
            }

            fn name_of_zero(&self, _: IdClass) -> Option<Vec<u8>> {
                Some(b"root".to_vec())
            }

            fn dest_id(&self, _: IdClass, _: &[u8]) -> Option<u32> {
                Some(7)
            }
        }

        let preserve = Preserve {
            owner: true,
            ..Preserve::default()
        };
        let (mapper, _) = IdMapper::new(&preserve, &Renumbered);
        assert_eq!(mapper.map(IdClass::User, 0, &Renumbered), 0);
    }

    #[test]
    fn first_matching_map_entry_wins() {
        assert_eq!(mapped(false, &[("games", 1)]), [0, 1, 7, 90, 12345]);
        assert_eq!(
            mapped(false, &[("5", 2), ("games", 1)]),
            [0, 2, 7, 90, 12345]
        );
        assert_eq!(mapped(false, &[("gam?s", 1)]), [0, 1, 7, 90, 12345]);
        assert_eq!(mapped(false, &[("[a-g]*", 1)]), [0, 1, 7, 90, 12345]);
        assert_eq!(mapped(false, &[("", 1)]), [0, 5, 7, 90, 1]);
        assert_eq!(mapped(false, &[("*", 1)]), [1; 5]);
        assert_eq!(mapped(false, &[("0", 1)]), [1, 5, 7, 90, 12345]);
        assert_eq!(mapped(false, &[("root", 1)]), [1, 5, 7, 90, 12345]);
        assert_eq!(mapped(false, &[("0-99", 1)]), [1, 1, 1, 1, 12345]);
        assert_eq!(mapped(false, &[("99-0", 1)]), [0, 5, 7, 90, 12345]);
        assert_eq!(
            mapped(false, &[("g\\ames", 1), ("GAMES", 1)]),
            [0, 5, 7, 90, 12345]
        );
    }

    #[test]
    fn numeric_ids_match_no_names() {
        assert_eq!(
            mapped(true, &[("games", 1), ("root", 1)]),
            [0, 5, 7, 9, 12345]
        );
        assert_eq!(mapped(true, &[("", 1)]), [1; 5]);
        assert_eq!(mapped(true, &[("*", 1)]), [1; 5]);
        let preserve = Preserve {
            numeric_ids: true,
            usermap: vec![pair("5", 8)],
            owner: true,
            ..Preserve::default()
        };
        let (mapper, _) = IdMapper::new(&preserve, &Two::default());
        assert_eq!(mapper.map(IdClass::User, 5, &Two::default()), 8);
        assert_eq!(mapper.map_in_acl(IdClass::User, 5, &Two::default()), 5);
    }

    #[test]
    fn unknown_map_target_is_reported_and_skipped() {
        let to = |from: &str, name: &str| IdMap {
            from: IdFrom::Name(from.into()),
            to: IdTo::Name(name.into()),
        };
        let preserve = Preserve {
            groupmap: vec![to("games", "nosuch"), to("*", "daemon")],
            ..Preserve::default()
        };
        let (mapper, unknown) = IdMapper::new(&preserve, &Two::default());
        assert_eq!(unknown.len(), 1);
        assert_eq!(
            unknown[0].line(),
            b"Unknown --groupmap name on receiver: nosuch"
        );
        assert_eq!(mapper.map(IdClass::Group, 5, &Two::default()), 1);
    }

    #[test]
    fn each_id_is_looked_up_once() {
        let names = Two::default();
        let (mapper, _) = IdMapper::new(
            &Preserve {
                owner: true,
                ..Preserve::default()
            },
            &names,
        );
        for _ in 0..3 {
            assert_eq!(mapper.map(IdClass::User, 9, &names), 90);
            assert_eq!(mapper.map(IdClass::User, 0, &names), 0);
        }
        assert_eq!(names.lookups.get(), 1);
    }

    #[test]
    fn only_root_changes_the_owner() {
        let preserve = Preserve {
            owner: true,
            group: true,
            ..Preserve::default()
        };
        let names = Two::default();
        let (mapper, _) = IdMapper::new(&preserve, &names);
        let wanted =
            |is_super, groups: &[u32]| mapper.wanted(5, 9, Privileges { is_super, groups }, &names);
        assert_eq!(wanted(true, &[]), (Some(5), Some(90)));
        assert_eq!(wanted(false, &[4, 60]), (None, None));
        assert_eq!(wanted(false, &[4, 90]), (None, Some(90)));
    }
}
