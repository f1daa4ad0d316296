//! Whether a link's bytes cost money, as NetworkManager knows or guesses it.
//!
//! In: the names of the interfaces. Out: an answer with its source for those of which there is one.
//!
//! 1. Nothing is asked where NetworkManager or the bus is absent: the check is two looks at the file system.
//! 2. All answers together have 200 ms; they usually take one or two. What is not known then stays unknown.
//!
//! systemd-networkd keeps no such property, and a modem's being a modem proves nothing, so nobody else is asked.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::dbus::{Bus, SYSTEM_BUS};
use super::{Metered, MeteredSource, Survey};

/// What is known of the cost of each interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeteredHints(BTreeMap<String, Metered>);

/// chosen: a user does not notice it, and a bus that needs more is in trouble.
const LIMIT: Duration = Duration::from_millis(200);

const SERVICE: &str = "org.freedesktop.NetworkManager";

impl MeteredHints {
    /// Nothing is known.
    pub fn none() -> Self {
        Self::default()
    }

    /// Asks NetworkManager about every interface that might be used. Blocks for at most 200 ms.
    pub fn ask(survey: &Survey) -> Self {
        if !Path::new("/run/NetworkManager").exists() || !Path::new(SYSTEM_BUS).exists() {
            return Self::none();
        }
        let usable = survey.interfaces.iter().filter(|i| (i.v4.is_some() || i.v6.is_some()) && !i.emulated);
        Self::ask_at(Path::new(SYSTEM_BUS), usable.map(|interface| interface.name.as_str()))
    }

    pub(super) fn ask_at<'a>(bus: &Path, names: impl Iterator<Item = &'a str>) -> Self {
        let mut bus = match Bus::connect(bus, LIMIT) {
            Ok(bus) => bus,
            Err(error) => {
                tracing::debug!(%error, "the bus does not say which links are metered");
                return Self::none();
            }
        };
        Self(names.filter_map(|name| Some((name.to_owned(), question(&mut bus, name)?))).collect())
    }

    /// What is known of an interface.
    pub fn of(&self, interface: &str) -> Option<Metered> {
        self.0.get(interface).copied()
    }
}

fn question(bus: &mut Bus, interface: &str) -> Option<Metered> {
    let path = "/org/freedesktop/NetworkManager";
    let answer = bus.call(SERVICE, path, SERVICE, "GetDeviceByIpIface", &[interface]).ok()?;
    let device = answer.first()?.text()?;
    let value = bus.property(SERVICE, device, "org.freedesktop.NetworkManager.Device", "Metered").ok()?;
    meaning(value.number()?)
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
