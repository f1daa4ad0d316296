//! The links of a run: which interface each number means, and what changes while it goes on.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::task::{Context, Poll};

use marline_core::link::{LinkId, LinkKind, LinkProfile};
use url::Url;

use crate::http::file_name;
use crate::links::{Choice, Interface, LinksError, MeteredHints, Monitor, Survey, choose, survey};

/// The links by number. A number stays with its interface's name, whatever becomes of it.
pub(super) struct Uplinks {
    links: Vec<Uplink>,
    choice: Choice,
    hints: MeteredHints,
    monitor: Option<Monitor>,
    /// Whether the name of the file is the server's to suggest.
    pub(super) free_name: bool,
}

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
        // Heard from before the survey, so that nothing is missed in between.
        let monitor = Monitor::new().ok();
        let survey = survey()?;
        let hints = MeteredHints::ask(&survey);
        let chosen = choose(&survey, &choice, &hints)?;
        let lines = chosen.warnings.into_iter().chain(chosen.vpn).collect();
        let links = chosen.links.into_iter().map(|(i, profile)| Uplink { interface: Some(i), profile, up: true });
        Ok((Self { links: links.collect(), choice, hints, monitor, free_name: false }, lines))
    }

    /// This machine itself.
    pub(super) fn local() -> Self {
        let lo = Uplink { interface: None, profile: LinkProfile::new("lo", LinkKind::Other), up: true };
        let choice = Choice::Auto { bypass_vpn: false, known: Vec::new() };
        Self { links: vec![lo], choice, hints: MeteredHints::none(), monitor: None, free_name: false }
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
    pub(super) fn name_from(&self, disposition: Option<&str>, url: Option<&Url>) -> Option<String> {
        (self.free_name && disposition.is_some()).then(|| url.map(|url| file_name(disposition, url)))?
    }

    /// Hears of changes. Pending: none.
    pub(super) fn poll_changes(&mut self, cx: &mut Context<'_>) -> Poll<Changes> {
        let Some(monitor) = &mut self.monitor else { return Poll::Pending };
        let heard = std::future::Future::poll(std::pin::pin!(monitor.changed()), cx);
        match heard {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(_)) => {
                self.monitor = None;
                Poll::Pending
            }
            Poll::Ready(Ok(())) => match survey() {
                Ok(survey) => Poll::Ready(self.compare(&survey)),
                Err(_) => Poll::Ready(Changes::default()),
            },
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
    use super::*;
    use crate::links::{DefaultRoute, Named, Verdict};

    fn wifi() -> Interface {
        Interface {
            name: "wlan0".into(),
            index: 3,
            kind: LinkKind::Wifi,
            addresses: vec!["192.0.2.1".parse().unwrap()],
            networks: Vec::new(),
            v4: Some(DefaultRoute { metric: 600, table: 254, gateway: None }),
            v6: None,
            metered: None,
            emulated: false,
            verdict: Verdict::Usable,
        }
    }

    #[test]
    fn other_terms_are_told_while_a_link_is_up() {
        let survey = Survey { interfaces: vec![wifi()], vpn: None };
        let mut uplinks = Uplinks {
            links: vec![Uplink {
                interface: Some(wifi()),
                profile: LinkProfile::new("wlan0", LinkKind::Wifi),
                up: true,
            }],
            choice: Choice::Named(vec![Named {
                kind: Some(LinkKind::Wifi),
                metered: Some(true),
                ..Named::new("wlan0")
            }]),
            hints: MeteredHints::none(),
            monitor: None,
            free_name: false,
        };
        let changes = uplinks.compare(&survey);
        assert_eq!((changes.gone, changes.come), (vec![], vec![LinkId(0)]));
        assert!(uplinks.profile(LinkId(0)).unwrap().metered);
        let changes = uplinks.compare(&survey);
        assert_eq!((changes.gone, changes.come), (vec![], vec![]));
        let changes = uplinks.compare(&Survey { interfaces: Vec::new(), vpn: None });
        assert_eq!((changes.gone, changes.come), (vec![LinkId(0)], vec![]));
    }
}
