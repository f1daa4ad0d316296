//! One track of a stream: its media to the player, the player's reports to the server.
//!
//! In: sockets towards the server over both links, and towards the player. Out: datagrams; counts.
//!
//! 1. What is read came from the server's address, or from this machine.
//! 2. Where a report cannot leave over the second link, it leaves over the first.
//! 3. The server's reports go to the player as they are: the merged stream has the server's name, numbers and times.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use marline_core::units::Instant;
use tokio::net::UdpSocket;
use tokio::sync::watch;

use crate::listener::Shared;
use crate::proto::transport::Ports;
use crate::proto::{Counts, Merge, Reports, Route};
use crate::sockets::{Pair, socket};

/// Where the other ends are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ends {
    /// The server's, once it has said.
    pub(crate) server: Option<(IpAddr, Ports)>,
    /// The player's.
    pub(crate) player: (IpAddr, Ports),
}

/// A track's sockets.
#[derive(Debug)]
pub(crate) struct Track {
    shared: Rc<Shared>,
    /// Over the first link.
    pub(crate) first: Pair,
    /// Over the second link: reports and commands.
    second: UdpSocket,
    /// Over the second link: the base layer.
    pub(crate) mirror: Option<Rc<Pair>>,
    /// Towards the player.
    pub(crate) local: Pair,
    ends: watch::Receiver<Ends>,
    is_h264: bool,
}

impl Track {
    /// Opens its sockets. `mirrored`: the base layer comes for it.
    pub(crate) fn open(
        shared: Rc<Shared>,
        ends: watch::Receiver<Ends>,
        mirrored: bool,
        is_h264: bool,
    ) -> io::Result<Self> {
        let (is_v6, player) = (shared.server.is_ipv6(), ends.borrow().player.0);
        let any = if is_v6 { SocketAddr::from(([0_u16; 8], 0)) } else { SocketAddr::from(([0_u8; 4], 0)) };
        let of_base = shared.base.filter(|_| mirrored);
        let mirror = of_base.map(|base| Pair::over(&shared.stream.second, base.is_ipv6())).transpose()?;
        Ok(Self {
            first: Pair::over(&shared.stream.first, is_v6)?,
            second: socket(any, Some(&shared.stream.second))?,
            mirror: mirror.map(Rc::new),
            local: Pair::at(player)?,
            ends,
            is_h264,
            shared,
        })
    }

    /// Carries until nobody wants it any more: `ends` has no sender then.
    pub(crate) async fn run(mut self) {
        let begun = tokio::time::Instant::now();
        let clock = || Instant::from_nanos(begun.elapsed().as_nanos().try_into().unwrap_or(u64::MAX));
        let mut merge = Merge::new(self.shared.stream.hold, self.is_h264);
        let mut old = Counts::default();
        let mut reports = Reports::default();
        let mut buffers = [[0; LONGEST]; 5];
        let base = self.shared.base.map(|base| base.ip());
        loop {
            merge.tick(clock());
            let ends = *self.ends.borrow();
            while let Some(packet) = merge.poll() {
                // What does not reach the player is lost, as datagrams are.
                let _ = self.local.media.send_to(&packet, (ends.player.0, ends.player.1.0)).await;
            }
            let counts = merge.counts();
            let mirroring = self.mirror.as_ref().map(|_| merge.mirroring());
            self.shared.merged(old, counts, mirroring);
            old = counts;
            let due = merge.deadline().map(|due| begun + due.since(Instant::ZERO));
            let [media, of_base, told, asked, opened] = &mut buffers;
            tokio::select! {
                Ok((length, from)) = self.first.media.recv_from(media) => {
                    if self.is_server(from, ends) {
                        merge.on_first(clock(), media[..length].to_vec());
                    }
                }
                Ok((length, from)) = receive(self.mirror.as_deref(), of_base) => {
                    if Some(from.ip()) == base {
                        merge.on_second(clock(), of_base[..length].to_vec());
                    }
                }
                Ok((length, from)) = self.first.reports.recv_from(told) => {
                    if self.is_server(from, ends) {
                        let _ = self.local.reports.send_to(&told[..length], (ends.player.0, ends.player.1.1)).await;
                    }
                }
                Ok((length, from)) = self.local.reports.recv_from(asked) => {
                    if from.ip() == ends.player.0
                        && let Some((ip, ports)) = ends.server
                    {
                        self.report(&asked[..length], (ip, ports.1).into(), &mut reports).await;
                    }
                }
                Ok((length, from)) = self.local.media.recv_from(opened) => {
                    // Players send something there so that NAT lets media in.
                    if from.ip() == ends.player.0
                        && let Some((ip, ports)) = ends.server
                    {
                        let _ = self.first.media.send_to(&opened[..length], (ip, ports.0)).await;
                    }
                }
                () = until(due) => {}
                changed = self.ends.changed() => if changed.is_err() {
                    return;
                },
            }
        }
    }

    /// A report or a command of the player.
    async fn report(&self, bytes: &[u8], to: SocketAddr, reports: &mut Reports) {
        let old = *reports;
        let mut route = reports.route(bytes, true);
        if route != Route::First && self.second.send_to(bytes, to).await.is_err() {
            *reports = Reports { offloaded: old.offloaded, ..*reports };
            route = Route::First;
        }
        if route != Route::Second {
            let _ = self.first.reports.send_to(bytes, to).await;
        }
        self.shared.count(|served| {
            served.reports += reports.reports - old.reports;
            served.offloaded += reports.offloaded - old.offloaded;
            served.feedback += reports.commands - old.commands;
        });
    }

    fn is_server(&self, from: SocketAddr, ends: Ends) -> bool {
        from.ip() == self.shared.server.ip() || ends.server.is_some_and(|(ip, _)| ip == from.ip())
    }
}

/// The next of the base layer; never, where there is none. Its reports are read and left.
async fn receive(pair: Option<&Pair>, bytes: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    match pair {
        Some(pair) => pair.media.recv_from(bytes).await,
        None => std::future::pending().await,
    }
}

async fn until(due: Option<tokio::time::Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// The longest datagram that is read. chosen: above every MTU in use; RTP keeps below it.
const LONGEST: usize = 9216;
