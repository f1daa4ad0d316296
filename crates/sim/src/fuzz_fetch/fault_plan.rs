//! Fault plan of a random history: links, server and configuration, drawn before the history begins.
//!
//! One link is honest: it is up from the start, delivers the server's responses unchanged, and never fails by
//! itself. The behavior of the other links is drawn, from almost honest to completely broken. The server's
//! peculiarities apply to all links: no ranges, no validator, a new version of the file, a few refusals with
//! Retry-After, few requests per connection.

use marline_core::fetch::{ByteRange, Config, Policy, Protocol, Resume, UrlId, Validator};
use marline_core::units::{Bitrate, DataSize, Duration, Ratio};

use crate::http_sim::server::{AvailableFrom, Fault, FaultKind, FileVersion, HttpServer};
use crate::rng::RandomStream;

/// Everything that is drawn in advance.
#[derive(Clone, Debug)]
pub(super) struct FaultPlan {
    pub(super) links: Vec<LinkBehavior>,
    pub(super) server: HttpServer,
    pub(super) protocol: Protocol,
    pub(super) config: Config,
}

/// Rate, delay and faults of one link.
#[derive(Clone, Debug)]
pub(super) struct LinkBehavior {
    pub(super) rate: Bitrate,
    /// Round-trip time.
    pub(super) rtt: Duration,
    /// Probability of a fault at each step of a connection.
    pub(super) fault_rate: Ratio,
    /// Probability that a response head differs from the server's.
    pub(super) corruption_rate: Ratio,
    /// Mean time between the interface's appearances and disappearances; `None` if it stays.
    pub(super) flap_interval: Option<Duration>,
}

/// A strong validator that is different for each version.
pub(super) fn etag(version: usize) -> Option<Validator> {
    Some(Validator::Etag(format!("\"{version}\"")))
}

impl FaultPlan {
    pub(super) fn new(rng: &mut RandomStream, policy: Policy) -> Self {
        let size = random_size(rng);
        let validator = if one_in(rng, 6) { None } else { etag(0) };
        let count = 1 + rng.below(4);
        let honest_index = rng.below(count);
        let links = (0..count).map(|n| LinkBehavior::new(rng, n == honest_index)).collect();
        let server = random_server(rng, size, validator.clone());
        let protocol = if one_in(rng, 3) { Protocol::Http2 } else { Protocol::Http1 };
        let mut config = Config { policy, ..Config::default() };
        if one_in(rng, 4) {
            config.reader_window = Some(DataSize::from_kib(64 << rng.below(7)));
        }
        config.resume = match validator {
            Some(validator) if one_in(rng, 4) => {
                let (ranges, mirror) = (random_ranges(rng, size.bytes()), Some(UrlId(0)));
                Some(Resume { total: size, validator, ranges, mirror })
            }
            _ => None,
        };
        Self { links, server, protocol, config }
    }

    /// Makes the history longer: a file of at least 1 MB over slow links.
    pub(super) fn make_long(&mut self, rng: &mut RandomStream) {
        for behavior in &mut self.links {
            behavior.rate = Bitrate::from_bits_per_sec(400_000 << rng.below(5));
        }
        let size = DataSize::from_bytes(1_000_000 + magnitude(rng, 20, 5));
        if let Some(first) = self.server.versions.first_mut() {
            first.size = size;
        }
        if let Some(resume) = &mut self.config.resume {
            (resume.total, resume.ranges) = (size, vec![ByteRange::new(0, rng.below(size.bytes()))]);
        }
    }
}

impl LinkBehavior {
    /// Whether the link stays up and never causes a fault.
    pub(super) fn is_honest(&self) -> bool {
        self.flap_interval.is_none() && self.fault_rate == Ratio::ZERO && self.corruption_rate == Ratio::ZERO
    }

    fn new(rng: &mut RandomStream, honest: bool) -> Self {
        let rate = Bitrate::from_bits_per_sec(800_000 << rng.below(8));
        let latency = Duration::from_millis(2 + rng.below(if honest { 150 } else { 900 }));
        let random_ratio = |rng: &mut RandomStream, max: u64| {
            let max = if one_in(rng, 3) { 0 } else { max };
            Ratio::from_ppm(u32::try_from(rng.below(max + 1)).unwrap_or(0))
        };
        if honest {
            return Self {
                rate,
                rtt: latency,
                fault_rate: Ratio::ZERO,
                corruption_rate: Ratio::ZERO,
                flap_interval: None,
            };
        }
        let fault_rate = random_ratio(rng, 300_000);
        let corruption_rate = random_ratio(rng, 500_000);
        let flap_interval = one_in(rng, 3).then(|| Duration::from_millis(50 + rng.below(4000)));
        Self { rate, rtt: latency, fault_rate, corruption_rate, flap_interval }
    }
}

pub(super) fn one_in(rng: &mut RandomStream, n: u64) -> bool {
    rng.below(n) == 0
}

/// A random number of varying magnitude, below 2^`min_digits` up to 2^(`min_digits` + `spread` − 1).
pub(super) fn magnitude(rng: &mut RandomStream, min_digits: u64, spread: u64) -> u64 {
    let digits = min_digits + rng.below(spread);
    rng.below(1 << digits)
}

fn random_size(rng: &mut RandomStream) -> DataSize {
    let digits = rng.below(23);
    let size = if one_in(rng, 20) { 0 } else { (1 << digits) + rng.below(1 << digits) };
    DataSize::from_bytes(size)
}

fn random_server(rng: &mut RandomStream, size: DataSize, validator: Option<Validator>) -> HttpServer {
    let mut server = HttpServer::new(size);
    server.versions[0].validator = validator.clone();
    server.supports_ranges = !one_in(rng, 6);
    server.sends_content_length = !one_in(rng, 8);
    server.keepalive_requests = one_in(rng, 4).then(|| u32::try_from(1 + rng.below(20)).unwrap_or(1));
    server.response_delay = Duration::from_millis(rng.below(20));
    if validator.is_some() && one_in(rng, 6) {
        let available = AvailableFrom::Served(DataSize::from_bytes(rng.below(size.bytes() + 1)));
        let size = if one_in(rng, 2) { size } else { DataSize::from_bytes(rng.below(2_000_000)) };
        server.versions.push(FileVersion { available, size, validator: etag(1) });
    }
    if one_in(rng, 5) {
        let status = [503, 429, 500, 502][usize::try_from(rng.below(4)).unwrap_or(0)];
        let retry_after = one_in(rng, 2).then(|| Duration::from_millis(rng.below(3000)));
        let times = u32::try_from(1 + rng.below(3)).unwrap_or(1);
        server.faults.push(Fault::always(FaultKind::Status(status, retry_after)).times(times));
    }
    server
}

fn random_ranges(rng: &mut RandomStream, size: u64) -> Vec<ByteRange> {
    let random_offset = |rng: &mut RandomStream| rng.below(size + 1);
    let count = rng.below(5);
    (0..count)
        .map(|_| ByteRange::new(random_offset(rng), random_offset(rng)))
        .filter(|range| !range.is_empty())
        .collect()
}
