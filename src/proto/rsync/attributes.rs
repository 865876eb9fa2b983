//! Access control lists and extended attributes of list entries, and the values that are requested later.

use super::decode_error::{Result, checked, violation};
use super::limits::{
    ACL_ENTRIES_MAX, XATTR_LIST_MAX_BYTES, XATTR_NAME_MAX_BYTES, XATTR_SHORT_MAX_BYTES,
    XATTR_VALUE_MAX_BYTES, XATTRS_MAX,
};
use super::number::{ReadWire as _, WriteWire as _};
use crate::digest;
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::sync::Arc;

/// The permissions of one named user or group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// Whether it is a user, not a group.
    pub is_user: bool,
    /// The id on the sender.
    pub id: u32,
    /// Permission bits, 0 to 7.
    pub permissions: u8,
    /// The name; only with incremental recursion, and only where the id is met for the first time.
    pub name: Option<Vec<u8>>,
}

/// An access control list as sent: without what the mode of the entry already determines.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Acl {
    /// Permissions of the owner.
    pub user: Option<u8>,
    /// Permissions of the owning group.
    pub group: Option<u8>,
    /// The mask of all named entries and the owning group.
    pub mask: Option<u8>,
    /// Permissions of all others.
    pub other: Option<u8>,
    /// Named entries, `None` without a list of names. Users first, each kind ordered by id.
    pub named: Option<Vec<AclEntry>>,
}

/// The bit of the list of names in the head of an ACL.
const HAS_NAMES: u8 = 16;
/// The bits of a named entry below its permissions.
const NAME_FOLLOWS: i32 = 1;
const IS_USER: i32 = 2;

impl Acl {
    fn parts(&self) -> [Option<u8>; 4] {
        [self.user, self.group, self.mask, self.other]
    }

    fn encode(&self, known: &mut IdsWithName, out: &mut Vec<u8>) {
        let bits = self
            .parts()
            .into_iter()
            .enumerate()
            .map(|(at, part)| u8::from(part.is_some()) << at);
        out.put(&[bits.sum::<u8>() | if self.named.is_some() { HAS_NAMES } else { 0 }]);
        for part in self.parts().into_iter().flatten() {
            out.put_varint(part.into());
        }
        let Some(named) = &self.named else { return };
        out.put_varint(named.len() as i32);
        for AclEntry {
            is_user,
            id,
            permissions,
            name,
        } in named
        {
            let name = match name {
                Some(name) if known.is_new(*is_user, *id) => Some(name),
                _ => None,
            };
            let bits =
                if *is_user { IS_USER } else { 0 } | if name.is_some() { NAME_FOLLOWS } else { 0 };
            out.put_varint(id.cast_signed());
            out.put_varint(i32::from(*permissions) << 2 | bits);
            if let Some(name) = name {
                out.put_short_string(name);
            }
        }
    }

    fn decode(input: &mut impl Read) -> Result<Acl> {
        let bits = input.byte()?;
        if bits >= 2 * HAS_NAMES {
            return Err(violation(format!("an ACL with unknown parts {bits:#x}")));
        }
        let mut parts = [None; 4];
        for (at, part) in parts.iter_mut().enumerate() {
            if bits & 1 << at != 0 {
                *part = Some(input.varint_in(7, "the mode of an ACL entry")? as u8);
            }
        }
        let [user, group, mask, other] = parts;
        let mut named = None;
        if bits & HAS_NAMES != 0 {
            let count = input.varint_in(ACL_ENTRIES_MAX, "the number of entries of an ACL")?;
            let mut entries = Vec::new();
            for _ in 0..count {
                let id = input.varint()?.cast_unsigned();
                let access = input.varint_in(31, "the mode of an ACL entry")? as i32;
                let name = if access & NAME_FOLLOWS != 0 {
                    Some(input.short_string()?)
                } else {
                    None
                };
                let is_user = access & IS_USER != 0;
                let permissions = (access >> 2) as u8;
                entries.push(AclEntry {
                    is_user,
                    id,
                    permissions,
                    name,
                });
            }
            named = Some(entries);
        }
        Ok(Acl {
            user,
            group,
            mask,
            other,
            named,
        })
    }
}

/// The ids whose names have been sent: each name is sent once per connection.
#[derive(Debug, Default)]
pub struct IdsWithName {
    users: HashSet<u32>,
    groups: HashSet<u32>,
}

impl IdsWithName {
    /// Returns whether the name has not been sent yet, and remembers that it is now.
    pub fn is_new(&mut self, is_user: bool, id: u32) -> bool {
        if is_user {
            self.users.insert(id)
        } else {
            self.groups.insert(id)
        }
    }
}

/// The value of an extended attribute in a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum XattrValue {
    /// The value itself. The encoder abbreviates it if it is long.
    Full(Vec<u8>),
    /// The value is requested later if it is needed.
    Abbreviated {
        /// The length of the value.
        len_bytes: usize,
        /// The MD5 digest of the value.
        digest: [u8; 16],
    },
}

/// An extended attribute.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Xattr {
    /// The name, without a NUL.
    pub name: Vec<u8>,
    /// The value or its digest.
    pub value: XattrValue,
}

/// The extended attributes of an entry, ordered by name. Requests count them from 1.
pub type Xattrs = Vec<Xattr>;

fn encode_xattrs(list: &Xattrs, out: &mut Vec<u8>) {
    out.put_varint(list.len() as i32);
    for Xattr { name, value } in list {
        let len = match value {
            XattrValue::Full(value) => value.len(),
            XattrValue::Abbreviated { len_bytes, .. } => *len_bytes,
        };
        out.put_varint(name.len() as i32 + 1);
        out.put_varint(len as i32);
        out.put(name);
        out.put(b"\0");
        match value {
            XattrValue::Full(value) if len > XATTR_SHORT_MAX_BYTES => {
                out.put(&digest::of_attribute(value))
            }
            XattrValue::Full(value) => out.put(value),
            XattrValue::Abbreviated { digest, .. } => out.put(digest),
        }
    }
}

fn decode_xattrs(input: &mut impl Read) -> Result<Xattrs> {
    let count = input.varint_in(XATTRS_MAX, "the number of extended attributes")?;
    let mut list = Vec::new();
    let mut total = 0;
    for _ in 0..count {
        let name_len = input.varint_in(
            XATTR_NAME_MAX_BYTES,
            "the length of the name of an extended attribute",
        )?;
        let len_bytes =
            input.varint_in(XATTR_VALUE_MAX_BYTES, "the length of an extended attribute")?;
        total = checked(
            (total + name_len + len_bytes) as i64,
            XATTR_LIST_MAX_BYTES,
            "the size of all attributes",
        )?;
        let mut name = input.byte_vec(name_len)?;
        if name.pop() != Some(0) || name.is_empty() || name.contains(&0) {
            return Err(violation(
                "the name of an extended attribute does not end in one NUL",
            ));
        }
        let value = match len_bytes {
            ..=XATTR_SHORT_MAX_BYTES => XattrValue::Full(input.byte_vec(len_bytes)?),
            _ => XattrValue::Abbreviated {
                len_bytes,
                digest: input.array()?,
            },
        };
        list.push(Xattr { name, value });
    }
    Ok(list)
}

/// A list of extended attributes that entries share, as decoded or to be encoded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SharedXattrs {
    /// The number of the literal list, from 1. Entries with the same number share the values that are requested
    /// later. Encoders ignore it.
    pub number: u32,
    /// The attributes.
    pub list: Arc<Xattrs>,
}

/// The attributes that a connection has encoded: equal ones are sent once.
#[derive(Debug, Default)]
pub struct AttributeEncoder {
    access: HashMap<Arc<Acl>, i32>,
    default: HashMap<Arc<Acl>, i32>,
    xattrs: HashMap<Arc<Xattrs>, i32>,
}

impl AttributeEncoder {
    /// Appends the access ACL of an entry.
    pub fn access_acl(&mut self, acl: &Arc<Acl>, known: &mut IdsWithName, out: &mut Vec<u8>) {
        shared(&mut self.access, acl, out, |acl, out| {
            acl.encode(known, out)
        });
    }

    /// Appends the default ACL of a directory; an empty one stands for none.
    pub fn default_acl(&mut self, acl: &Arc<Acl>, known: &mut IdsWithName, out: &mut Vec<u8>) {
        shared(&mut self.default, acl, out, |acl, out| {
            acl.encode(known, out)
        });
    }

    /// Appends the extended attributes of an entry.
    pub fn xattrs(&mut self, list: &Arc<Xattrs>, out: &mut Vec<u8>) {
        shared(&mut self.xattrs, list, out, encode_xattrs);
    }
}

/// Appends the number of a value that was encoded before, else 0 and the value.
fn shared<T: std::hash::Hash + Eq>(
    known: &mut HashMap<Arc<T>, i32>,
    value: &Arc<T>,
    out: &mut Vec<u8>,
    encode: impl FnOnce(&T, &mut Vec<u8>),
) {
    if let Some(number) = known.get(value) {
        return out.put_varint(*number);
    }
    known.insert(value.clone(), known.len() as i32 + 1);
    out.put_varint(0);
    encode(value, out);
}

/// The attributes that a connection has decoded.
#[derive(Debug, Default)]
pub struct AttributeDecoder {
    access: Vec<Arc<Acl>>,
    default: Vec<Arc<Acl>>,
    xattrs: Vec<Arc<Xattrs>>,
}

impl AttributeDecoder {
    /// Reads the access ACL of an entry.
    pub fn access_acl(&mut self, input: &mut impl Read) -> Result<Arc<Acl>> {
        Ok(known_or_next(&mut self.access, input, Acl::decode)?.1)
    }

    /// Reads the default ACL of a directory.
    pub fn default_acl(&mut self, input: &mut impl Read) -> Result<Arc<Acl>> {
        Ok(known_or_next(&mut self.default, input, Acl::decode)?.1)
    }

    /// Reads the extended attributes of an entry.
    pub fn xattrs(&mut self, input: &mut impl Read) -> Result<SharedXattrs> {
        let (number, list) = known_or_next(&mut self.xattrs, input, decode_xattrs)?;
        Ok(SharedXattrs { number, list })
    }
}

/// Reads the number of a known value, or 0 and the next value. Returns its number, too.
fn known_or_next<T, R: Read>(
    known: &mut Vec<Arc<T>>,
    input: &mut R,
    decode: impl FnOnce(&mut R) -> Result<T>,
) -> Result<(u32, Arc<T>)> {
    match input.varint_in(known.len(), "the number of a list of attributes")? {
        0 => {
            known.push(Arc::new(decode(input)?));
            Ok((known.len() as u32, known[known.len() - 1].clone()))
        }
        number => Ok((number as u32, known[number - 1].clone())),
    }
}

/// Appends a request for the values of abbreviated attributes, by their numbers from 1, in ascending order.
pub fn encode_xattr_request(numbers: &[u32], out: &mut Vec<u8>) {
    let mut last = 0;
    for &number in numbers {
        out.put_varint((number - last).cast_signed());
        last = number;
    }
    out.put(&[0]);
}

/// Reads a request for values; the entry has `count` attributes.
pub fn decode_xattr_request(input: &mut impl Read, count: usize) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    while let Some(number) = next_number(input, numbers.last().copied(), count)? {
        numbers.push(number);
    }
    Ok(numbers)
}

fn next_number(input: &mut impl Read, last: Option<u32>, count: usize) -> Result<Option<u32>> {
    let last = last.unwrap_or(0);
    let step = input.varint_in(
        count.saturating_sub(last as usize),
        "the step to a requested attribute",
    )?;
    Ok((step > 0).then(|| last + step as u32))
}

/// Appends the answer to a request: each number with its value.
pub fn encode_xattr_answer<'a>(
    values: impl IntoIterator<Item = (u32, &'a [u8])>,
    out: &mut Vec<u8>,
) {
    let mut last = 0;
    for (number, value) in values {
        out.put_varint((number - last).cast_signed());
        out.put_varint(value.len() as i32);
        out.put(value);
        last = number;
    }
    out.put(&[0]);
}

/// Reads the answer to a request; the entry has `count` attributes.
pub fn decode_xattr_answer(input: &mut impl Read, count: usize) -> Result<Vec<(u32, Vec<u8>)>> {
    let mut values = Vec::<(u32, Vec<u8>)>::new();
    let mut total = 0;
    while let Some(number) = next_number(input, values.last().map(|(number, _)| *number), count)? {
        let len = input.varint_in(XATTR_VALUE_MAX_BYTES, "the length of an extended attribute")?;
        total = checked(
            (total + len) as i64,
            XATTR_LIST_MAX_BYTES,
            "the size of all attributes",
        )?;
        values.push((number, input.byte_vec(len)?));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::super::decode_error::DecodeError;
    use super::*;
    use proptest::prelude::*;

    fn acl() -> impl Strategy<Value = Acl> {
        let part = || proptest::option::of(0u8..8);
        let entry = (any::<bool>(), any::<u32>(), 0u8..8);
        let entry = entry.prop_map(|(is_user, id, permissions)| AclEntry {
            is_user,
            id,
            permissions,
            name: None,
        });
        let named = proptest::option::of(proptest::collection::vec(entry, 0..5));
        (part(), part(), part(), part(), named).prop_map(|(user, group, mask, other, named)| Acl {
            user,
            group,
            mask,
            other,
            named,
        })
    }

    fn xattrs() -> impl Strategy<Value = Xattrs> {
        let value = proptest::collection::vec(any::<u8>(), 0..=XATTR_SHORT_MAX_BYTES)
            .prop_map(XattrValue::Full);
        let long = (33usize..1 << 27, any::<[u8; 16]>());
        let long =
            long.prop_map(|(len_bytes, digest)| XattrValue::Abbreviated { len_bytes, digest });
        let xattr = ("user\\.[a-z]{1,9}", prop_oneof![value, long]);
        proptest::collection::vec(
            xattr.prop_map(|(name, value)| Xattr {
                name: name.into_bytes(),
                value,
            }),
            0..5,
        )
    }

    proptest! {
        #[test]
        fn attributes_are_decoded_as_they_were_encoded(all in proptest::collection::vec((acl(), acl(), xattrs()), 0..6)) {
            let mut encoder = AttributeEncoder::default();
            let mut known = IdsWithName::default();
            let mut out = Vec::new();
            // Every value twice, so that the second one is a number.
            let all: Vec<_> = all.iter().chain(&all).map(|(a, b, c)| (Arc::new(a.clone()), Arc::new(b.clone()), Arc::new(c.clone()))).collect();
            for (access, default, xattrs) in &all {
                encoder.access_acl(access, &mut known, &mut out);
                encoder.default_acl(default, &mut known, &mut out);
                encoder.xattrs(xattrs, &mut out);
            }
            let mut decoder = AttributeDecoder::default();
            let mut input = &out[..];
            for (access, default, xattrs) in &all {
                prop_assert_eq!(&decoder.access_acl(&mut input).unwrap(), access);
                prop_assert_eq!(&decoder.default_acl(&mut input).unwrap(), default);
                prop_assert_eq!(&decoder.xattrs(&mut input).unwrap().list, xattrs);
            }
            prop_assert!(input.is_empty());
            prop_assert!(decoder.xattrs.len() <= all.len() / 2);
        }

        #[test]
        fn requests_and_answers_are_decoded_as_they_were_encoded(
            values in proptest::collection::btree_map(1u32..100, proptest::collection::vec(any::<u8>(), 0..50), 0..9),
        ) {
            let mut request = Vec::new();
            let mut answer = Vec::new();
            encode_xattr_request(&values.keys().copied().collect::<Vec<_>>(), &mut request);
            encode_xattr_answer(values.iter().map(|(number, value)| (*number, &value[..])), &mut answer);
            prop_assert_eq!(decode_xattr_request(&mut &request[..], 99).unwrap(), values.keys().copied().collect::<Vec<_>>());
            prop_assert_eq!(decode_xattr_answer(&mut &answer[..], 99).unwrap(), values.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut decoder = AttributeDecoder::default();
            let _ = decoder.access_acl(&mut &bytes[..]);
            let _ = decoder.xattrs(&mut &bytes[..]);
            let _ = decode_xattr_request(&mut &bytes[..], 1000);
            let _ = decode_xattr_answer(&mut &bytes[..], 1000);
        }
    }

    /// Encodes varints.
    fn numbers(numbers: &[i32]) -> Vec<u8> {
        let mut out = Vec::new();
        numbers.iter().for_each(|&number| out.put_varint(number));
        out
    }

    #[test]
    fn lengths_beyond_a_limit_are_rejected_before_anything_is_read() {
        let names = XATTRS_MAX as i32 + 1;
        let name_len = XATTR_NAME_MAX_BYTES as i32 + 1;
        let value_len = XATTR_VALUE_MAX_BYTES as i32 + 1;
        for list in [
            &[0, names][..],
            &[0, -1],
            &[0, 1, name_len],
            &[0, 1, -1],
            &[0, 1, 7, value_len],
            &[0, 1, 7, -1],
        ] {
            let error = AttributeDecoder::default()
                .xattrs(&mut &numbers(list)[..])
                .unwrap_err();
            assert!(
                matches!(error, DecodeError::Violation { .. }),
                "{list:?}: {error:?}"
            );
        }
        // Each of five values is short enough, but not all of them.
        let len = XATTR_VALUE_MAX_BYTES as i32;
        let long = || [&numbers(&[7, len])[..], b"user.a\0", &[0; 16]].concat();
        let list = [numbers(&[0, 5]), long(), long(), long(), long(), long()].concat();
        let error = AttributeDecoder::default()
            .xattrs(&mut &list[..])
            .unwrap_err();
        assert!(matches!(error, DecodeError::Violation { .. }), "{error:?}");
        let acl = [&[0, HAS_NAMES][..], &numbers(&[ACL_ENTRIES_MAX as i32 + 1])].concat();
        let error = AttributeDecoder::default()
            .access_acl(&mut &acl[..])
            .unwrap_err();
        assert!(matches!(error, DecodeError::Violation { .. }), "{error:?}");
        let error = decode_xattr_answer(&mut &numbers(&[1, value_len])[..], 1).unwrap_err();
        assert!(matches!(error, DecodeError::Violation { .. }), "{error:?}");
    }

    #[test]
    fn name_of_an_id_is_sent_once() {
        let entry = |is_user, permissions, name: Option<&str>| AclEntry {
            is_user,
            id: 7,
            permissions,
            name: name.map(|name| name.as_bytes().to_vec()),
        };
        let acl = |named: [AclEntry; 2]| {
            Arc::new(Acl {
                named: Some(named.to_vec()),
                ..Acl::default()
            })
        };
        let first = acl([entry(true, 5, Some("u")), entry(false, 5, Some("g"))]);
        let second = acl([entry(true, 6, Some("u")), entry(false, 6, Some("g"))]);
        let mut encoder = AttributeEncoder::default();
        let mut known = IdsWithName::default();
        let mut out = Vec::new();
        encoder.access_acl(&first, &mut known, &mut out);
        encoder.access_acl(&second, &mut known, &mut out);
        let mut decoder = AttributeDecoder::default();
        let mut input = &out[..];
        assert_eq!(decoder.access_acl(&mut input).unwrap(), first);
        let unnamed = acl([entry(true, 6, None), entry(false, 6, None)]);
        assert_eq!(decoder.access_acl(&mut input).unwrap(), unnamed);
        assert!(input.is_empty());
    }

    #[test]
    fn attribute_names_end_in_their_only_nul() {
        for name in [&b"\0"[..], b"user.a", b"a\0b\0", b""] {
            let list = [&numbers(&[0, 1, name.len() as i32, 1])[..], name, b"v"].concat();
            let error = AttributeDecoder::default()
                .xattrs(&mut &list[..])
                .unwrap_err();
            assert!(
                matches!(error, DecodeError::Violation { .. }),
                "{name:?}: {error:?}"
            );
        }
    }

    #[test]
    fn parts_of_an_acl_are_limited() {
        for (acl, is_valid) in [
            (&[0, 1, 7][..], true),
            (&[0, 1, 8], false),
            (&[0, HAS_NAMES, 1, 7, 31, 0], true),
            (&[0, HAS_NAMES, 1, 7, 32, 0], false),
            (&[0, 2 * HAS_NAMES - 1, 7, 7, 7, 7, 0], true),
            (&[0, 2 * HAS_NAMES], false),
        ] {
            let decoded = AttributeDecoder::default().access_acl(&mut &acl[..]);
            assert_eq!(decoded.is_ok(), is_valid, "{acl:?}");
        }
    }

    #[test]
    fn lists_may_be_as_long_as_the_limit() {
        let len = XATTR_LIST_MAX_BYTES / 4 - 7;
        let abbreviated = |len: usize| {
            let lengths = numbers(&[7, len as i32]);
            [&lengths[..], b"user.a\0", &[0; 16]].concat()
        };
        let list = |last: usize| {
            let items = [len, len, len, last].map(abbreviated).concat();
            let list = [numbers(&[0, 4]), items].concat();
            AttributeDecoder::default().xattrs(&mut &list[..]).is_ok()
        };
        assert!(list(len) && !list(len + 1));
    }

    #[test]
    fn unknown_indexes_are_rejected() {
        for index in [1, 2, -1, i32::MAX] {
            let bytes = numbers(&[index]);
            let mut decoder = AttributeDecoder::default();
            assert!(
                matches!(
                    decoder.xattrs(&mut &bytes[..]),
                    Err(DecodeError::Violation { .. })
                ),
                "{index}"
            );
            assert!(
                matches!(
                    decoder.access_acl(&mut &bytes[..]),
                    Err(DecodeError::Violation { .. })
                ),
                "{index}"
            );
            assert!(
                matches!(
                    decoder.default_acl(&mut &bytes[..]),
                    Err(DecodeError::Violation { .. })
                ),
                "{index}"
            );
        }
        for request in [&[4, 0][..], &[2, 2, 0], &[-1, 0], &[i32::MAX, 0]] {
            let bytes = numbers(request);
            let requested = decode_xattr_request(&mut &bytes[..], 3);
            assert!(
                matches!(requested, Err(DecodeError::Violation { .. })),
                "{request:?}"
            );
        }
    }

    #[test]
    fn value_of_the_limit_is_sent_in_full() {
        let list = vec![Xattr {
            name: b"user.short".to_vec(),
            value: XattrValue::Full(vec![b'S'; XATTR_SHORT_MAX_BYTES]),
        }];
        let mut out = Vec::new();
        encode_xattrs(&list, &mut out);
        assert_eq!(decode_xattrs(&mut &out[..]).unwrap(), list);
    }

    #[test]
    fn a_long_value_is_abbreviated() {
        let list = vec![Xattr {
            name: b"user.long".to_vec(),
            value: XattrValue::Full(vec![b'L'; 100]),
        }];
        let mut out = Vec::new();
        encode_xattrs(&list, &mut out);
        let value = XattrValue::Abbreviated {
            len_bytes: 100,
            digest: digest::of_attribute(&[b'L'; 100]),
        };
        assert_eq!(decode_xattrs(&mut &out[..]).unwrap()[0].value, value);
    }
}
