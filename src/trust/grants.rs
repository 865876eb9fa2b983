//! The keys that may copy to and from this account: which paths, and until when.

use super::files::{self, List};
use super::pin::Pin;
use super::timestamp::Timestamp;
use crate::cli::subcommand::is_owner;
use crate::error::Result;
use crate::exit::Exit;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The exit code of `sparsync server revoke` if there was no such grant.
pub const NO_SUCH_GRANT: Exit = Exit::Other(6);

/// The reason that a client receives if its grant ends or changes during a session.
pub const ENDED: &str = "the grant of this key was revoked, changed or has expired";

/// The rights of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// The key.
    pub pin: Pin,
    /// The name that the user gave its owner.
    pub name: String,
    /// Absolute paths; no other path can be read or written. Never empty.
    #[serde(with = "roots")]
    pub roots: Vec<Vec<u8>>,
    /// Whether writing is forbidden.
    #[serde(default)]
    pub read_only: bool,
    /// When it expires; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Whether the key may create set-ID files and `security.` attributes below its roots.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_setuid: bool,
    /// Whether a server of root stores symlinks from this key unmunged, including those that lead out of the roots.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_munge: bool,
    /// `USER` or `USER:GROUP`, as which the sessions of the key run; `None`: the user of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl Grant {
    /// Returns whether it has not expired.
    pub fn stands(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|end| now < end)
    }

    /// Describes the rights: `reads /srv as backup, until 2026-12-31T00:00:00Z`.
    pub fn rights(&self, now: Timestamp) -> String {
        let what = if self.read_only {
            "reads"
        } else {
            "reads and writes"
        };
        let roots: Vec<_> = self
            .roots
            .iter()
            .map(|root| String::from_utf8_lossy(root))
            .collect();
        let until = match self.expires {
            Some(end) if self.stands(now) => format!(", until {end}"),
            Some(end) => format!(", expired at {end}"),
            None => String::new(),
        };
        let setuid = if self.allow_setuid {
            ", also set-ID programs"
        } else {
            ""
        };
        let links = if self.no_munge {
            ", symlinks to anywhere"
        } else {
            ""
        };
        let owner = self
            .owner
            .as_ref()
            .map_or_else(String::new, |owner| format!(" as {owner}"));
        format!("{what} {}{owner}{setuid}{links}{until}", roots.join(" "))
    }
}

/// The status of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyStatus<'a> {
    /// It has these rights.
    Granted(&'a Grant),
    /// It had these rights; they have expired.
    Expired(&'a Grant),
    /// It has no grant.
    Unknown,
}

/// The effect of adding a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Granted {
    /// The key was not known.
    New,
    /// The key was known and its rights have changed.
    Changed,
    /// The grant existed already.
    Same,
}

/// All grants, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grants {
    /// The grants. No two are for the same key.
    #[serde(default, rename = "grant")]
    pub grants: Vec<Grant>,
}

impl Grants {
    /// Returns the current grant of a key; `None` if it has none or if it has expired.
    pub fn find(&self, pin: &Pin, now: Timestamp) -> Option<&Grant> {
        match self.standing(pin, now) {
            KeyStatus::Granted(grant) => Some(grant),
            KeyStatus::Expired(_) | KeyStatus::Unknown => None,
        }
    }

    /// Returns the status of a key.
    pub fn standing(&self, pin: &Pin, now: Timestamp) -> KeyStatus<'_> {
        match self.by_pin(pin) {
            Some(grant) if grant.stands(now) => KeyStatus::Granted(grant),
            Some(grant) => KeyStatus::Expired(grant),
            None => KeyStatus::Unknown,
        }
    }

    /// Returns the grant of a key, even if it has expired.
    pub fn by_pin(&self, pin: &Pin) -> Option<&Grant> {
        self.grants.iter().find(|grant| grant.pin == *pin)
    }

    /// Adds a grant, or replaces the one of the same key.
    pub fn put(&mut self, grant: Grant) -> Granted {
        match self.grants.iter_mut().find(|known| known.pin == grant.pin) {
            Some(known) if *known == grant => Granted::Same,
            Some(known) => {
                *known = grant;
                Granted::Changed
            }
            None => {
                self.grants.push(grant);
                Granted::New
            }
        }
    }

    /// Returns the grants of other keys under the same name.
    pub fn others_named_as(&self, grant: &Grant) -> Vec<Grant> {
        self.grants
            .iter()
            .filter(|other| other.name == grant.name && other.pin != grant.pin)
            .cloned()
            .collect()
    }

    /// Removes all grants of this name or pin and returns them.
    pub fn revoke(&mut self, name_or_pin: &str) -> Vec<Grant> {
        let pin = name_or_pin.parse::<Pin>().ok();
        let (gone, kept) = std::mem::take(&mut self.grants)
            .into_iter()
            .partition(|grant| grant.name == name_or_pin || Some(grant.pin) == pin);
        self.grants = kept;
        gone
    }
}

impl List for Grants {
    const FILE: &str = "grants.toml";
    const HEAD: &str = "# Keys that may copy to and from this account through `sparsync server`. Changes take effect within a second.\n\n";
    const ID: &str = "pin";

    fn check(&self, path: &Path) -> Result<()> {
        for (at, grant) in self.grants.iter().enumerate() {
            if self.grants[..at].iter().any(|other| other.pin == grant.pin) {
                return Err(files::mistaken(
                    path,
                    None,
                    &format!("duplicate grant for key {}", grant.pin),
                ));
            }
            if let Some(owner) = grant.owner.as_ref().filter(|owner| !is_owner(owner)) {
                return Err(files::mistaken(
                    path,
                    None,
                    &format!("owner `{owner}` is not USER or USER:GROUP"),
                ));
            }
        }
        Ok(())
    }
}

/// The text form of roots: absolute paths without `..`.
mod roots {
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(roots: &[Vec<u8>], to: S) -> Result<S::Ok, S::Error> {
        check(roots).map_err(S::Error::custom)?;
        let texts: Result<Vec<&str>, _> =
            roots.iter().map(|root| std::str::from_utf8(root)).collect();
        texts
            .map_err(|_| S::Error::custom("a root must be valid UTF-8"))?
            .serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Vec<u8>>, D::Error> {
        let roots: Vec<_> = Vec::<String>::deserialize(from)?
            .into_iter()
            .map(String::into_bytes)
            .collect();
        check(&roots).map_err(D::Error::custom)?;
        Ok(roots)
    }

    fn check(roots: &[Vec<u8>]) -> Result<(), String> {
        if roots.is_empty() {
            return Err("missing root: `roots = [\"/\"]` grants everything".into());
        }
        for root in roots {
            let climbs = root.split(|&b| b == b'/').any(|part| part == b"..");
            if root.first() != Some(&b'/') || climbs || root.contains(&0) {
                return Err(format!(
                    "`{}` is not an absolute path without `..`",
                    String::from_utf8_lossy(root)
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::paths::Places;

    #[test]
    fn guide_shows_an_entry_with_all_fields() {
        let guide = include_str!("../../docs/GUIDE.md");
        let block = guide
            .split("```toml\n")
            .filter_map(|rest| rest.split("```").next())
            .find(|block| block.starts_with("# grants.toml"))
            .expect("the guide has an example");
        let grants: Grants = toml::from_str(block).expect("the example can be read");
        let [grant] = &grants.grants[..] else {
            panic!("{grants:?}")
        };
        let Grant {
            pin: _,
            name: _,
            roots,
            read_only,
            expires,
            allow_setuid,
            no_munge,
            owner,
        } = grant;
        assert!(!roots.is_empty() && *read_only && *allow_setuid && *no_munge);
        assert!(expires.is_some() && owner.is_some());
        // Only the required fields.
        let required = block
            .split("# optional")
            .next()
            .expect("it is the first part");
        assert!(toml::from_str::<Grants>(required).is_ok());
    }

    fn scratch() -> (tempfile::TempDir, Places) {
        let top = tempfile::tempdir().unwrap();
        let config = top.path().join("config");
        (
            top,
            Places {
                state: config.join("state"),
                config,
            },
        )
    }

    fn grant(nth: u8, name: &str) -> Grant {
        let roots = vec![b"/srv/a".to_vec(), b"/home/u".to_vec()];
        Grant {
            pin: Pin([nth; 32]),
            name: name.into(),
            roots,
            read_only: false,
            expires: None,
            allow_setuid: false,
            no_munge: false,
            owner: None,
        }
    }

    #[test]
    fn cached_list_is_reloaded_if_its_file_changed() {
        use crate::trust::files::CachedList;
        use std::time::{Duration, SystemTime};
        let (_top, places) = scratch();
        let kept = CachedList::<Grants>::new(&places);
        assert_eq!(kept.get().unwrap().grants, []);
        Grants::change(&places, |grants| grants.put(grant(1, "a"))).unwrap();
        let name = || kept.get().unwrap().grants[0].name.clone();
        assert_eq!(name(), "a");
        let path = places.config.join(Grants::FILE);
        let is_of = |age_secs: u64| {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + age_secs))
                .unwrap();
        };
        is_of(0);
        assert_eq!(name(), "a");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"a\"", "\"b\"")).unwrap();
        is_of(0);
        assert_eq!(name(), "a", "length and time are unchanged");
        is_of(1);
        assert_eq!(name(), "b");
        std::fs::write(&path, "[[grant]]\n").unwrap();
        assert!(kept.get().is_err());
        std::fs::write(&path, text).unwrap();
        assert_eq!(name(), "a", "a file this recent is read each time");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(kept.get().unwrap().grants, []);
    }

    #[test]
    fn grant_is_valid_until_it_expires_or_is_revoked() {
        let (_top, places) = scratch();
        let ends = Grant {
            expires: Some(Timestamp(100)),
            read_only: true,
            ..grant(2, "b")
        };
        let put =
            |grant: &Grant| Grants::change(&places, |grants| grants.put(grant.clone())).unwrap();
        assert_eq!(
            (put(&grant(1, "a")), put(&ends), put(&ends)),
            (Granted::New, Granted::New, Granted::Same)
        );
        let grants = Grants::load(&places).unwrap();
        assert_eq!(
            grants.find(&Pin([1; 32]), Timestamp(0)),
            Some(&grant(1, "a"))
        );
        assert_eq!(
            grants.standing(&Pin([2; 32]), Timestamp(99)),
            KeyStatus::Granted(&ends)
        );
        assert_eq!(
            grants.standing(&Pin([2; 32]), Timestamp(100)),
            KeyStatus::Expired(&ends)
        );
        assert_eq!(grants.find(&Pin([2; 32]), Timestamp(100)), None);
        assert_eq!(
            grants.standing(&Pin([3; 32]), Timestamp(0)),
            KeyStatus::Unknown
        );
        assert_eq!(
            put(&Grant {
                expires: None,
                ..ends.clone()
            }),
            Granted::Changed
        );
        assert_eq!(
            Grants::change(&places, |grants| grants.revoke("a")).unwrap(),
            [grant(1, "a")]
        );
        assert_eq!(
            Grants::change(&places, |grants| grants.revoke("a")).unwrap(),
            []
        );
        let pin = Pin([2; 32]).to_string();
        assert_eq!(
            Grants::change(&places, |grants| grants.revoke(&pin))
                .unwrap()
                .len(),
            1
        );
        assert_eq!(Grants::load(&places).unwrap(), Grants::default());
    }

    #[test]
    fn invalid_grants_file_is_an_error_with_its_line() {
        let (_top, places) = scratch();
        Grants::change(&places, |grants| grants.put(grant(1, "a"))).unwrap();
        let path = places.config.join(Grants::FILE);
        let good = std::fs::read_to_string(&path).unwrap();
        for (from, to, words) in [
            ("read_only", "readonly", "line 7: unknown field `readonly`"),
            (
                "read_only = false",
                "owner = \"a:\"",
                "owner `a:` is not USER or USER:GROUP",
            ),
            (
                "read_only = false",
                "expires = \"soon\"",
                "line 7: invalid date `soon`",
            ),
            ("/srv/a", "srv/a", "line 6: `srv/a` is not an absolute path"),
            ("/srv/a", "/srv/../etc", "not an absolute path"),
            ("[\"/srv/a\", \"/home/u\"]", "[]", "missing root"),
        ] {
            let bad = good.replace(from, to);
            assert_ne!(bad, good, "{from}");
            std::fs::write(&path, &bad).unwrap();
            let message = String::from_utf8(Grants::load(&places).unwrap_err().message).unwrap();
            assert!(
                message.contains(words) && message.contains("grants.toml"),
                "{message}"
            );
        }
        std::fs::write(&path, [good.as_str(), &good].concat()).unwrap();
        let error = Grants::load(&places).unwrap_err();
        assert!(
            String::from_utf8_lossy(&error.message).contains("duplicate grant"),
            "{error}"
        );
    }

    #[test]
    fn grants_file_writable_by_others_is_rejected() {
        use std::os::unix::fs::PermissionsExt;
        let (_top, places) = scratch();
        Grants::change(&places, |grants| grants.put(grant(1, "a"))).unwrap();
        let path = places.config.join(Grants::FILE);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
        let error = Grants::load(&places).unwrap_err();
        assert!(
            String::from_utf8_lossy(&error.text()).contains("hint: run `chmod go-w"),
            "{error}"
        );
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Grants::load(&places).is_ok(), "others may read the grants");
    }

    #[test]
    fn root_that_is_not_an_absolute_utf8_path_is_rejected() {
        let (_top, places) = scratch();
        for root in [&b"relative"[..], b"/a/../b", b"/\xff", b""] {
            let odd = Grant {
                roots: vec![root.to_vec()],
                ..grant(1, "a")
            };
            assert!(
                Grants::change(&places, |grants| grants.put(odd)).is_err(),
                "{root:?}"
            );
            assert_eq!(Grants::load(&places).unwrap(), Grants::default());
        }
    }
}
