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
use marline_net::cookies::CookieJar;
use marline_net::egress::EgressPolicy;
use marline_net::http::{ResponseMeta, resolver_host};
use url::Url;

use super::body_sink::BodySink;
use super::context::ClientContext;
use super::driver::DownloadDriver;
use super::log::{self, Logged};
use super::uplinks::Uplinks;
use super::url_table::UrlTable;
use super::{DownloadError, DownloadObserver, Progress};
use crate::store::{Reader, Store};

/// What a reader wants.
pub struct RangeDownload {
    /// Where the resource is.
    pub url: Url,
    /// Further header fields.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Of these, what goes wherever redirects lead.
    pub cross_origin_headers: Vec<(HeaderName, HeaderValue)>,
    /// What servers have set.
    pub cookie_jar: Rc<CookieJar>,
    /// For Basic authentication at the URL's host.
    pub basic_auth: Option<(String, String)>,
    /// What the URL may lead to.
    pub egress: EgressPolicy,
    /// How the machine decides; window, resumption and prices are filled in here.
    pub config: Config,
    /// Interfaces that should be asked first, the best one first.
    pub preferred_links: Vec<String>,
    /// What earlier transfers have learnt of links: their interfaces, what they brought, and whether they rested.
    pub link_estimates: Vec<(String, Bitrate, bool)>,
    /// What bytes cost over the interfaces of these names, in millionths of the currency for 10^9 bytes.
    pub link_prices: Vec<(String, u64)>,
    /// Where to write the log of every input and decision.
    pub trace: Option<PathBuf>,
    /// What the resource is; none: not known yet, then `from` is zero and `to` is none.
    pub resource: Option<KnownResource>,
    /// The first byte that is wanted.
    pub start: u64,
    /// One past the last byte; none: to the end.
    pub end: Option<u64>,
    /// How many bytes may wait for the reader.
    pub window: DataSize,
}

/// What makes ranges of a resource fit together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownResource {
    /// Its length.
    pub total: DataSize,
    /// What tells this version of it from others.
    pub validator: Validator,
}

/// What an answer said, and where redirects have led to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceInfo {
    /// What the head of the response says of its body.
    pub meta: ResponseMeta,
    /// Where it was found, after redirects.
    pub url: Url,
    /// What this URL may be connected to.
    pub egress: EgressPolicy,
    /// The server that answered.
    pub server: Option<IpAddr>,
}

/// Who knows the player, and wants to know what is decided.
pub trait StreamObserver: DownloadObserver {
    /// What the stream should hear of the player now; asked ten times a second.
    fn player_input(&mut self, stream: &Stream) -> Option<PlayerInput>;
    /// The links on which something is under way now.
    fn on_busy_links(&mut self, links: &[LinkId], name: &dyn Fn(LinkId) -> String);
    /// What the stream has learnt of its links by now.
    fn on_estimates(&mut self, estimates: &[InitialEstimate], name: &dyn Fn(LinkId) -> String);
    /// What the stream has said of its links.
    fn on_stream_event(&mut self, event: &StreamEvent, name: &dyn Fn(LinkId) -> String);
}

/// The work that fills a reader's window.
pub struct RangeDownloadTask {
    download: RangeDownload,
    store: Store,
}

impl RangeDownload {
    /// The reader's end, and the work.
    pub fn split(self) -> (Reader, RangeDownloadTask) {
        let (store, reader) = Store::for_reader(self.start, self.window, self.resource.is_some());
        (reader, RangeDownloadTask { download: self, store })
    }

    /// Everything outside `from..to` as an earlier run's.
    fn resume_state(&self) -> Option<Resume> {
        let KnownResource { total, validator } = self.resource.clone()?;
        let end = self.end.unwrap_or(total.bytes()).min(total.bytes());
        let outside = [ByteRange::new(0, self.start.min(end)), ByteRange::new(end, total.bytes())];
        let held_ranges = outside.into_iter().filter(|span| !span.is_empty()).collect();
        Some(Resume { total, validator, ranges: held_ranges, mirror: Some(UrlId(0)) })
    }

    /// When a link that is asked now has brought something worth while; never, if nothing is known of it.
    fn expected_response_time(&self, context: &ClientContext, name: &str) -> Duration {
        let rtt = context.loaded_rtt(name);
        let rate = self.link_estimates.iter().find(|(link_name, ..)| link_name == name).map(|(_, rate, _)| *rate);
        rtt.map_or(Duration::MAX, |rtt| rtt.saturating_add(rate.map_or(Duration::ZERO, |rate| FIRST_BURST / rate)))
    }

    fn initial_estimates(&self, uplinks: &Uplinks) -> Vec<InitialEstimate> {
        let for_link = |link: LinkId| {
            let LinkProfile { name, .. } = uplinks.profile(link)?;
            let (_, rate, is_standby) = self.link_estimates.iter().find(|(link_name, ..)| link_name == name)?;
            Some(InitialEstimate { link, rate: *rate, is_standby: *is_standby })
        };
        uplinks.ids().filter_map(for_link).collect()
    }

    fn priced_links(&self, uplinks: &Uplinks) -> Vec<LinkPrice> {
        let for_link = |link: LinkId| {
            let LinkProfile { name, .. } = uplinks.profile(link)?;
            let (_, micros_per_gb) = self.link_prices.iter().find(|(link_name, _)| link_name == name)?;
            Some(LinkPrice { link, micros_per_gb: *micros_per_gb })
        };
        uplinks.ids().filter_map(for_link).collect()
    }
}

impl RangeDownloadTask {
    /// Ends when all bytes are in the window or cannot be had. `learnt` gets what the first good answer says before the
    /// reader hears of it.
    ///
    /// # Errors
    /// As those of a download.
    pub async fn run(
        self,
        context: &ClientContext,
        observer: &mut dyn StreamObserver,
        resource: Rc<RefCell<Option<ResourceInfo>>>,
    ) -> Result<(), DownloadError> {
        let Self { download: feed, store } = self;
        let uplinks = context.uplinks_for(context.needs_no_link(&resolver_host(&feed.url)))?;
        if feed.config.fetch.metered == MeteredUse::Never {
            uplinks.require_unmetered()?;
        }
        let trust = context.trust_for(&feed.url);
        let sockets = context.connections(trust);
        let url_table = UrlTable::new(&feed.url, &[], feed.basic_auth.as_ref())
            .with_egress(feed.egress)
            .with_headers(&feed.headers, &feed.cross_origin_headers)
            .with_jar(Rc::clone(&feed.cookie_jar));
        let mut config = feed.config.clone();
        config.fetch.mirrors = 1;
        config.fetch.reader_window = Some(feed.window);
        config.fetch.resume = feed.resume_state();
        config.prices = feed.priced_links(&uplinks);
        config.initial_estimates = feed.initial_estimates(&uplinks);
        let logged: Logged<Stream> = Logged::new(config, log::create(feed.trace.as_deref())?);
        let started = std::time::Instant::now();
        let (adapter, body) = (ObserverAdapter(RefCell::new(observer)), BodySink::new(store));
        let mut observer_ref = &adapter;
        let mut driver = DownloadDriver::new(logged, body, sockets, url_table, uplinks, &mut observer_ref, started);
        let mut links: Vec<LinkId> = driver.uplinks.ids().collect();
        links.iter().for_each(|link| driver.add_link_stats(*link));
        // As in a download: those that cost nothing first. Of these the one first that is known to answer soonest: who is
        // asked first brings what the player waits for.
        let preference =
            |name: &String| feed.preferred_links.iter().position(|best| best == name).unwrap_or(usize::MAX);
        links.sort_by_key(|link| {
            let profile = driver.uplinks.profile(*link)?;
            Some((profile.metered, feed.expected_response_time(context, &profile.name), preference(&profile.name)))
        });
        driver.set_start(feed.start);
        // Without us the player would get the same, and be told the same of it.
        driver.accepts_encoded = true;
        if let Some(player_input) = adapter.0.borrow_mut().player_input(driver.logged.machine()) {
            driver.feed_own_input(player_input.into());
        }
        for link in links {
            if driver.uplinks.is_up(link) {
                driver.link_up(link);
            }
        }
        let mut next_spares_at = started + SPARE_CONN_DELAY;
        let mut next_input_at = started;
        let final_progress = FinalProgress(&mut driver);
        let ended = poll_fn(|cx| {
            let driver = &mut *final_progress.0;
            let ended = driver.poll(cx);
            if let Some((url_id, server, meta)) = driver.response_meta.take() {
                let url = driver.urls.url(url_id).cloned().unwrap_or_else(|| feed.url.clone());
                let egress = driver.urls.egress(url_id).unwrap_or(feed.egress);
                resource.borrow_mut().get_or_insert(ResourceInfo { meta, url, egress, server });
            }
            let now = std::time::Instant::now();
            if ended.is_pending() && now >= next_spares_at {
                next_spares_at = now + SPARE_CONN_DELAY;
                driver.conns.open_spares();
            }
            if ended.is_pending() && now >= next_input_at {
                next_input_at = now + PLAYER_POLL_INTERVAL;
                let name =
                    |link| driver.uplinks.profile(link).map(|profile| profile.name.clone()).unwrap_or_default();
                let busy: Vec<LinkId> = driver.logged.machine().busy_links().collect();
                adapter.0.borrow_mut().on_busy_links(&busy, &name);
                for (_, link, path) in driver.conns.path_samples() {
                    let round_trip = if path.rcv_rtt.is_zero() { path.rtt } else { path.rcv_rtt };
                    context.record_loaded_rtt(&name(link), round_trip.max(path.min_rtt));
                }
                adapter.0.borrow_mut().on_estimates(&driver.logged.machine().estimates(), &name);
                let input = adapter.0.borrow_mut().player_input(driver.logged.machine());
                if let Some(player_input) = input {
                    driver.feed_own_input(player_input.into());
                    // What follows from it is done in a turn of its own.
                    cx.waker().wake_by_ref();
                }
            }
            for event in driver.stream_events.drain(..) {
                let name =
                    |link| driver.uplinks.profile(link).map(|profile| profile.name.clone()).unwrap_or_default();
                adapter.0.borrow_mut().on_stream_event(&event, &name);
            }
            ended
        })
        .await;
        drop(final_progress);
        driver.logged.finish()?;
        ended
    }
}

/// Shows once more how it went, however it ends: a reader that has all lets go before the next look, and what came since
/// the last one is counted, too.
struct FinalProgress<'a, 'b>(&'a mut DownloadDriver<'b, Stream>);

impl Drop for FinalProgress<'_, '_> {
    fn drop(&mut self) {
        let now = self.0.now();
        self.0.show_progress(now);
    }
}

/// The audience as the pump's watcher.
struct ObserverAdapter<'a>(RefCell<&'a mut dyn StreamObserver>);

impl DownloadObserver for &ObserverAdapter<'_> {
    fn on_progress(&mut self, progress: &Progress) {
        self.0.borrow_mut().on_progress(progress);
    }

    fn on_message(&mut self, text: &str) {
        self.0.borrow_mut().on_message(text);
    }
}

/// What comes in one burst.
const FIRST_BURST: DataSize = DataSize::from_kib(16);
/// As often as the pump tells how it goes.
const PLAYER_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Whoever has taken bytes for so long may seek; what is over sooner needs no spare connection. chosen: longer than a
/// playlist or a segment takes on most links.
const SPARE_CONN_DELAY: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(from: u64, to: Option<u64>) -> RangeDownload {
        RangeDownload {
            url: "http://h/f".parse().unwrap(),
            headers: Vec::new(),
            cross_origin_headers: Vec::new(),
            cookie_jar: Rc::default(),
            basic_auth: None,
            egress: EgressPolicy::user(),
            config: Config::default(),
            preferred_links: Vec::new(),
            link_estimates: Vec::new(),
            link_prices: Vec::new(),
            trace: None,
            resource: Some(KnownResource {
                total: DataSize::from_bytes(100),
                validator: Validator::Etag("\"1\"".to_owned()),
            }),
            start: from,
            end: to,
            window: DataSize::from_mib(1),
        }
    }

    #[test]
    fn what_is_not_wanted_counts_as_there() {
        let have = |from, to| feed(from, to).resume_state().unwrap().ranges;
        assert_eq!(have(0, None), []);
        assert_eq!(have(10, None), [ByteRange::new(0, 10)]);
        assert_eq!(have(10, Some(20)), [ByteRange::new(0, 10), ByteRange::new(20, 100)]);
        assert_eq!(have(0, Some(1000)), []);
    }
}
