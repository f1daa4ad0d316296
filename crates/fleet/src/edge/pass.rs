//! The rest of a LAN's packets on their way: what [`Rest`] decides, done to the kernel.
//!
//! In: the links at each look, and the kernel's word that something about its interfaces or routes has changed. Out: the way
//! ([`Beyond`]), and how it stands ([`RestNow`]).
//!
//! 1. A link without carrier, address or default route is left as soon as the kernel says so: the looks are two seconds apart.
//! 2. It is looked at most once in [`PAUSE`], whatever the kernel says.
//! 3. This host's own name queries leave a link of the default route that fails as well ([`names`]).
//! 4. What the kernel refuses is told once, and tried again at the next look; meanwhile the host's own default route counts.

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
use super::names;
use super::rest::{Rest, RestNow, RestWhy};

/// chosen: a link that comes or goes changes a dozen things within it.
const PAUSE: Duration = Duration::from_millis(300);

/// Leads the rest over the best single link until dropped.
pub(super) async fn lead(beyond: Arc<Beyond>, edge: &Edge) -> Infallible {
    let (begun, mut links) = (std::time::Instant::now(), edge.links.subscribe());
    let (mut silent, mut nameless) = (edge.silent.subscribe(), edge.nameless.subscribe());
    // Without it there are the looks.
    let mut monitor = Monitor::new().ok();
    let (mut rest, mut refused) = (Rest::default(), None);
    loop {
        silent.mark_unchanged();
        let seen = links.borrow_and_update().clone();
        let seen = edge.with_silent(seen);
        let without_names = nameless.borrow_and_update().clone();
        let now = Instant::from_millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        let beyond = Arc::clone(&beyond);
        let looked = tokio::task::spawn_blocking(move || {
            let led = follow(&mut rest, &beyond, now, seen, &without_names);
            (rest, led)
        });
        let led = match looked.await {
            Ok((decided, led)) => {
                rest = decided;
                led.map(|over| drop(edge.passing.send_replace(over)))
            }
            Err(error) => {
                rest = Rest::default();
                Err(io::Error::other(error))
            }
        };
        let stands = match &led {
            Ok(()) => rest.now().clone(),
            Err(_) => RestNow { link: None, why: RestWhy::Refused },
        };
        let error = led.err().map(|error| error.to_string());
        if let Some(error) = error.as_ref().filter(|_| refused != error) {
            tracing::warn!(
                link = rest.now().link,
                error,
                "the rest of the LAN's packets cannot be led over the best link"
            );
        }
        refused = error;
        edge.rest.send_if_modified(|now| {
            let is_new = now.as_ref() != Some(&stands);
            if is_new {
                tracing::info!(link = stands.link, why = stands.why.words(), "the rest of the LAN's packets");
                *now = Some(stands);
            }
            is_new
        });
        tokio::time::sleep(PAUSE).await;
        tokio::select! {
            _ = links.changed() => {}
            _ = silent.changed() => {}
            _ = nameless.changed() => {}
            () = something_changes(&mut monitor) => {}
        }
    }
}

/// Looks, decides and acts, once. Returns the interfaces by which packets leave whose fate no connection of the edge shows: the rest's, and
/// name queries'.
fn follow(
    rest: &mut Rest,
    beyond: &Beyond,
    now: Instant,
    links: Vec<LinkNow>,
    nameless: &BTreeSet<String>,
) -> io::Result<BTreeSet<String>> {
    // What cannot be looked at is as it was.
    let Ok(survey) = survey() else { return Ok(rest.now().link.iter().cloned().collect()) };
    let of = |index: u32| survey.interfaces.iter().find(|interface| interface.index == index);
    let exits = beyond.own().map(|index| index.and_then(of));
    let own = exits.into_iter().flatten().next();
    let mut over = NameLinks::default();
    if !links.is_empty() {
        let mut links = checked(links, &survey);
        // One that does not carry is no link where nobody steers, but may still be where the kernel sends everything.
        for own in exits.into_iter().flatten().filter(|own| !leads(own)) {
            if !links.iter().any(|link| link.name == own.name) {
                links.push(LinkNow { name: own.name.clone(), ..LinkNow::default() });
            }
        }
        rest.look(now, &links, own.map(|interface| interface.name.as_str()));
        over = names::over(&survey, &links, nameless, exits, rest.now().link.as_deref());
    }
    let led = beyond.lead(rest.now().link.as_deref().and_then(|name| survey.named(name)));
    led.and(beyond.lead_names(over))?;
    let rest = rest.now().link.clone().or_else(|| own.map(|own| own.name.clone()));
    Ok(rest.into_iter().chain(own.map(|own| own.name.clone())).collect())
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
