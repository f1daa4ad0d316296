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
use super::{Metered, MeteredSource, Survey};

/// What is known of the cost of each interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeteredHints(BTreeMap<String, Metered>);

/// chosen: a user does not notice it, and a bus that needs more is in trouble.
const LIMIT: Duration = Duration::from_millis(200);

const SERVICE: &str = "org.freedesktop.NetworkManager";
/// The system's bus, below the root.
const BUS: &str = "run/dbus/system_bus_socket";

impl MeteredHints {
    /// Nothing is known.
    pub fn none() -> Self {
        Self::default()
    }

    /// Asks NetworkManager about every interface that might be used. Blocks for at most 200 ms.
    pub fn ask(survey: &Survey) -> Self {
        Self::ask_below(Path::new("/"), survey)
    }

    /// The same on a system whose files are below `root`.
    pub(super) fn ask_below(root: &Path, survey: &Survey) -> Self {
        let mut hints = Self::none();
        if is_there(root) {
            hints.learn(ask_at(&root.join(BUS), askable(survey)));
        }
        hints
    }

    /// Puts answers over what was known. A question without an answer changes nothing.
    fn learn(&mut self, answers: Answers) {
        for (name, answer) in answers {
            match answer {
                Some(metered) => drop(self.0.insert(name, metered)),
                None => drop(self.0.remove(&name)),
            }
        }
    }

    /// What is known of an interface.
    pub fn of(&self, interface: &str) -> Option<Metered> {
        self.0.get(interface).copied()
    }
}

/// By interface: what NetworkManager says, or that it does not know.
type Answers = BTreeMap<String, Option<Metered>>;

/// Asks again in the background.
#[derive(Debug)]
pub struct MeteredWatch {
    root: PathBuf,
    asked: Option<oneshot::Receiver<Answers>>,
}

impl MeteredWatch {
    /// Of this system.
    pub fn new() -> Self {
        Self::below("/")
    }

    /// Of a system whose files are below `root`.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), asked: None }
    }

    /// The first answers, for which the caller waits.
    pub fn first(&self, survey: &Survey) -> MeteredHints {
        MeteredHints::ask_below(&self.root, survey)
    }

    /// Begins to ask about the interfaces that might be used now. False: nobody is there to be asked.
    pub fn ask(&mut self, survey: &Survey) -> bool {
        if !is_there(&self.root) {
            return false;
        }
        let (bus, names) = (self.root.join(BUS), askable(survey));
        let (tell, told) = oneshot::channel();
        let thread = std::thread::Builder::new().name("metered".to_owned());
        self.asked = thread.spawn(move || drop(tell.send(ask_at(&bus, names)))).ok().map(|_| told);
        self.asked.is_some()
    }

    /// Whether answers are awaited.
    pub fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// Waits for the answers and puts them over what is known.
    pub fn poll(&mut self, hints: &mut MeteredHints, cx: &mut Context<'_>) -> Poll<()> {
        let Some(asked) = &mut self.asked else { return Poll::Ready(()) };
        let Poll::Ready(told) = Pin::new(asked).poll(cx) else { return Poll::Pending };
        self.asked = None;
        hints.learn(told.unwrap_or_default());
        Poll::Ready(())
    }
}

impl Default for MeteredWatch {
    fn default() -> Self {
        Self::new()
    }
}

fn is_there(root: &Path) -> bool {
    root.join("run/NetworkManager").exists() && root.join(BUS).exists()
}

fn askable(survey: &Survey) -> Vec<String> {
    let usable = survey.interfaces.iter().filter(|i| (i.v4.is_some() || i.v6.is_some()) && !i.emulated);
    usable.map(|interface| interface.name.clone()).collect()
}

/// The answers of those who answer.
pub(super) fn ask_at(bus: &Path, names: Vec<String>) -> Answers {
    match Bus::connect(bus, LIMIT) {
        Ok(mut bus) => {
            names.into_iter().filter_map(|name| question(&mut bus, &name).map(|answer| (name, answer))).collect()
        }
        Err(error) => {
            tracing::debug!(%error, "the bus does not say which links are metered");
            Answers::new()
        }
    }
}

/// None: no answer.
fn question(bus: &mut Bus, interface: &str) -> Option<Option<Metered>> {
    let path = "/org/freedesktop/NetworkManager";
    let answer = bus.call(SERVICE, path, SERVICE, "GetDeviceByIpIface", &[interface]).ok()?;
    let device = answer.first()?.text()?;
    let value = bus.property(SERVICE, device, "org.freedesktop.NetworkManager.Device", "Metered").ok()?;
    value.number().map(meaning)
}

/// `NMMetered`.
fn meaning(value: u64) -> Option<Metered> {
    let (metered, source) = match value {
        1 => (true, MeteredSource::NetworkManager),
        2 => (false, MeteredSource::NetworkManager),
        3 => (true, MeteredSource::NetworkManagerGuess),
        4 => (false, MeteredSource::NetworkManagerGuess),
        _ => return None,
    };
    Some(Metered { metered, source })
}

#[cfg(test)]
impl FromIterator<(String, Metered)> for MeteredHints {
    fn from_iter<I: IntoIterator<Item = (String, Metered)>>(known: I) -> Self {
        Self(known.into_iter().collect())
    }
}
