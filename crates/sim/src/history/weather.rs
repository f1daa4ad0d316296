//! What is random in a history, drawn before it begins.
//!
//! In: a seed. Out: links and how they behave, a server and how it behaves, a configuration of the download.
//!
//! One link is honest: it is there from the start, delivers what the server answers, and never fails by itself. What
//! all others do is drawn; a link may be almost honest or do nothing right. The server's own moods (no ranges, no
//! validator, a new edition, a few refusals with Retry-After, few requests per connection) are the same for all links.

use marline_core::fetch::{ByteRange, Config, Policy, Protocol, Resume, UrlId, Validator};
use marline_core::units::{Bitrate, DataSize, Duration, Ratio};

use crate::rng::Stream;
use crate::world::server::{Edition, Fault, Server, Since, What};

/// All of it.
#[derive(Clone, Debug)]
pub(super) struct Weather {
    pub(super) links: Vec<Manner>,
    pub(super) server: Server,
    pub(super) protocol: Protocol,
    pub(super) config: Config,
}

/// How a link behaves.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    pub(super) rate: Bitrate,
    /// One way and back.
    pub(super) latency: Duration,
    /// How likely something goes wrong at each step of a connection.
    pub(super) trouble: Ratio,
    /// How likely an answer's head is another one than the server's.
    pub(super) lies: Ratio,
    /// How often the interface comes or goes: mean time between; none: it stays.
    pub(super) flaps: Option<Duration>,
}

/// Another strong validator for each edition.
pub(super) fn etag(edition: usize) -> Option<Validator> {
    Some(Validator::Etag(format!("\"{edition}\"")))
}

impl Weather {
    pub(super) fn new(stream: &mut Stream, policy: Policy) -> Self {
        let size = size(stream);
        let validator = if one_in(stream, 6) { None } else { etag(0) };
        let count = 1 + stream.below(4);
        let honest = stream.below(count);
        let links = (0..count).map(|n| Manner::new(stream, n == honest)).collect();
        let server = server(stream, size, validator.clone());
        let protocol = if one_in(stream, 3) { Protocol::Http2 } else { Protocol::Http1 };
        let mut config = Config { policy, ..Config::default() };
        if one_in(stream, 4) {
            config.reader_window = Some(DataSize::from_kib(64 << stream.below(7)));
        }
        config.resume = match validator {
            Some(validator) if one_in(stream, 4) => {
                let (have, source) = (pieces(stream, size.bytes()), Some(UrlId(0)));
                Some(Resume { total: size, validator, ranges: have, mirror: source })
            }
            _ => None,
        };
        Self { links, server, protocol, config }
    }

    /// Makes it last: a file of some megabytes over links that take a while for it.
    pub(super) fn lasts(&mut self, stream: &mut Stream) {
        for manner in &mut self.links {
            manner.rate = Bitrate::from_bits_per_sec(400_000 << stream.below(5));
        }
        let size = DataSize::from_bytes(1_000_000 + magnitude(stream, 20, 5));
        if let Some(first) = self.server.editions.first_mut() {
            first.size = size;
        }
        if let Some(resume) = &mut self.config.resume {
            (resume.total, resume.ranges) = (size, vec![ByteRange::new(0, stream.below(size.bytes()))]);
        }
    }
}

impl Manner {
    /// It is there, and nothing goes wrong on it.
    pub(super) fn is_honest(&self) -> bool {
        self.flaps.is_none() && self.trouble == Ratio::ZERO && self.lies == Ratio::ZERO
    }

    fn new(stream: &mut Stream, honest: bool) -> Self {
        let rate = Bitrate::from_bits_per_sec(800_000 << stream.below(8));
        let latency = Duration::from_millis(2 + stream.below(if honest { 150 } else { 900 }));
        let share = |stream: &mut Stream, most: u64| {
            let most = if one_in(stream, 3) { 0 } else { most };
            Ratio::from_ppm(u32::try_from(stream.below(most + 1)).unwrap_or(0))
        };
        if honest {
            return Self { rate, latency, trouble: Ratio::ZERO, lies: Ratio::ZERO, flaps: None };
        }
        let trouble = share(stream, 300_000);
        let lies = share(stream, 500_000);
        let flaps = one_in(stream, 3).then(|| Duration::from_millis(50 + stream.below(4000)));
        Self { rate, latency, trouble, lies, flaps }
    }
}

pub(super) fn one_in(stream: &mut Stream, n: u64) -> bool {
    stream.below(n) == 0
}

/// A number of any magnitude: of `least` binary digits, or of up to `spread` more.
pub(super) fn magnitude(stream: &mut Stream, least: u64, spread: u64) -> u64 {
    let digits = least + stream.below(spread);
    stream.below(1 << digits)
}

fn size(stream: &mut Stream) -> DataSize {
    let digits = stream.below(23);
    let size = if one_in(stream, 20) { 0 } else { (1 << digits) + stream.below(1 << digits) };
    DataSize::from_bytes(size)
}

fn server(stream: &mut Stream, size: DataSize, validator: Option<Validator>) -> Server {
    let mut server = Server::new(size);
    server.editions[0].validator = validator.clone();
    server.ranges = !one_in(stream, 6);
    server.lengths = !one_in(stream, 8);
    server.keepalive_requests = one_in(stream, 4).then(|| u32::try_from(1 + stream.below(20)).unwrap_or(1));
    server.think = Duration::from_millis(stream.below(20));
    if validator.is_some() && one_in(stream, 6) {
        let since = Since::Served(DataSize::from_bytes(stream.below(size.bytes() + 1)));
        let size = if one_in(stream, 2) { size } else { DataSize::from_bytes(stream.below(2_000_000)) };
        server.editions.push(Edition { since, size, validator: etag(1) });
    }
    if one_in(stream, 5) {
        let status = [503, 429, 500, 502][usize::try_from(stream.below(4)).unwrap_or(0)];
        let wait = one_in(stream, 2).then(|| Duration::from_millis(stream.below(3000)));
        let times = u32::try_from(1 + stream.below(3)).unwrap_or(1);
        server.faults.push(Fault::always(What::Status(status, wait)).times(times));
    }
    server
}

fn pieces(stream: &mut Stream, size: u64) -> Vec<ByteRange> {
    let cut = |stream: &mut Stream| stream.below(size + 1);
    let count = stream.below(5);
    (0..count).map(|_| ByteRange::new(cut(stream), cut(stream))).filter(|span| !span.is_empty()).collect()
}
