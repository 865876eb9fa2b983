//! `auth users` and `secrets file`: which users may use a module, with which access, and their passwords.

use super::list_elements;
use crate::filter::name_matches;
use crate::proto::rsync::daemon::AuthDigest;

/// The access of a user, as a rule sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthAccess {
    /// As the module has it.
    Unchanged,
    /// `:ro`
    ReadOnly,
    /// `:rw`
    ReadWrite,
}

/// The rule that a user matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthRule {
    pub access: AuthAccess,
    /// The group by which the user matched.
    pub group: Option<Vec<u8>>,
}

/// Returns whether a user belongs to a group of a name, which can be a pattern, and the name of that group.
pub type GroupsOf<'a> = &'a dyn Fn(&[u8]) -> Vec<Vec<u8>>;

/// Finds the first rule for a user. The error is the reason for the log.
pub fn rule_of(users: &[u8], user: &[u8], groups_of: GroupsOf<'_>) -> Result<AuthRule, Vec<u8>> {
    let mut groups = None;
    for element in list_elements(users) {
        let (name, option) = match element.iter().position(|&byte| byte == b':') {
            Some(colon) => (&element[..colon], &element[colon + 1..]),
            None => (element, &b""[..]),
        };
        let group = match name.strip_prefix(b"@") {
            Some(pattern) => {
                let groups = groups.get_or_insert_with(|| groups_of(user));
                let Some(group) = groups.iter().find(|group| name_matches(pattern, group)) else {
                    continue;
                };
                Some(group.clone())
            }
            None if name_matches(name, user) => None,
            None => continue,
        };
        // As in rsync, the first letters decide, and an unknown word has no effect.
        let access = match option.to_ascii_lowercase()[..] {
            [b'd', ..] => return Err(b"denied by rule".to_vec()),
            [b'r', b'o', ..] => AuthAccess::ReadOnly,
            [b'r', b'w', ..] => AuthAccess::ReadWrite,
            _ => AuthAccess::Unchanged,
        };
        return Ok(AuthRule { access, group });
    }
    Err(b"no matching rule".to_vec())
}

/// The attributes of a secrets file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretsStat {
    pub mode: u32,
    /// The owner.
    pub uid: u32,
}

/// Checks `strict modes`. The error is a line for the log.
pub fn check_strict(stat: SecretsStat, is_root: bool) -> Result<(), &'static str> {
    if stat.mode & 0o006 != 0 {
        return Err("secrets file must not be other-accessible (see strict modes option)");
    }
    if is_root && stat.uid != 0 {
        return Err("secrets file must be owned by root when running as root (see strict modes)");
    }
    Ok(())
}

/// The answer of a client to a challenge.
#[derive(Debug, Clone, Copy)]
pub struct AuthResponse<'a> {
    pub user: &'a [u8],
    /// How the response was computed.
    pub digest: AuthDigest,
    pub challenge: &'a [u8],
    pub response: &'a [u8],
}

impl AuthResponse<'_> {
    /// Compares the response with the secrets of the user and of the group. The error is the reason for the log.
    pub fn check(&self, secrets: &[u8], group: Option<&[u8]>) -> Result<(), &'static str> {
        // Such a line of the file is a comment, or belongs to a group.
        match self.user.first() {
            Some(b'#') => return Err("invalid username"),
            Some(b'@') => return Err("secret not found"),
            _ => {}
        }
        let mut why = "secret not found";
        for line in secrets
            .split(|byte| b"\r\n".contains(byte))
            .filter(|line| !line.starts_with(b"#"))
        {
            let Some(colon) = line.iter().position(|&byte| byte == b':') else {
                continue;
            };
            let name = &line[..colon];
            let secret = &line[colon + 1..];
            let is_for_user = name == self.user && !name.is_empty();
            let is_for_group = name
                .strip_prefix(b"@")
                .is_some_and(|name| Some(name) == group);
            if !is_for_user && !is_for_group {
                continue;
            }
            if self.digest.response(secret, self.challenge) == self.response {
                return Ok(());
            }
            why = "password mismatch";
        }
        Err(why)
    }
}

/// Checks `auth digest`. The error is the reason for the log.
pub fn check_digest(floor: &[u8], chosen: AuthDigest) -> Result<(), Vec<u8>> {
    let rank_of = |digest: AuthDigest| {
        AuthDigest::ALL
            .iter()
            .position(|(known, _)| *known == digest)
    };
    let known = AuthDigest::ALL
        .iter()
        .position(|(_, name)| floor.eq_ignore_ascii_case(name.as_bytes()));
    let Some(floor_rank) = known else {
        return Err([
            b"the configured 'auth digest = ",
            floor,
            b"' is not a supported digest on this build",
        ]
        .concat());
    };
    match rank_of(chosen) {
        Some(rank) if rank <= floor_rank => Ok(()),
        _ => Err([
            b"the negotiated digest is weaker than 'auth digest = ",
            floor,
            b"'",
        ]
        .concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(users: &str, user: &str) -> Result<(AuthAccess, Option<String>), String> {
        let groups = |user: &[u8]| {
            if user == b"admin" {
                vec![b"staff".to_vec(), b"RO Group".to_vec()]
            } else {
                Vec::new()
            }
        };
        rule_of(users.as_bytes(), user.as_bytes(), &groups)
            .map(|rule| {
                (
                    rule.access,
                    rule.group.map(|group| String::from_utf8(group).unwrap()),
                )
            })
            .map_err(|why| String::from_utf8(why).unwrap())
    }

    #[test]
    fn first_matching_rule_decides() {
        use AuthAccess::{ReadOnly, ReadWrite, Unchanged};
        let none = Err("no matching rule".to_owned());
        assert_eq!(rule("joe, sam", "sam"), Ok((Unchanged, None)));
        assert_eq!(rule("joe sam", "tim"), none);
        assert_eq!(
            rule("joe:deny j*:rw", "joe"),
            Err("denied by rule".to_owned())
        );
        assert_eq!(rule("joe:deny j*:rw", "jim"), Ok((ReadWrite, None)));
        assert_eq!(
            rule("@guest:deny @staff:ro admin:rw", "admin"),
            Ok((ReadOnly, Some("staff".to_owned())))
        );
        assert_eq!(
            rule(", joe:deny, @RO Group:ro", "admin"),
            Ok((ReadOnly, Some("RO Group".to_owned())))
        );
        assert_eq!(
            rule("@s*", "admin"),
            Ok((Unchanged, Some("staff".to_owned())))
        );
        // Each was tried with rsync's daemon.
        for (options, access) in [
            (&["ro", "RO", "roo", "ro:x", "rO:x"][..], ReadOnly),
            (&["rw", "rwx", "rw:ro"], ReadWrite),
            (
                &["", "r", "r/", "w", "wo", "write", "no", "xro", ":ro"],
                Unchanged,
            ),
        ] {
            for option in options {
                let users = format!("joe:{option}");
                assert_eq!(rule(&users, "joe"), Ok((access, None)), "{users}");
            }
        }
        for option in ["d", "den", "Deny", "dx"] {
            assert_eq!(
                rule(&format!("joe:{option}"), "joe"),
                Err("denied by rule".to_owned())
            );
        }
        assert_eq!(rule("", "joe"), none);
    }

    #[test]
    fn secrets_of_user_and_group_are_accepted() {
        let secrets = b"#joe:no\njoe:one\n@staff:two\njim:three\r\n:empty\n";
        let check = |user: &str, secret: &str, group: Option<&str>| {
            let response = AuthDigest::Sha256.response(secret.as_bytes(), b"challenge");
            let answer = AuthResponse {
                user: user.as_bytes(),
                digest: AuthDigest::Sha256,
                challenge: b"challenge",
                response: &response,
            };
            answer.check(secrets, group.map(str::as_bytes))
        };
        assert_eq!(check("joe", "one", None), Ok(()));
        assert_eq!(check("jim", "three", None), Ok(()));
        assert_eq!(check("joe", "two", Some("staff")), Ok(()));
        assert_eq!(check("joe", "one", Some("staff")), Ok(()));
        assert_eq!(check("joe", "two", None), Err("password mismatch"));
        assert_eq!(
            check("@staff", "two", None),
            Err("secret not found"),
            "the line of a group is no line of a user"
        );
        assert_eq!(
            check("@staff", "two", Some("staff")),
            Err("secret not found")
        );
        assert_eq!(check("#joe", "no", None), Err("invalid username"));
        assert_eq!(check("tim", "x", None), Err("secret not found"));
        assert_eq!(check("", "empty", None), Err("secret not found"));
    }

    #[test]
    fn strict_modes_and_digest_floor_reject() {
        let check = |mode, uid, is_root| check_strict(SecretsStat { mode, uid }, is_root);
        assert!(
            check(0o100_600, 0, true).is_ok()
                && check(0o100_641, 0, true).is_ok()
                && check(0o100_600, 5, false).is_ok()
        );
        assert!(
            check(0o100_604, 0, true)
                .unwrap_err()
                .contains("other-accessible")
        );
        assert!(check(0o100_602, 0, false).is_err());
        assert!(
            check(0o100_600, 5, true)
                .unwrap_err()
                .contains("owned by root")
        );
        assert_eq!(check_digest(b"SHA256", AuthDigest::Sha512), Ok(()));
        assert_eq!(check_digest(b"sha256", AuthDigest::Sha256), Ok(()));
        assert!(check_digest(b"sha256", AuthDigest::Sha1).is_err());
        assert!(check_digest(b"md4", AuthDigest::OldMd4).is_err());
        assert!(check_digest(b"foo", AuthDigest::Sha512).is_err());
    }
}
