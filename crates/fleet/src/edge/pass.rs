//! The rest of a LAN's packets on their way: what [`Rest`] decides, done to the kernel.
//!
//! In: the links at each look, and the kernel's word that something about its interfaces or routes has changed. Out: the way
//! ([`Beyond`]), and how it stands ([`RestNow`]).
//!
//! 1. A link without carrier, address or default route is left as soon as the kernel says so: the looks are two seconds apart.
//! 2. It is looked at most once in [`PAUSE`], whatever the kernel says.
//! 3. This host's own name queries leave a link of the default route that fails as well ([`names`]).
//! 4. What the kernel refuses is told once, and tried again at the next look; meanwhile the host's own default route counts. The rest and
//!    name queries are independent of each other in this.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use marline_core::units::Instant;
use marline_net::links::{Interface, Monitor, Survey, Verdict, survey};
use marline_net::paths::gateway::{Beyond, NameLinks};

use super::Edge;
use super::links::LinkNow;
use super::names::{self, NamesNow};
use super::rest::{Rest, RestNow, RestWhy};

/// chosen: a link that comes or goes changes a dozen things within it.
const PAUSE: Duration = Duration::from_millis(300);

/// Leads the rest over the best single link until dropped.
pub(super) async fn lead(beyond: Arc<Beyond>, edge: &Edge) -> Infallible {
    let (begun, mut links) = (std::time::Instant::now(), edge.links.subscribe());
    let (mut silent, mut nameless) = (edge.silent.subscribe(), edge.nameless.subscribe());
    // Without it there are the looks.
    let mut monitor = Monitor::new().ok();
    let (mut rest, mut refused) = (Rest::default(), [None, None]);
    loop {
        silent.mark_unchanged();
        let seen = links.borrow_and_update().clone();
        let seen = edge.with_silent(seen);
        let without_names = nameless.borrow_and_update().clone();
        let now = Instant::from_millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        let beyond = Arc::clone(&beyond);
        let looked = tokio::task::spawn_blocking(move || {
            let followed = follow(&mut rest, &beyond, now, seen, &without_names);
            (rest, followed)
        });
        let followed = match looked.await {
            Ok((decided, followed)) => {
                rest = decided;
                followed
            }
            Err(error) => {
                rest = Rest::default();
                Some(Followed { led: Err(io::Error::other(error)), ..Followed::default() })
            }
        };
        // What cannot be looked at is as it was.
        if let Some(followed) = followed {
            publish(edge, followed, rest.now(), &mut refused);
        }
        tokio::time::sleep(PAUSE).await;
        tokio::select! {
            _ = links.changed() => {}
            _ = silent.changed() => {}
            _ = nameless.changed() => {}
            () = something_changes(&mut monitor) => {}
        }
    }
}

/// What a look has led to.
#[derive(Debug)]
struct Followed {
    /// The interfaces of the host's own default routes.
    own: BTreeSet<String>,
    /// Whether the kernel leads the rest as it was decided.
    led: io::Result<()>,
    /// The way of name queries, with the kernel's refusal.
    names: NamesNow,
}

impl Default for Followed {
    fn default() -> Self {
        Self { own: BTreeSet::new(), led: Ok(()), names: NamesNow::default() }
    }
}

impl Followed {
    /// How the rest stands after what was decided.
    fn rest(&self, decided: &RestNow) -> RestNow {
        match self.led {
            Ok(()) => decided.clone(),
            Err(_) => RestNow { link: None, why: RestWhy::Refused },
        }
    }

    /// The interfaces by which packets leave whose fate no connection of the edge shows: the rest's, and name queries'. Those of the host's own
    /// default routes are there in any case: name queries return to them.
    fn passing(&self, rest: &RestNow) -> BTreeSet<String> {
        self.own.iter().chain(&rest.link).cloned().collect()
    }
}

/// Tells how the rest and name queries stand; `refused` is what the kernel has refused before.
fn publish(edge: &Edge, followed: Followed, decided: &RestNow, refused: &mut [Option<String>; 2]) {
    let stands = followed.rest(decided);
    edge.passing.send_replace(followed.passing(&stands));
    let errors = [followed.led.as_ref().err().map(ToString::to_string), followed.names.error.clone()];
    let what = [
        "the rest of the LAN's packets cannot be led over the best link",
        "this host's name queries cannot be led over another link",
    ];
    for ((error, before), what) in errors.iter().zip(&*refused).zip(what) {
        if let Some(error) = error.as_ref().filter(|_| error != before) {
            tracing::warn!(link = decided.link, error, "{what}");
        }
    }
    *refused = errors;
    edge.rest.send_if_modified(|now| {
        let is_new = now.as_ref() != Some(&stands);
        if is_new {
            tracing::info!(link = stands.link, why = stands.why.words(), "the rest of the LAN's packets");
            *now = Some(stands);
        }
        is_new
    });
    let names = Some(followed.names);
    edge.names.send_if_modified(|now| {
        *now != names && {
            *now = names;
            true
        }
    });
}

/// Looks, decides and acts, once; none: it cannot be looked.
fn follow(
    rest: &mut Rest,
    beyond: &Beyond,
    now: Instant,
    links: Vec<LinkNow>,
    nameless: &BTreeSet<String>,
) -> Option<Followed> {
    let survey = survey().ok()?;
    let of = |index: u32| survey.interfaces.iter().find(|interface| interface.index == index);
    let exits = beyond.own().map(|index| index.and_then(of));
    let own = exits.into_iter().flatten().next();
    let (mut over, mut names) = (NameLinks::default(), NamesNow::default());
    if !links.is_empty() {
        let mut links = checked(links, &survey);
        // One that does not carry is no link where nobody steers, but may still be where the kernel sends everything.
        for own in exits.into_iter().flatten().filter(|own| !leads(own)) {
            if !links.iter().any(|link| link.name == own.name) {
                links.push(LinkNow { name: own.name.clone(), ..LinkNow::default() });
            }
        }
        rest.look(now, &links, own.map(|interface| interface.name.as_str()));
        (over, names) = names::over(&survey, &links, nameless, exits, rest.now().link.as_deref());
    }
    let led = beyond.lead(rest.now().link.as_deref().and_then(|name| survey.named(name)));
    names.error = beyond.lead_names(over).err().map(|error| error.to_string());
    let own = exits.into_iter().flatten().map(|own| own.name.clone()).collect();
    Some(Followed { own, led, names })
}

/// The links as the kernel has them now.
fn checked(mut links: Vec<LinkNow>, survey: &Survey) -> Vec<LinkNow> {
    for link in &mut links {
        link.up &= survey.named(&link.name).is_some_and(leads);
    }
    links
}

/// Whether something can leave by it.
fn leads(interface: &Interface) -> bool {
    let can = match &interface.verdict {
        Verdict::Usable => true,
        Verdict::Unused(reason) => reason.can_be_overruled(),
    };
    can && (interface.v4.is_some() || interface.v6.is_some())
}

async fn something_changes(monitor: &mut Option<Monitor>) {
    let Some(heard) = monitor else { return pending().await };
    if heard.changed().await.is_err() {
        *monitor = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_rules_for_names_leave_the_rest_as_it_was_led_and_the_other_way_round() {
        let decided = RestNow { link: Some("wlan0".to_owned()), why: RestWhy::Fastest };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let names = NamesNow { error: Some("refused".to_owned()), ..NamesNow::default() };
        let followed = Followed { own: set(&["eth0"]), names, ..Followed::default() };
        let rest = followed.rest(&decided);
        assert_eq!((&rest, followed.passing(&rest)), (&decided, set(&["eth0", "wlan0"])));
        let followed = Followed { led: Err(io::Error::other("refused")), ..followed };
        let rest = followed.rest(&decided);
        assert_eq!(rest, RestNow { link: None, why: RestWhy::Refused });
        assert_eq!(followed.passing(&rest), set(&["eth0"]), "the host's own default route counts");
    }
}
