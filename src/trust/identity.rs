//! This user's private key on this machine: generated on first use, never sent.

use super::files::{self, LOCK_WAIT_MAX, Locked, Secrecy};
use super::paths::Places;
use super::pin::Pin;
use crate::error::{Error, Result};
use crate::exit::Exit;
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ED25519, PublicKeyData};
use std::fmt;

/// The file name in the config directory.
const FILE: &str = "identity.pem";

/// An Ed25519 key and a certificate that contains nothing but the key: peers compare its [`Pin`].
#[derive(Clone)]
pub struct Identity {
    /// The certificate, in DER.
    pub cert_der: Vec<u8>,
    /// The private key, in DER (PKCS#8).
    pub key_der: Vec<u8>,
    /// The fingerprint by which peers know it.
    pub pin: Pin,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keeps the private key out of messages.
        write!(f, "Identity({})", self.pin)
    }
}

impl Identity {
    /// Returns the identity of this user on this machine, used both as client and as server.
    ///
    /// Generates it on first use; concurrent processes get the same one. Fails if other users can read the file, or if
    /// it does not contain a key.
    pub fn load_or_make(places: &Places) -> Result<Identity> {
        if let Some(identity) = Identity::load(places)? {
            return Ok(identity);
        }
        let locked = Locked::take(&places.config, LOCK_WAIT_MAX)?;
        // Another process may have created it meanwhile.
        if let Some(identity) = Identity::load(places)? {
            return Ok(identity);
        }
        let key = new_key()?;
        locked.replace(FILE, key.serialize_pem().as_bytes())?;
        Identity::of_key(&key)
    }

    /// Returns the existing identity; `None` if there is none yet.
    pub fn load(places: &Places) -> Result<Option<Identity>> {
        let path = places.config.join(FILE);
        let Some(text) = files::read(&path, Secrecy::Secret)? else {
            return Ok(None);
        };
        let key = String::from_utf8(text)
            .ok()
            .and_then(|text| KeyPair::from_pem(&text).ok());
        match key.filter(|key| key.is_compatible(&PKCS_ED25519)) {
            Some(key) => Identity::of_key(&key).map(Some),
            None => Err(
                files::mistaken(&path, None, "not an Ed25519 key in PEM format")
                    .with_hint("restore the file, or remove it and enroll the hosts again"),
            ),
        }
    }

    /// Creates an identity for a single session, which is never stored.
    pub fn passing() -> Result<Identity> {
        Identity::of_key(&new_key()?)
    }

    /// Derives a secret for this purpose. It depends only on the key and the purpose, and does not reveal the key.
    pub fn secret_for(&self, purpose: &str) -> [u8; 32] {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &self.key_der);
        let mut secret = [0; 32];
        secret.copy_from_slice(ring::hmac::sign(&key, purpose.as_bytes()).as_ref());
        secret
    }

    fn of_key(key: &KeyPair) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "sparsync");
        let certificate = params.self_signed(key).map_err(no_key)?;
        Ok(Identity {
            cert_der: certificate.der().to_vec(),
            key_der: key.serialize_der(),
            pin: Pin::of_public_key(&key.subject_public_key_info()),
        })
    }
}

fn new_key() -> Result<KeyPair> {
    KeyPair::generate_for(&PKCS_ED25519).map_err(no_key)
}

fn no_key(error: rcgen::Error) -> Error {
    Error::new(
        Exit::Crashed,
        format!("sparsync: cannot create a key: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::tls::pin_of;
    use std::os::unix::fs::PermissionsExt;

    fn scratch() -> (tempfile::TempDir, Places) {
        let top = tempfile::tempdir().unwrap();
        let config = top.path().join("a/b/config");
        (
            top,
            Places {
                state: config.join("state"),
                config,
            },
        )
    }

    fn mode(path: &std::path::Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn key_is_created_once_and_private_to_its_owner() {
        let (_top, places) = scratch();
        assert!(Identity::load(&places).unwrap().is_none());
        let made = Identity::load_or_make(&places).unwrap();
        let again = Identity::load_or_make(&places).unwrap();
        assert_eq!(
            (again.pin, &again.cert_der, &again.key_der),
            (made.pin, &made.cert_der, &made.key_der)
        );
        assert_eq!(
            (mode(&places.config), mode(&places.config.join(FILE))),
            (0o700, 0o600)
        );
        assert_eq!(pin_of(&made.cert_der), Some(made.pin));
        assert_ne!(Identity::passing().unwrap().pin, made.pin);
        let mut names: Vec<_> = std::fs::read_dir(&places.config)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, [".lock", FILE], "no other file is left");
        assert!(!format!("{made:?}").contains("key"));
    }

    #[test]
    fn key_readable_by_others_is_rejected_with_a_hint() {
        let (_top, places) = scratch();
        Identity::load_or_make(&places).unwrap();
        let path = places.config.join(FILE);
        for open in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(open)).unwrap();
            let error = Identity::load_or_make(&places).unwrap_err();
            assert_eq!(error.exit, Exit::StartClient);
            let words = String::from_utf8(error.text()).unwrap();
            assert!(
                words.contains(&format!("chmod 600 {}", path.display())),
                "{words}"
            );
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Identity::load_or_make(&places).is_ok());
    }

    #[test]
    fn no_key_is_created_in_a_directory_writable_by_others() {
        let (_top, places) = scratch();
        std::fs::create_dir_all(&places.config).unwrap();
        std::fs::set_permissions(&places.config, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = Identity::load_or_make(&places).unwrap_err();
        assert!(
            String::from_utf8_lossy(&error.text()).contains("chmod go-w"),
            "{error}"
        );
        assert!(!places.config.join(FILE).exists());
    }

    #[test]
    fn invalid_key_file_is_rejected_and_kept() {
        let (_top, places) = scratch();
        Identity::load_or_make(&places).unwrap();
        let path = places.config.join(FILE);
        let ecdsa = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)
            .unwrap()
            .serialize_pem();
        for text in [
            "",
            "hello",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            ecdsa.as_str(),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Identity::load_or_make(&places).unwrap_err();
            assert!(
                String::from_utf8_lossy(&error.message).contains("not an Ed25519 key"),
                "{error}"
            );
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn concurrent_creation_yields_one_key() {
        let (_top, places) = scratch();
        let pins: Vec<_> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| Identity::load_or_make(&places).unwrap().pin))
                .collect();
            makers
                .into_iter()
                .map(|maker| maker.join().unwrap())
                .collect()
        });
        assert!(pins.iter().all(|pin| *pin == pins[0]), "{pins:?}");
    }
}
