//! Whether a link's bytes cost money, as NetworkManager knows or guesses it.
//!
//! In: the names of the interfaces. Out: an answer with its source for those of which there is one.
//!
//! 1. Nothing is asked where NetworkManager or the bus is absent: the check is two looks at the file system.
//! 2. All answers together have 200 ms; they usually take one or two. What is not known then stays unknown.
//! 3. It is asked at the start and again whenever links have changed: a modem that appears half-way costs money, too.
//!    The second time a thread waits, for sockets must not ([`MeteredWatch`]). Who does not answer then has not changed
//!    his mind.
//!
//! systemd-networkd keeps no such property, and a modem's being a modem proves nothing, so nobody else is asked.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use super::dbus::Bus;
use super::{InterfaceList, MeteredSource, MeteredStatus};

/// What is known of the cost of each interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeteredHints(BTreeMap<String, MeteredStatus>);

/// chosen: a user does not notice it, and a bus that needs more is in trouble.
const BUS_TIMEOUT: Duration = Duration::from_millis(200);

const SERVICE: &str = "org.freedesktop.NetworkManager";
/// The system's bus, below the root.
const BUS_SOCKET: &str = "run/dbus/system_bus_socket";

impl MeteredHints {
    /// Nothing is known.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// Asks NetworkManager about every interface that might be used. Blocks for at most 200 ms.
    pub fn query(interface_list: &InterfaceList) -> Self {
        Self::query_below(Path::new("/"), interface_list)
    }

    /// The same on a system whose files are below `root`.
    pub(super) fn query_below(root: &Path, interface_list: &InterfaceList) -> Self {
        let mut hints = Self::unknown();
        if is_available(root) {
            hints.update(query_bus(&root.join(BUS_SOCKET), candidate_names(interface_list)));
        }
        hints
    }

    /// Puts answers over what was known. A question without an answer changes nothing.
    fn update(&mut self, replies: MeteredReplies) {
        for (name, status) in replies {
            match status {
                Some(metered) => drop(self.0.insert(name, metered)),
                None => drop(self.0.remove(&name)),
            }
        }
    }

    /// What is known of an interface.
    pub fn get(&self, interface: &str) -> Option<MeteredStatus> {
        self.0.get(interface).copied()
    }
}

/// By interface: what NetworkManager says, or that it does not know.
type MeteredReplies = BTreeMap<String, Option<MeteredStatus>>;

/// Asks again in the background.
#[derive(Debug)]
pub struct MeteredQuery {
    root: PathBuf,
    pending: Option<oneshot::Receiver<MeteredReplies>>,
}

impl MeteredQuery {
    /// Of this system.
    pub fn new() -> Self {
        Self::with_root("/")
    }

    /// Of a system whose files are below `root`.
    pub fn with_root(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), pending: None }
    }

    /// The first answers, for which the caller waits.
    pub fn query_blocking(&self, interface_list: &InterfaceList) -> MeteredHints {
        MeteredHints::query_below(&self.root, interface_list)
    }

    /// Begins to ask about the interfaces that might be used now. False: nobody is there to be asked.
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

    /// Whether answers are awaited.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Waits for the answers and puts them over what is known.
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

fn candidate_names(interface_list: &InterfaceList) -> Vec<String> {
    let usable =
        interface_list.interfaces.iter().filter(|i| (i.route_v4.is_some() || i.route_v6.is_some()) && !i.emulated);
    usable.map(|interface| interface.name.clone()).collect()
}

/// The answers of those who answer.
pub(super) fn query_bus(bus: &Path, names: Vec<String>) -> MeteredReplies {
    match Bus::connect(bus, BUS_TIMEOUT) {
        Ok(mut bus) => names
            .into_iter()
            .filter_map(|name| query_interface(&mut bus, &name).map(|status| (name, status)))
            .collect(),
        Err(error) => {
            tracing::debug!(%error, "the bus does not say which links are metered");
            MeteredReplies::new()
        }
    }
}

/// None: no answer.
fn query_interface(bus: &mut Bus, interface: &str) -> Option<Option<MeteredStatus>> {
    let path = "/org/freedesktop/NetworkManager";
    let reply = bus.call(SERVICE, path, SERVICE, "GetDeviceByIpIface", &[interface]).ok()?;
    let device = reply.first()?.as_text()?;
    let value = bus.property(SERVICE, device, "org.freedesktop.NetworkManager.Device", "Metered").ok()?;
    value.as_number().map(parse_nm_metered)
}

/// `NMMetered`.
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
