//! Text that users write: values with units, links and their events, traces and scenario files.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::str::FromStr;

use marline_core::link::LinkKind;
use marline_core::units::{Bitrate, DataSize, Duration, Instant, Ratio, parse_duration};
use marline_net::links::LinkArg;
use marline_sim::scenario::Scenario;
use marline_sim::spec::{LinkEvent, LinkEventKind, LinkSpec, Loss};
use marline_sim::trace::Trace;

use crate::bytes::Bytes;

/// Text as a value with a unit. The same bytes are also read as three numbers for arithmetic on quantities.
pub fn units(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let parsed = [
            parse_duration(text).is_ok(),
            text.parse::<DataSize>().map(|size| size.to_string()).is_ok(),
            text.parse::<Bitrate>().map(|rate| rate.to_string()).is_ok(),
            text.parse::<Ratio>().map(|ratio| ratio.to_string()).is_ok(),
        ];
        assert!(parsed.iter().filter(|ok| **ok).count() <= 1, "`{text}` parses as two quantities");
        assert!(!parsed.contains(&true) || !text.ends_with(|c: char| c.is_ascii_digit()), "`{text}` has no unit");
    }
    let mut bytes = Bytes(bytes);
    let (size, rate) = (DataSize::from_bytes(bytes.u64()), Bitrate::from_bits_per_sec(bytes.u64()));
    let time = Duration::from_nanos(bytes.u64());
    assert!((size / time) * time <= size || time.is_zero(), "{size} / {time:?} was rounded up");
    let transfer_time = size / rate;
    assert!(rate * transfer_time >= size || transfer_time == Duration::MAX, "{size} / {rate} was rounded down");
    let ratio = Ratio::of(size.bytes(), rate.bits_per_sec());
    assert!(size.share(ratio) <= size || ratio > Ratio::from_percent(100));
    let _ = (rate.share(ratio), ratio.complement(), size * rate.bits_per_sec(), size - DataSize::MAX);
    let now = Instant::from_nanos(size.bytes());
    assert!(now + time >= now && now - time <= now, "time wraps around");
}

/// One line: a simulated link, an event, a change, a loss model, or an interface of this host. Values that parse are
/// written in a form that parses to the same value.
pub fn links(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    check_round_trip::<LinkSpec>(text);
    check_round_trip::<LinkEvent>(text);
    check_round_trip::<LinkEventKind>(text);
    check_round_trip::<Loss>(text);
    check_round_trip::<LinkKind>(text);
    if let Ok(link) = text.parse::<LinkArg>() {
        assert!(!link.name.is_empty() && !link.name.contains(['/', ',', ' ']), "{link:?}");
    }
    if let Ok(link) = text.parse::<LinkSpec>() {
        let _ = link.queue_limit();
    }
}

fn check_round_trip<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let written = value.to_string();
        let again = written.parse::<T>();
        assert!(
            again.as_ref().is_ok_and(|again| *again == value),
            "`{written}` parses to {again:?}, not to {value:?}"
        );
    }
}

/// A mahimahi trace. Its opportunities are in order of time.
pub fn traces(bytes: &[u8]) {
    let Ok(trace) = Trace::parse(&String::from_utf8_lossy(bytes)) else { return };
    assert!(trace.duration() > Duration::ZERO && trace.opportunities() > 0);
    let _ = trace.mean_rate();
    let mut previous = Instant::ZERO;
    for k in 0..trace.opportunities().min(100) * 3 {
        let at = trace.opportunity_time(k);
        assert!(at >= previous, "opportunity {k} is earlier than the previous one");
        assert!(trace.count_before(at) <= k, "opportunity {k} counts itself as earlier than {at}");
        previous = at;
    }
    let _ = (trace.opportunity_time(u64::MAX), trace.capacity(Duration::ZERO, trace.duration() * 2));
}

/// A scenario file. It has at least one run, client, case and link.
pub fn scenarios(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(scenario) = Scenario::parse(text, Path::new("scenario.toml")) else { return };
    assert!(scenario.runs > 0 && !scenario.clients.is_empty() && !scenario.cases.is_empty());
    for case in &scenario.cases {
        assert!(!case.links.is_empty());
        let _ = (case.scaled(0.01), case.with_sampled_rates(1));
        if case.links.iter().all(LinkSpec::is_loaded) {
            let _ = (case.ideal_time(), case.best_single_link());
        }
    }
}
