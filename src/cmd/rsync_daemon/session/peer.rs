//! The client of a daemon: its address and name, as the socket, the remote shell, or a proxy reports them.

use super::{DaemonConnection, Refusal};
use crate::cmd::rsync_daemon::policy::access::{self, ClientHost};
use crate::cmd::rsync_daemon::policy::params::Param;
use crate::fs::sys;
use crate::proto::rsync::number::ReadWire as _;
use crate::transport::daemon_socket;
use std::ffi::OsString;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt as _;

/// The longest header of the proxy protocol, without the addresses of version 2.
const PROXY_LINE_MAX_BYTES: usize = 107;

/// The name of a client before it is looked up.
const NOT_LOOKED_UP: &[u8] = b"UNDETERMINED";

/// A client.
pub(super) struct DaemonPeer {
    pub(super) host: ClientHost,
    /// The address for messages.
    pub(super) address: Vec<u8>,
}

impl DaemonPeer {
    fn new(address: Option<IpAddr>, looks_up: bool) -> DaemonPeer {
        let address = address
            .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
            .to_canonical();
        let mut peer = DaemonPeer {
            host: ClientHost {
                address,
                name: NOT_LOOKED_UP.to_vec(),
            },
            address: address.to_string().into_bytes(),
        };
        if looks_up {
            peer.look_up();
        }
        peer
    }

    /// Finds the name of the address. A name that does not lead back to the address is not believed.
    pub(super) fn look_up(&mut self) {
        if self.host.name != NOT_LOOKED_UP {
            return;
        }
        let found = sys::host_name_of(self.host.address)
            .filter(|name| forward(name).contains(&self.host.address));
        self.host.name = found.unwrap_or_else(|| b"UNKNOWN".to_vec());
    }

    /// `NAME (ADDRESS)`
    pub(super) fn shown(&self) -> Vec<u8> {
        [&self.host.name[..], b" (", &self.address, b")"].concat()
    }
}

/// Looks up the addresses of a name.
pub(super) fn forward(name: &[u8]) -> Vec<IpAddr> {
    let found = daemon_socket::addresses(&String::from_utf8_lossy(name), 0).unwrap_or_default();
    found
        .into_iter()
        .map(|address| address.ip().to_canonical())
        .collect()
}

impl DaemonConnection<'_> {
    /// Finds out who connects.
    pub(super) fn peer(&mut self) -> Result<DaemonPeer, Refusal> {
        let globals = &self.config.globals;
        let looks_up = globals.flag(Param::ReverseLookup);
        let socket = sys::peer_address(self.input.input.as_fd()).map(|address| address.ip());
        if self.args.by_shell {
            // As sshd and rshd describe the client.
            let ssh = self.env.var("SSH_CONNECTION").map(OsString::into_vec);
            let first = ssh
                .as_deref()
                .and_then(|text| text.split(|&byte| byte == b' ').next());
            let address = first.and_then(|text| str::from_utf8(text).ok()?.parse().ok());
            return Ok(DaemonPeer::new(address.or(socket), looks_up));
        }
        if !globals.flag(Param::ProxyProtocol) {
            return Ok(DaemonPeer::new(socket, looks_up));
        }
        let direct = DaemonPeer::new(socket, false);
        let hosts = self
            .text(globals, Param::ProxyProtocolHosts)
            .unwrap_or_default();
        let complain = |line: &[u8]| self.log.put(line);
        let is_proxy = !hosts.is_empty()
            && access::is_allowed(&direct.host, Some(&hosts), None, Some(&forward), &complain);
        if !is_proxy {
            self.log
                .put(&[b"proxy protocol header rejected from ", &direct.shown()[..]].concat());
            return Err(Refusal::Over);
        }
        let address = read_proxy_header(&mut self.input)?;
        Ok(DaemonPeer::new(address.or(socket), looks_up))
    }
}

/// Reads the header of the proxy protocol, version 1 or 2. Returns the address of the client; `None` if the proxy speaks
/// for itself.
fn read_proxy_header(input: &mut impl Read) -> Result<Option<IpAddr>, Refusal> {
    const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
    let first = input.byte()?;
    if first != SIGNATURE[0] {
        let mut line = vec![first];
        while !line.ends_with(b"\r\n") {
            if line.len() >= PROXY_LINE_MAX_BYTES {
                return Err(Refusal::Over);
            }
            line.push(input.byte()?);
        }
        let text = str::from_utf8(&line[..line.len() - 2]).map_err(|_| Refusal::Over)?;
        let words: Vec<_> = text.split(' ').collect();
        return match words[..] {
            ["PROXY", "UNKNOWN", ..] => Ok(None),
            ["PROXY", family @ ("TCP4" | "TCP6"), source, dest, from, to] => {
                let source: IpAddr = source.parse().map_err(|_| Refusal::Over)?;
                let is_valid = dest
                    .parse::<IpAddr>()
                    .is_ok_and(|dest| dest.is_ipv4() == source.is_ipv4())
                    && [from, to].iter().all(|port| port.parse::<u16>().is_ok())
                    && source.is_ipv4() == (family == "TCP4");
                if is_valid {
                    Ok(Some(source))
                } else {
                    Err(Refusal::Over)
                }
            }
            _ => Err(Refusal::Over),
        };
    }
    let rest = input.byte_vec(15)?;
    let len = usize::from(u16::from_be_bytes([rest[13], rest[14]]));
    if rest[..11] != SIGNATURE[1..] {
        return Err(Refusal::Over);
    }
    let body = input.byte_vec(len)?;
    match (rest[11], rest[12], &body[..]) {
        (0x20, ..) => Ok(None),
        (0x21, 0x11, [a, b, c, d, _, _, _, _, _, _, _, _]) => {
            Ok(Some(Ipv4Addr::new(*a, *b, *c, *d).into()))
        }
        (0x21, 0x21, body) if body.len() == 36 => {
            let source: [u8; 16] = body[..16].try_into().map_err(|_| Refusal::Over)?;
            Ok(Some(IpAddr::from(source)))
        }
        (0x21, 0x11 | 0x21, _) => Err(Refusal::Over),
        // The proxy knows no address, or none of TCP.
        (0x21, ..) => Ok(None),
        _ => Err(Refusal::Over),
    }
}
