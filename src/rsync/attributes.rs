//! Access control lists and extended attributes: between the form of entries and that of a stock rsync.

use crate::digest;
use crate::flist::abbreviated::AbbreviatedValue;
use crate::flist::{Xattr, Xattrs};
use crate::fs::acl;
use crate::proto::rsync::attributes::{self as wire, AclEntry, SharedXattrs, XattrValue};
use crate::proto::rsync::decode_error::{Result, violation};
use crate::proto::rsync::limits::XATTR_SHORT_MAX_BYTES;
use std::sync::Arc;

/// What an ACL belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclOf {
    /// The access ACL of an entry with this mode, which holds a part of it.
    Entry(u32),
    /// The default ACL of a directory.
    NewEntries,
}

/// Returns the digit of the group in a mode: the mask of an ACL that has one.
fn group_bits(mode: u32) -> u8 {
    (mode >> 3 & 7) as u8
}

/// Converts an ACL in canonical form. `name_of`: the name of a user (`true`) or group if it is sent with the ACL.
pub fn acl_to_wire(
    canonical: &[u8],
    of: AclOf,
    name_of: &dyn Fn(bool, u32) -> Option<Vec<u8>>,
) -> wire::Acl {
    let Ok(Some(acl)) = acl::Acl::parse(canonical) else {
        return wire::Acl::default();
    };
    let acl::Acl {
        owner,
        group,
        mask,
        other,
        users,
        groups,
    } = acl;
    let entry = |is_user: bool| {
        move |(id, permissions): (u32, u8)| AclEntry {
            is_user,
            id,
            permissions,
            name: name_of(is_user, id),
        }
    };
    let named: Vec<_> = users
        .into_iter()
        .map(entry(true))
        .chain(groups.into_iter().map(entry(false)))
        .collect();
    let named = if named.is_empty() { None } else { Some(named) };
    match of {
        AclOf::NewEntries => wire::Acl {
            user: Some(owner),
            group: Some(group),
            mask,
            other: Some(other),
            named,
        },
        AclOf::Entry(mode) => wire::Acl {
            user: None,
            group: mask
                .and(Some(group))
                .filter(|&group| group != group_bits(mode)),
            mask: mask.filter(|&mask| named.is_none() || mask != group_bits(mode)),
            other: None,
            named,
        },
    }
}

/// Converts a received ACL into canonical form. The ids are those of the sender.
pub fn acl_from_wire(acl: &wire::Acl, of: AclOf) -> Result<Box<[u8]>> {
    let mut users = Vec::new();
    let mut groups = Vec::new();
    for AclEntry {
        is_user,
        id,
        permissions,
        ..
    } in acl.named.iter().flatten()
    {
        if *is_user { &mut users } else { &mut groups }.push((*id, *permissions));
    }
    let is_named = !(users.is_empty() && groups.is_empty());
    let wire::Acl {
        user,
        group,
        mask,
        other,
        ..
    } = *acl;
    if !is_named
        && mask.is_none()
        && (of != AclOf::NewEntries || (user, group, other) == (None, None, None))
    {
        return Ok(Box::default());
    }
    let (owner, group, mask, other) = match (of, user, group, other) {
        (AclOf::Entry(mode), ..) => {
            let acl::Acl { owner, other, .. } = acl::Acl::of_mode(mode);
            let bits = group_bits(mode);
            (
                owner,
                group.unwrap_or(bits),
                Some(mask.unwrap_or(bits)),
                other,
            )
        }
        (AclOf::NewEntries, Some(user), Some(group), Some(other))
            if mask.is_some() || !is_named =>
        {
            (user, group, mask, other)
        }
        (AclOf::NewEntries, ..) => return Err(violation("an incomplete default ACL")),
    };
    let acl = acl::Acl {
        owner,
        group,
        mask,
        other,
        users,
        groups,
    };
    Ok(acl::canonical(Some(&acl.map_ids(|id| id, |id| id))))
}

/// Converts the extended attributes of an entry. Long values are replaced by their digests.
pub fn xattrs_to_wire(xattrs: &[Xattr]) -> SharedXattrs {
    let convert = |(name, value): &Xattr| {
        let value = match value.len() {
            ..=XATTR_SHORT_MAX_BYTES => XattrValue::Full(value.to_vec()),
            len_bytes => XattrValue::Abbreviated {
                len_bytes,
                digest: digest::of_attribute(value),
            },
        };
        wire::Xattr {
            name: name.to_vec(),
            value,
        }
    };
    SharedXattrs {
        number: 0,
        list: Arc::new(xattrs.iter().map(convert).collect()),
    }
}

/// Converts received attributes, and returns whether some values are abbreviated.
pub fn xattrs_from_wire(shared: &SharedXattrs) -> (Xattrs, bool) {
    let mut has_abbreviated = false;
    let convert = |(number, xattr): (u32, &wire::Xattr)| {
        let value: Box<[u8]> = match &xattr.value {
            XattrValue::Full(value) => value.as_slice().into(),
            XattrValue::Abbreviated { len_bytes, digest } => {
                has_abbreviated = true;
                // A decoder limits the length.
                let len_bytes = *len_bytes as u32;
                AbbreviatedValue {
                    digest: *digest,
                    len_bytes,
                    list: shared.number,
                    number,
                }
                .encode()
            }
        };
        (xattr.name.as_slice().into(), value)
    };
    (
        (1..).zip(shared.list.iter()).map(convert).collect(),
        has_abbreviated,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(mask: Option<u8>, group: u8, users: &[(u32, u8)]) -> Box<[u8]> {
        let acl = acl::Acl {
            owner: 6,
            group,
            mask,
            other: 4,
            users: users.to_vec(),
            groups: Vec::new(),
        };
        acl::canonical(Some(&acl))
    }

    #[test]
    fn acls_are_converted_back() {
        let no_name = |_: bool, _: u32| None;
        for canonical in [
            acl(Some(5), 4, &[(5, 7)]),
            acl(Some(5), 5, &[(5, 7), (9, 0)]),
            acl(Some(5), 5, &[]),
        ] {
            for of in [AclOf::Entry(0o654), AclOf::NewEntries] {
                let sent = acl_to_wire(&canonical, of, &no_name);
                assert_eq!(acl_from_wire(&sent, of).unwrap(), canonical, "{of:?}");
            }
        }
        let minimal = acl(None, 5, &[]);
        assert_eq!(
            acl_to_wire(&minimal, AclOf::Entry(0o654), &no_name),
            wire::Acl::default()
        );
        let sent = acl_to_wire(&minimal, AclOf::NewEntries, &no_name);
        assert_eq!(acl_from_wire(&sent, AclOf::NewEntries).unwrap(), minimal);
    }

    #[test]
    fn incomplete_default_acl_is_rejected() {
        let named = || {
            Some(vec![AclEntry {
                is_user: true,
                id: 1,
                permissions: 7,
                name: None,
            }])
        };
        let whole = wire::Acl {
            user: Some(7),
            group: Some(7),
            mask: Some(7),
            other: Some(7),
            named: named(),
        };
        assert!(acl_from_wire(&whole, AclOf::NewEntries).is_ok());
        let acls = [
            wire::Acl {
                user: None,
                ..whole.clone()
            },
            wire::Acl {
                group: None,
                ..whole.clone()
            },
            wire::Acl {
                mask: None,
                ..whole.clone()
            },
            wire::Acl {
                named: named(),
                ..wire::Acl::default()
            },
        ];
        for acl in acls {
            assert!(acl_from_wire(&acl, AclOf::NewEntries).is_err(), "{acl:?}");
        }
    }

    #[test]
    fn long_value_is_abbreviated_with_its_place() {
        let xattrs: Xattrs = vec![
            (b"user.a"[..].into(), vec![1; XATTR_SHORT_MAX_BYTES].into()),
            (
                b"user.b"[..].into(),
                vec![2; XATTR_SHORT_MAX_BYTES + 1].into(),
            ),
        ];
        let (received, has_abbreviated) = xattrs_from_wire(&SharedXattrs {
            number: 9,
            ..xattrs_to_wire(&xattrs)
        });
        assert!(has_abbreviated);
        assert_eq!(received[0], xattrs[0]);
        let digest = digest::of_attribute(&xattrs[1].1);
        let expected = AbbreviatedValue {
            digest,
            len_bytes: 33,
            list: 9,
            number: 2,
        };
        assert_eq!(AbbreviatedValue::decode(&received[1].1), Some(expected));
    }
}
