//! Values of extended attributes of which the sender has sent only the digest: they are requested if they are needed.

/// A value that was not sent yet. Only a stock rsync abbreviates values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbbreviatedValue {
    /// The MD5 digest of the value.
    pub digest: [u8; 16],
    /// The length of the value.
    pub len_bytes: u32,
    /// The number of the list of attributes in the session. Entries can share a list.
    pub list: u32,
    /// The number of the attribute in that list, from 1.
    pub number: u32,
}

/// The length of an encoded [`AbbreviatedValue`]. The values that are sent in full beside it are shorter.
pub const ABBREVIATED_LEN_BYTES: usize = 33;

/// The abbreviated values of one list of attributes that are requested. The default requests none.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct RequestedValues {
    /// The number of the list.
    pub list: u32,
    /// Their numbers in it, ascending.
    pub numbers: Vec<u32>,
}

impl AbbreviatedValue {
    /// Encodes it in place of the value. See [`Extra::has_abbreviated`](super::Extra::has_abbreviated).
    pub fn encode(&self) -> Box<[u8]> {
        let AbbreviatedValue {
            digest,
            len_bytes,
            list,
            number,
        } = self;
        let mut out = digest.to_vec();
        for number in [len_bytes, list, number] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.resize(ABBREVIATED_LEN_BYTES, 0);
        out.into()
    }

    /// Returns what stands in place of a value; `None` for a value that was sent in full.
    pub fn decode(value: &[u8]) -> Option<AbbreviatedValue> {
        if value.len() != ABBREVIATED_LEN_BYTES {
            return None;
        }
        let (digest, rest) = value.split_first_chunk()?;
        let word = |at: usize| {
            rest.get(at..at + 4)?
                .try_into()
                .ok()
                .map(u32::from_le_bytes)
        };
        Some(AbbreviatedValue {
            digest: *digest,
            len_bytes: word(0)?,
            list: word(4)?,
            number: word(8)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abbreviated_value_is_decoded_and_others_are_not() {
        let value = AbbreviatedValue {
            digest: [7; 16],
            len_bytes: 100,
            list: 3,
            number: u32::MAX,
        };
        assert_eq!(AbbreviatedValue::decode(&value.encode()), Some(value));
        assert_eq!(AbbreviatedValue::decode(&[0; 32]), None);
    }
}
