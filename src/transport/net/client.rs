//! The near end of a network link: dials a server whose key is known.

use super::bridge::{Engine, wait};
use super::stall::{Name, Signs, Watch};
use super::{BEGINS, HangUp, Kind, Trouble, lanes, quic, roam, tls};
use crate::fs::sys;
use crate::transport::Link;
use crate::transport::ceiling::Ceiling;
use crate::transport::link::{Moved, Patience};
use crate::trust::tls::{ALPN, ALPN_LANES, ALPN_NAMED, client_config_for};
use crate::work::clock::Since;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

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
    /// What is said as soon as a handshake has ended: the beginning of what goes over the link. It was said when there is one.
    pub first_words: Words,
    /// Taken before anything is said.
    pub floor: Floor,
    /// So much later than by the kind before it each kind is tried.
    pub kind_step: Duration,
    /// How it is seen that a connection of TCP leads nowhere.
    pub signs: Signs,
}

/// At most [`super::limits::FIRST_WORDS_MAX_BYTES`], made when they are to be said, and the same whoever says them.
#[derive(Clone, Default)]
pub struct Words {
    make: Option<Arc<dyn Fn() -> Vec<u8> + Send + Sync>>,
    made: Arc<OnceLock<Vec<u8>>>,
}

impl Words {
    /// Of which nothing is made yet.
    pub fn by(make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Words {
        Words { make: Some(Arc::new(make)), made: Arc::default() }
    }

    fn bytes(&self) -> &[u8] {
        self.made.get_or_init(|| self.make.as_ref().map_or_else(Vec::new, |make| make()))
    }
}

/// The right to speak, of which there is one where several ways lead to one peer: who has two conversations begin would have
/// his copy made twice.
#[derive(Debug, Clone, Default)]
pub struct Floor(Arc<AtomicBool>);

impl Floor {
    /// Takes it; `false`: somebody has it.
    pub fn take(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }

    /// Leaves it to whoever takes it.
    fn leave(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Dial {
    /// Moves conversations on the usual terms.
    pub fn new(tls: Arc<rustls::ClientConfig>, limit: Duration, patience: Patience) -> Dial {
        Dial {
            tls,
            limit,
            patience,
            lanes: lanes::Terms::default(),
            first_words: Words::default(),
            floor: Floor::default(),
            kind_step: KIND_STEP,
            signs: Signs::default(),
        }
    }

    fn link(&self, engine: Engine, reached: Reached, peer: SocketAddr) -> Result<Linked, Trouble> {
        match reached {
            Reached::Quic(endpoint, conversation, nudge) => {
                let watch = roam::watch(endpoint.clone(), conversation.connection.clone(), nudge);
                engine.handle().spawn(watch);
                Ok(self.quic_link(engine, endpoint, conversation, peer))
            }
            Reached::Tls(tunnel, name) => {
                let handle = engine.handle().clone();
                // As long as somebody reads or writes, it drives what watches over the connection.
                let halves = tls::halves(tunnel, self.patience.clone(), Arc::new(engine));
                let (reader, writer, hang_up) = halves.map_err(broken)?;
                if let Some(name) = name {
                    let (watch, connection) = (self.watch(peer, name, false), hang_up.watched());
                    handle.spawn(async move {
                        if watch.breaks(&connection).await {
                            connection.hang_up();
                        }
                    });
                }
                let hang_up = HangUp::Tls(hang_up);
                let link = self.link_of(Box::new(reader), Box::new(writer), &hang_up, &handle);
                Ok(Linked { link, lanes: None, hang_up })
            }
        }
    }

    fn watch(&self, peer: SocketAddr, name: Name, is_told: bool) -> Watch {
        Watch { peer, tls: client_config_for(&self.tls, &[ALPN_NAMED]), name, signs: self.signs, is_told }
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
        let (reader, writer) =
            quic::halves(conversation, self.patience.clone(), quic::CLIENT_LAST_WORDS, &Ceiling::default(), at_end);
        let Some(token) = token else {
            let hang_up = HangUp::Quic(connection);
            let link = self.link_of(Box::new(reader), Box::new(writer), &hang_up, &handle);
            return Linked { link, lanes: None, hang_up };
        };
        let inside = handle.enter();
        let (reader, writer, mover) = lanes::movable((reader, writer), &self.lanes, self.first_words.bytes().len());
        let watch = self.watch(peer, token, true);
        tokio::spawn(mover.ask(client_config_for(&self.tls, &[ALPN_LANES]), watch, self.lanes.clone()));
        drop(inside);
        let (lanes, hang_up) = (Some(writer.progress().clone()), HangUp::Lanes(writer.hang_up()));
        Linked { link: self.link_of(Box::new(reader), Box::new(writer), &hang_up, &handle), lanes, hang_up }
    }

    fn link_of(
        &self,
        reader: Box<dyn Read + Send>,
        writer: Box<dyn Write + Send>,
        hang_up: &HangUp,
        engine: &tokio::runtime::Handle,
    ) -> Link {
        let moved = match hang_up {
            HangUp::Lanes(lanes) => lanes.progress().moved().clone(),
            HangUp::Quic(_) | HangUp::Tls(_) => Moved::default(),
        };
        Link { reader, writer, parting: self.patience.parting.clone(), leave: Some(hang_up.leave(engine)), moved }
    }
}

/// A link, and what is to be had of it besides; see [`Won`].
struct Linked {
    link: Link,
    lanes: Option<Arc<lanes::Progress>>,
    hang_up: HangUp,
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

/// Dials all addresses of a host by each of these kinds, the later ones of both a little later. The first whose handshake ends
/// says the first words of `dial` and is taken if the server answers; if it does not, or not soon, the next one does. The
/// others are dropped. Never takes longer than the limit of `dial`.
///
/// A server that knows us and does not let us in ends the race: it would say so by any way. One with another key does not
/// as long as there are other ways: an address may have passed to another machine.
pub fn race(peers: &[SocketAddr], kinds: &[Kind], dial: &Dial) -> Result<Won, Lost> {
    let lost = |trouble| Lost { trouble, story: Vec::new() };
    let engine = Engine::start("client network").map_err(|error| lost(broken(error)))?;
    let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let mut field = Field {
        engine: engine.handle().clone(),
        began: Since::now(),
        limit: dial.limit,
        words: dial.first_words.clone(),
        floor: (dial.floor.clone(), false),
        report,
        tasks: Attempts(Vec::new()),
        runs: 0,
        waiting: VecDeque::new(),
        speaker: None,
        turns: 0,
    };
    // Whoever wants QUIC alone gets nothing else.
    let may_move = Kind::BOTH.iter().all(|kind| kinds.contains(kind));
    let by_quic = if may_move { client_config_for(&dial.tls, &[ALPN_LANES, ALPN]) } else { dial.tls.clone() };
    let by_tls = client_config_for(&dial.tls, &[ALPN_NAMED, ALPN]);
    for (rank, &peer) in peers.iter().enumerate() {
        for (step, &kind) in kinds.iter().enumerate() {
            let head_start = ADDRESS_STEP * rank as u32 + dial.kind_step * step as u32;
            let tls = match kind {
                Kind::Quic => by_quic.clone(),
                Kind::Tls => by_tls.clone(),
            };
            field.run((kind, peer), None, async move {
                tokio::time::sleep(head_start).await;
                reach(kind, peer, tls).await.map(Step::Shaken)
            });
        }
    }
    let mut story = Vec::new();
    let mut worst = None;
    while field.runs > 0 {
        let next = wait(reports.recv(), || dial.patience.check(Duration::ZERO));
        let Ok(Some(Report { way: (kind, address), turn, came })) = next else {
            return Err(Lost { trouble: Trouble::Stopped, story });
        };
        let speaks = field.speaker.as_ref().map(|speaker| speaker.turn);
        if turn.is_some() && turn != speaks {
            // It had its time, and others went on.
            continue;
        }
        if !matches!(came, Ok(Step::Late)) {
            field.runs -= 1;
            field.speaker.take_if(|_| turn.is_some());
        }
        match came {
            Ok(Step::Shaken(shaken)) => field.waiting.push_back(((kind, address), shaken)),
            Ok(Step::Late) => field.speaker.iter_mut().for_each(|speaker| speaker.is_late = true),
            Ok(Step::Answered(_)) if !field.has_floor() => {
                return Err(Lost { trouble: Trouble::Stopped, story });
            }
            Ok(Step::Answered(reached)) => {
                // Those that were slower tell their servers while the engine still turns.
                drop((field, reports));
                let linked = dial.link(engine, reached, address);
                story.push(format!("{address} over {kind}: taken"));
                return match linked {
                    Ok(Linked { link, lanes, hang_up }) => Ok(Won { link, kind, lanes, address, hang_up, story }),
                    Err(trouble) => Err(Lost { trouble, story }),
                };
            }
            Err(trouble) => {
                story.push(format!("{address} over {kind}: {trouble}"));
                if matches!(trouble, Trouble::NotAdmitted) {
                    return Err(Lost { trouble, story });
                }
                worst = worst.into_iter().chain([trouble]).max_by_key(weight);
            }
        }
        let late = field.speaker.as_ref().filter(|speaker| speaker.is_late && !field.waiting.is_empty());
        if let Some((kind, address)) = late.map(|speaker| speaker.way) {
            story.push(format!("{address} over {kind}: does not answer"));
        }
        if !field.let_speak() {
            return Err(Lost { trouble: Trouble::Stopped, story });
        }
    }
    let trouble = worst.unwrap_or_else(|| Trouble::Unreachable("it has no address".into()));
    Err(Lost { trouble, story })
}

/// Those who take part in a race.
struct Field {
    engine: tokio::runtime::Handle,
    began: Since,
    limit: Duration,
    /// What the one who speaks says.
    words: Words,
    /// The right to do so, and whether it is ours.
    floor: (Floor, bool),
    report: UnboundedSender<Report>,
    tasks: Attempts,
    /// How many of them have not reported.
    runs: usize,
    /// Those whose handshakes have ended.
    waiting: VecDeque<(Way, Shaken)>,
    speaker: Option<Speaker>,
    /// How many have spoken.
    turns: usize,
}

/// The one who has said the first words.
struct Speaker {
    way: Way,
    turn: usize,
    task: tokio::task::AbortHandle,
    /// It had its time, and is replaced as soon as there is somebody else.
    is_late: bool,
}

/// By what, and where to.
type Way = (Kind, SocketAddr);

/// What came of an attempt, or of its first words.
struct Report {
    way: Way,
    /// Of a speaker: the how-manieth.
    turn: Option<usize>,
    came: Result<Step, Trouble>,
}

/// How far an attempt has come.
enum Step {
    /// The handshake has ended; nothing was said.
    Shaken(Shaken),
    /// The server has answered.
    Answered(Reached),
    /// It has not answered for a while.
    Late,
}

/// So long a server that was spoken to may take to answer before another way is tried, or so many times what its handshake
/// took: enough for a datagram that is lost.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
const ANSWERS_WITHIN_HANDSHAKES: u32 = 3;

impl Field {
    fn run(
        &mut self,
        way: Way,
        turn: Option<usize>,
        attempt: impl Future<Output = Result<Step, Trouble>> + Send + 'static,
    ) -> tokio::task::AbortHandle {
        let (limit, report) = (self.limit, self.report.clone());
        let left = limit.saturating_sub(self.began.elapsed());
        let task = self.engine.spawn(async move {
            let tried = tokio::time::timeout(left, attempt).await;
            let came = tried.unwrap_or_else(|_| Err(Trouble::Silent(limit)));
            // If nobody hears it, another one was faster.
            let _ = report.send(Report { way, turn, came });
        });
        self.tasks.0.push(task.abort_handle());
        self.runs += 1;
        task.abort_handle()
    }

    /// Whether those of this race may speak.
    fn has_floor(&mut self) -> bool {
        let (floor, is_ours) = &mut self.floor;
        *is_ours = *is_ours || floor.take();
        *is_ours
    }

    /// Lets the next one speak if nobody does, or whoever does had his time; `false`: nobody of them may.
    fn let_speak(&mut self) -> bool {
        if self.speaker.as_ref().is_some_and(|speaker| !speaker.is_late) {
            return true;
        }
        let Some((way, shaken)) = self.waiting.pop_front() else {
            if self.speaker.is_some() && std::mem::take(&mut self.floor.1) {
                // Somebody else may be there who would not have to wait.
                self.floor.0.leave();
            }
            return true;
        };
        if !self.has_floor() {
            return false;
        }
        if let Some(late) = self.speaker.take() {
            late.task.abort();
            self.runs -= 1;
        }
        self.turns += 1;
        let words = self.words.clone();
        // Made here, as that takes a while, and the engine has others to drive.
        words.bytes();
        let (turn, report) = (self.turns, self.report.clone());
        let task = self.run(way, Some(turn), async move { shaken.begin(words.bytes()).await.map(Step::Answered) });
        let patience = ANSWERS_WITHIN.max(self.began.elapsed() * ANSWERS_WITHIN_HANDSHAKES);
        let watch = self.engine.spawn(async move {
            tokio::time::sleep(patience).await;
            let _ = report.send(Report { way, turn: Some(turn), came: Ok(Step::Late) });
        });
        self.tasks.0.push(watch.abort_handle());
        self.speaker = Some(Speaker { way, turn, task, is_late: false });
        true
    }
}

/// So much later than by the kind before it is tried by the next, as Happy Eyeballs staggers families (RFC 8305).
pub const KIND_STEP: Duration = Duration::from_millis(250);
/// After so long without an answer by QUIC it is seen whether anybody is there: QUIC itself says again what may be lost.
const REFUSAL_AFTER: Duration = Duration::from_secs(1);
/// After so long it is tried once more, beside what is under way: a handshake on a slow path by
/// radio takes less. TCP sees to its own.
const QUIC_AGAIN: Duration = Duration::from_secs(2);
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
        Trouble::Unreachable(_) | Trouble::Silent(_) => 0,
    }
}

/// Attempts that end when this is dropped.
struct Attempts(Vec<tokio::task::AbortHandle>);

impl Drop for Attempts {
    fn drop(&mut self) {
        self.0.iter().for_each(tokio::task::AbortHandle::abort);
    }
}

/// A server with which a handshake has ended: it has shown its key, and has not said yet whether it takes this client.
enum Shaken {
    Quic(quinn::Endpoint, quinn::Connection, roam::Nudge),
    Tls(tls::Tunnel),
}

/// A server that has answered.
enum Reached {
    Quic(quinn::Endpoint, quic::Conversation, roam::Nudge),
    /// And what it knows the conversation by, if it knows how.
    Tls(tls::Tunnel, Option<Name>),
}

async fn reach(kind: Kind, peer: SocketAddr, tls: Arc<rustls::ClientConfig>) -> Result<Shaken, Trouble> {
    match kind {
        Kind::Quic => reach_by_quic(peer, tls).await,
        Kind::Tls => tls::connect(peer, tls).await.map(Shaken::Tls),
    }
}

/// Tries anew while nothing comes of what was tried before, and takes what comes first. QUIC itself repeats what is lost ever
/// more rarely, a server gives up a handshake after [`super::limits::HANDSHAKE`], and a router may have lost the way back.
async fn reach_by_quic(peer: SocketAddr, tls: Arc<rustls::ClientConfig>) -> Result<Shaken, Trouble> {
    // Whatever is left of it ends with this.
    let mut attempts = JoinSet::new();
    loop {
        attempts.spawn(shake_by_quic(peer, tls.clone()));
        while let Ok(Some(came)) = tokio::time::timeout(QUIC_AGAIN, attempts.join_next()).await {
            match came.unwrap_or_else(|error| Err(broken(error))) {
                // There are others yet, which may have better luck.
                Err(Trouble::Broken(_)) if !attempts.is_empty() => {}
                came => return came,
            }
        }
    }
}

async fn shake_by_quic(peer: SocketAddr, tls: Arc<rustls::ClientConfig>) -> Result<Shaken, Trouble> {
    let endpoint = open(peer)?;
    let nudge = roam::Nudge::default();
    let mut refusal = pin!(refusal(peer));
    let connection = {
        let mut connecting = pin!(quic::connect(&endpoint, peer, tls, &nudge));
        poll_fn(|context| match connecting.as_mut().poll(context) {
            Poll::Pending => refusal.as_mut().poll(context).map(Err),
            connected => connected,
        })
        .await?
    };
    Ok(Shaken::Quic(endpoint, connection, nudge))
}

/// Why nothing can be there, once somebody says so: only a socket for one peer alone hears that, and QUIC has none. Who is
/// answered soon never asks.
async fn refusal(peer: SocketAddr) -> Trouble {
    tokio::time::sleep(REFUSAL_AFTER).await;
    let refused: std::io::Result<Infallible> = async {
        let socket = quic::client_socket(peer)?;
        socket.set_nonblocking(true)?;
        let socket = tokio::net::UdpSocket::from_std(socket)?;
        socket.connect(peer).await?;
        // Too short to be of QUIC.
        socket.send(&[0]).await?;
        loop {
            socket.recv(&mut [0]).await?;
        }
    }
    .await;
    match refused {
        Ok(never) => match never {},
        Err(error) => Trouble::Unreachable(error.to_string()),
    }
}

impl Shaken {
    /// Says the first words, and waits for the server's.
    async fn begin(self, words: &[u8]) -> Result<Reached, Trouble> {
        match self {
            Shaken::Quic(endpoint, connection, nudge) => {
                let conversation = quic::begin(connection, &[&BEGINS, words].concat()).await?;
                Ok(Reached::Quic(endpoint, conversation, nudge))
            }
            Shaken::Tls(mut tunnel) => {
                let name = (tunnel.carries() == Some(ALPN_NAMED)).then(sys::random);
                let told: &[u8] = name.as_ref().map_or(&[], Name::as_slice);
                tunnel.begin(&[&BEGINS, told, words].concat()).await?;
                Ok(Reached::Tls(tunnel, name))
            }
        }
    }
}

/// An endpoint for this peer; inside of an engine.
fn open(peer: SocketAddr) -> Result<quinn::Endpoint, Trouble> {
    let opened = quic::client_socket(peer).and_then(quic::client_endpoint);
    opened.map_err(|error| Trouble::Unreachable(error.to_string()))
}
