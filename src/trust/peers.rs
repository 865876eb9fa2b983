//! The enrolled hosts: their addresses, and the keys that identify them.

use super::files::{self, List};
use super::pin::Pin;
use super::timestamp::Timestamp;
use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A transport to a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// QUIC, over UDP.
    Quic,
    /// TLS, over TCP.
    Tls,
    /// A remote shell.
    Ssh,
}

/// An enrolled host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// The host as in operands, with `user@` if they contain it.
    pub name: String,
    /// The ssh destination of the host.
    pub ssh: String,
    /// Where its server listens: addresses or host names, best first. Never empty.
    pub addresses: Vec<String>,
    /// The port, for UDP and TCP.
    pub port: u16,
    /// The key of its server.
    pub pin: Pin,
    /// The program on the host (`--rsync-path`), if it is not found by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// When it was enrolled.
    pub met: Timestamp,
    /// The transport of the last run.
    #[serde(
        rename = "last_route",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transport: Option<Transport>,
    /// Until when that transport should be tried first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_until: Option<Timestamp>,
    /// Why only ssh is tried until then, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_trouble: Option<String>,
    /// Whether this machine had fewer rights there than the login when it was enrolled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_limited: bool,
}

impl Peer {
    /// Returns the transport that worked recently; `None`: unknown, or too long ago.
    pub fn winner(&self, now: Timestamp) -> Option<Transport> {
        if self.last_until.is_some_and(|until| now < until) {
            self.last_transport
        } else {
            None
        }
    }
}

/// All enrolled hosts, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    /// The hosts. No two have the same name.
    #[serde(default, rename = "host")]
    pub hosts: Vec<Peer>,
}

impl Peers {
    /// Returns the host of this name.
    pub fn find(&self, name: &str) -> Option<&Peer> {
        self.hosts.iter().find(|peer| peer.name == name)
    }

    /// Adds a host, or replaces one with the same name.
    pub fn put(&mut self, peer: Peer) {
        match self.hosts.iter_mut().find(|known| known.name == peer.name) {
            Some(known) => *known = peer,
            None => self.hosts.push(peer),
        }
    }

    /// Forgets that recently only ssh worked for a host, because its server is now known to answer.
    pub fn answers(&mut self, name: &str) {
        let shunned =
            |peer: &&mut Peer| peer.name == name && peer.last_transport == Some(Transport::Ssh);
        if let Some(peer) = self.hosts.iter_mut().find(shunned) {
            (peer.last_transport, peer.last_until, peer.last_trouble) = (None, None, None);
        }
    }

    /// Removes the host of this name and returns it.
    pub fn remove(&mut self, name: &str) -> Option<Peer> {
        let at = self.hosts.iter().position(|peer| peer.name == name)?;
        Some(self.hosts.remove(at))
    }
}

impl List for Peers {
    const FILE: &str = "hosts.toml";
    const HEAD: &str =
        "# Hosts enrolled with `sparsync enroll`. A host without an entry is reached over ssh.\n\n";
    const ID: &str = "name";

    fn check(&self, path: &Path) -> Result<()> {
        for (at, peer) in self.hosts.iter().enumerate() {
            if self.hosts[..at].iter().any(|other| other.name == peer.name) {
                return Err(files::mistaken(
                    path,
                    None,
                    &format!("duplicate host `{}`", peer.name),
                ));
            }
            if peer.addresses.is_empty() || peer.port == 0 {
                return Err(files::mistaken(
                    path,
                    None,
                    &format!("host `{}` has no address or port", peer.name),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use crate::trust::paths::Places;

    #[test]
    fn guide_shows_an_entry_with_all_fields() {
        let guide = include_str!("../../docs/GUIDE.md");
        let block = guide
            .split("```toml\n")
            .filter_map(|rest| rest.split("```").next())
            .find(|block| block.starts_with("# hosts.toml"))
            .expect("the guide has an example");
        let peers: Peers = toml::from_str(block).expect("the example can be read");
        let [peer] = &peers.hosts[..] else {
            panic!("{peers:?}")
        };
        let Peer {
            name: _,
            ssh: _,
            addresses,
            port: _,
            pin: _,
            program,
            met: _,
            last_transport,
            last_until,
            last_trouble,
            is_limited,
        } = peer;
        assert!(!addresses.is_empty() && program.is_some() && *is_limited);
        assert!(last_transport.is_some() && last_until.is_some() && last_trouble.is_some());
        // Only the required fields.
        let required = block
            .split("# optional")
            .next()
            .expect("it is the first part");
        assert!(toml::from_str::<Peers>(required).is_ok());
    }

    fn scratch() -> (tempfile::TempDir, Places) {
        let top = tempfile::tempdir().unwrap();
        let config = top.path().join("config");
        (
            top,
            Places {
                state: config.join("state"),
                config,
            },
        )
    }

    fn peer(name: &str) -> Peer {
        Peer {
            name: name.into(),
            ssh: format!("u@{name}"),
            addresses: vec!["192.0.2.1".into(), "2001:db8::1".into()],
            port: 28792,
            pin: Pin([7; 32]),
            program: None,
            met: Timestamp(1_000_000_000),
            last_transport: None,
            last_until: None,
            last_trouble: None,
            is_limited: true,
        }
    }

    #[test]
    fn stored_peers_are_found_again() {
        let (_top, places) = scratch();
        assert_eq!(Peers::load(&places).unwrap(), Peers::default());
        let won = Peer {
            last_transport: Some(Transport::Tls),
            last_until: Some(Timestamp(50)),
            ..peer("b")
        };
        Peers::change(&places, |peers| {
            peers.put(peer("a"));
            peers.put(won.clone());
        })
        .unwrap();
        let peers = Peers::load(&places).unwrap();
        assert_eq!(
            (peers.find("a"), peers.find("b"), peers.find("c")),
            (Some(&peer("a")), Some(&won), None)
        );
        assert_eq!(
            (won.winner(Timestamp(49)), won.winner(Timestamp(50))),
            (Some(Transport::Tls), None)
        );
        assert_eq!(
            Peers::change(&places, |peers| peers.remove("a")).unwrap(),
            Some(peer("a"))
        );
        assert_eq!(Peers::load(&places).unwrap().hosts, [won]);
    }

    #[test]
    fn changes_keep_comments_in_the_file() {
        let (_top, places) = scratch();
        let path = places.config.join(Peers::FILE);
        Peers::change(&places, |peers| {
            ["a", "b"].map(|name| peers.put(peer(name)))
        })
        .unwrap();
        let with_remark = std::fs::read_to_string(&path).unwrap().replace(
            "[[host]]\nname = \"b\"",
            "# mine\n[[host]]\nname = \"b\" # b",
        );
        std::fs::write(&path, &with_remark).unwrap();
        Peers::change(&places, |peers| {
            peers.put(Peer {
                last_transport: Some(Transport::Tls),
                ..peer("b")
            })
        })
        .unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            with_remark.clone() + "last_route = \"tls\"\n"
        );
        Peers::change(&places, |peers| (peers.remove("a"), peers.put(peer("b")))).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with(Peers::HEAD) && text.contains("# mine\n[[host]]\nname = \"b\" # b\n"),
            "{text}"
        );
    }

    #[test]
    fn concurrent_changes_are_all_stored() {
        let (_top, places) = scratch();
        std::thread::scope(|scope| {
            for nth in 0..8 {
                let places = &places;
                scope.spawn(move || {
                    Peers::change(places, |peers| peers.put(peer(&format!("h{nth}")))).unwrap()
                });
            }
        });
        assert_eq!(Peers::load(&places).unwrap().hosts.len(), 8);
    }

    #[test]
    fn invalid_hosts_file_is_an_error_with_its_line() {
        let (_top, places) = scratch();
        Peers::change(&places, |peers| peers.put(peer("a"))).unwrap();
        let path = places.config.join(Peers::FILE);
        let good = std::fs::read_to_string(&path).unwrap();
        for (from, to, words) in [
            (
                "port = 28792",
                "port = 28792\ncolour = \"red\"",
                "line 8: unknown field `colour`",
            ),
            ("port = 28792", "port = 70000", "line 7: "),
            ("SHA256:", "MD5:", "line 8: invalid fingerprint"),
            ("name = \"a\"\n", "", "missing field `name`"),
            ("[[host]]", "[[hosts]]", "unknown field `hosts`"),
            ("port = 28792", "port = 0", "no address or port"),
        ] {
            let bad = good.replace(from, to);
            assert_ne!(bad, good, "{from}");
            std::fs::write(&path, &bad).unwrap();
            let error = Peers::load(&places).unwrap_err();
            let message = String::from_utf8(error.message).unwrap();
            assert!(
                message.contains(words)
                    && message.contains("hosts.toml")
                    && error.exit == Exit::Usage,
                "{message}"
            );
            let kept = Peers::change(&places, |peers| peers.put(peer("b")));
            assert!(
                kept.is_err() && std::fs::read_to_string(&path).unwrap() == bad,
                "an invalid file is kept"
            );
        }
        std::fs::write(&path, [good.as_str(), &good].concat()).unwrap();
        let error = Peers::load(&places).unwrap_err();
        assert!(
            String::from_utf8_lossy(&error.message).contains("duplicate host `a`"),
            "{error}"
        );
    }
}
