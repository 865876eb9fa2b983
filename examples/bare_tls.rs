//! What the machine gives without any files: so many MiB through bare rustls over TCP on loopback, from one thread to
//! another, with the cipher that a copy has. `scripts/bench quic` prints it beside the copy of a large file.
//!
//!     cargo run --release --example bare_tls -- 1024

use rustls::crypto::{CryptoProvider, ring};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

/// What is written and read at once, as in a copy.
const PIECE_BYTES: usize = 256 << 10;

/// Whom the certificate is for.
const NAME: &str = "localhost";

#[allow(clippy::disallowed_methods)] // a program by itself: no Env, no clock of a run
fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mib: u64 = std::env::args().nth(1).ok_or("how many MiB?")?.parse()?;
    let bytes = mib << 20;
    let (client, server) = configs()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let answering = std::thread::spawn(move || -> Result<u64, Box<dyn Error + Send + Sync>> {
        let (tcp, _) = listener.accept()?;
        tcp.set_nodelay(true)?;
        let tls = ServerConnection::new(server)?;
        let mut stream = StreamOwned::new(tls, tcp);
        let mut piece = vec![0; PIECE_BYTES];
        let mut heard = 0;
        while heard < bytes {
            match stream.read(&mut piece)? {
                0 => break,
                n => heard += n as u64,
            }
        }
        stream.write_all(b"!")?;
        Ok(heard)
    });
    let tcp = TcpStream::connect(address)?;
    tcp.set_nodelay(true)?;
    let tls = ClientConnection::new(client, NAME.try_into()?)?;
    let mut stream = StreamOwned::new(tls, tcp);
    let piece = vec![0xa5; PIECE_BYTES];
    let since = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let now = left.min(PIECE_BYTES as u64);
        stream.write_all(&piece[..now as usize])?;
        left -= now;
    }
    stream.read_exact(&mut [0])?;
    let elapsed = since.elapsed();
    let heard = answering
        .join()
        .map_err(|_| "the answering thread crashed")??;
    if heard != bytes {
        return Err(format!("{heard} of {bytes} bytes arrived").into());
    }
    writeln!(std::io::stdout(), "{:.1}", elapsed.as_secs_f64() * 1000.0)?;
    Ok(())
}

/// AES-128-GCM and an Ed25519 key, as in a copy on a machine with AES.
fn configs() -> Result<(Arc<ClientConfig>, Arc<ServerConfig>), Box<dyn Error + Send + Sync>> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
    let cert = rcgen::CertificateParams::new(vec![NAME.to_string()])?.self_signed(&key)?;
    let suites = vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256];
    let provider = Arc::new(CryptoProvider {
        cipher_suites: suites,
        ..ring::default_provider()
    });
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone())?;
    let client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(
            vec![cert.der().clone()],
            rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der())?,
        )?;
    Ok((Arc::new(client), Arc::new(server)))
}
