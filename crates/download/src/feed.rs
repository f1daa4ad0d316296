//! A transfer for a reader within this program: the bytes `from..to` of a resource over all links, in order.
//!
//! In: a URL, what is known of its resource, which bytes are wanted. Out: a [`Reader`], and the work that fills it.
//!
//! 1. The work is the pump of every download, with the reader's window in the place of a file, and a [`Stream`] in the
//!    place of the download's machine. An [`Audience`] tells it of the player, and hears what it decides.
//! 2. What lies outside `from..to` is told to the machine as an earlier run's bytes, so it asks for nothing of it. That
//!    takes a size and a validator; without them the transfer begins at zero and goes to the end.
//! 3. Dropping the work closes or resets everything that is under way at once; connections that can be used again
//!    stay with the [`Network`].
//!
//! One transfer for a whole session, which follows the player's seeks, was not used: an answer that is over must be over
//! at once, and a run that ends is the surest way. What was learnt stays with the [`Network`] and the audience.

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use marline_core::fetch::{ByteRange, MeteredUse, Resume, UrlId, Validator};
use marline_core::link::{LinkId, LinkProfile};
use marline_core::stream::{Config, InitialEstimate, LinkPrice, PlayerInput, Stream, StreamEvent};
use marline_core::units::{Bitrate, DataSize};
use marline_net::cookies::Jar;
use marline_net::http::{Described, host_of};
use marline_net::reach::Right;
use url::Url;

use super::links::Uplinks;
use super::log::{self, Logged};
use super::network::Network;
use super::origins::Origins;
use super::place::Place;
use super::pump::Pump;
use super::{GetError, Progress, Watcher};
use crate::store::{Reader, Store};

/// What a reader wants.
pub struct Feed {
    /// Where the resource is.
    pub url: Url,
    /// Further header fields.
    pub fields: Vec<(HeaderName, HeaderValue)>,
    /// Of these, what goes wherever redirects lead.
    pub common: Vec<(HeaderName, HeaderValue)>,
    /// What servers have set.
    pub jar: Rc<Jar>,
    /// For Basic authentication at the URL's host.
    pub user: Option<(String, String)>,
    /// What the URL may lead to.
    pub right: Right,
    /// How the machine decides; window, resumption and prices are filled in here.
    pub config: Config,
    /// Interfaces that should be asked first, the best one first.
    pub order: Vec<String>,
    /// What earlier transfers have learnt of links: their interfaces, what they brought, and whether they rested.
    pub expected: Vec<(String, Bitrate, bool)>,
    /// What bytes cost over the interfaces of these names, in millionths of the currency for 10^9 bytes.
    pub prices: Vec<(String, u64)>,
    /// Where to write the log of every input and decision.
    pub trace: Option<PathBuf>,
    /// What the resource is; none: not known yet, then `from` is zero and `to` is none.
    pub known: Option<Known>,
    /// The first byte that is wanted.
    pub from: u64,
    /// One past the last byte; none: to the end.
    pub to: Option<u64>,
    /// How many bytes may wait for the reader.
    pub window: DataSize,
}

/// What makes ranges of a resource fit together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// Its length.
    pub total: DataSize,
    /// What tells this version of it from others.
    pub validator: Validator,
}

/// What an answer said, and where redirects have led to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Learnt {
    /// What the head of the response says of its body.
    pub described: Described,
    /// Where it was found, after redirects.
    pub url: Url,
    /// What this URL may be connected to.
    pub right: Right,
    /// The server that answered.
    pub server: Option<IpAddr>,
}

/// Who knows the player, and wants to know what is decided.
pub trait Audience: Watcher {
    /// What the stream should hear of the player now; asked ten times a second.
    fn news(&mut self, stream: &Stream) -> Option<PlayerInput>;
    /// The links on which something is under way now.
    fn busy(&mut self, links: &[LinkId], name: &dyn Fn(LinkId) -> String);
    /// What the stream has learnt of its links by now.
    fn learnt(&mut self, learnt: &[InitialEstimate], name: &dyn Fn(LinkId) -> String);
    /// What the stream has said of its links.
    fn said(&mut self, said: &StreamEvent, name: &dyn Fn(LinkId) -> String);
}

/// The work that fills a reader's window.
pub struct Filling {
    feed: Feed,
    store: Store,
}

impl Feed {
    /// The reader's end, and the work.
    pub fn open(self) -> (Reader, Filling) {
        let (store, reader) = Store::for_reader(self.from, self.window, self.known.is_some());
        (reader, Filling { feed: self, store })
    }

    /// Everything outside `from..to` as an earlier run's.
    fn resume(&self) -> Option<Resume> {
        let Known { total, validator } = self.known.clone()?;
        let to = self.to.unwrap_or(total.bytes()).min(total.bytes());
        let outside = [ByteRange::new(0, self.from.min(to)), ByteRange::new(to, total.bytes())];
        let have = outside.into_iter().filter(|span| !span.is_empty()).collect();
        Some(Resume { total, validator, ranges: have, mirror: Some(UrlId(0)) })
    }

    /// When a link that is asked now has brought something worth while; never, if nothing is known of it.
    fn answers_in(&self, network: &Network, name: &str) -> Duration {
        let known = network.answers_in(name);
        let rate = self.expected.iter().find(|(named, ..)| named == name).map(|(_, rate, _)| *rate);
        known.map_or(Duration::MAX, |known| known.saturating_add(rate.map_or(Duration::ZERO, |rate| FIRST / rate)))
    }

    fn expected(&self, uplinks: &Uplinks) -> Vec<InitialEstimate> {
        let of = |link: LinkId| {
            let LinkProfile { name, .. } = uplinks.profile(link)?;
            let (_, rate, rests) = self.expected.iter().find(|(named, ..)| named == name)?;
            Some(InitialEstimate { link, rate: *rate, is_standby: *rests })
        };
        uplinks.ids().filter_map(of).collect()
    }

    fn prices(&self, uplinks: &Uplinks) -> Vec<LinkPrice> {
        let of = |link: LinkId| {
            let LinkProfile { name, .. } = uplinks.profile(link)?;
            let (_, micros_per_gb) = self.prices.iter().find(|(named, _)| named == name)?;
            Some(LinkPrice { link, micros_per_gb: *micros_per_gb })
        };
        uplinks.ids().filter_map(of).collect()
    }
}

impl Filling {
    /// Ends when all bytes are in the window or cannot be had. `learnt` gets what the first good answer says before the
    /// reader hears of it.
    ///
    /// # Errors
    /// As those of a download.
    pub async fn run(
        self,
        network: &Network,
        audience: &mut dyn Audience,
        learnt: Rc<RefCell<Option<Learnt>>>,
    ) -> Result<(), GetError> {
        let Self { feed, store } = self;
        let uplinks = network.links_for(network.needs_no_link(&host_of(&feed.url)))?;
        if feed.config.fetch.metered == MeteredUse::Never {
            uplinks.refuse_metered()?;
        }
        let trust = network.trust_for(&feed.url);
        let sockets = network.sockets(trust);
        let origins = Origins::new(&feed.url, &[], feed.user.as_ref())
            .for_right(feed.right)
            .with_fields(&feed.fields, &feed.common)
            .with_jar(Rc::clone(&feed.jar));
        let mut config = feed.config.clone();
        config.fetch.mirrors = 1;
        config.fetch.reader_window = Some(feed.window);
        config.fetch.resume = feed.resume();
        config.prices = feed.prices(&uplinks);
        config.initial_estimates = feed.expected(&uplinks);
        let logged: Logged<Stream> = Logged::new(config, log::create(feed.trace.as_deref())?);
        let started = std::time::Instant::now();
        let (ear, place) = (Ear(RefCell::new(audience)), Place::new(store));
        let mut watcher = &ear;
        let mut pump = Pump::new(logged, place, sockets, origins, uplinks, &mut watcher, started);
        let mut links: Vec<LinkId> = pump.uplinks.ids().collect();
        links.iter().for_each(|link| pump.introduce(*link));
        // As in a download: those that cost nothing first. Of these the one first that is known to answer soonest: who is
        // asked first brings what the player waits for.
        let place = |name: &String| feed.order.iter().position(|best| best == name).unwrap_or(usize::MAX);
        links.sort_by_key(|link| {
            let profile = pump.uplinks.profile(*link)?;
            Some((profile.metered, feed.answers_in(network, &profile.name), place(&profile.name)))
        });
        pump.begin_at(feed.from);
        // Without us the player would get the same, and be told the same of it.
        pump.takes_encoded = true;
        if let Some(viewer) = ear.0.borrow_mut().news(pump.logged.machine()) {
            pump.tell_own(viewer.into());
        }
        for link in links {
            if pump.uplinks.is_up(link) {
                pump.link_up(link);
            }
        }
        let mut spares_at = started + SPARES_AFTER;
        let mut news_at = started;
        let last = Last(&mut pump);
        let ended = poll_fn(|cx| {
            let pump = &mut *last.0;
            let ended = pump.poll(cx);
            if let Some((origin, server, described)) = pump.described.take() {
                let url = pump.origins.url(origin).cloned().unwrap_or_else(|| feed.url.clone());
                let right = pump.origins.right(origin).unwrap_or(feed.right);
                learnt.borrow_mut().get_or_insert(Learnt { described, url, right, server });
            }
            let now = std::time::Instant::now();
            if ended.is_pending() && now >= spares_at {
                spares_at = now + SPARES_AFTER;
                pump.sockets.keep_spares();
            }
            if ended.is_pending() && now >= news_at {
                news_at = now + NEWS_EVERY;
                let name =
                    |link| pump.uplinks.profile(link).map(|profile| profile.name.clone()).unwrap_or_default();
                let busy: Vec<LinkId> = pump.logged.machine().busy_links().collect();
                ear.0.borrow_mut().busy(&busy, &name);
                for (_, link, path) in pump.sockets.paths() {
                    let round_trip = if path.rcv_rtt.is_zero() { path.rtt } else { path.rcv_rtt };
                    network.is_busy(&name(link), round_trip.max(path.min_rtt));
                }
                ear.0.borrow_mut().learnt(&pump.logged.machine().estimates(), &name);
                let news = ear.0.borrow_mut().news(pump.logged.machine());
                if let Some(viewer) = news {
                    pump.tell_own(viewer.into());
                    // What follows from it is done in a turn of its own.
                    cx.waker().wake_by_ref();
                }
            }
            for said in pump.said.drain(..) {
                let name =
                    |link| pump.uplinks.profile(link).map(|profile| profile.name.clone()).unwrap_or_default();
                ear.0.borrow_mut().said(&said, &name);
            }
            ended
        })
        .await;
        drop(last);
        pump.logged.finish()?;
        ended
    }
}

/// Shows once more how it went, however it ends: a reader that has all lets go before the next look, and what came since
/// the last one is counted, too.
struct Last<'a, 'b>(&'a mut Pump<'b, Stream>);

impl Drop for Last<'_, '_> {
    fn drop(&mut self) {
        let now = self.0.now();
        self.0.show(now);
    }
}

/// The audience as the pump's watcher.
struct Ear<'a>(RefCell<&'a mut dyn Audience>);

impl Watcher for &Ear<'_> {
    fn progress(&mut self, progress: &Progress) {
        self.0.borrow_mut().progress(progress);
    }

    fn line(&mut self, text: &str) {
        self.0.borrow_mut().line(text);
    }
}

/// What comes in one burst.
const FIRST: DataSize = DataSize::from_kib(16);
/// As often as the pump tells how it goes.
const NEWS_EVERY: Duration = Duration::from_millis(100);
/// Whoever has taken bytes for so long may seek; what is over sooner needs no spare connection. chosen: longer than a
/// playlist or a segment takes on most links.
const SPARES_AFTER: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(from: u64, to: Option<u64>) -> Feed {
        Feed {
            url: "http://h/f".parse().unwrap(),
            fields: Vec::new(),
            common: Vec::new(),
            jar: Rc::default(),
            user: None,
            right: Right::user(),
            config: Config::default(),
            order: Vec::new(),
            expected: Vec::new(),
            prices: Vec::new(),
            trace: None,
            known: Some(Known { total: DataSize::from_bytes(100), validator: Validator::Etag("\"1\"".to_owned()) }),
            from,
            to,
            window: DataSize::from_mib(1),
        }
    }

    #[test]
    fn what_is_not_wanted_counts_as_there() {
        let have = |from, to| feed(from, to).resume().unwrap().ranges;
        assert_eq!(have(0, None), []);
        assert_eq!(have(10, None), [ByteRange::new(0, 10)]);
        assert_eq!(have(10, Some(20)), [ByteRange::new(0, 10), ByteRange::new(20, 100)]);
        assert_eq!(have(0, Some(1000)), []);
    }
}
