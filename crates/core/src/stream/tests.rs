//! Tests of the stream machine alone: two links of steady rates, one request at a time on each connection.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use super::*;
use crate::fetch::{ByteRange, ConnId, ContentRange, Protocol, ReqId, ResponseHead, Validator};
use crate::link::{LinkKind, LinkProfile};
use crate::playback::{MediaProfile, PlayerState};
use crate::units::DataSize;

const LTE: LinkId = LinkId(0);
const WIFI: LinkId = LinkId(1);

/// A driver of which each connection carries the rate of its link (`rates`, bytes per millisecond) and whose server
/// responds at once.
struct TestDriver {
    stream: Stream,
    /// Length of the file in bytes.
    total: u64,
    millis: u64,
    rates: BTreeMap<LinkId, u64>,
    conns: BTreeMap<ConnId, (LinkId, Vec<(ReqId, ByteRange)>)>,
    received: Vec<(LinkId, ByteRange)>,
    /// End of the bytes that the player has in order.
    delivered: u64,
    events: Vec<StreamEvent>,
    done: bool,
}

impl TestDriver {
    /// A video of `total` bytes and `seconds` of playing time at a constant rate, that starts to play once 1 MB is
    /// buffered. `rates`: bytes per millisecond of LTE and of Wi-Fi.
    fn new(policy: Policy, total: u64, seconds: u64, rates: [u64; 2]) -> Self {
        let video = MediaProfile::variable([(Duration::from_secs(seconds), DataSize::from_bytes(total))]).unwrap();
        let player = crate::playback::BufferThresholds { low: DataSize::from_bytes(1_000_000), high: None };
        let config = Config { policy, video: Some(video), player, ..Config::default() };
        let mut driver = Self {
            stream: Stream::new(config),
            total,
            millis: 0,
            rates: [(LTE, rates[0]), (WIFI, rates[1])].into(),
            conns: BTreeMap::new(),
            received: Vec::new(),
            delivered: 0,
            events: Vec::new(),
            done: false,
        };
        for (link, kind) in [(LTE, LinkKind::Lte), (WIFI, LinkKind::Wifi)] {
            driver.handle(fetch::Input::LinkUp { link, profile: LinkProfile::new(kind.name(), kind) });
        }
        driver
    }

    fn handle(&mut self, input: impl Into<Input>) {
        self.stream.handle(Instant::from_millis(self.millis), input.into());
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(output) = self.stream.poll() {
            match output {
                Output::Fetch(fetch::Output::Connect { conn, link, .. }) => {
                    self.conns.insert(conn, (link, Vec::new()));
                    let handshake = Duration::from_millis(20);
                    let now = Instant::from_millis(self.millis);
                    let connected = fetch::Input::Connected {
                        conn,
                        protocol: Protocol::Http1,
                        handshake_rtt: handshake,
                        peer: None,
                    };
                    self.stream.handle(now, connected.into());
                }
                Output::Fetch(fetch::Output::Request {
                    req, conn, range: RequestRange::Bounded(range), ..
                }) => {
                    let range = ByteRange::new(range.start, range.end.min(self.total));
                    let head = ResponseHead {
                        status: 206,
                        length: Some(range.len()),
                        range: Some(ContentRange {
                            range: Some(range),
                            total: Some(DataSize::from_bytes(self.total)),
                        }),
                        validator: Some(Validator::Etag("\"a\"".into())),
                        ..ResponseHead::default()
                    };
                    self.conns.get_mut(&conn).unwrap().1.push((req, range));
                    self.stream.handle(Instant::from_millis(self.millis), fetch::Input::Head { req, head }.into());
                }
                Output::Fetch(fetch::Output::Close { conn }) => drop(self.conns.remove(&conn)),
                Output::Fetch(fetch::Output::Done) => self.done = true,
                Output::Fetch(fetch::Output::Failed(failure)) => panic!("{failure:?}"),
                Output::Fetch(_) => {}
                Output::Stream(StreamEvent::Deliver { end }) => {
                    assert!(end > self.delivered, "delivered in order");
                    self.delivered = end;
                }
                Output::Stream(event) => self.events.push(event),
            }
        }
    }

    /// One millisecond: each connection delivers its bytes for its first requests.
    fn step(&mut self) {
        self.millis += 1;
        let mut inputs: Vec<fetch::Input> = Vec::new();
        for (link, reqs) in self.conns.values_mut() {
            let mut left = self.rates.get(link).copied().unwrap_or_default();
            while left > 0
                && let Some((req, range)) = reqs.first_mut()
            {
                let part = ByteRange::at(range.start, DataSize::from_bytes(left.min(range.len().bytes())));
                left -= part.len().bytes();
                range.start = part.end;
                self.received.push((*link, part));
                inputs.push(fetch::Input::Data { req: *req, len: part.len() });
                if range.is_empty() {
                    inputs.push(fetch::Input::End { req: *req });
                    reqs.remove(0);
                }
            }
        }
        for input in inputs {
            self.handle(input);
        }
        if self.stream.deadline().is_some_and(|(at, _)| at <= Instant::from_millis(self.millis)) {
            self.stream.tick(Instant::from_millis(self.millis));
            self.drain();
        }
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.step();
        }
    }

    fn player(&self) -> &Player {
        self.stream.player().unwrap()
    }

    fn received_over(&self, link: LinkId) -> u64 {
        self.received.iter().filter(|(by, _)| *by == link).map(|(_, range)| range.len().bytes()).sum()
    }
}

#[test]
fn greenbag_p_uses_both_links_to_the_end() {
    let mut driver = TestDriver::new(Policy::GreenbagP, 20_000_000, 40, [500, 500]);
    driver.run(21_000);
    assert!(driver.done && driver.delivered == 20_000_000);
    let (lte, wifi) = (driver.received_over(LTE), driver.received_over(WIFI));
    assert!(lte.abs_diff(wifi) < 1_000_000, "{lte} {wifi}");
    assert_eq!((lte + wifi, driver.events.len()), (20_000_000, 0));
    assert_eq!(driver.player().stalls(), 0);
}

#[test]
fn greenbag_e_stops_using_lte_once_wifi_suffices() {
    // 500 bytes per millisecond are played; Wi-Fi delivers 450 of them.
    let mut driver = TestDriver::new(Policy::GreenbagE, 20_000_000, 40, [500, 450]);
    driver.run(46_000);
    assert!(driver.done);
    assert_eq!(driver.player().stalls(), 0);
    let lte = driver.received_over(LTE);
    assert!(lte < 5_000_000, "{lte}");
    assert!(matches!(
        driver.events.first(),
        Some(StreamEvent::Mode { mode: LinkMode::Only(WIFI), reason: ModeReason::Cheapest })
    ));
}

#[test]
fn the_earlier_part_of_a_segment_goes_to_the_faster_link() {
    let mut driver = TestDriver::new(Policy::GreenbagP, 8_000_000, 40, [100, 600]);
    driver.run(6000);
    // Where LTE begins a part, the bytes directly before it came over Wi-Fi; two parts may be exceptions.
    let first = |link: LinkId| {
        let ranges: crate::fetch::RangeSet =
            driver.received.iter().filter(|(by, _)| *by == link).map(|(_, range)| *range).collect();
        ranges.iter().map(|range| range.start).collect::<Vec<_>>()
    };
    assert!(first(LTE).len() > 4);
    let wifi: crate::fetch::RangeSet =
        driver.received.iter().filter(|(by, _)| *by == WIFI).map(|(_, range)| *range).collect();
    let after_wifi = first(LTE).iter().filter(|at| **at > 0 && wifi.end_of_run(**at - 1) == **at).count();
    assert!(after_wifi + 2 >= first(LTE).len(), "{after_wifi} of {}", first(LTE).len());
}

#[test]
fn a_lagging_bottleneck_is_taken_over_before_the_buffer_is_empty() {
    for recovers in [true, false] {
        let mut driver = TestDriver::new(Policy::GreenbagP, 20_000_000, 30, [600, 600]);
        driver.stream.config.greenbag.recovery_enabled = recovers;
        driver.run(4000);
        // Wi-Fi fades to a hundredth for 15 s.
        driver.rates.insert(WIFI, 6);
        driver.run(15_000);
        driver.rates.insert(WIFI, 600);
        driver.run(20_000);
        let recovered =
            driver.events.iter().filter(|event| matches!(event, StreamEvent::Recovered { link: WIFI })).count();
        assert!(driver.done);
        assert_eq!(recovered > 0, recovers, "{recovered}");
        let waited = driver.player().buffering_time();
        assert_eq!(waited > Duration::from_secs(4), !recovers, "{waited:?}");
    }
}

#[test]
fn the_part_of_a_lost_link_goes_to_the_others() {
    let mut driver = TestDriver::new(Policy::GreenbagP, 10_000_000, 40, [500, 500]);
    driver.run(3000);
    driver.handle(fetch::Input::LinkDown { link: WIFI });
    driver.run(16_000);
    assert!(driver.done && driver.delivered == 10_000_000);
    assert_eq!(driver.player().stalls(), 0);
}

#[test]
fn a_seek_drops_unneeded_requests_and_continues_at_the_new_offset() {
    let mut driver = TestDriver::new(Policy::GreenbagP, 30_000_000, 60, [500, 500]);
    driver.run(3000);
    driver.delivered = 20_000_000;
    let before = driver.received.len();
    driver.handle(PlayerInput::Seek { offset: 20_000_000 });
    assert_eq!(driver.player().state(), PlayerState::Buffering);
    driver.run(11_000);
    assert!(driver.done && driver.delivered == 30_000_000);
    assert!(driver.received[before..].iter().all(|(_, range)| range.start >= 20_000_000));
}

#[test]
fn a_standby_radio_is_not_activated_before_it_is_needed() {
    let mut driver = TestDriver::new(Policy::GreenbagE, 20_000_000, 40, [500, 450]);
    driver.run(15_000);
    assert_eq!(driver.stream.mode(), LinkMode::Only(WIFI));
    let before = driver.received_over(LTE);
    // No request over LTE is outstanding that would activate it, and no connection is opened.
    assert!(driver.conns.values().all(|(link, _)| *link == WIFI));
    driver.run(2000);
    assert!(driver.conns.values().all(|(link, _)| *link == WIFI));
    // Wi-Fi fails: LTE is activated in time.
    driver.handle(fetch::Input::LinkDown { link: WIFI });
    driver.run(1000);
    assert_ne!(driver.stream.mode(), LinkMode::Only(WIFI));
    assert!(driver.received_over(LTE) > before);
    driver.run(40_000);
    assert!(driver.done && driver.player().stalls() == 0);
}

#[test]
fn a_stream_waits_for_a_player_that_pauses_for_minutes() {
    let mut driver = TestDriver::new(Policy::GreenbagP, 10_000_000, 40, [500, 500]);
    let window = Some(DataSize::from_bytes(2_000_000));
    driver.stream = Stream::new(Config {
        fetch: fetch::Config { reader_window: window, ..fetch::Config::default() },
        ..driver.stream.config.clone()
    });
    driver.conns.clear();
    for (link, kind) in [(LTE, LinkKind::Lte), (WIFI, LinkKind::Wifi)] {
        driver.handle(fetch::Input::LinkUp { link, profile: LinkProfile::new(kind.name(), kind) });
    }
    driver.run(150_000);
    assert_eq!(driver.delivered, 2_000_000);
    driver.handle(fetch::Input::Consumed { end: 1_500_000 });
    driver.run(3000);
    assert_eq!(driver.delivered, 3_500_000);
}

impl TestDriver {
    /// Starts again with another configuration on the same links; `metered` applies to LTE.
    fn with_config(mut self, config: Config, metered: bool) -> Self {
        self.stream = Stream::new(config);
        self.conns.clear();
        for (link, kind) in [(LTE, LinkKind::Lte), (WIFI, LinkKind::Wifi)] {
            let profile = LinkProfile { metered: metered && link == LTE, ..LinkProfile::new(kind.name(), kind) };
            self.handle(fetch::Input::LinkUp { link, profile });
        }
        self
    }
}

#[test]
fn a_stream_behaves_as_a_download_until_the_video_is_known() {
    let driver = TestDriver::new(Policy::Marline, 30_000_000, 60, [300, 400]);
    let config = driver.stream.config.clone();
    let (video, player) = (config.video.clone().unwrap(), config.player);
    let mut driver = driver.with_config(Config { video: None, ..config }, false);
    driver.run(6000);
    assert!(driver.events.is_empty() && driver.player_is_unknown());
    assert!(driver.received_over(LTE) > 1_500_000, "both links are used");
    driver.handle(PlayerInput::Video { video, player, position: Duration::from_secs(4), is_playing: true });
    assert_eq!(driver.player().position(), Duration::from_secs(4));
    driver.run(60_000);
    assert!(driver.done && driver.delivered == 30_000_000);
    assert!(
        driver.events.contains(&StreamEvent::Standby { link: LTE, standby: true, reason: ModeReason::Cheapest }),
        "{:?} {} {:?} {:?}",
        driver.events,
        driver.millis,
        driver.stream.estimates(),
        driver.received.len()
    );
    assert_eq!(driver.player().stalls(), 0);
}

impl TestDriver {
    fn player_is_unknown(&self) -> bool {
        self.stream.player().is_none()
    }
}

#[test]
fn the_objective_decides_which_link_goes_on_standby() {
    // Either link alone would suffice.
    let standby_link = |objective, metered, prices: &[(LinkId, u64)]| {
        let driver = TestDriver::new(Policy::Marline, 20_000_000, 40, [800, 800]);
        let prices =
            prices.iter().map(|(link, micros_per_gb)| LinkPrice { link: *link, micros_per_gb: *micros_per_gb });
        let config = Config { objective, prices: prices.collect(), ..driver.stream.config.clone() };
        let mut driver = driver.with_config(config, metered);
        driver.run(8000);
        driver.events.iter().find_map(|event| match event {
            StreamEvent::Standby { link, standby: true, .. } => Some(*link),
            _ => None,
        })
    };
    assert_eq!(standby_link(Objective::Energy, false, &[]), Some(LTE));
    assert_eq!(standby_link(Objective::MeteredBytes, true, &[]), Some(LTE));
    assert_eq!(standby_link(Objective::MeteredBytes, false, &[]), None);
    assert_eq!(standby_link(Objective::Cost, false, &[(WIFI, 2_000_000), (LTE, 1_000_000)]), Some(WIFI));
    assert_eq!(standby_link(Objective::Cost, false, &[]), None);
}

#[test]
fn a_resumed_run_keeps_standby_links_on_standby() {
    let mut driver = TestDriver::new(Policy::Marline, 40_000_000, 80, [500, 600]);
    driver.run(10_000);
    let learnt = driver.stream.estimates();
    assert!(learnt.iter().any(|of| of.link == LTE && of.is_standby), "{learnt:?}");
    assert!(learnt.iter().all(|of| of.rate.as_mbps_f64() > 3.0), "{learnt:?}");
    let (from, position) = (driver.delivered, driver.player().position());
    let config = driver.stream.config.clone();
    let resume = fetch::Resume {
        total: DataSize::from_bytes(40_000_000),
        validator: Validator::Etag("\"a\"".into()),
        ranges: alloc::vec![ByteRange::new(0, from)],
        mirror: Some(fetch::UrlId(0)),
    };
    let fetch = fetch::Config { resume: Some(resume), ..config.fetch.clone() };
    let (video, player) = (config.video.clone().unwrap(), config.player);
    let before = driver.received_over(LTE);
    let config = Config { fetch, initial_estimates: learnt, video: None, ..config };
    let mut driver =
        TestDriver { stream: Stream::new(config.clone()), conns: BTreeMap::new(), delivered: 0, ..driver };
    driver.handle(PlayerInput::Video { video, player, position, is_playing: true });
    for (link, kind) in [(LTE, LinkKind::Lte), (WIFI, LinkKind::Wifi)] {
        driver.handle(fetch::Input::LinkUp { link, profile: LinkProfile::new(kind.name(), kind) });
    }
    driver.run(5000);
    assert_eq!(driver.received_over(LTE), before, "{:?} {:?}", driver.events, driver.stream.estimates());
    assert!(driver.delivered > from && driver.player().stalls() == 0);
    // Wi-Fi fails: LTE is activated.
    driver.handle(fetch::Input::LinkDown { link: WIFI });
    driver.run(3000);
    assert!(driver.received_over(LTE) > before);
}

#[test]
fn standby_of_the_costly_link_depends_on_the_following_parts() {
    // A segment of 8 s at 2 Mbit/s. Estimates of earlier parts are known: 3 Mbit/s for Wi-Fi, 4 for LTE; the links
    // carry 3.2 and 2.4. `beyond`: bytes of the following minute; `lead`: seconds until the segment is played.
    let run_with = |beyond: u64, lead: u64, standby: bool| {
        let driver = TestDriver::new(Policy::Marline, 2_000_000, 8, [300, 400]);
        let config = driver.stream.config.clone();
        let (video, player) = (config.video.clone().unwrap(), config.player);
        let expected = [(WIFI, 3), (LTE, 4)].map(|(link, rate)| InitialEstimate {
            link,
            rate: Bitrate::from_mbps(rate),
            is_standby: standby && link == LTE,
        });
        let mut driver =
            driver.with_config(Config { video: None, initial_estimates: expected.to_vec(), ..config }, false);
        driver.handle(PlayerInput::MediaSegment {
            video,
            player,
            lead_time: Duration::from_secs(lead),
            position: Duration::ZERO,
            is_playing: true,
            following_bytes: DataSize::from_bytes(beyond),
            following_time: Duration::from_secs(60),
        });
        driver.run(10_000);
        assert!(driver.done && driver.delivered == 2_000_000);
        (driver.received_over(LTE), driver.events.clone())
    };
    // If the following minute has 2 Mbit/s, Wi-Fi delivers everything; if it has 4 Mbit/s, Wi-Fi does not.
    let (few, event) = run_with(15_000_000, 8, false);
    assert!(
        event.contains(&StreamEvent::Standby { link: LTE, standby: true, reason: ModeReason::Cheapest }),
        "{event:?}"
    );
    assert_eq!(run_with(15_000_000, 8, true).0, 0);
    let (many, event) = run_with(30_000_000, 8, false);
    assert!(many > few && event.is_empty(), "{few} {many} {event:?}");
    // LTE was on standby, and the player has hardly any buffer.
    let (some, event) = run_with(30_000_000, 1, true);
    assert!(
        some > 0
            && event.contains(&StreamEvent::Standby { link: LTE, standby: false, reason: ModeReason::BufferLow }),
        "{event:?}"
    );
}

#[test]
fn the_metered_link_carries_nothing_while_the_other_link_suffices() {
    let metered = |rates: [u64; 2]| {
        let driver = TestDriver::new(Policy::Marline, 10_000_000, 40, rates);
        let config = Config { objective: Objective::MeteredBytes, ..driver.stream.config.clone() };
        let mut driver = driver.with_config(config, true);
        driver.run(60_000);
        (driver.received_over(LTE), driver.player().stalls(), driver.done)
    };
    // 250 bytes per millisecond are played.
    assert_eq!(metered([400, 800]), (0, 0, true));
    let (received, stalls, done) = metered([800, 150]);
    assert!(received > 2_000_000 && stalls == 0 && done, "{received} {stalls}");
}
