//! A transfer for a reader within this program: the bytes `start..end` of a resource over all links, in order.
//!
//! [`RangeDownload::split`] turns a URL, the known properties of its resource and the requested range into a
//! [`Reader`] and the task that fills it.
//!
//! 1. The task uses the driver of every download, with a reorder window instead of a file, and with [`Stream`] as
//!    its machine. A [`StreamObserver`] reports the state of the player and receives the machine's decisions.
//! 2. Bytes outside `start..end` are reported to the machine as received by an earlier run, so that it does not
//!    request them. That requires a size and a validator; without them the transfer covers the whole resource.
//! 3. Dropping the task closes or resets everything in flight at once. Reusable connections return to the pool of
//!    the [`ClientContext`].
//!
//! One transfer for a whole session, which follows the player's seeks, was rejected: an obsolete response must end
//! at once, and ending the transfer is the most reliable way. Estimates are kept by the [`ClientContext`] and the
//! observer.

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

/// A transfer to start: which bytes of which resource, and how.
pub struct RangeDownload {
    /// URL of the resource.
    pub url: Url,
    /// Additional header fields.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The header fields that are sent after redirects to other origins as well.
    pub cross_origin_headers: Vec<(HeaderName, HeaderValue)>,
    /// Cookies that servers have set.
    pub cookie_jar: Rc<CookieJar>,
    /// User and password for Basic authentication at the URL's host.
    pub basic_auth: Option<(String, String)>,
    /// Which addresses the URL may lead to.
    pub egress: EgressPolicy,
    /// Configuration of the machine. The number of mirrors, the window, the resumed ranges, the prices and the initial
    /// estimates are set by `RangeDownloadTask::run`.
    pub config: Config,
    /// Interfaces, the best one first. Decides the order in which links are reported to the machine where metering and
    /// expected response time are equal.
    pub preferred_links: Vec<String>,
    /// Estimates from earlier transfers: interface, rate, and whether the link was in standby.
    pub link_estimates: Vec<(String, Bitrate, bool)>,
    /// Prices by interface, in millionths of the currency for 10^9 bytes.
    pub link_prices: Vec<(String, u64)>,
    /// File for the decision log; none: no log.
    pub trace: Option<PathBuf>,
    /// Size and validator of the resource; none: not known yet, then `start` is zero and `end` is none.
    pub resource: Option<KnownResource>,
    /// The first byte to transfer.
    pub start: u64,
    /// One past the last byte to transfer; none: to the end of the resource.
    pub end: Option<u64>,
    /// Maximum number of bytes that are buffered for the reader.
    pub window: DataSize,
}

/// What is known of a resource, so that ranges of it can be combined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownResource {
    /// Size of the resource.
    pub total: DataSize,
    /// Identifies the version of the resource.
    pub validator: Validator,
}

/// Metadata of the first usable response, and its URL after redirects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceInfo {
    /// Metadata from the response head.
    pub meta: ResponseMeta,
    /// URL of the response, after redirects.
    pub url: Url,
    /// Which addresses this URL may be connected to.
    pub egress: EgressPolicy,
    /// Address of the server; none: unknown, because a proxy was used.
    pub server: Option<IpAddr>,
}

/// Supplies the state of the player, and receives the estimates and decisions of the stream.
pub trait StreamObserver: DownloadObserver {
    /// The present state of the player, for the machine. Called ten times a second; none: nothing to report.
    fn player_input(&mut self, stream: &Stream) -> Option<PlayerInput>;
    /// The links that carry requests at present.
    fn on_busy_links(&mut self, links: &[LinkId], name: &dyn Fn(LinkId) -> String);
    /// The machine's present rate estimates of its links.
    fn on_estimates(&mut self, estimates: &[InitialEstimate], name: &dyn Fn(LinkId) -> String);
    /// An event of the stream, such as a change of the link mode.
    fn on_stream_event(&mut self, event: &StreamEvent, name: &dyn Fn(LinkId) -> String);
}

/// The task that fills the reader's window.
pub struct RangeDownloadTask {
    download: RangeDownload,
    store: Store,
}

impl RangeDownload {
    /// Returns the reader and the task that fills it.
    pub fn split(self) -> (Reader, RangeDownloadTask) {
        let (store, reader) = Store::for_reader(self.start, self.window, self.resource.is_some());
        (reader, RangeDownloadTask { download: self, store })
    }

    /// Presents everything outside `start..end` as received by an earlier run.
    fn resume_state(&self) -> Option<Resume> {
        let KnownResource { total, validator } = self.resource.clone()?;
        let end = self.end.unwrap_or(total.bytes()).min(total.bytes());
        let outside = [ByteRange::new(0, self.start.min(end)), ByteRange::new(end, total.bytes())];
        let held_ranges = outside.into_iter().filter(|span| !span.is_empty()).collect();
        Some(Resume { total, validator, ranges: held_ranges, mirror: Some(UrlId(0)) })
    }

    /// Time until a link that gets a request now has delivered a first burst; [`Duration::MAX`] if its RTT is
    /// unknown.
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
    /// Runs until all bytes are in the window, or cannot be fetched. `resource` is set to the metadata of the first
    /// usable response before the reader gets its first byte.
    ///
    /// # Errors
    /// See [`DownloadError`].
    pub async fn run(
        self,
        context: &ClientContext,
        observer: &mut dyn StreamObserver,
        resource: Rc<RefCell<Option<ResourceInfo>>>,
    ) -> Result<(), DownloadError> {
        let Self { download, store } = self;
        let uplinks = context.uplinks_for(context.needs_no_link(&resolver_host(&download.url)))?;
        if download.config.fetch.metered == MeteredUse::Never {
            uplinks.require_unmetered()?;
        }
        let trust = context.trust_for(&download.url);
        let conns = context.connections(trust);
        let url_table = UrlTable::new(&download.url, &[], download.basic_auth.as_ref())
            .with_egress(download.egress)
            .with_headers(&download.headers, &download.cross_origin_headers)
            .with_jar(Rc::clone(&download.cookie_jar));
        let mut config = download.config.clone();
        config.fetch.mirrors = 1;
        config.fetch.reader_window = Some(download.window);
        config.fetch.resume = download.resume_state();
        config.prices = download.priced_links(&uplinks);
        config.initial_estimates = download.initial_estimates(&uplinks);
        let logged: Logged<Stream> = Logged::new(config, log::create(download.trace.as_deref())?);
        let started = std::time::Instant::now();
        let (adapter, body) = (ObserverAdapter(RefCell::new(observer)), BodySink::new(store));
        let mut observer_ref = &adapter;
        let mut driver = DownloadDriver::new(logged, body, conns, url_table, uplinks, &mut observer_ref, started);
        let mut links: Vec<LinkId> = driver.transfer.uplinks.ids().collect();
        links.iter().for_each(|link| driver.add_link_stats(*link));
        // As in a download, unmetered links come first. Among these, the link with the shortest expected response
        // time comes first, because the first request delivers the bytes that the player waits for.
        let preference =
            |name: &String| download.preferred_links.iter().position(|best| best == name).unwrap_or(usize::MAX);
        links.sort_by_key(|link| {
            let profile = driver.transfer.uplinks.profile(*link)?;
            Some((
                profile.metered,
                download.expected_response_time(context, &profile.name),
                preference(&profile.name),
            ))
        });
        driver.set_start(download.start);
        // Without marline, the player would receive the same encoded body with the same header fields.
        driver.accepts_encoded = true;
        // The machine gets the state of the player before the first link, because its first decision depends on it.
        if let Some(player_input) = adapter.0.borrow_mut().player_input(driver.logged.machine()) {
            driver.feed_own_input(player_input.into());
        }
        for link in links {
            if driver.transfer.uplinks.is_up(link) {
                driver.link_up(link);
            }
        }
        let mut next_spares_at = started + SPARE_CONN_DELAY;
        let mut next_input_at = started;
        let final_progress = FinalProgress(&mut driver);
        let ended = poll_fn(|cx| {
            // Each poll runs the driver first. Then it passes on what the driver has produced: response metadata,
            // estimates and events.
            let driver = &mut *final_progress.0;
            let ended = driver.poll(cx);
            if let Some((url_id, server, meta)) = driver.response_meta.take() {
                let url = driver.transfer.urls.url(url_id).cloned().unwrap_or_else(|| download.url.clone());
                let egress = driver.transfer.urls.egress(url_id).unwrap_or(download.egress);
                resource.borrow_mut().get_or_insert(ResourceInfo { meta, url, egress, server });
            }
            let now = std::time::Instant::now();
            if ended.is_pending() && now >= next_spares_at {
                next_spares_at = now + SPARE_CONN_DELAY;
                driver.transfer.conns.open_spares();
            }
            if ended.is_pending() && now >= next_input_at {
                next_input_at = now + PLAYER_POLL_INTERVAL;
                let name = |link| {
                    driver.transfer.uplinks.profile(link).map(|profile| profile.name.clone()).unwrap_or_default()
                };
                let busy: Vec<LinkId> = driver.logged.machine().busy_links().collect();
                adapter.0.borrow_mut().on_busy_links(&busy, &name);
                for (_, link, path) in driver.transfer.conns.path_samples() {
                    let rtt = if path.rcv_rtt.is_zero() { path.rtt } else { path.rcv_rtt };
                    context.record_loaded_rtt(&name(link), rtt.max(path.min_rtt));
                }
                adapter.0.borrow_mut().on_estimates(&driver.logged.machine().estimates(), &name);
                let input = adapter.0.borrow_mut().player_input(driver.logged.machine());
                if let Some(player_input) = input {
                    driver.feed_own_input(player_input.into());
                    // The resulting outputs are executed in another iteration, so another poll is needed.
                    cx.waker().wake_by_ref();
                }
            }
            for event in driver.transfer.stream_events.drain(..) {
                let name = |link| {
                    driver.transfer.uplinks.profile(link).map(|profile| profile.name.clone()).unwrap_or_default()
                };
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

/// Reports the progress once more, however the transfer ends. A reader that has received everything may drop the
/// task before the next regular report, whose bytes would not be counted.
struct FinalProgress<'a, 'b>(&'a mut DownloadDriver<'b, Stream>);

impl Drop for FinalProgress<'_, '_> {
    fn drop(&mut self) {
        let now = self.0.now();
        self.0.show_progress(now);
    }
}

/// Adapts a stream observer to the observer interface of the driver.
struct ObserverAdapter<'a>(RefCell<&'a mut dyn StreamObserver>);

impl DownloadObserver for &ObserverAdapter<'_> {
    fn on_progress(&mut self, progress: &Progress) {
        self.0.borrow_mut().on_progress(progress);
    }

    fn on_message(&mut self, text: &str) {
        self.0.borrow_mut().on_message(text);
    }
}

/// Size of the first burst of a response.
const FIRST_BURST: DataSize = DataSize::from_kib(16);
/// As often as the driver reports progress.
const PLAYER_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A transfer that lasts this long may be ended by a seek, so it gets spare connections. Shorter transfers need
/// none. Our choice: longer than a playlist or a segment takes on most links.
const SPARE_CONN_DELAY: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn range_download(from: u64, to: Option<u64>) -> RangeDownload {
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
    fn bytes_outside_the_range_count_as_received() {
        let stored_ranges = |from, to| range_download(from, to).resume_state().unwrap().ranges;
        assert_eq!(stored_ranges(0, None), []);
        assert_eq!(stored_ranges(10, None), [ByteRange::new(0, 10)]);
        assert_eq!(stored_ranges(10, Some(20)), [ByteRange::new(0, 10), ByteRange::new(20, 100)]);
        assert_eq!(stored_ranges(0, Some(1000)), []);
    }
}
