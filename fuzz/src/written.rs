//! What people write: units, links and their events, traces, scenarios.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::str::FromStr;

use marline_core::link::LinkKind;
use marline_core::units::{Bitrate, DataSize, Duration, Instant, Ratio, parse_duration};
use marline_net::links::Named;
use marline_sim::scenario::Scenario;
use marline_sim::spec::{Change, Event, LinkSpec, Loss};
use marline_sim::trace::Trace;

use crate::bytes::Bytes;

/// Text as a value with a unit; and, the same bytes as three numbers, arithmetic with them.
pub fn units(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let read = [
            parse_duration(text).is_ok(),
            text.parse::<DataSize>().map(|size| size.to_string()).is_ok(),
            text.parse::<Bitrate>().map(|rate| rate.to_string()).is_ok(),
            text.parse::<Ratio>().map(|ratio| ratio.to_string()).is_ok(),
        ];
        assert!(read.iter().filter(|ok| **ok).count() <= 1, "`{text}` is of two kinds");
        assert!(!read.contains(&true) || !text.ends_with(|c: char| c.is_ascii_digit()), "`{text}` has no unit");
    }
    let mut bytes = Bytes(bytes);
    let (size, rate) = (DataSize::from_bytes(bytes.u64()), Bitrate::from_bits_per_sec(bytes.u64()));
    let time = Duration::from_nanos(bytes.u64());
    assert!((size / time) * time <= size || time.is_zero(), "{size} / {time:?} was rounded up");
    let needed = size / rate;
    assert!(rate * needed >= size || needed == Duration::MAX, "{size} / {rate} was rounded down");
    let share = Ratio::of(size.bytes(), rate.bits_per_sec());
    assert!(size.share(share) <= size || share > Ratio::from_percent(100));
    let _ = (rate.share(share), share.complement(), size * rate.bits_per_sec(), size - DataSize::MAX);
    let now = Instant::from_nanos(size.bytes());
    assert!(now + time >= now && now - time <= now, "time wraps");
}

/// A line: a link, an event, a change, a loss, a link of this machine. What is understood can be written and read back.
pub fn links(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    reads_back::<LinkSpec>(text);
    reads_back::<Event>(text);
    reads_back::<Change>(text);
    reads_back::<Loss>(text);
    reads_back::<LinkKind>(text);
    if let Ok(named) = text.parse::<Named>() {
        assert!(!named.name.is_empty() && !named.name.contains(['/', ',', ' ']), "{named:?}");
    }
    if let Ok(link) = text.parse::<LinkSpec>() {
        let _ = link.queue_limit();
    }
}

fn reads_back<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let written = value.to_string();
        let again = written.parse::<T>();
        assert!(again.as_ref().is_ok_and(|again| *again == value), "`{written}` reads as {again:?}, was {value:?}");
    }
}

/// A mahimahi trace.
pub fn traces(bytes: &[u8]) {
    let Ok(trace) = Trace::parse(&String::from_utf8_lossy(bytes)) else { return };
    assert!(trace.duration() > Duration::ZERO && trace.opportunities() > 0);
    let _ = trace.mean_rate();
    let mut before = Instant::ZERO;
    for k in 0..trace.opportunities().min(100) * 3 {
        let at = trace.time_of(k);
        assert!(at >= before, "opportunity {k} comes before the one before it");
        assert!(trace.count_before(at) <= k, "opportunity {k} at {at} comes before itself");
        before = at;
    }
    let _ = (trace.time_of(u64::MAX), trace.capacity(Duration::ZERO, trace.duration() * 2));
}

/// A scenario file.
pub fn scenarios(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(scenario) = Scenario::parse(text, Path::new("scenario.toml")) else { return };
    assert!(scenario.runs > 0 && !scenario.clients.is_empty() && !scenario.cases.is_empty());
    for case in &scenario.cases {
        assert!(!case.links.is_empty());
        let _ = (case.scaled(0.01), case.drawn(1));
        if case.links.iter().all(LinkSpec::is_loaded) {
            let _ = (case.ideal(), case.best_single());
        }
    }
}
