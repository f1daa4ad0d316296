//! The links of a run: which interface each number means, and what changes while it goes on.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::task::{Context, Poll};

use marline_core::link::{LinkId, LinkKind, LinkProfile};
use marline_net::links::{
    Choice, Interface, LinksError, MeteredHints, MeteredWatch, Monitor, Survey, choose, choose_local, survey,
};
use url::Url;

use crate::name::{Suggested, suggested};

/// The links by number. A number stays with its interface's name, whatever becomes of it.
pub(super) struct Uplinks {
    links: Vec<Uplink>,
    choice: Choice,
    hints: MeteredHints,
    /// Asks about costs again when links have changed.
    watch: MeteredWatch,
    monitor: Option<Monitor>,
    /// Something has changed since the last look.
    stale: bool,
    /// Whether the name of the file is the server's to suggest.
    pub(super) free_name: bool,
}

#[derive(Clone)]
struct Uplink {
    /// None: this machine itself, where nothing is bound.
    interface: Option<Interface>,
    profile: LinkProfile,
    up: bool,
}

/// What has changed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) gone: Vec<LinkId>,
    /// Links that can be used from now on, and those that go on under other terms.
    pub(super) come: Vec<LinkId>,
}

impl Uplinks {
    /// Finds the links, and the lines that the user should read.
    pub(super) fn find(choice: Choice) -> Result<(Self, Vec<String>), LinksError> {
        Self::find_with(choice, MeteredWatch::new())
    }

    fn find_with(choice: Choice, watch: MeteredWatch) -> Result<(Self, Vec<String>), LinksError> {
        // Heard from before the survey, so that nothing is missed in between.
        let monitor = Monitor::new().ok();
        let survey = survey()?;
        let hints = watch.first(&survey);
        let chosen = choose(&survey, &choice, &hints)?;
        let lines = chosen.warnings.into_iter().chain(chosen.vpn).collect();
        let links = chosen.links.into_iter().map(|(i, profile)| Uplink { interface: Some(i), profile, up: true });
        Ok((Self { monitor, hints, watch, ..Self::fixed(links.collect(), choice) }, lines))
    }

    /// None yet; whatever appears is heard of.
    pub(super) fn awaited(choice: Choice) -> Self {
        Self { monitor: Monitor::new().ok(), ..Self::fixed(Vec::new(), choice) }
    }

    /// This machine itself, and the lines that the user should read.
    pub(super) fn local(choice: Choice) -> Result<(Self, Vec<String>), LinksError> {
        let nothing_said = match &choice {
            Choice::Auto { known, .. } => known.is_empty(),
            Choice::Named(named) => named.is_empty(),
        };
        let (profile, lines) = if nothing_said {
            (LinkProfile::new("lo", LinkKind::Other), Vec::new())
        } else {
            choose_local(&survey()?, &choice)
        };
        Ok((Self::fixed(vec![Uplink { interface: None, profile, up: true }], choice), lines))
    }

    /// The same links for another run, with the same numbers; nobody is asked again for now.
    pub(super) fn again(&self) -> Self {
        let links = self.links.clone();
        let monitor = self.monitor.as_ref().and_then(|_| Monitor::new().ok());
        // What has changed before this one listens is found by a look.
        let stale = monitor.is_some();
        Self { monitor, stale, hints: self.hints.clone(), ..Self::fixed(links, self.choice.clone()) }
    }

    /// Whether a link can be used now.
    pub(super) fn is_up(&self, id: LinkId) -> bool {
        self.links.get(usize::from(id.0)).is_some_and(|link| link.up)
    }

    /// Links that nothing is heard of.
    fn fixed(links: Vec<Uplink>, choice: Choice) -> Self {
        Self {
            links,
            choice,
            hints: MeteredHints::none(),
            watch: MeteredWatch::new(),
            monitor: None,
            stale: false,
            free_name: false,
        }
    }

    /// An error if there are only links that cost money: nothing would ever happen.
    pub(super) fn refuse_metered(&self) -> Result<(), LinksError> {
        if self.links.iter().any(|link| !link.profile.metered) {
            return Ok(());
        }
        let line = |link: &Uplink| format!("{}: it is metered, and --metered never forbids it", link.profile.name);
        Err(LinksError::NoLink { why: self.links.iter().map(line).collect() })
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = LinkId> + use<> {
        (0..self.links.len() as u16).map(LinkId)
    }

    pub(super) fn profile(&self, id: LinkId) -> Option<&LinkProfile> {
        self.links.get(usize::from(id.0)).map(|link| &link.profile)
    }

    pub(super) fn interface(&self, id: LinkId) -> Option<&Interface> {
        self.links.get(usize::from(id.0)).and_then(|link| link.interface.as_ref())
    }

    /// The file's name as the server suggests it, if that is wanted and it does.
    pub(super) fn name_from(&self, disposition: Option<&str>, url: Option<&Url>) -> Option<Suggested> {
        (self.free_name && disposition.is_some()).then(|| url.map(|url| suggested(disposition, url)))?
    }

    /// Hears of changes. Pending: none. Where somebody knows what links cost, he is asked first: at most 200 ms.
    pub(super) fn poll_changes(&mut self, cx: &mut Context<'_>) -> Poll<Changes> {
        self.listen(cx);
        if self.watch.is_asking() {
            if self.watch.poll(&mut self.hints, cx).is_pending() {
                return Poll::Pending;
            }
            // What has changed meanwhile is looked at in the next turn.
            return Poll::Ready(survey().map(|survey| self.compare(&survey)).unwrap_or_default());
        }
        if !std::mem::take(&mut self.stale) {
            return Poll::Pending;
        }
        let Ok(survey) = survey() else { return Poll::Ready(Changes::default()) };
        if self.watch.ask(&survey) && self.watch.poll(&mut self.hints, cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(self.compare(&survey))
    }

    /// Hears what the kernel tells.
    fn listen(&mut self, cx: &mut Context<'_>) {
        while let Some(monitor) = &mut self.monitor {
            match monitor.poll_changed(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) => self.stale = true,
                Poll::Ready(Err(_)) => self.monitor = None,
            }
        }
    }

    fn compare(&mut self, survey: &Survey) -> Changes {
        let found = choose(survey, &self.choice, &self.hints).map(|chosen| chosen.links).unwrap_or_default();
        let mut changes = Changes::default();
        for (n, link) in self.links.iter_mut().enumerate() {
            let Some(old) = &link.interface else { continue };
            let id = LinkId(n as u16);
            match found.iter().find(|(now, _)| now.name == old.name) {
                None if link.up => {
                    link.up = false;
                    changes.gone.push(id);
                }
                None => {}
                Some((now, profile)) => {
                    // A connection dies with its address.
                    let lost = now.index != old.index || !addresses(old).is_subset(&addresses(now));
                    if link.up && lost {
                        changes.gone.push(id);
                    }
                    if !link.up || lost || link.profile != *profile {
                        changes.come.push(id);
                    }
                    link.up = true;
                    link.profile = profile.clone();
                    link.interface = Some(now.clone());
                }
            }
        }
        for (interface, profile) in found {
            let known = self.links.iter().any(|link| link.profile.name == profile.name);
            if !known && self.links.iter().all(|link| link.interface.is_some()) {
                changes.come.push(LinkId(self.links.len() as u16));
                self.links.push(Uplink { interface: Some(interface), profile, up: true });
            }
        }
        changes
    }
}

fn addresses(interface: &Interface) -> BTreeSet<IpAddr> {
    interface.addresses.iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use marline_net::links::{DefaultRoute, Named, Verdict};
    use marline_net::testing::Daemon;
    use marline_net::testing::{cable, in_a_network, ip};

    use super::*;

    fn wifi() -> Interface {
        Interface {
            name: "wlan0".into(),
            index: 3,
            kind: LinkKind::Wifi,
            addresses: vec!["192.0.2.1".parse().unwrap()],
            passing: Vec::new(),
            networks: Vec::new(),
            v4: Some(DefaultRoute { metric: 600, table: 254, gateway: None }),
            v6: None,
            metered: None,
            mtu: 1500,
            emulated: false,
            verdict: Verdict::Usable,
        }
    }

    #[test]
    fn other_terms_are_told_while_a_link_is_up() {
        let survey = Survey { interfaces: vec![wifi()], vpn: None };
        let profile = LinkProfile::new("wlan0", LinkKind::Wifi);
        let named = Named { kind: Some(LinkKind::Wifi), metered: Some(true), ..Named::new("wlan0") };
        let mut uplinks =
            Uplinks::fixed(vec![Uplink { interface: Some(wifi()), profile, up: true }], Choice::Named(vec![named]));
        let changes = uplinks.compare(&survey);
        assert_eq!((changes.gone, changes.come), (vec![], vec![LinkId(0)]));
        assert!(uplinks.profile(LinkId(0)).unwrap().metered);
        let changes = uplinks.compare(&survey);
        assert_eq!((changes.gone, changes.come), (vec![], vec![]));
        let changes = uplinks.compare(&Survey { interfaces: Vec::new(), vpn: None });
        assert_eq!((changes.gone, changes.come), (vec![LinkId(0)], vec![]));
    }

    #[test]
    fn a_modem_that_appears_half_way_is_known_to_cost_money() {
        let Some(bus) = Daemon::start() else { return };
        let _manager = bus.network_manager();
        in_a_network(|| {
            cable("eth0", "10.1.0.2/24");
            ip("route add default via 10.1.0.1 dev eth0 metric 100");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let choice = Choice::Auto { bypass_vpn: false, known: Vec::new() };
                let (mut uplinks, _) = Uplinks::find_with(choice, MeteredWatch::below(bus.root())).unwrap();
                assert_eq!(uplinks.links.len(), 1);
                cable("wwan0", "10.2.0.2/24");
                ip("route add default via 10.2.0.1 dev wwan0 metric 700");
                let came = async {
                    while uplinks.links.len() < 2 {
                        std::future::poll_fn(|cx| uplinks.poll_changes(cx)).await;
                    }
                };
                tokio::time::timeout(std::time::Duration::from_secs(20), came).await.unwrap();
                let metered = |n| uplinks.profile(LinkId(n)).unwrap().metered;
                assert_eq!((metered(0), metered(1)), (false, true));
                assert_eq!(uplinks.profile(LinkId(1)).unwrap().name, "wwan0");
            });
        });
    }
}
