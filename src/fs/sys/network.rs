//! Pipes and sockets to a peer.

use super::{enter_link, narrow_link_bytes};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::io;

/// Waits until data can be read or the peer has closed its end; `false` after a timeout.
pub fn wait_readable(fd: BorrowedFd<'_>, millis: u32) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec {
        tv_sec: i64::from(millis / 1000),
        tv_nsec: i64::from(millis % 1000) * 1_000_000,
    };
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits until one of several files can be read; `false` after a timeout.
pub fn wait_any_readable(fds: &[BorrowedFd<'_>], millis: u32) -> io::Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec {
        tv_sec: i64::from(millis / 1000),
        tv_nsec: i64::from(millis % 1000) * 1_000_000,
    };
    let mut watched: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    match poll(&mut watched, Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits until data can be written.
pub fn wait_writable(fd: BorrowedFd<'_>) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    Ok(
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&fd, PollFlags::OUT)], None))
            .map(drop)?,
    )
}

/// Reads from a pipe or socket to a peer; 0 means end of stream.
pub fn receive(fd: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(|| {
        enter_link().and_then(|()| rustix::io::read(fd, &mut *into))
    })?)
}

/// Writes to a pipe or socket to a peer, as much as its buffer takes.
pub fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(|| {
        enter_link().and_then(|()| rustix::io::write(fd, bytes))
    })?)
}

/// Returns whether the peer has closed its end of a socket, even if received data is still unread.
pub fn has_hung_up(fd: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut watched = [PollFd::new(&fd, PollFlags::RDHUP)];
    poll(
        &mut watched,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )
    .is_ok_and(|ready| ready > 0)
}

/// The requested capacity of a pipe to or from a peer. A process that writes should not have to wait until the other
/// one is scheduled.
const PIPE_BYTES: usize = 1 << 20;

/// Increases the capacity of a pipe above its default of 64 KiB. Has no effect on other files or if the system does not
/// permit it.
pub fn widen_pipe(fd: BorrowedFd<'_>) {
    // The kernel's minimum is a page. A pipe that stays as it is only costs time.
    let _ = rustix::pipe::fcntl_setpipe_size(fd, narrow_link_bytes().unwrap_or(PIPE_BYTES));
}

/// Returns the longest packet, including its IP header, that fits the path to the peer of a connected socket, as far as
/// this machine knows; in bytes.
pub fn path_mtu(socket: BorrowedFd<'_>, is_ipv6: bool) -> io::Result<u32> {
    use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
    Ok(if is_ipv6 {
        ipv6_mtu(socket)
    } else {
        ip_mtu(socket)
    }?)
}

/// Binds a UDP socket to an address. At `::` it also accepts IPv4, regardless of `net.ipv6.bindv6only`.
pub fn bind_udp(address: std::net::SocketAddr) -> io::Result<std::net::UdpSocket> {
    bound(address, rustix::net::SocketType::DGRAM).map(Into::into)
}

/// Binds a TCP socket in the same way, and listens.
pub fn bind_tcp(address: std::net::SocketAddr) -> io::Result<std::net::TcpListener> {
    const WAIT_MAX: i32 = 128;
    let socket = bound(address, rustix::net::SocketType::STREAM)?;
    rustix::net::listen(&socket, WAIT_MAX)?;
    Ok(socket.into())
}

/// Binds a TCP socket, with options that are set before, and listens.
pub fn listen_tcp(
    address: std::net::SocketAddr,
    backlog: i32,
    set_options: &dyn Fn(BorrowedFd<'_>),
) -> io::Result<std::net::TcpListener> {
    use std::os::fd::AsFd;
    let socket = bound(address, rustix::net::SocketType::STREAM)?;
    set_options(socket.as_fd());
    rustix::net::listen(&socket, backlog)?;
    Ok(socket.into())
}

/// Returns whether a descriptor is a socket.
pub fn is_socket(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFSOCK)
}

/// Returns the address of the peer of a socket; `None` if it has none, as a pair of sockets.
pub fn peer_address(fd: BorrowedFd<'_>) -> Option<std::net::SocketAddr> {
    let address = rustix::net::getpeername(fd).ok()??;
    std::net::SocketAddr::try_from(address).ok()
}

/// Looks up the name of an address; `None` if it has none.
#[allow(unsafe_code)]
pub fn host_name_of(address: std::net::IpAddr) -> Option<Vec<u8>> {
    const NAME_MAX_BYTES: usize = 1025;
    // SAFETY: the structures consist of integers, for which zero is valid.
    let (mut v4, mut v6): (libc::sockaddr_in, libc::sockaddr_in6) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let (pointer, len) = match address {
        std::net::IpAddr::V4(address) => {
            v4.sin_family = libc::AF_INET as libc::sa_family_t;
            v4.sin_addr.s_addr = u32::from_ne_bytes(address.octets());
            (
                (&raw const v4).cast::<libc::sockaddr>(),
                std::mem::size_of_val(&v4),
            )
        }
        std::net::IpAddr::V6(address) => {
            v6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            v6.sin6_addr.s6_addr = address.octets();
            (
                (&raw const v6).cast::<libc::sockaddr>(),
                std::mem::size_of_val(&v6),
            )
        }
    };
    let mut name = [0u8; NAME_MAX_BYTES];
    // SAFETY: both pointers are valid for the lengths given, and the call writes a string with its NUL into `name`.
    let failed = unsafe {
        libc::getnameinfo(
            pointer,
            len as libc::socklen_t,
            name.as_mut_ptr().cast(),
            NAME_MAX_BYTES as libc::socklen_t,
            std::ptr::null_mut(),
            0,
            libc::NI_NAMEREQD,
        )
    };
    if failed != 0 {
        return None;
    }
    let len = name.iter().position(|&byte| byte == 0)?;
    Some(name[..len].to_vec())
}

/// Creates a TCP socket for connections to addresses of a family. `local`: the address that it uses here.
pub fn tcp_socket(is_ipv6: bool, local: Option<std::net::IpAddr>) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    if let Some(local) = local {
        return bound((local, 0).into(), SocketType::STREAM);
    }
    let family = if is_ipv6 {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    Ok(socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Connects a socket. Calls `check` ten times a second meanwhile; an error of it ends the attempt.
pub fn connect_tcp(
    socket: BorrowedFd<'_>,
    address: std::net::SocketAddr,
    check: &dyn Fn() -> io::Result<()>,
) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    const LOOK: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    rustix::io::ioctl_fionbio(socket, true)?;
    match rustix::net::connect(socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => loop {
            check()?;
            match poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&LOOK)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break rustix::net::sockopt::socket_error(socket)??,
                Err(error) => return Err(error.into()),
            }
        },
        Err(error) => return Err(error.into()),
    }
    Ok(rustix::io::ioctl_fionbio(socket, false)?)
}

/// The options of `--sockopts`: name, level, number, and the value if the name implies it.
const SOCKET_OPTIONS: [(&str, i32, i32, Option<i32>); 12] = [
    ("SO_KEEPALIVE", libc::SOL_SOCKET, libc::SO_KEEPALIVE, None),
    ("SO_REUSEADDR", libc::SOL_SOCKET, libc::SO_REUSEADDR, None),
    ("SO_BROADCAST", libc::SOL_SOCKET, libc::SO_BROADCAST, None),
    ("TCP_NODELAY", libc::IPPROTO_TCP, libc::TCP_NODELAY, None),
    ("IPTOS_LOWDELAY", libc::IPPROTO_IP, libc::IP_TOS, Some(0x10)),
    (
        "IPTOS_THROUGHPUT",
        libc::IPPROTO_IP,
        libc::IP_TOS,
        Some(0x08),
    ),
    ("SO_SNDBUF", libc::SOL_SOCKET, libc::SO_SNDBUF, None),
    ("SO_RCVBUF", libc::SOL_SOCKET, libc::SO_RCVBUF, None),
    ("SO_SNDLOWAT", libc::SOL_SOCKET, libc::SO_SNDLOWAT, None),
    ("SO_RCVLOWAT", libc::SOL_SOCKET, libc::SO_RCVLOWAT, None),
    ("SO_SNDTIMEO", libc::SOL_SOCKET, libc::SO_SNDTIMEO, None),
    ("SO_RCVTIMEO", libc::SOL_SOCKET, libc::SO_RCVTIMEO, None),
];

/// An option of `--sockopts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOption {
    level: i32,
    number: i32,
    /// The value that the name implies, so that none can be given.
    pub implied: Option<i32>,
}

impl SocketOption {
    /// Finds an option by its name.
    pub fn named(name: &str) -> Option<SocketOption> {
        let found = SOCKET_OPTIONS.iter().find(|(known, ..)| *known == name);
        found.map(|&(_, level, number, implied)| SocketOption {
            level,
            number,
            implied,
        })
    }

    /// Sets the option. As in rsync, every value is an int, which the system rejects for some options.
    #[allow(unsafe_code)]
    pub fn set(self, socket: BorrowedFd<'_>, value: i32) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let value = self.implied.unwrap_or(value);
        let pointer = (&raw const value).cast::<libc::c_void>();
        let len = std::mem::size_of::<i32>();
        // SAFETY: the pointer is valid for the length, and the system copies the value.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                self.level,
                self.number,
                pointer,
                len as libc::socklen_t,
            )
        };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

fn bound(address: std::net::SocketAddr, kind: rustix::net::SocketType) -> io::Result<OwnedFd> {
    use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
    let family = if address.is_ipv6() {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    if kind == SocketType::STREAM {
        // Ended connections that are still in TIME_WAIT must not block the port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    net::bind(&socket, &address)?;
    Ok(socket)
}

/// Requests send and receive buffers of this size; the system may grant less.
pub fn request_socket_buffers(socket: BorrowedFd<'_>, bytes: usize) {
    use rustix::net::sockopt as options;
    // Only a privileged process may exceed the system's limit. Without more room, the connection is only slower.
    if options::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        let _ = options::set_socket_recv_buffer_size(socket, bytes);
    }
    if options::set_socket_send_buffer_size_force(socket, bytes).is_err() {
        let _ = options::set_socket_send_buffer_size(socket, bytes);
    }
}

/// Makes a TCP connection send short messages without waiting for earlier ones to be acknowledged.
pub fn send_at_once(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_tcp_nodelay(socket, true)?)
}

/// Acknowledges at once what a TCP connection has received. A peer that gathers short messages, as rsync does, waits for
/// that. Holds only until the connection is used again. Fails for other descriptors.
pub fn acknowledge_at_once(socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_tcp_quickack(socket, true)?)
}

/// Makes the system probe the peer of a TCP connection every `probe`, and close the connection after `idle` without an
/// answer.
pub fn watch_connection(
    socket: BorrowedFd<'_>,
    probe: std::time::Duration,
    idle: std::time::Duration,
) {
    use rustix::net::sockopt as options;
    let probes = idle.as_secs() / probe.as_secs().max(1);
    // These options exist on every Linux. Without them, a dead peer is only noticed later.
    let _ = options::set_socket_keepalive(socket, true);
    let _ = options::set_tcp_keepidle(socket, probe);
    let _ = options::set_tcp_keepintvl(socket, probe);
    let _ = options::set_tcp_keepcnt(socket, u32::try_from(probes).unwrap_or(u32::MAX).max(1));
    let _ =
        options::set_tcp_user_timeout(socket, u32::try_from(idle.as_millis()).unwrap_or(u32::MAX));
}

/// The state of a TCP connection according to the system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TcpStanding {
    /// How long the peer has sent nothing, not even an acknowledgement.
    pub silent: std::time::Duration,
    /// How many retransmissions or probes in a row had no answer.
    pub repeats: u8,
    /// Whether sent data is not yet acknowledged.
    pub has_unacknowledged: bool,
    /// The retransmission timeout.
    pub repeats_after: std::time::Duration,
    /// The round trip time.
    pub rtt: std::time::Duration,
}

/// Returns the state of a TCP connection.
#[allow(unsafe_code)]
pub fn tcp_standing(socket: BorrowedFd<'_>) -> io::Result<TcpStanding> {
    use std::os::fd::AsRawFd;
    use std::time::Duration;
    // SAFETY: the structure consists of integers, for which zero is valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = std::mem::size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the socket is open, and the kernel writes at most `len` bytes, the size of the structure.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            std::ptr::from_mut(&mut info).cast(),
            &raw mut len,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpStanding {
        silent: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        repeats: info.tcpi_retransmits.max(info.tcpi_probes),
        has_unacknowledged: info.tcpi_unacked > 0,
        repeats_after: Duration::from_micros(info.tcpi_rto.into()),
        rtt: Duration::from_micros(info.tcpi_rtt.into()),
    })
}
