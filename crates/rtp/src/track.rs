//! One track of a stream: forwards media to the player and RTCP in both directions.
//!
//! - Datagrams are read from the addresses of the two servers (stream and base layer) and of the player only.
//! - RTCP that cannot be sent over the secondary link takes the primary link.
//! - Sender reports go to the player unchanged, because the merged stream has the server's SSRC, sequence numbers and timestamps.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use marline_core::units::Instant;
use tokio::net::UdpSocket;
use tokio::sync::watch;

use crate::proto::rtsp_transport::PortPair;
use crate::proto::{MergeCounts, Route, RtcpRouter, StreamMerger};
use crate::run_state::Shared;
use crate::sockets::{SocketPair, bind_udp};

/// Remote addresses and ports of a track.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TrackPeers {
    /// Those of the server, once its response to SETUP has arrived.
    pub(crate) server: Option<(IpAddr, PortPair)>,
    /// Those of the player.
    pub(crate) player: (IpAddr, PortPair),
}

/// Sockets of a track.
#[derive(Debug)]
pub(crate) struct Track {
    shared: Rc<Shared>,
    /// Media and RTCP over the primary link.
    pub(crate) primary: SocketPair,
    /// The player's RTCP over the secondary link.
    secondary: UdpSocket,
    /// The base layer over the secondary link.
    pub(crate) base_layer: Option<Rc<SocketPair>>,
    /// Media and RTCP towards the player.
    pub(crate) player: SocketPair,
    peers: watch::Receiver<TrackPeers>,
    is_h264: bool,
}

impl Track {
    /// Opens the sockets. `with_base_layer` adds a pair for the base layer.
    pub(crate) fn open(
        shared: Rc<Shared>,
        peers: watch::Receiver<TrackPeers>,
        with_base_layer: bool,
        is_h264: bool,
    ) -> io::Result<Self> {
        let (is_v6, player) = (shared.server.is_ipv6(), peers.borrow().player.0);
        let any = if is_v6 { SocketAddr::from(([0_u16; 8], 0)) } else { SocketAddr::from(([0_u8; 4], 0)) };
        let base_media = shared.base_layer.filter(|_| with_base_layer);
        let base_layer =
            base_media.map(|base| SocketPair::on_link(&shared.stream.secondary, base.is_ipv6())).transpose()?;
        Ok(Self {
            primary: SocketPair::on_link(&shared.stream.primary, is_v6)?,
            secondary: bind_udp(any, Some(&shared.stream.secondary))?,
            base_layer: base_layer.map(Rc::new),
            player: SocketPair::on_address(player)?,
            peers,
            is_h264,
            shared,
        })
    }

    /// Forwards datagrams until the session drops the sender of `peers`.
    pub(crate) async fn run(mut self) {
        let begun = tokio::time::Instant::now();
        let clock = || Instant::from_nanos(begun.elapsed().as_nanos().try_into().unwrap_or(u64::MAX));
        let mut merge = StreamMerger::new(self.shared.stream.reorder_wait, self.is_h264);
        let mut reported_counts = MergeCounts::default();
        let mut router = RtcpRouter::default();
        let mut buffers = [[0; MAX_DATAGRAM]; 5];
        let base = self.shared.base_layer.map(|base| base.ip());
        loop {
            merge.tick(clock());
            let peers = *self.peers.borrow();
            while let Some(packet) = merge.poll() {
                // Best effort, like any datagram.
                let _ = self.player.media.send_to(&packet, (peers.player.0, peers.player.1.0)).await;
            }
            let counts = merge.counts();
            let alignment = self.base_layer.as_ref().map(|_| merge.alignment());
            self.shared.add_track_counts(reported_counts, counts, alignment);
            reported_counts = counts;
            let due = merge.deadline().map(|due| begun + due.since(Instant::ZERO));
            let [media, base_media, sender_rtcp, player_rtcp, player_media] = &mut buffers;
            tokio::select! {
                Ok((length, from)) = self.primary.media.recv_from(media) => {
                    if self.is_server(from, peers) {
                        merge.on_primary(clock(), media[..length].to_vec());
                    }
                }
                Ok((length, from)) = receive(self.base_layer.as_deref(), base_media) => {
                    if Some(from.ip()) == base {
                        merge.on_base_layer(clock(), base_media[..length].to_vec());
                    }
                }
                Ok((length, from)) = self.primary.rtcp.recv_from(sender_rtcp) => {
                    if self.is_server(from, peers) {
                        let _ = self.player.rtcp.send_to(&sender_rtcp[..length], (peers.player.0, peers.player.1.1)).await;
                    }
                }
                Ok((length, from)) = self.player.rtcp.recv_from(player_rtcp) => {
                    if from.ip() == peers.player.0
                        && let Some((ip, ports)) = peers.server
                    {
                        self.forward_rtcp(&player_rtcp[..length], (ip, ports.1).into(), &mut router).await;
                    }
                }
                Ok((length, from)) = self.player.media.recv_from(player_media) => {
                    // Players open NAT mappings by sending to the media port.
                    if from.ip() == peers.player.0
                        && let Some((ip, ports)) = peers.server
                    {
                        let _ = self.primary.media.send_to(&player_media[..length], (ip, ports.0)).await;
                    }
                }
                () = sleep_until_due(due) => {}
                changed = self.peers.changed() => if changed.is_err() {
                    return;
                },
            }
        }
    }

    /// Sends an RTCP datagram of the player to the server.
    async fn forward_rtcp(&self, bytes: &[u8], to: SocketAddr, router: &mut RtcpRouter) {
        let previous = *router;
        let mut route = router.route(bytes, true);
        if route != Route::Primary && self.secondary.send_to(bytes, to).await.is_err() {
            *router = RtcpRouter { offloaded: previous.offloaded, ..*router };
            route = Route::Primary;
        }
        if route != Route::Secondary {
            let _ = self.primary.rtcp.send_to(bytes, to).await;
        }
        self.shared.count(|stats| {
            stats.reports += router.reports - previous.reports;
            stats.offloaded += router.offloaded - previous.offloaded;
            stats.feedback += router.feedback - previous.feedback;
        });
    }

    /// Whether a datagram came from the server or from the media source that it announced.
    fn is_server(&self, from: SocketAddr, peers: TrackPeers) -> bool {
        from.ip() == self.shared.server.ip() || peers.server.is_some_and(|(ip, _)| ip == from.ip())
    }
}

/// Receives the next datagram of the base layer. Never completes without a base layer.
async fn receive(pair: Option<&SocketPair>, bytes: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    match pair {
        Some(pair) => pair.media.recv_from(bytes).await,
        None => std::future::pending().await,
    }
}

/// Sleeps until a deadline. Never completes without one.
async fn sleep_until_due(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Longest datagram in bytes: above the MTU of jumbo frames, 9000. RTP packets stay below the MTU.
const MAX_DATAGRAM: usize = 9216;
