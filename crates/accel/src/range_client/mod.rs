//! Range client: fetches missing bytes from servers.
//!
//! ```text
//!   FetchCommand ──▶ run_range_client ──▶ a connection for each link and server ──▶ HTTP/1.1, pipelined ──▶ ranges ──▶ callback
//! ```
//!
//! Each range of a fetch is answered once, with its bytes as soon as they are complete, or without.
//!
//! 1. A connection goes over its link and no other, and to the address that the flow goes to: no name is resolved, no
//!    proxy and no redirection is followed. Its packets have our mark, so that they are not accelerated themselves.
//! 2. Two connections for each link and server, so that one that waits for a lost packet does not delay the next fetch
//!    ([`conn`]); they stay open between fetches, because a handshake over a cellular link costs as much as ten holes.
//! 3. Nothing in a response is trusted: lengths, ranges and the total length must be what was requested ([`assembler`],
//!    [`multipart`]). Anything but a 206 of the same representation counts as a response without bytes.
//! 4. At most [`MAX_CONNS`] connections at a time. What does not come is given up by a timeout here as well; the
//!    machine decides whether it is requested again.

mod assembler;
mod conn;
mod multipart;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use marline_core::accel::{Fetch, FetchId};
use marline_core::link::LinkId;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::FetchCommand;
use crate::links::AccelLink;
use crate::raw_socket::MARK;

#[cfg(feature = "fuzzing")]
pub(crate) use multipart::fuzzing;

/// Receives the result of a range: the fetch, which range, its bytes.
pub type FetchCallback = Arc<dyn Fn(FetchId, u32, Option<Vec<u8>>) + Send + Sync>;

/// The devices of the links, and the mark of packets.
#[derive(Clone, Debug)]
pub struct LinkDevices {
    /// The device of each link.
    pub devices: BTreeMap<LinkId, String>,
    /// Marks our packets; it needs CAP_NET_ADMIN. None: they are not marked.
    pub mark: Option<u32>,
}

impl LinkDevices {
    /// For these links, with the mark that the packet rules skip.
    pub fn of(links: &[AccelLink]) -> Self {
        let devices = links.iter().map(|link| (link.link, link.name.clone())).collect();
        Self { devices, mark: Some(MARK) }
    }
}

/// A body is not what it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct InvalidBody;

/// Handle of the task that owns a connection.
struct ConnTask {
    commands: UnboundedSender<FetchCommand>,
    /// Fetches that it has not finished.
    load: Arc<AtomicUsize>,
}

/// Executes commands until their sender is gone. Runs on a tokio runtime.
pub async fn run_range_client(
    devices: LinkDevices,
    mut commands: UnboundedReceiver<FetchCommand>,
    callback: FetchCallback,
) {
    let mut conns: BTreeMap<(LinkId, SocketAddr), Vec<ConnTask>> = BTreeMap::new();
    while let Some(command) = commands.recv().await {
        match command {
            FetchCommand::Fetch(fetch) => dispatch(&devices, &mut conns, fetch, &callback),
            FetchCommand::Cancel(id) => {
                for conn in conns.values().flatten() {
                    // A connection that has ended has nothing to cancel.
                    let _ = conn.commands.send(FetchCommand::Cancel(id));
                }
            }
        }
    }
}

/// Gives a fetch to a connection: an idle one, a new one, or the one with the least load.
fn dispatch(
    devices: &LinkDevices,
    conns: &mut BTreeMap<(LinkId, SocketAddr), Vec<ConnTask>>,
    fetch: Fetch,
    callback: &FetchCallback,
) {
    conns.values_mut().for_each(|conns| conns.retain(|conn| !conn.commands.is_closed()));
    conns.retain(|_, conns| !conns.is_empty());
    let count: usize = conns.values().map(Vec::len).sum();
    let Some(device) = devices.devices.get(&fetch.link) else { return conn::fail_all(&fetch, callback) };
    let server_conns = conns.entry((fetch.link, fetch.server)).or_default();
    let load = |conn: &ConnTask| conn.load.load(Ordering::Relaxed);
    let is_free = server_conns.iter().any(|conn| load(conn) == 0);
    if !is_free && server_conns.len() < CONNS_PER_SERVER && count < MAX_CONNS {
        let (commands, receiver) = unbounded_channel();
        let load = Arc::new(AtomicUsize::new(0));
        let endpoint = conn::Endpoint { device: device.clone(), mark: devices.mark, server: fetch.server };
        tokio::spawn(conn::run_conn(endpoint, receiver, Arc::clone(&load), Arc::clone(callback)));
        server_conns.push(ConnTask { commands, load });
    }
    let Some(conn) = server_conns.iter().min_by_key(|conn| load(conn)) else {
        return conn::fail_all(&fetch, callback);
    };
    conn.load.fetch_add(1, Ordering::Relaxed);
    if let Err(back) = conn.commands.send(FetchCommand::Fetch(fetch))
        && let FetchCommand::Fetch(fetch) = back.0
    {
        conn::fail_all(&fetch, callback);
    }
}

/// Connections for each link and server.
const CONNS_PER_SERVER: usize = 2;
/// Our choice: descriptors of a host are few; 16 servers at a time over two links.
const MAX_CONNS: usize = 64;
