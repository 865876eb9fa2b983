//! TLS 1.3 between two keys: each side presents its own key and compares the other's pin. There are no names and no
//! certificate authorities. Resumption is disabled, so that every connection is verified.

use super::identity::Identity;
use super::pin::Pin;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The ALPN name of a session.
pub const ALPN: &[u8] = b"sparsync/1";
/// Over QUIC: a session that may be moved to TLS. Over TLS: a connection that takes over such a session.
pub const ALPN_LANES: &[u8] = b"sparsync/1+lanes";
/// Over TLS: a session with a name that the client chose, or a query about one.
pub const ALPN_NAMED: &[u8] = b"sparsync/1+named";
/// Returns whether a key may connect to this server now. Called only for keys whose possession is proven.
pub type Admit = Arc<dyn Fn(&Pin) -> bool + Send + Sync>;

/// The TLS configuration of a server: its certificate, and the check of clients.
pub type ServerTls = Arc<ServerConfig>;

/// The DER prefix of an Ed25519 public key: RFC 8410.
const ED25519_PREFIX: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
/// The length of the key itself.
const ED25519_KEY_BYTES: usize = 32;

/// Returns the pin of the key in a certificate; `None`: not a certificate, or not an Ed25519 key.
pub fn pin_of(cert_der: &[u8]) -> Option<Pin> {
    let cert_der = CertificateDer::from(cert_der);
    let spki = ParsedCertificate::try_from(&cert_der)
        .ok()?
        .subject_public_key_info();
    let is_ed25519 =
        spki.starts_with(&ED25519_PREFIX) && spki.len() == ED25519_PREFIX.len() + ED25519_KEY_BYTES;
    is_ed25519.then(|| Pin::of_public_key(&spki))
}

/// Returns the configuration of a client that accepts only a server with this key.
pub fn client_config(identity: &Identity, expected: Pin) -> Arc<ClientConfig> {
    client_config_that_notes(identity, expected, Arc::default())
}

/// Like [`client_config`], but sets `met` to the pin that the server presented, even if it is the wrong one.
pub fn client_config_that_notes(
    identity: &Identity,
    expected: Pin,
    met: Arc<OnceLock<Pin>>,
) -> Arc<ClientConfig> {
    let provider = provider();
    let verifier = Pinned {
        expected,
        met,
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider's suites are those of TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(vec![identity.cert_der.clone().into()], key(identity))
        .expect("an identity holds an Ed25519 key, which the provider signs with");
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// Returns the same configuration for these ALPN names, in order of preference.
pub fn client_config_for(config: &ClientConfig, alpn: &[&[u8]]) -> Arc<ClientConfig> {
    let mut config = config.clone();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

/// Returns the configuration of a server that calls `admit` for the key of each connection.
pub fn server_config(identity: &Identity, admit: Admit) -> Arc<ServerConfig> {
    let provider = provider();
    let verifier = Admitting {
        admit,
        algorithms: provider.signature_verification_algorithms,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider's suites are those of TLS 1.3")
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(vec![identity.cert_der.clone().into()], key(identity))
        .expect("an identity holds an Ed25519 key, which the provider signs with");
    config.alpn_protocols = [ALPN_LANES, ALPN_NAMED, ALPN].map(<[u8]>::to_vec).to_vec();
    // Resuming a session would bypass `admit`.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

fn key(identity: &Identity) -> rustls::pki_types::PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(identity.key_der.clone()).into()
}

/// Returns the ring provider with TLS 1.3 suites only. AES comes first if the processor supports it; otherwise ChaCha20
/// is faster.
fn provider() -> Arc<CryptoProvider> {
    use ring::cipher_suite::{
        TLS13_AES_128_GCM_SHA256 as AES_128, TLS13_AES_256_GCM_SHA384 as AES_256,
        TLS13_CHACHA20_POLY1305_SHA256 as CHACHA20,
    };
    let cipher_suites = if has_aes() {
        vec![AES_128, AES_256, CHACHA20]
    } else {
        vec![CHACHA20, AES_128, AES_256]
    };
    Arc::new(CryptoProvider {
        cipher_suites,
        ..ring::default_provider()
    })
}

fn has_aes() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

/// The only reason sent to the peer, as the alert `access_denied`.
const DENIED: Error = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);

fn shown(end_entity: &CertificateDer<'_>) -> Result<Pin, Error> {
    pin_of(end_entity).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))
}

/// The client's verifier: accepts one server key.
struct Pinned {
    expected: Pin,
    met: Arc<OnceLock<Pin>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({})", self.expected)
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pin = shown(end_entity)?;
        // Only the first key counts.
        let _ = self.met.set(pin);
        if pin == self.expected {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(DENIED)
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(DENIED)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(message, cert, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

/// The server's verifier: accepts the keys that have a grant. It asks for the grant when the client has signed, so a
/// client learns nothing about a key that it does not have.
struct Admitting {
    admit: Admit,
    algorithms: WebPkiSupportedAlgorithms,
}

impl fmt::Debug for Admitting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Admitting")
    }
}

impl ClientCertVerifier for Admitting {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // `admit` is called later, after the client has proven that it has the private key.
        shown(end_entity).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(DENIED)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let is_its_own = crypto::verify_tls13_signature(message, cert, signed, &self.algorithms)?;
        if (self.admit)(&shown(cert)?) {
            Ok(is_its_own)
        } else {
            Err(DENIED)
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{AlertDescription, ClientConnection, ServerConnection};

    /// Exchanges handshake messages until neither side has more to send.
    fn shake_hands(
        client: &Arc<ClientConfig>,
        server: &Arc<ServerConfig>,
    ) -> Result<ServerConnection, Box<[Option<Error>; 2]>> {
        let name = ServerName::try_from("sparsync").unwrap();
        let mut client = ClientConnection::new(client.clone(), name).unwrap();
        let mut server = ServerConnection::new(server.clone()).unwrap();
        let mut errors = [None, None];
        for _ in 0..8 {
            let mut flight = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut flight).unwrap();
            }
            let mut rest = flight.as_slice();
            while !rest.is_empty() && server.read_tls(&mut rest).is_ok() {
                errors[1] = errors[1].take().or(server.process_new_packets().err());
            }
            let mut flight = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut flight).unwrap();
            }
            let mut rest = flight.as_slice();
            while !rest.is_empty() && client.read_tls(&mut rest).is_ok() {
                errors[0] = errors[0].take().or(client.process_new_packets().err());
            }
        }
        let is_done =
            errors == [None, None] && !client.is_handshaking() && !server.is_handshaking();
        if is_done {
            Ok(server)
        } else {
            Err(Box::new(errors))
        }
    }

    fn admitting(pin: Pin) -> Admit {
        Arc::new(move |shown| *shown == pin)
    }

    #[test]
    fn mutually_pinned_peers_complete_a_handshake() {
        let [near, far] = [(); 2].map(|()| Identity::passing().unwrap());
        let met = Arc::new(OnceLock::new());
        let client = client_config_that_notes(&near, far.pin, met.clone());
        let server = shake_hands(&client, &server_config(&far, admitting(near.pin))).unwrap();
        assert_eq!(server.alpn_protocol(), Some(ALPN));
        assert_eq!(
            server.protocol_version(),
            Some(rustls::ProtocolVersion::TLSv1_3)
        );
        let first = if has_aes() {
            "TLS13_AES_128_GCM_SHA256"
        } else {
            "TLS13_CHACHA20_POLY1305_SHA256"
        };
        assert_eq!(
            format!("{:?}", server.negotiated_cipher_suite().unwrap().suite()),
            first
        );
        assert_eq!(met.get(), Some(&far.pin));
        assert_eq!(
            pin_of(&server.peer_certificates().unwrap()[0]),
            Some(near.pin)
        );
    }

    #[test]
    fn server_with_another_key_is_rejected() {
        let [near, far, other] = [(); 3].map(|()| Identity::passing().unwrap());
        let met = Arc::new(OnceLock::new());
        let client = client_config_that_notes(&near, far.pin, met.clone());
        let [mine, _] =
            *shake_hands(&client, &server_config(&other, Arc::new(|_| true))).unwrap_err();
        assert_eq!((mine, met.get()), (Some(DENIED), Some(&other.pin)));
    }

    #[test]
    fn rejected_client_gets_access_denied() {
        let [near, far] = [(); 2].map(|()| Identity::passing().unwrap());
        let client = client_config(&near, far.pin);
        let [mine, theirs] =
            *shake_hands(&client, &server_config(&far, Arc::new(|_| false))).unwrap_err();
        assert_eq!(
            (mine, theirs),
            (
                Some(Error::AlertReceived(AlertDescription::AccessDenied)),
                Some(DENIED)
            )
        );
    }

    #[test]
    fn certificate_without_its_key_is_rejected() {
        let [near, far, thief] = [(); 3].map(|()| Identity::passing().unwrap());
        // `with_client_auth_cert` would reject this mismatch, but a malicious client would send it.
        let provider = provider();
        let signer =
            ring::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(thief.key_der.clone())).unwrap();
        let stolen = rustls::sign::CertifiedKey::new(vec![near.cert_der.clone().into()], signer);
        let verifier = Pinned {
            expected: far.pin,
            met: Arc::default(),
            algorithms: provider.signature_verification_algorithms,
        };
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(stolen)));
        client.alpn_protocols = vec![ALPN.to_vec()];
        let server = server_config(&far, Arc::new(|pin| panic!("{pin} is not proven")));
        let [_, theirs] = *shake_hands(&Arc::new(client), &server).unwrap_err();
        assert_eq!(
            theirs,
            Some(Error::InvalidCertificate(CertificateError::BadSignature))
        );
    }

    #[test]
    fn every_connection_is_checked_again() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let [near, far] = [(); 2].map(|()| Identity::passing().unwrap());
        let queries = Arc::new(AtomicUsize::new(0));
        let counter = queries.clone();
        let server = server_config(
            &far,
            Arc::new(move |_| counter.fetch_add(1, Ordering::Relaxed) < 2),
        );
        let client = client_config(&near, far.pin);
        assert!(shake_hands(&client, &server).is_ok());
        assert!(shake_hands(&client, &server).is_ok());
        assert!(shake_hands(&client, &server).is_err());
        assert_eq!(queries.load(Ordering::Relaxed), 3);
        // No data before the handshake is complete, which an attacker could send again.
        assert_eq!(server.max_early_data_size, 0);
        assert!(!client.enable_early_data);
    }

    #[test]
    fn keys_other_than_ed25519_have_no_pin() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let cert = rcgen::CertificateParams::default()
            .self_signed(&key)
            .unwrap();
        assert_eq!(pin_of(cert.der()), None);
        assert_eq!((pin_of(b""), pin_of(&[0x30; 400])), (None, None));
    }
}
