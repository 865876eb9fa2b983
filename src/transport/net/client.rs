//! The near end of a network link: dials a server whose key is known.

use super::bridge::{Engine, wait};
use super::{HangUp, Kind, Trouble, lanes, quic, roam, tls};
use crate::transport::Link;
use crate::transport::link::Patience;
use crate::trust::tls::{ALPN, ALPN_LANES, client_config_for};
use std::future::Future;
use std::io::{Read, Write};
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
    /// When a conversation over QUIC is moved to TLS, where both will do.
    pub lanes: lanes::Terms,
}

impl Dial {
    /// Moves conversations on the usual terms.
    pub fn new(tls: Arc<rustls::ClientConfig>, limit: Duration, patience: Patience) -> Dial {
        Dial { tls, limit, patience, lanes: lanes::Terms::default() }
    }

    fn link(&self, engine: Engine, reached: Reached, peer: SocketAddr) -> Result<Linked, Trouble> {
        match reached {
            Reached::Quic(endpoint, conversation, nudge) => {
                let watch = roam::watch(endpoint.clone(), conversation.connection.clone(), nudge);
                engine.handle().spawn(watch);
                Ok(self.quic_link(engine, endpoint, conversation, peer))
            }
            Reached::Tls(tunnel) => {
                let halves = tls::halves(tunnel, self.patience.clone(), Box::new(()));
                let (reader, writer, hang_up) = halves.map_err(broken)?;
                let link = self.link_of(Box::new(reader), Box::new(writer));
                Ok(Linked { link, lanes: None, hang_up: HangUp::Tls(hang_up) })
            }
        }
    }

    fn quic_link(
        &self,
        engine: Engine,
        endpoint: quinn::Endpoint,
        conversation: quic::Conversation,
        peer: SocketAddr,
    ) -> Linked {
        let connection = conversation.connection.clone();
        let token = lanes::token(&conversation.connection);
        let handle = engine.handle().clone();
        let at_end = move |parting| {
            engine.end(Box::pin(async move {
                parting.await;
                drop(endpoint);
            }));
        };
        let (reader, writer) = quic::halves(conversation, self.patience.clone(), quic::CLIENT_LAST_WORDS, at_end);
        let Some(token) = token else {
            let link = self.link_of(Box::new(reader), Box::new(writer));
            return Linked { link, lanes: None, hang_up: HangUp::Quic(connection) };
        };
        let inside = handle.enter();
        let (reader, writer, mover) = lanes::movable((reader, writer), &self.lanes);
        tokio::spawn(mover.ask(peer, client_config_for(&self.tls, &[ALPN_LANES]), token, self.lanes.clone()));
        drop(inside);
        let (lanes, hang_up) = (Some(writer.progress().clone()), HangUp::Lanes(writer.hang_up()));
        Linked { link: self.link_of(Box::new(reader), Box::new(writer)), lanes, hang_up }
    }

    fn link_of(&self, reader: Box<dyn Read + Send>, writer: Box<dyn Write + Send>) -> Link {
        Link { reader, writer, parting: self.patience.parting.clone() }
    }
}

/// A link, and what is to be had of it besides; see [`Won`].
struct Linked {
    link: Link,
    lanes: Option<Arc<lanes::Progress>>,
    hang_up: HangUp,
}

async fn within<T>(limit: Duration, attempt: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
    tokio::time::timeout(limit, attempt).await.unwrap_or_else(|_| Err(silence(limit)))
}

fn broken(error: impl std::fmt::Display) -> Trouble {
    Trouble::Broken(error.to_string())
}

/// A race that was won.
pub struct Won {
    /// The link; the server's first bytes are there.
    pub link: Link,
    /// How it goes.
    pub kind: Kind,
    /// Whether it is moved later. `None`: it cannot be.
    pub lanes: Option<Arc<lanes::Progress>>,
    /// Where to.
    pub address: SocketAddr,
    /// Ends it from any thread.
    pub hang_up: HangUp,
    /// What became of each attempt, in words for people who want to know.
    pub story: Vec<String>,
}

/// A race that nobody won.
pub struct Lost {
    /// What matters most of what went wrong.
    pub trouble: Trouble,
    /// What became of each attempt.
    pub story: Vec<String>,
}

/// Dials all addresses of a host by each of these kinds, the later ones of both a little later; the first that
/// authenticates is taken, and the others are dropped. Never takes longer than the limit of `dial`.
///
/// A server that knows us and does not let us in ends the race: it would say so by any way. One with another key does not
/// as long as there are other ways: an address may have passed to another machine.
pub fn race(peers: &[SocketAddr], kinds: &[Kind], dial: &Dial) -> Result<Won, Lost> {
    let lost = |trouble| Lost { trouble, story: Vec::new() };
    let engine = Engine::start("network").map_err(|error| lost(broken(error)))?;
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let mut attempts = Attempts(Vec::new());
    // Whoever wants QUIC alone gets nothing else.
    let may_move = Kind::BOTH.iter().all(|kind| kinds.contains(kind));
    let movable = may_move.then(|| client_config_for(&dial.tls, &[ALPN_LANES, ALPN]));
    for (rank, &peer) in peers.iter().enumerate() {
        for (step, &kind) in kinds.iter().enumerate() {
            let head_start = ADDRESS_STEP * rank as u32 + KIND_STEP * step as u32;
            let tls = movable.as_ref().filter(|_| kind == Kind::Quic).unwrap_or(&dial.tls).clone();
            let (limit, report) = (dial.limit, report.clone());
            let attempt = engine.handle().spawn(async move {
                let tried = within(limit, async {
                    tokio::time::sleep(head_start).await;
                    reach(kind, peer, tls).await
                });
                let _ = report.send((kind, peer, tried.await));
            });
            attempts.0.push(attempt.abort_handle());
        }
    }
    drop(report);
    let mut story = Vec::new();
    let mut worst = None;
    loop {
        let next = wait(reports.recv(), || dial.patience.check(Duration::ZERO));
        let (kind, address, ended) = match next {
            Ok(Some(next)) => next,
            Ok(None) => {
                let trouble = worst.unwrap_or_else(|| Trouble::Unreachable("it has no address".into()));
                return Err(Lost { trouble, story });
            }
            Err(_) => return Err(Lost { trouble: Trouble::Stopped, story }),
        };
        let linked = match ended {
            Ok(reached) => {
                // Those that were slower tell their servers while the engine still turns.
                drop((attempts, reports));
                dial.link(engine, reached, address)
            }
            Err(trouble) => {
                story.push(format!("{address} over {kind}: {trouble}"));
                if matches!(trouble, Trouble::NotAdmitted) {
                    return Err(Lost { trouble, story });
                }
                worst = worst.into_iter().chain([trouble]).max_by_key(weight);
                continue;
            }
        };
        story.push(format!("{address} over {kind}: taken"));
        return match linked {
            Ok(Linked { link, lanes, hang_up }) => Ok(Won { link, kind, lanes, address, hang_up, story }),
            Err(trouble) => Err(Lost { trouble, story }),
        };
    }
}

/// So much later than by the kind before it is tried by the next, as Happy Eyeballs staggers families (RFC 8305).
pub const KIND_STEP: Duration = Duration::from_millis(250);
/// So much later than the one before the next address is tried.
const ADDRESS_STEP: Duration = Duration::from_millis(100);

/// What a user has to know first.
fn weight(trouble: &Trouble) -> u8 {
    match trouble {
        Trouble::Stopped => 5,
        Trouble::WrongKey(_) => 4,
        Trouble::NotAdmitted => 3,
        Trouble::Busy => 2,
        Trouble::Broken(_) => 1,
        Trouble::Unreachable(_) => 0,
    }
}

/// Attempts that end when this is dropped.
struct Attempts(Vec<tokio::task::AbortHandle>);

impl Drop for Attempts {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::AbortHandle::abort);
    }
}

/// A server that was reached.
enum Reached {
    Quic(quinn::Endpoint, quic::Conversation, roam::Nudge),
    Tls(tls::Tunnel),
}

async fn reach(kind: Kind, peer: SocketAddr, tls: Arc<rustls::ClientConfig>) -> Result<Reached, Trouble> {
    match kind {
        Kind::Quic => {
            let endpoint = open(peer)?;
            let nudge = roam::Nudge::default();
            let conversation = quic::connect(&endpoint, peer, tls, &nudge).await?;
            Ok(Reached::Quic(endpoint, conversation, nudge))
        }
        Kind::Tls => tls::connect(peer, tls, true).await.map(Reached::Tls),
    }
}

/// An endpoint for this peer; inside of an engine.
fn open(peer: SocketAddr) -> Result<quinn::Endpoint, Trouble> {
    let opened = quic::client_socket(peer).and_then(quic::client_endpoint);
    opened.map_err(|error| Trouble::Unreachable(error.to_string()))
}

fn silence(limit: Duration) -> Trouble {
    Trouble::Unreachable(format!("no answer within {} ms", limit.as_millis()))
}
