//! The records of a TLS 1.3 connection once its handshake has ended (RFC 8446, section 5): sealed and opened where they lie.
//!
//! rustls shakes hands, keeps the secrets and derives those that follow; for records it is asked no more, by the door that
//! it has for the kernel's TLS. Its own records, handed over in parts, copy each byte twice where it is sealed and three times
//! where it is opened. Here a byte is copied once into the record that is sealed, and what was opened is read where it came.

use super::tls::Side;
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ConnectionTrafficSecrets, ContentType, Error, HandshakeType, PeerMisbehaved};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What stands in front of a record: its kind, the version of old, the length of its body.
const HEAD_BYTES: usize = 5;
/// The most content of a record.
const CONTENT_MAX_BYTES: usize = 1 << 14;
/// The longest body of a record that a peer may send: it may have padding.
const BODY_MAX_BYTES: usize = CONTENT_MAX_BYTES + 256;
/// What stands behind a sealed record, and proves it.
const TAG_BYTES: usize = 16;
/// After so many records another key is taken: half of what AES-GCM may seal with one (RFC 8446, 5.5; rustls).
const RECORDS_MAX: u64 = 1 << 23;
/// A key update: its kind, the length of what it says, and whether it asks for another.
const KEY_UPDATE_BYTES: usize = 5;

/// The two directions of a connection whose handshake has ended, and of which all that was to be sent lies elsewhere.
pub fn of(side: Side) -> Result<(Sealer, Opener), Error> {
    let (secrets, following) = match side {
        Side::Client(side) => {
            let (secrets, following) = side.dangerous_into_kernel_connection()?;
            (secrets, Following::Client(following))
        }
        Side::Server(side) => {
            let (secrets, following) = side.dangerous_into_kernel_connection()?;
            (secrets, Following::Server(following))
        }
    };
    let shared = Arc::new(Shared { following: Mutex::new(following), is_asked: AtomicBool::new(false) });
    let sealer = Sealer { key: Key::new(secrets.tx)?, shared: shared.clone() };
    Ok((sealer, Opener { key: Key::new(secrets.rx)?, shared }))
}

/// What the directions share.
struct Shared {
    following: Mutex<Following>,
    /// The peer wants another key to be taken for what it is sent.
    is_asked: AtomicBool,
}

/// Derives the secrets that follow.
enum Following {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Shared {
    fn next(&self, is_sent: bool) -> Result<Key, Error> {
        let mut following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        Key::new(match (&mut *following, is_sent) {
            (Following::Client(secrets), true) => secrets.update_tx_secret(),
            (Following::Client(secrets), false) => secrets.update_rx_secret(),
            (Following::Server(secrets), true) => secrets.update_tx_secret(),
            (Following::Server(secrets), false) => secrets.update_rx_secret(),
        }?)
    }
}

/// The key of one direction.
struct Key {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    /// The number of the next record.
    number: u64,
}

impl Key {
    fn new((number, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Key, Error> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(Error::General("a cipher that is not known here".into())),
        };
        let unfit = |_| Error::General("a key that does not fit its cipher".into());
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(unfit)?;
        let iv = iv.as_ref().try_into().map_err(|_| Error::General("an IV of another length".into()))?;
        Ok(Key { key: LessSafeKey::new(key), iv, number })
    }

    /// No two records have the same.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, counts) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= counts;
        }
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Seals what goes to the peer.
pub struct Sealer {
    key: Key,
    shared: Arc<Shared>,
}

impl Sealer {
    /// Appends records of `pieces`, one behind the other, to `out`.
    pub fn seal<'p>(&mut self, pieces: impl IntoIterator<Item = &'p [u8]>, out: &mut Vec<u8>) -> Result<(), Error> {
        if self.shared.is_asked.swap(false, Ordering::Relaxed) || self.key.number >= RECORDS_MAX {
            let update = [u8::from(HandshakeType::KeyUpdate), 0, 0, 1, 0];
            self.record(ContentType::Handshake, out, |out| out.extend_from_slice(&update))?;
            self.key = self.shared.next(true)?;
        }
        let mut pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
        let mut rest: &[u8] = &[];
        while let Some(first) = Some(rest).filter(|rest| !rest.is_empty()).or_else(|| pieces.next()) {
            rest = first;
            self.record(ContentType::ApplicationData, out, |out| {
                let mut room = CONTENT_MAX_BYTES;
                loop {
                    let (now, later) = rest.split_at(room.min(rest.len()));
                    out.extend_from_slice(now);
                    (room, rest) = (room - now.len(), later);
                    if room == 0 {
                        return;
                    }
                    match pieces.next() {
                        Some(piece) => rest = piece,
                        None => return,
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Appends the word that nothing more comes.
    pub fn close(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        const WARNING: u8 = 1;
        let word = [WARNING, u8::from(AlertDescription::CloseNotify)];
        self.record(ContentType::Alert, out, |out| out.extend_from_slice(&word))
    }

    fn record(&mut self, kind: ContentType, out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), Error> {
        let begin = out.len();
        out.extend_from_slice(&[u8::from(ContentType::ApplicationData), 3, 3, 0, 0]);
        fill(out);
        out.push(u8::from(kind));
        let body_len = out.len() - begin - HEAD_BYTES + TAG_BYTES;
        out[begin + 3..begin + HEAD_BYTES].copy_from_slice(&(body_len as u16).to_be_bytes());
        let (head, body) = out[begin..].split_at_mut(HEAD_BYTES);
        let nonce = self.key.nonce();
        let tag = self.key.key.seal_in_place_separate_tag(nonce, Aad::from(&*head), body);
        out.extend_from_slice(tag.map_err(|_| Error::EncryptError)?.as_ref());
        Ok(())
    }
}

/// What was in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// So many bytes of what the peer says.
    Said(usize),
    /// The peer says nothing more.
    End,
}

/// Opens what comes from the peer.
pub struct Opener {
    key: Key,
    shared: Arc<Shared>,
}

impl Opener {
    /// How long the record is that begins here; `None` while not all of it is there.
    pub fn whole(bytes: &[u8]) -> Result<Option<usize>, Error> {
        let Some(&[kind, _, _, high, low]) = bytes.first_chunk() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if kind != u8::from(ContentType::ApplicationData) {
            return Err(Error::DecryptError);
        }
        if len > BODY_MAX_BYTES {
            return Err(Error::PeerSentOversizedRecord);
        }
        Ok(Some(HEAD_BYTES + len).filter(|&len| len <= bytes.len()))
    }

    /// Opens the record at the end of `bytes` of which [`Opener::whole`] said that it is `len` long. What it says is moved to
    /// the front, which costs nothing.
    pub fn open(&mut self, bytes: &mut [u8], len: usize) -> Result<Opened, Error> {
        let begin = bytes.len() - len;
        let head: [u8; HEAD_BYTES] = *bytes[begin..].first_chunk().ok_or(Error::DecryptError)?;
        // In front of the body there is room for what it comes to: where that ends, nothing counts any more.
        let nonce = self.key.nonce();
        let opened = self.key.key.open_within(nonce, Aad::from(head), bytes, begin + HEAD_BYTES..);
        let content = opened.map_err(|_| Error::DecryptError)?;
        // Behind the content stand its kind, which is no zero, and perhaps zeros.
        let kind_at = content.iter().rposition(|&byte| byte != 0);
        let (content, kind) = match kind_at {
            Some(at) => (&content[..at], ContentType::from(content[at])),
            None => return Err(PeerMisbehaved::IllegalTlsInnerPlaintext.into()),
        };
        if content.len() > CONTENT_MAX_BYTES {
            return Err(Error::PeerSentOversizedRecord);
        }
        match (kind, content) {
            (ContentType::ApplicationData, said) => Ok(Opened::Said(said.len())),
            (ContentType::Alert, &[_, alert]) => match AlertDescription::from(alert) {
                AlertDescription::CloseNotify => Ok(Opened::End),
                alert => Err(Error::AlertReceived(alert)),
            },
            (ContentType::Handshake, words) => self.hear(words).map(|()| Opened::Said(0)),
            _ => Err(Error::DecryptError),
        }
    }

    /// What belongs to the handshake and comes behind it: another key. Nobody is given tickets here.
    fn hear(&mut self, words: &[u8]) -> Result<(), Error> {
        // Behind a word about keys the next record has another one, so it stands alone.
        let words: &[u8; KEY_UPDATE_BYTES] =
            words.try_into().map_err(|_| Error::from(PeerMisbehaved::KeyEpochWithPendingFragment))?;
        match words {
            [kind, 0, 0, 1, is_asked @ (0 | 1)] if *kind == u8::from(HandshakeType::KeyUpdate) => {
                self.key = self.shared.next(false)?;
                self.shared.is_asked.fetch_or(*is_asked == 1, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(Error::General("a word of the handshake that has no place behind it".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tls::{Buffers, Want};
    use super::*;
    use crate::trust::identity::Identity;
    use crate::trust::tls;
    use rustls::SupportedCipherSuite;
    use rustls::crypto::ring::cipher_suite;

    /// Two ends whose handshake has ended, with this cipher.
    fn shaken(suite: SupportedCipherSuite) -> [Side; 2] {
        let (near, far) = (Identity::passing().unwrap(), Identity::passing().unwrap());
        let server = tls::server_config_with(tls::provider_of(vec![suite]), &far, Arc::new(|_| true));
        let mut ends = [
            (Side::client(tls::client_config(&near, far.pin)).unwrap(), Buffers::default()),
            (Side::server(server).unwrap(), Buffers::default()),
        ];
        for turn in 0..6 {
            let (side, buffers) = &mut ends[turn % 2];
            side.run(Want::Nothing, buffers).unwrap();
            let flight = std::mem::take(&mut buffers.outgoing);
            ends[(turn + 1) % 2].1.incoming.extend(flight);
        }
        ends.map(|(side, buffers)| {
            assert!(buffers.incoming.is_empty());
            side
        })
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u32).map(|n| (n ^ (n >> 8)) as u8).collect()
    }

    /// What records say, and whether that is all that will be said.
    fn opened(opener: &mut Opener, mut records: Vec<u8>) -> Result<(Vec<u8>, bool), Error> {
        let (mut said, mut at, mut is_over) = (0, 0, false);
        while let Some(len) = Opener::whole(&records[at..])? {
            at += len;
            match opener.open(&mut records[said..at], len)? {
                Opened::Said(count) => said += count,
                Opened::End => is_over = true,
            }
        }
        assert_eq!(at, records.len(), "all of them are whole");
        records.truncate(said);
        Ok((records, is_over))
    }

    #[test]
    fn rustls_understands_them_and_is_understood() {
        for suite in [
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ] {
            for ours in [0, 1] {
                let mut ends = shaken(suite).map(Some);
                let (mut sealer, mut opener) = of(ends[ours].take().unwrap()).unwrap();
                let mut theirs = ends[1 - ours].take().unwrap();
                let mut buffers = Buffers::default();
                for len in [1, 100, CONTENT_MAX_BYTES, CONTENT_MAX_BYTES + 1, 100_000] {
                    let sent = bytes(len);
                    let (head, tail) = sent.split_at(len / 3);
                    sealer.seal([head, b"", tail], &mut buffers.incoming).unwrap();
                    let adds = len.div_ceil(CONTENT_MAX_BYTES) * (HEAD_BYTES + 1 + TAG_BYTES);
                    assert_eq!(buffers.incoming.len(), len + adds, "no record is shorter than it could be");
                    theirs.run(Want::Nothing, &mut buffers).unwrap();
                    assert!(std::mem::take(&mut buffers.plain) == sent);
                    theirs.run(Want::Encrypt(&sent), &mut buffers).unwrap();
                    let records = std::mem::take(&mut buffers.outgoing);
                    assert!(opened(&mut opener, records).unwrap() == (sent, false));
                }
                let mut end = Vec::new();
                sealer.close(&mut end).unwrap();
                buffers.incoming = end;
                assert_eq!(theirs.run(Want::Nothing, &mut buffers).unwrap(), super::super::tls::Step::Closed);
            }
        }
    }

    #[test]
    fn either_takes_another_key_in_time() {
        let [near, far] = shaken(cipher_suite::TLS13_AES_128_GCM_SHA256);
        let (mut sealer, mut opener) = of(near).unwrap();
        let (mut far_sealer, mut far_opener) = of(far).unwrap();
        let said = |sealer: &mut Sealer, opener: &mut Opener| {
            let mut records = Vec::new();
            sealer.seal([&b"said"[..]], &mut records).unwrap();
            let len = records.len();
            assert_eq!(opened(opener, records).unwrap(), (b"said".to_vec(), false));
            len
        };
        let usual = said(&mut sealer, &mut far_opener);
        sealer.key.number = RECORDS_MAX;
        far_opener.key.number = RECORDS_MAX;
        assert!(said(&mut sealer, &mut far_opener) > usual, "it says so first");
        assert_eq!((sealer.key.number, far_opener.key.number), (1, 1), "both count anew");
        assert_eq!(said(&mut sealer, &mut far_opener), usual);
        // Asked for, the other end does so with what it says next.
        let mut update = Vec::new();
        sealer.record(ContentType::Handshake, &mut update, |out| out.extend([24, 0, 0, 1, 1])).unwrap();
        sealer.key = sealer.shared.next(true).unwrap();
        assert_eq!(opened(&mut far_opener, update).unwrap(), (Vec::new(), false));
        assert!(said(&mut far_sealer, &mut opener) > usual);
        assert_eq!((said(&mut far_sealer, &mut opener), said(&mut sealer, &mut far_opener)), (usual, usual));
    }

    #[test]
    fn whatever_is_changed_on_the_way_is_seen() {
        let [near, far] = shaken(cipher_suite::TLS13_AES_128_GCM_SHA256);
        let ((mut sealer, _), (_, mut opener)) = (of(near).unwrap(), of(far).unwrap());
        let mut good = Vec::new();
        sealer.seal([&b"said"[..]], &mut good).unwrap();
        let number = opener.key.number;
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            opener.key.number = number;
            // A length that was changed is not whole, or not what was proven.
            let seen = match Opener::whole(&bad) {
                Ok(None) => true,
                Ok(Some(len)) => opener.open(&mut bad[..len], len).is_err(),
                Err(_) => true,
            };
            assert!(seen, "byte {at}");
            assert_eq!(Opener::whole(&good[..at]), Ok(None), "cut at {at}");
        }
        opener.key.number = number;
        assert!(opener.open(&mut good.clone(), good.len()).is_ok());
        assert!(opener.open(&mut good.clone(), good.len()).is_err(), "said a second time");
        let long = [23, 3, 3, ((BODY_MAX_BYTES + 1) >> 8) as u8, (BODY_MAX_BYTES + 1) as u8];
        assert_eq!(Opener::whole(&long), Err(Error::PeerSentOversizedRecord));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (kind, words) in [
            (0, vec![0; 20]),
            (23, vec![7; CONTENT_MAX_BYTES + 1]),
            (21, vec![2, 20]),
            (21, vec![1]),
            (22, vec![24, 0, 0]),
            (22, vec![24, 0, 0, 1, 2]),
            (22, vec![4, 0, 0, 1, 0]),
            (20, vec![1]),
        ] {
            let [near, far] = shaken(cipher_suite::TLS13_AES_128_GCM_SHA256);
            let ((mut sealer, _), (_, mut opener)) = (of(near).unwrap(), of(far).unwrap());
            let mut record = Vec::new();
            sealer.record(ContentType::from(kind), &mut record, |out| out.extend(&words)).unwrap();
            assert!(opened(&mut opener, record).is_err(), "{kind}");
        }
        // Padding is none of it.
        let [near, far] = shaken(cipher_suite::TLS13_AES_128_GCM_SHA256);
        let ((mut sealer, _), (_, mut opener)) = (of(near).unwrap(), of(far).unwrap());
        let mut record = Vec::new();
        sealer.record(ContentType::from(0), &mut record, |out| out.extend([b'a', 23, 0, 0])).unwrap();
        assert_eq!(opened(&mut opener, record).unwrap(), (b"a".to_vec(), false));
    }
}
