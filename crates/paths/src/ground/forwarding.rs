//! The settings of a host that stands between a LAN and its links, and how they are put back.
//!
//! In: the LAN's interfaces. Out: a host that passes packets on while a [`Forwarding`] lives; afterwards the host as it was.
//!
//! 1. Each setting is in a ledger of its own (`edge-N.json`) before it is changed, as those of a steering run are; after a crash
//!    the first value counts.
//! 2. A host that passes IPv6 on does not listen to routers any more, unless it is told to (`accept_ra=2`): so the links, and what
//!    is plugged in later, are told first. Without it each link would lose its way when its last advertisement ends.
//! 3. One process does this for a network. Who holds the claim is he; whoever finds it free clears up after him.

use std::path::Path;
use std::time::Instant;

use super::claim::{Claim, ClaimError, Role};
use super::hold::Hold;
use super::keep;
use super::ledger::{Changes, Ledger, Setting};
use super::settings::Settings;
use super::{may_administer, refused, run_directory, unwritten};
use crate::PathsError;

/// Whether packets of IPv4 are passed on.
pub(super) const FORWARD_V4: &str = "net.ipv4.ip_forward";
/// Whether those of IPv6 are.
pub(super) const FORWARD_V6: &str = "net.ipv6.conf.all.forwarding";
/// Listen to routers, although packets are passed on.
const ALL_THE_SAME: &str = "2";

/// The host passes packets on while this lives.
#[derive(Debug)]
pub(crate) struct Forwarding {
    ledger: Ledger,
    /// What was changed, a line each.
    pub(crate) lines: Vec<String>,
    /// Whether it passes them on only because of this: IPv4, IPv6.
    pub(crate) switched: (bool, bool),
    _claim: Claim,
}

/// The settings by which this host forwards packets, looked at again and again: what another program has reset (`sysctl --system`) is set
/// again if this run has set it, and reported otherwise.
#[derive(Debug)]
pub(crate) struct Guard {
    holds: Vec<(Hold, bool)>,
}

impl Guard {
    /// `switched`: which ones this run has set.
    pub(crate) fn new(switched: (bool, bool)) -> Self {
        let hold = |name| Hold::of_forwarding(name, "1".to_owned());
        Self { holds: vec![(hold(FORWARD_V4), switched.0), (hold(FORWARD_V6), switched.1)] }
    }

    /// Looks at them, and sets them again where that may be. Returns lines about what was done, and lines about what is wrong now.
    pub(crate) fn look(&mut self, now: Instant) -> (Vec<String>, Vec<String>) {
        let settings = Settings::system();
        self.look_at(&settings, now)
    }

    fn look_at(&mut self, settings: &Settings, now: Instant) -> (Vec<String>, Vec<String>) {
        let (mut done, mut wrong) = (Vec::new(), Vec::new());
        for (hold, is_ours) in &mut self.holds {
            if *is_ours {
                // What cannot be set again, or is not any more, is in the note.
                done.extend(keep(settings, hold, now).filter(|_| hold.note().is_none()));
                wrong.extend(hold.note());
            } else if settings.read(hold.name).is_some_and(|value| value == "0") {
                let name = hold.name;
                wrong.push(format!(
                    "{name} is 0, which another program has set: UDP and the rest of the LAN do not pass until it is 1 \
                     (`sysctl -w {name}=1`)"
                ));
            }
        }
        (done, wrong)
    }
}

impl Forwarding {
    /// Makes it so. What a run that was killed has left is taken over. `close` is called before anything is changed, with the families that
    /// the host forwards only because of this: what keeps the LAN closed must be there first.
    ///
    /// # Errors
    /// One line that says what stands in the way; what was changed until then is put back.
    pub(crate) fn lay(
        run_dir: &Path,
        lan: &[String],
        close: impl FnOnce((bool, bool)) -> Result<(), PathsError>,
    ) -> Result<Self, PathsError> {
        if !may_administer() {
            return Err(PathsError::NotPermitted { what: "serving a LAN".to_owned() });
        }
        run_directory(run_dir)?;
        let claim = Claim::take(run_dir, Role::Gateway).map_err(|error| match error {
            ClaimError::Held(process) => {
                let process = process.map(|process| format!(" (process {process})")).unwrap_or_default();
                PathsError::Ground(format!(
                    "another `marline edge --lan`{process} serves here already; stop it first"
                ))
            }
            error => error.into(),
        })?;
        let ledger = Ledger::open_of(run_dir, LEDGER).map_err(unwritten)?;
        let mut laid = Self { ledger, lines: Vec::new(), switched: (false, false), _claim: claim };
        laid.set(&Settings::system(), lan, close)?;
        Ok(laid)
    }

    /// Puts everything back; whether nothing is left. Afterwards there is nothing to put back any more.
    pub(crate) fn restore(&mut self) -> bool {
        let (_, troubles) = Settings::system().restore(&mut self.ledger);
        for line in &troubles {
            tracing::warn!(line, "not put back");
        }
        troubles.is_empty()
    }

    fn set(
        &mut self,
        settings: &Settings,
        lan: &[String],
        close: impl FnOnce((bool, bool)) -> Result<(), PathsError>,
    ) -> Result<(), PathsError> {
        let wanted = wanted(settings, lan);
        self.note(settings, &wanted).map_err(unwritten)?;
        let ours = |name: &str| self.ledger.changes().settings.iter().any(|entry| entry.name == name);
        self.switched = (ours(FORWARD_V4), ours(FORWARD_V6));
        close(self.switched)?;
        for (name, set) in wanted {
            let now = settings.read(&name).unwrap_or_default();
            if now != set {
                settings.write(&name, &set).map_err(|error| refused(&name, &error))?;
                self.lines.push(format!("{name}: {set} (it was {now}, and is put back at the end)"));
            }
        }
        Ok(())
    }

    /// Writes down what is going to be set. What a killed run has written stays, as long as it is still so.
    fn note(&mut self, settings: &Settings, wanted: &[(String, String)]) -> std::io::Result<()> {
        let is_so = |entry: &Setting| settings.read(&entry.name).is_some_and(|now| entry.is_ours(&now));
        let mut entries: Vec<Setting> =
            self.ledger.changes().settings.iter().filter(|e| is_so(e)).cloned().collect();
        for (name, set) in wanted {
            let was = settings.read(name).unwrap_or_default();
            if was != *set && !entries.iter().any(|entry| entry.name == *name) {
                entries.push(Setting { name: name.clone(), was, set: set.clone(), before: None });
            }
        }
        self.ledger.write(Changes { settings: entries, ..Changes::default() })
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Whether this host forwards packets now: IPv4, IPv6.
pub(crate) fn is_forwarding() -> (bool, bool) {
    let settings = Settings::system();
    let is_on = |name| settings.read(name).is_some_and(|value| value != "0");
    (is_on(FORWARD_V4), is_on(FORWARD_V6))
}

/// What a host between networks needs, in the order in which it is set.
fn wanted(settings: &Settings, lan: &[String]) -> Vec<(String, String)> {
    let mut wanted = Vec::new();
    let links = settings.interfaces_of_ipv6().into_iter().filter(|name| !lan.contains(name));
    for name in links.map(|link| advertisements(&link)) {
        if settings.read(&name).as_deref() == Some("1") {
            wanted.push((name, ALL_THE_SAME.to_owned()));
        }
    }
    for name in [FORWARD_V4, FORWARD_V6] {
        if settings.read(name).is_some() {
            wanted.push((name.to_owned(), "1".to_owned()));
        }
    }
    wanted
}

/// The setting of an interface, whose dots are written as slashes (sysctl(8)).
fn advertisements(interface: &str) -> String {
    format!("net.ipv6.conf.{}.accept_ra", interface.replace('.', "/"))
}

/// Whether it is such a setting, and names an interface.
pub(super) fn is_advertisements(name: &str) -> bool {
    let middle = name.strip_prefix("net.ipv6.conf.").and_then(|rest| rest.strip_suffix(".accept_ra"));
    middle.is_some_and(|middle| {
        // Its dots are slashes in the file's name, and its slashes dots.
        let plain = middle.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'.');
        plain && (1..=15).contains(&middle.len()) && !matches!(middle, "/" | "//")
    })
}

/// Puts back what a run that was killed has left: what was done, and what could not be; none: one runs.
pub(crate) fn restore(run_dir: &Path) -> Option<(Vec<String>, Vec<String>)> {
    let _claim = match Claim::take(run_dir, Role::Gateway) {
        Err(ClaimError::Held(_)) => return None,
        Err(error) => return Some((Vec::new(), vec![error.to_string()])),
        Ok(claim) => claim,
    };
    Some(match Ledger::open_of(run_dir, LEDGER) {
        Ok(mut ledger) => Settings::system().restore(&mut ledger),
        Err(error) => (Vec::new(), vec![error.to_string()]),
    })
}

/// What such a run has changed and not put back; none: one runs.
pub(crate) fn leftovers(run_dir: &Path) -> Option<Vec<String>> {
    if Claim::held(run_dir, Role::Gateway).is_some() {
        return None;
    }
    let ledger = Ledger::open_of(run_dir, LEDGER);
    let changes = ledger.map(|ledger| ledger.changes().clone()).unwrap_or_default();
    Some(changes.settings.iter().map(|entry| format!("{}={}", entry.name, entry.set)).collect())
}

/// The ledger's name.
const LEDGER: &str = "edge";

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A machine with these settings.
    fn machine(settings: &[(&str, &str)]) -> (tempfile::TempDir, Settings) {
        let root = tempfile::tempdir().unwrap();
        for (name, value) in settings {
            let file = root.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{value}\n")).unwrap();
        }
        let settings = Settings::at(root.path().to_owned());
        (root, settings)
    }

    fn laid(run: &Path, settings: &Settings) -> Forwarding {
        let claim = Claim::take(run, Role::Gateway).unwrap();
        let ledger = Ledger::open_of(run, LEDGER).unwrap();
        let mut laid = Forwarding { ledger, lines: Vec::new(), switched: (false, false), _claim: claim };
        laid.set(settings, &["lan0".to_owned()], |_| Ok(())).unwrap();
        laid
    }

    const HOST: [(&str, &str); 6] = [
        ("net/ipv4/ip_forward", "0"),
        ("net/ipv6/conf/all/forwarding", "0"),
        ("net/ipv6/conf/default/accept_ra", "1"),
        ("net/ipv6/conf/lan0/accept_ra", "1"),
        ("net/ipv6/conf/wwan0/accept_ra", "1"),
        ("net/ipv6/conf/eth0.7/accept_ra", "0"),
    ];

    #[test]
    fn links_go_on_listening_to_routers_and_then_packets_are_passed_on() {
        let (_root, settings) = machine(&HOST);
        let wanted = wanted(&settings, &["lan0".to_owned()]);
        let names: Vec<&str> = wanted.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["net.ipv6.conf.default.accept_ra", "net.ipv6.conf.wwan0.accept_ra", FORWARD_V4, FORWARD_V6]
        );
    }

    #[test]
    fn after_a_crash_the_first_values_are_put_back() {
        let ((root, settings), run) = (machine(&HOST), tempfile::tempdir().unwrap());
        let mut killed = laid(run.path(), &settings);
        assert_eq!(killed.switched, (true, true));
        // As a process that is killed: its ledger stays, its claim ends.
        killed.ledger = Ledger::open_of(Path::new("/nonexistent"), LEDGER).unwrap();
        drop(killed);
        let mut next = laid(run.path(), &settings);
        assert_eq!((next.switched, next.lines.len()), ((true, true), 0));
        let (lines, troubles) = settings.restore(&mut next.ledger);
        assert_eq!((lines.len(), troubles.len()), (4, 0), "{lines:?} {troubles:?}");
        for (name, value) in HOST {
            assert_eq!(fs::read_to_string(root.path().join(name)).unwrap().trim(), value, "{name}");
        }
    }

    #[test]
    fn a_host_that_passed_packets_on_before_does_so_after() {
        let ((root, settings), run) = (machine(&[("net/ipv4/ip_forward", "1")]), tempfile::tempdir().unwrap());
        let mut laid = laid(run.path(), &settings);
        assert_eq!((laid.switched, laid.lines.len()), ((false, false), 0));
        settings.restore(&mut laid.ledger);
        assert_eq!(fs::read_to_string(root.path().join("net/ipv4/ip_forward")).unwrap().trim(), "1");
    }

    #[test]
    fn what_another_program_resets_is_set_again_a_few_times_or_reported() {
        let (root, settings) = machine(&[("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")]);
        let (mut guard, now) = (Guard::new((true, false)), Instant::now());
        assert_eq!(guard.look_at(&settings, now), (vec![], vec![]));
        let reset = || fs::write(root.path().join("net/ipv4/ip_forward"), "0").unwrap();
        for _ in 0..6 {
            reset();
            let (done, wrong) = guard.look_at(&settings, now);
            assert!(done[0].contains("it is 1 again") && wrong.is_empty(), "{done:?} {wrong:?}");
            assert_eq!(settings.read(FORWARD_V4).as_deref(), Some("1"));
        }
        reset();
        let (done, wrong) = guard.look_at(&settings, now);
        assert!(done.is_empty() && wrong[0].contains("do not pass until it is 1"), "{wrong:?}");
        fs::write(root.path().join("net/ipv4/ip_forward"), "1").unwrap();
        fs::write(root.path().join("net/ipv6/conf/all/forwarding"), "0").unwrap();
        let (_, wrong) = guard.look_at(&settings, now);
        assert!(wrong.len() == 1 && wrong[0].contains("`sysctl -w net.ipv6.conf.all.forwarding=1`"), "{wrong:?}");
    }

    #[test]
    fn only_settings_of_interfaces_are_believed_to_be_ours() {
        for name in ["net.ipv6.conf.wwan0.accept_ra", "net.ipv6.conf.eth0/7.accept_ra"] {
            assert!(is_advertisements(name), "{name}");
        }
        for name in ["net.ipv6.conf..accept_ra", "net.ipv6.conf.//.accept_ra", "net.ipv6.conf.a.b.accept_ra", "x"] {
            assert!(!is_advertisements(name), "{name}");
        }
    }
}
