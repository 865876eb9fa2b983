//! The 32-byte fingerprint of a peer's public key, and its text form.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The SHA-256 of a public key in the form that certificates contain (SubjectPublicKeyInfo, in DER).
///
/// Its text form is that of ssh fingerprints: `SHA256:` and base64 without padding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pin(pub [u8; 32]);

/// The prefix of the text form.
const PREFIX: &str = "SHA256:";

/// A malformed pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadPin;

impl Pin {
    /// Returns the pin of a key.
    pub fn of_public_key(spki_der: &[u8]) -> Pin {
        let digest = ring::digest::digest(&ring::digest::SHA256, spki_der);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Pin(bytes)
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Pin {
    type Err = BadPin;

    fn from_str(text: &str) -> Result<Pin, BadPin> {
        let letters = text.strip_prefix(PREFIX).ok_or(BadPin)?;
        let bytes = STANDARD_NO_PAD.decode(letters).map_err(|_| BadPin)?;
        bytes.try_into().map(Pin).map_err(|_| BadPin)
    }
}

impl TryFrom<String> for Pin {
    type Error = BadPin;

    fn try_from(text: String) -> Result<Pin, BadPin> {
        text.parse()
    }
}

impl From<Pin> for String {
    fn from(pin: Pin) -> String {
        pin.to_string()
    }
}

impl fmt::Display for BadPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid fingerprint: expected {PREFIX} and 43 characters, as printed by `sparsync server pin`"
        )
    }
}

impl std::error::Error for BadPin {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_parses_only_in_its_canonical_form() {
        let pin = Pin::of_public_key(b"abc");
        // FIPS 180-4 contains the digest of "abc".
        assert_eq!(
            pin.to_string(),
            "SHA256:ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0"
        );
        assert_eq!(pin.to_string().parse(), Ok(pin));
        let text = pin.to_string();
        for bad in [
            "",
            "SHA256:",
            &text[1..],
            &text[7..],
            &format!("{text}="),
            &text[..text.len() - 1],
            "SHA256:a b",
        ] {
            assert_eq!(bad.parse::<Pin>(), Err(BadPin), "{bad:?}");
        }
    }
}
