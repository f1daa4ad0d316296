//! MPTCP status of a connection and TCP info of its subflows: `getsockopt` of `MPTCP_INFO` and `MPTCP_TCPINFO` as
//! plain values.
//!
//! A fallback to TCP is not reported to the application, nor by an event of the path manager. [`MptcpStatus::query`]
//! reveals it to the owner of the socket; `ss -M` shows it for all sockets.
//!
//! 1. After a fallback the query reaches the TCP socket below, which refuses it: over IPv4 with `EOPNOTSUPP`, over
//!    IPv6 with `ENOPROTOOPT`. Before that the kernel returns flags.
//! 2. A socket that was never MPTCP does not know the query and has another protocol.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::ipproto::MPTCP;
use rustix::net::sockopt::socket_protocol;

use crate::tcp_info::TcpInfo;

/// MPTCP status of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MptcpStatus {
    /// Plain TCP, or not TCP at all.
    PlainTcp,
    /// MPTCP was requested, and the peer has not replied yet.
    Requested,
    /// Both ends use MPTCP.
    Negotiated,
    /// Fell back to TCP, usually because the server or a middlebox does not support MPTCP.
    FellBack,
}

impl MptcpStatus {
    /// Queries the kernel.
    ///
    /// # Errors
    /// `socket` is not a socket.
    pub fn query(socket: impl AsFd) -> io::Result<Self> {
        if socket_protocol(&socket)? != Some(MPTCP) {
            return Ok(Self::PlainTcp);
        }
        let mut info = [0_u8; 12];
        let mut length = info.len() as libc::socklen_t;
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: `fd` is open for the call, and `length` is the size of the buffer that the kernel fills.
        let result = super::check(unsafe {
            libc::getsockopt(fd, SOL_MPTCP, MPTCP_INFO, info.as_mut_ptr().cast(), &mut length)
        });
        match result {
            Ok(_) => Ok(Self::from_flags(u32::from_ne_bytes([info[8], info[9], info[10], info[11]]))),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT)) => {
                Ok(Self::FellBack)
            }
            Err(error) => Err(error),
        }
    }

    fn from_flags(flags: u32) -> Self {
        match flags {
            flags if flags & FALLBACK != 0 => Self::FellBack,
            flags if flags & REMOTE_KEY_RECEIVED != 0 => Self::Negotiated,
            _ => Self::Requested,
        }
    }
}

/// TCP info of the current subflows of an MPTCP connection (kernel 5.16), at most nine.
///
/// # Errors
/// The connection is not MPTCP or fell back to TCP, or the kernel lacks support.
pub fn subflow_infos(socket: impl AsFd) -> io::Result<Vec<TcpInfo>> {
    let mut data = [0_u8; HEADER_LEN + MAX_SUBFLOWS * TCP_INFO_LEN];
    // struct mptcp_subflow_data: its own length, the number of subflows, the kernel's length of one, and ours.
    for (offset, value) in [(0, HEADER_LEN), (12, TCP_INFO_LEN)] {
        data[offset..offset + 4].copy_from_slice(&(value as u32).to_ne_bytes());
    }
    let mut length = data.len() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `fd` is open for the call, and `length` is the size of the buffer that the kernel fills.
    super::check(unsafe { libc::getsockopt(fd, SOL_MPTCP, MPTCP_TCPINFO, data.as_mut_ptr().cast(), &mut length) })?;
    let u32_at = |offset: usize| {
        u32::from_ne_bytes([data[offset], data[offset + 1], data[offset + 2], data[offset + 3]]) as usize
    };
    let (count, filled) = (u32_at(4).min(MAX_SUBFLOWS), u32_at(8).min(TCP_INFO_LEN));
    Ok(data[HEADER_LEN..].chunks(TCP_INFO_LEN).take(count).map(|bytes| TcpInfo::parse(&bytes[..filled])).collect())
}

/// `linux/socket.h`, `linux/mptcp.h`: not in `libc`.
const SOL_MPTCP: libc::c_int = 284;
const MPTCP_INFO: libc::c_int = 1;
const MPTCP_TCPINFO: libc::c_int = 2;
/// sizeof(struct mptcp_subflow_data), and the requested length for each subflow.
const HEADER_LEN: usize = 16;
const TCP_INFO_LEN: usize = 256;
/// The kernel's limit of additional subflows is eight (MPTCP_SUBFLOWS_MAX of net/mptcp), plus the first subflow.
const MAX_SUBFLOWS: usize = 9;
const FALLBACK: u32 = 1 << 0;
const REMOTE_KEY_RECEIVED: u32 = 1 << 1;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, accept, bind, connect, getsockname, listen, socket};
    use std::net::{IpAddr, SocketAddr, UdpSocket};

    #[test]
    fn both_ends_or_neither_use_mptcp_over_either_ip_version() {
        for (listen_address, connect_address) in
            [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "::ffff:127.0.0.1")]
        {
            for (protocol, expected) in [(Some(MPTCP), MptcpStatus::Negotiated), (None, MptcpStatus::FellBack)] {
                let [listen_address, connect_address]: [IpAddr; 2] =
                    [listen_address, connect_address].map(|address| address.parse().unwrap());
                let family = if listen_address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                let Ok(client) = socket(family, SocketType::STREAM, Some(MPTCP)) else {
                    eprintln!("skipped: this kernel has no MPTCP, or none over {listen_address}");
                    continue;
                };
                let server = socket(family, SocketType::STREAM, protocol).unwrap();
                if bind(&server, &SocketAddr::new(listen_address, 0)).is_err() {
                    eprintln!("skipped: this machine has no {listen_address}");
                    continue;
                }
                listen(&server, 1).unwrap();
                assert_eq!(MptcpStatus::query(&client).unwrap(), MptcpStatus::Requested);
                let port = SocketAddr::try_from(getsockname(&server).unwrap()).unwrap().port();
                connect(&client, &SocketAddr::new(connect_address, port)).unwrap();
                let accepted = accept(&server).unwrap();
                assert_eq!(MptcpStatus::query(&client).unwrap(), expected, "{connect_address}");
                let infos = subflow_infos(&client);
                assert_eq!(
                    infos.map_err(|_| ()).map(|all| all.len()),
                    expected.eq(&MptcpStatus::Negotiated).then_some(1).ok_or(())
                );
                let expected_server = if expected == MptcpStatus::Negotiated {
                    MptcpStatus::Negotiated
                } else {
                    MptcpStatus::PlainTcp
                };
                assert_eq!(MptcpStatus::query(&accepted).unwrap(), expected_server, "{connect_address}");
            }
        }
    }

    #[test]
    fn other_sockets_never_use_mptcp() {
        assert!(subflow_infos(UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
        assert_eq!(MptcpStatus::query(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap(), MptcpStatus::PlainTcp);
        assert!(MptcpStatus::query(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
