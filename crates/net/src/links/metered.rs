//! Queries NetworkManager over D-Bus whether links are metered.
//!
//! 1. Nothing is sent if NetworkManager or the bus is absent, which takes two file checks to find out.
//! 2. One time limit of 200 ms covers the queries about all links; they usually take one or two milliseconds. Links
//!    without a reply by then stay unknown.
//! 3. Links are queried at the start, and again whenever they change: a modem that appears during a download costs
//!    money, too. All queries after the first one wait for the bus in a thread, so that sockets are served meanwhile
//!    ([`MeteredQuery`]). A link without a reply then keeps its previous value.
//!
//! There is no other source: systemd-networkd has no such property, and whether a modem's traffic costs money depends
//! on the contract. What the user sets (`metered=` of a link) takes precedence over these hints.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use super::dbus::Bus;
use super::{InterfaceList, MeteredSource, MeteredStatus};

/// Which interfaces are metered, as far as NetworkManager knows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeteredHints(BTreeMap<String, MeteredStatus>);

/// For connecting to the bus and all queries. Our choice: users do not notice this delay, and a slower bus is in trouble.
const BUS_TIMEOUT: Duration = Duration::from_millis(200);

const SERVICE: &str = "org.freedesktop.NetworkManager";
/// Path of the system bus, relative to the root.
const BUS_SOCKET: &str = "run/dbus/system_bus_socket";

impl MeteredHints {
    /// Hints without any information.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// Queries NetworkManager about every interface that might be used. Blocks for at most 200 ms.
    pub fn query(interface_list: &InterfaceList) -> Self {
        Self::query_below(Path::new("/"), interface_list)
    }

    /// Like [`query`](Self::query), for a system whose files are below `root`.
    pub(super) fn query_below(root: &Path, interface_list: &InterfaceList) -> Self {
        let mut hints = Self::unknown();
        if is_available(root) {
            hints.update(query_bus(&root.join(BUS_SOCKET), candidate_names(interface_list)));
        }
        hints
    }

    /// Applies replies. An interface without a reply keeps its previous value.
    fn update(&mut self, replies: MeteredReplies) {
        for (name, status) in replies {
            match status {
                Some(metered) => drop(self.0.insert(name, metered)),
                None => drop(self.0.remove(&name)),
            }
        }
    }

    /// The known status of an interface.
    pub fn get(&self, interface: &str) -> Option<MeteredStatus> {
        self.0.get(interface).copied()
    }
}

/// Replies by interface; `None`: NetworkManager does not know whether it is metered.
type MeteredReplies = BTreeMap<String, Option<MeteredStatus>>;

/// Repeats the query in the background.
#[derive(Debug)]
pub struct MeteredQuery {
    root: PathBuf,
    pending: Option<oneshot::Receiver<MeteredReplies>>,
}

impl MeteredQuery {
    /// For this system.
    pub fn new() -> Self {
        Self::with_root("/")
    }

    /// For a system whose files are below `root`.
    pub fn with_root(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), pending: None }
    }

    /// The first query, which blocks.
    pub fn query_blocking(&self, interface_list: &InterfaceList) -> MeteredHints {
        MeteredHints::query_below(&self.root, interface_list)
    }

    /// Starts a query about the interfaces that might be used now. Returns `false` if NetworkManager is absent, or no
    /// thread can be started.
    pub fn start_query(&mut self, interface_list: &InterfaceList) -> bool {
        if !is_available(&self.root) {
            return false;
        }
        let (bus, names) = (self.root.join(BUS_SOCKET), candidate_names(interface_list));
        let (sender, receiver) = oneshot::channel();
        let thread = std::thread::Builder::new().name("metered".to_owned());
        self.pending = thread.spawn(move || drop(sender.send(query_bus(&bus, names)))).ok().map(|_| receiver);
        self.pending.is_some()
    }

    /// Whether a query is running.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Waits for the replies and applies them to `hints`.
    pub fn poll(&mut self, hints: &mut MeteredHints, cx: &mut Context<'_>) -> Poll<()> {
        let Some(receiver) = &mut self.pending else { return Poll::Ready(()) };
        let Poll::Ready(replies) = Pin::new(receiver).poll(cx) else { return Poll::Pending };
        self.pending = None;
        hints.update(replies.unwrap_or_default());
        Poll::Ready(())
    }
}

impl Default for MeteredQuery {
    fn default() -> Self {
        Self::new()
    }
}

fn is_available(root: &Path) -> bool {
    root.join("run/NetworkManager").exists() && root.join(BUS_SOCKET).exists()
}

/// The interfaces with a default route. Emulated links of the lab are left out: NetworkManager does not know them.
fn candidate_names(interface_list: &InterfaceList) -> Vec<String> {
    let usable =
        interface_list.interfaces.iter().filter(|i| (i.route_v4.is_some() || i.route_v6.is_some()) && !i.emulated);
    usable.map(|interface| interface.name.clone()).collect()
}

/// Queries all interfaces; those without a reply are missing from the result.
pub(super) fn query_bus(bus: &Path, names: Vec<String>) -> MeteredReplies {
    match Bus::connect(bus, BUS_TIMEOUT) {
        Ok(mut bus) => names
            .into_iter()
            .filter_map(|name| query_interface(&mut bus, &name).map(|status| (name, status)))
            .collect(),
        Err(error) => {
            tracing::debug!(%error, "cannot query over D-Bus which links are metered");
            MeteredReplies::new()
        }
    }
}

/// The outer `None` means no reply, the inner one that the status is unknown.
fn query_interface(bus: &mut Bus, interface: &str) -> Option<Option<MeteredStatus>> {
    let path = "/org/freedesktop/NetworkManager";
    let reply = bus.call(SERVICE, path, SERVICE, "GetDeviceByIpIface", &[interface]).ok()?;
    let device = reply.first()?.as_text()?;
    let value = bus.property(SERVICE, device, "org.freedesktop.NetworkManager.Device", "Metered").ok()?;
    value.as_number().map(parse_nm_metered)
}

/// Converts NetworkManager's `NMMetered`.
fn parse_nm_metered(value: u64) -> Option<MeteredStatus> {
    let (metered, source) = match value {
        1 => (true, MeteredSource::NetworkManager),
        2 => (false, MeteredSource::NetworkManager),
        3 => (true, MeteredSource::NetworkManagerGuess),
        4 => (false, MeteredSource::NetworkManagerGuess),
        _ => return None,
    };
    Some(MeteredStatus { metered, source })
}

#[cfg(test)]
impl FromIterator<(String, MeteredStatus)> for MeteredHints {
    fn from_iter<I: IntoIterator<Item = (String, MeteredStatus)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}
