//! The near end of a network link: dials a server whose key is known.

use super::bridge::{Engine, wait};
use super::{Trouble, quic};
use crate::transport::Link;
use crate::transport::link::Patience;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How a server is dialled.
#[derive(Clone)]
pub struct Dial {
    /// This machine's key, and which key the server must have.
    pub tls: Arc<rustls::ClientConfig>,
    /// After so long without the server's first bytes the attempt is given up.
    pub limit: Duration,
    /// How the link reads; its `stop` also ends an attempt.
    pub patience: Patience,
}

/// A link over QUIC. The server's first bytes are there when it returns.
pub fn dial_quic(peer: SocketAddr, dial: &Dial) -> Result<Link, Trouble> {
    let engine = Engine::start("quic").map_err(|error| Trouble::Broken(error.to_string()))?;
    let endpoint = open(&engine, peer)?;
    let limit = dial.limit;
    let attempt = {
        let (endpoint, tls) = (endpoint.clone(), dial.tls.clone());
        engine.handle().spawn(async move {
            let connected = tokio::time::timeout(limit, quic::connect(&endpoint, peer, tls)).await;
            connected.unwrap_or_else(|_| Err(silence(limit)))
        })
    };
    let connected = wait(attempt, || dial.patience.check(Duration::ZERO)).map_err(|_| Trouble::Stopped)?;
    let conversation = connected.map_err(|error| Trouble::Broken(error.to_string()))??;
    let at_end = move |parting| {
        engine.end(Box::pin(async move {
            parting.await;
            drop(endpoint);
        }));
    };
    let (reader, writer) = quic::halves(conversation, dial.patience.clone(), quic::CLIENT_LAST_WORDS, at_end);
    Ok(Link { reader: Box::new(reader), writer: Box::new(writer), parting: dial.patience.parting.clone() })
}

fn open(engine: &Engine, peer: SocketAddr) -> Result<quinn::Endpoint, Trouble> {
    let _inside = engine.handle().enter();
    let opened = quic::client_socket(peer).and_then(|socket| quic::endpoint(socket, None));
    opened.map_err(|error| Trouble::Unreachable(error.to_string()))
}

fn silence(limit: Duration) -> Trouble {
    Trouble::Unreachable(format!("no answer within {} ms", limit.as_millis()))
}
