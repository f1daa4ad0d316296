//! Gets missing bytes from servers: the errands of the accelerator, carried out.
//!
//! In: [`Errand`]s. Out: each range of a fetch answered once, with its bytes as soon as they are there, or with nothing.
//!
//! ```text
//!   Errand ──▶ run_fills ──▶ a lane for each link and server ──▶ HTTP/1.1, pipelined ──▶ ranges ──▶ answer
//! ```
//!
//! 1. A connection goes over its link and no other, and to the address that the flow goes to: no name is asked, no proxy
//!    and no redirection is followed. Its packets have our mark, so that nobody helps the helpers.
//! 2. Two connections for each link and server, so that one that waits for a lost packet does not hold the next up
//!    ([`lane`]); they stay open between fetches, for a handshake over a cellular link costs as much as ten holes.
//! 3. Nothing of an answer is believed: lengths, ranges and the whole must be what was asked for ([`wanted`], [`parts`]).
//!    Anything but a 206 of the same file is an answer without bytes.
//! 4. At most [`LANES`] connections at a time. What does not come is given up by a timeout here, too; whether it is asked for
//!    again is the machine's to say.

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

/// Who hears what became of a range: the fetch, which range, its bytes.
pub type FetchCallback = Arc<dyn Fn(FetchId, u32, Option<Vec<u8>>) + Send + Sync>;

/// Which devices there are, and whether packets can be marked.
#[derive(Clone, Debug)]
pub struct LinkDevices {
    /// The name of each link's device.
    pub devices: BTreeMap<LinkId, String>,
    /// What marks packets of ours; it needs CAP_NET_ADMIN. None: they are not marked.
    pub mark: Option<u32>,
}

impl LinkDevices {
    /// For these links, with the mark that the accelerator's rules know.
    pub fn of(roads: &[AccelLink]) -> Self {
        let devices = roads.iter().map(|road| (road.link, road.name.clone())).collect();
        Self { devices, mark: Some(MARK) }
    }
}

/// A body is not what it should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct InvalidBody;

/// A connection's task.
struct ConnTask {
    commands: UnboundedSender<FetchCommand>,
    /// Fetches that it has not ended.
    load: Arc<AtomicUsize>,
}

/// Carries errands out until nobody sends any. Runs on a tokio runtime.
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
                    // A lane that has ended has nothing to cancel.
                    let _ = conn.commands.send(FetchCommand::Cancel(id));
                }
            }
        }
    }
}

/// Gives a fetch to a lane: one that is free, a new one, or the one with the least to do.
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
        server_conns.push(ConnTask { commands: commands, load: load });
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
/// chosen: descriptors of a host are few; 16 servers at a time over two links.
const MAX_CONNS: usize = 64;
