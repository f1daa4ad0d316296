//! State and counters of a TCP connection: `getsockopt(TCP_INFO)` as a plain value.
//!
//! 1. The kernel's structure has only grown since 2003 and was never rearranged: fields are read by offset, as far as
//!    the kernel filled it.
//! 2. Fields that an older kernel lacks are `None`, or zero if zero also means "none yet".
//!
//! The structure in `libc` has the length of one kernel version and cannot tell which fields were filled.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// State of a connection. States that do not occur for a download client have no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// Both directions are open.
    Established,
    /// The SYN was sent and not answered yet.
    SynSent,
    /// The peer has closed its direction.
    CloseWait,
    /// Closed.
    Closed,
    /// Any other state, with its number in the kernel.
    Other(u8),
}

/// A snapshot of one connection's counters; of an MPTCP connection, those of its first subflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpInfo {
    /// State of the connection.
    pub state: TcpState,
    /// Consecutive doublings of the retransmission timeout without an ACK; probes of a zero window count, too.
    pub backoff: u8,
    /// Smoothed RTT of sent data; zero before the first sample.
    pub rtt: Duration,
    /// Mean deviation of the RTT.
    pub rtt_deviation: Duration,
    /// Minimum RTT of recent minutes (`tcp_min_rtt_wlen`); `None` before the first sample and on kernels before 4.6.
    pub min_rtt: Option<Duration>,
    /// RTT as this end estimates it as a receiver, from arriving data; `None` before the first sample.
    pub receiver_rtt: Option<Duration>,
    /// Bytes that the application reads per RTT, as this end estimates it as a receiver (for the size of its buffer).
    pub rcv_space: u32,
    /// Maximum size of sent segments, in bytes.
    pub snd_mss: u32,
    /// Size of full received segments in bytes, as the kernel estimates it.
    pub rcv_mss: u32,
    /// Segments sent and not acknowledged cumulatively, including lost and selectively acknowledged ones.
    pub unacked: u32,
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Total retransmitted segments.
    pub retransmissions: u32,
    /// Time since the last received data; without any, since the connection was established.
    pub last_received: Duration,
    /// Bytes acknowledged by the peer (kernel 4.1).
    pub bytes_acked: u64,
    /// Bytes received in order (kernel 4.1).
    pub bytes_received: u64,
    /// Bytes written and not yet sent (kernel 4.6).
    pub notsent_bytes: u32,
    /// Time since the last sent data; without any, since the connection was established.
    pub last_sent: Duration,
    /// Pacing rate in bytes per second (kernel 3.15).
    pub pacing_rate: u64,
    /// Received segments with data (kernel 4.6).
    pub segments_received: u32,
    /// Segments received out of order; `None` on kernels before 5.4.
    pub out_of_order: Option<u32>,
}

impl TcpInfo {
    /// Queries the kernel.
    ///
    /// # Errors
    /// `socket` is not a TCP socket.
    pub fn query(socket: impl AsFd) -> io::Result<Self> {
        let mut bytes = [0_u8; 512];
        let mut length = bytes.len() as libc::socklen_t;
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: `fd` is open for the call, and `length` is the size of the buffer that the kernel fills.
        super::check(unsafe {
            libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &mut length)
        })?;
        Ok(Self::parse(bytes.get(..length as usize).unwrap_or(&bytes)))
    }

    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let micros = |offset| Duration::from_micros(u32_at(bytes, offset).unwrap_or(0).into());
        let some_micros = |offset| {
            // The kernel represents "none" by zero and, for the minimum, by all bits set.
            u32_at(bytes, offset)
                .filter(|&value| value != 0 && value != u32::MAX)
                .map(|value| Duration::from_micros(value.into()))
        };
        let count = |offset| u32_at(bytes, offset).unwrap_or(0);
        Self {
            state: match bytes.first().copied().unwrap_or(0) {
                1 => TcpState::Established,
                2 => TcpState::SynSent,
                7 => TcpState::Closed,
                8 => TcpState::CloseWait,
                other => TcpState::Other(other),
            },
            backoff: bytes.get(4).copied().unwrap_or(0),
            snd_mss: count(16),
            rcv_mss: count(20),
            unacked: count(24),
            last_received: Duration::from_millis(count(52).into()),
            rtt: micros(68),
            rtt_deviation: micros(72),
            cwnd: count(80),
            receiver_rtt: some_micros(92),
            rcv_space: count(96),
            retransmissions: count(100),
            bytes_acked: u64_at(bytes, 120).unwrap_or(0),
            bytes_received: u64_at(bytes, 128).unwrap_or(0),
            notsent_bytes: count(144),
            last_sent: Duration::from_millis(count(44).into()),
            pacing_rate: u64_at(bytes, 104).unwrap_or(0),
            min_rtt: some_micros(148),
            segments_received: count(152),
            out_of_order: u32_at(bytes, 224),
        }
    }
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn received_bytes_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(&[7; 5000]).unwrap();
        client.read_exact(&mut [0; 5000]).unwrap();
        let info = TcpInfo::query(&client).unwrap();
        assert_eq!(info.state, TcpState::Established);
        assert_eq!(info.bytes_received, 5000);
        assert_eq!(info.out_of_order, Some(0));
        assert!(info.snd_mss >= 536);
        assert!(info.min_rtt.is_some_and(|rtt| rtt < Duration::from_secs(1)));
        drop(server);
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(TcpInfo::query(&client).unwrap().state, TcpState::CloseWait);
    }

    #[test]
    fn fields_that_an_old_kernel_lacks_are_none() {
        let mut bytes = [0_u8; 104];
        bytes[0] = 1;
        bytes[68..72].copy_from_slice(&20_000_u32.to_ne_bytes());
        let info = TcpInfo::parse(&bytes);
        assert_eq!((info.state, info.rtt), (TcpState::Established, Duration::from_millis(20)));
        assert_eq!((info.min_rtt, info.out_of_order, info.bytes_received), (None, None, 0));
        assert_eq!(TcpInfo::parse(&[]).state, TcpState::Other(0));
    }

    #[test]
    fn another_kind_of_socket_is_an_error() {
        assert!(TcpInfo::query(UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }
}
