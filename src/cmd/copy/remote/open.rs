//! Opens the session with the program that was reached.

use super::reach::{Reached, ReachedProgram};
use super::session_transport::SessionTransport;
use crate::cmd::copy;
use crate::cmd::copy::Prepared;
use crate::cmd::copy::remote_copy::RemoteCopy;
use crate::env::Env;
use crate::error::Result;
use crate::fs::sys;
use crate::native::client::OpenSession;
use crate::native::early_scan::EarlyScan;
use crate::proto::rsync::batch::BatchHeader;
use crate::rsync::batch::player::BatchFile;
use crate::session::refusal::Refusal;
use crate::transport::{Link, pipe};

/// Limits the capacity of a link, in tests.
pub(super) fn narrowed(link: Link) -> Link {
    match sys::narrow_link_bytes() {
        Some(room_bytes) => pipe::narrowed(link, room_bytes),
        None => link,
    }
}

/// A session whose handshake is done or was rejected.
pub(super) struct OpenedSession {
    pub(super) transport: SessionTransport,
    pub(super) prepared: Prepared,
    pub(super) opened: OpenedLink,
}

/// The link of a session.
pub(super) enum OpenedLink {
    /// To a sparsync: the handshake is done or was rejected.
    Native(std::result::Result<Box<OpenSession>, Refusal>),
    /// To a stock rsync: no handshake was done. A daemon has agreed on the protocol version.
    Rsync(Link, Option<u8>),
    /// To no program: the batch file is open.
    Batch(Box<(BatchFile, BatchHeader)>),
}

impl RemoteCopy {
    /// Opens the session with the program that was reached. If a server rejects the request and ssh is allowed, the session
    /// is opened over ssh instead.
    pub(super) fn begin(
        &self,
        env: &mut Env,
        reached: Reached,
        prepared: Option<Prepared>,
        early: Option<&EarlyScan<'_>>,
    ) -> Result<OpenedSession> {
        let prepared = prepared.map_or_else(
            || copy::prepare(env, &self.options, self.far.operand.server_sends),
            Ok,
        )?;
        let (mut transport, mut opened) = self.open(env, reached, &prepared, early);
        if let (SessionTransport::Net(redial), OpenedLink::Native(Err(Refusal::NotGranted(why)))) =
            (&transport, &opened)
        {
            let reached = self.fall_back_to_shell(env, why, &redial.peer)?;
            (transport, opened) = self.open(env, reached, &prepared, early);
        }
        Ok(OpenedSession {
            transport,
            prepared,
            opened,
        })
    }

    pub(super) fn open(
        &self,
        env: &Env,
        reached: Reached,
        prepared: &Prepared,
        early: Option<&EarlyScan<'_>>,
    ) -> (SessionTransport, OpenedLink) {
        let Reached {
            transport,
            link,
            program,
        } = reached;
        let opened = match program {
            ReachedProgram::Native(first_words) => {
                let near = self.client_of(env, prepared, self.paths_by(&transport));
                let opened = near.open(
                    narrowed(link),
                    first_words.map(|first_words| *first_words),
                    early,
                );
                OpenedLink::Native(opened.map(Box::new))
            }
            ReachedProgram::Rsync(agreed) => OpenedLink::Rsync(link, agreed),
        };
        (transport, opened)
    }
}
