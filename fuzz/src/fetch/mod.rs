//! The fetch machine, driven by bytes.
//!
//! In: bytes that say how the download is set up, and then what happens. Out: a panic when the machine breaks a promise.
//!
//! 1. The driver keeps its own obligations and no other: it reports only names that it was given and that still live,
//!    one head for each request, bytes only of an accepted answer and never more than were allowed, in HTTP/1.1 one
//!    answer after the other. What a head says, how long a body is and what comes when is up to the bytes.
//! 2. The judge is the naive ledger of `marline_sim::fuzz_fetch`: no request outside of the resource, no name used twice,
//!    never two files in one.
//! 3. Done is said once, and only when each byte has been delivered; after Done or Failed nothing is said.
//! 4. The machine runs under `marline_sim::contract`: drained calls, deadlines that lie ahead; its log must replay, and
//!    old times must make no difference.
//! 5. When nothing happens any more, a thousand deadlines pass without a flood of orders, and time goes on.
//!
//! `marline_sim::fuzz_fetch` draws weather that a real network could have, and asks that downloads end. Here no weather is
//! assumed, so a search that is led by coverage can go where chance does not.

mod driver;
mod head;

use marline_core::fetch::{Config, Fetch, MeteredUse, OriginId, Policy, Proof, Resume, Span, Validator};
use marline_core::link::LinkKind;
use marline_core::units::DataSize;
use marline_sim::contract::{clamp, replay};

use crate::bytes::Bytes;
use driver::Driver;

/// More than a machine that knows what it is doing orders at one instant: 16 connections on each of a few links, with a
/// request or two each.
pub const MOST_OUTPUTS: usize = 4000;

/// A configuration, then operations until the bytes end, then silence.
pub fn ops(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let size = bytes.size();
    let config = config(&mut bytes, size);
    let mut driver = Driver::new(config, size, &mut bytes);
    while !bytes.is_empty() && !driver.is_over() {
        driver.step(&mut bytes);
    }
    // The silence is long and tells nothing new about replays.
    let (mut driver, log) = driver.cut();
    driver.silence();
    let (useful, covered) = driver.useful();
    assert!(useful <= covered, "{useful} useful bytes are counted, {covered} are in place");
    let make = |config: &Config| Fetch::new(config.clone());
    if let Err(found) = replay(make, &log) {
        panic!("rule 4: {found}");
    }
    if let Err(found) = clamp(make, &log) {
        panic!("rule 2: {found}");
    }
}

fn config(bytes: &mut Bytes<'_>, size: u64) -> Config {
    let flags = bytes.u8();
    let mut config = Config {
        policy: bytes.one_of(&[
            Policy::Marline,
            Policy::Marline,
            Policy::Single,
            Policy::Naive,
            Policy::StaticLimit,
            Policy::DynamicLimit,
            Policy::BdpLimit,
        ]),
        origins: if flags & 1 == 0 { 1 } else { 2 },
        metered: bytes.one_of(&[MeteredUse::Avoid, MeteredUse::Use, MeteredUse::Never]),
        proven: flags & 2 != 0,
        open_first: flags & 40 == 32,
        ..Config::default()
    };
    if flags & 4 != 0 {
        config.window = Some(DataSize::from_bytes(bytes.size()));
    }
    if flags & 8 != 0 {
        let have =
            (0..bytes.u8() % 4).map(|_| Span::at(bytes.size(), DataSize::from_bytes(bytes.size()))).collect();
        let source = (flags & 32 == 0).then_some(OriginId(0));
        config.resume = Some(Resume { total: DataSize::from_bytes(size), validator: validator(0), have, source });
    }
    if flags & 64 != 0 {
        config.proof =
            Some(if flags & 128 == 0 { Proof::Whole } else { Proof::Pieces(DataSize::from_bytes(bytes.size())) });
    }
    if flags & 16 != 0 {
        config.retries = u32::from(bytes.u8() % 4);
        config.max_connections = u32::from(bytes.u8() % 5);
    }
    config
}

/// The strong validator of an edition of the file.
fn validator(edition: u8) -> Validator {
    if edition == 3 {
        return Validator::Date("Sun, 06 Nov 1994 08:49:37 GMT".to_owned());
    }
    Validator::Etag(format!("\"{edition}\""))
}

/// What a link may be.
const KINDS: [LinkKind; 3] = [LinkKind::Wifi, LinkKind::Lte, LinkKind::Ethernet];
