//! Fuzz target of the fetch machine: its configuration and all events of a download come from the input.
//!
//! The target panics if the machine violates one of its guarantees.
//!
//! 1. The driver fulfils its own part of the contract and nothing else. It reports only connections and requests that
//!    the machine created and has not closed, one head per request, and only bytes of an accepted body within the
//!    accepted length. With HTTP/1.1, responses of one connection come one after another. Contents of heads, lengths of
//!    bodies and the order and time of events come from the input.
//! 2. `marline_sim::fuzz_fetch::reference` checks the outputs: no request outside the resource, no number used twice,
//!    never bytes of two files in one.
//! 3. Done is reported once, and only after every byte has been delivered. After Done or Failed there is no output.
//! 4. The machine runs under `marline_sim::contract`: each call is drained, and deadlines lie in the future. Its log
//!    must replay, and calls with a past time must make no difference.
//! 5. When events stop, a thousand deadlines pass without excessive outputs, and time advances.
//!
//! `marline_sim::fuzz_fetch` simulates networks that could exist, and requires that downloads finish. This target
//! assumes no plausible network, so that a coverage-guided search can reach states which random networks do not.

mod driver;
mod head;

use marline_core::fetch::{ByteRange, Config, DigestScope, Fetch, MeteredUse, Policy, Resume, UrlId, Validator};
use marline_core::link::LinkKind;
use marline_core::units::DataSize;
use marline_sim::contract::{replay, replay_with_stale_times};

use crate::bytes::Bytes;
use driver::Driver;

/// Maximum number of outputs of one drain. A correct machine stays below: 16 connections on each of a few links, with
/// one or two requests each.
pub const MAX_OUTPUTS: usize = 4000;

/// Reads a configuration, then one operation after another until the input ends; then no more events happen.
pub fn ops(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let size = bytes.size();
    let config = config(&mut bytes, size);
    let mut driver = Driver::new(config, size, &mut bytes);
    while !bytes.is_empty() && !driver.is_finished() {
        driver.step(&mut bytes);
    }
    // The phase without events is long and would add nothing to the replays, so their log ends before it.
    let (mut driver, log) = driver.split_log();
    driver.run_without_events();
    let (received, covered) = driver.received_and_covered();
    assert!(received <= covered, "the machine counts {received} received bytes, but {covered} are stored");
    let make = |config: &Config| Fetch::new(config.clone());
    if let Err(difference) = replay(make, &log) {
        panic!("rule 4: {difference}");
    }
    if let Err(difference) = replay_with_stale_times(make, &log) {
        panic!("rule 2: {difference}");
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
        mirrors: if flags & 1 == 0 { 1 } else { 2 },
        metered: bytes.one_of(&[MeteredUse::Avoid, MeteredUse::Use, MeteredUse::Never]),
        has_checksum: flags & 2 != 0,
        open_ended_first: flags & 40 == 32,
        ..Config::default()
    };
    if flags & 4 != 0 {
        config.reader_window = Some(DataSize::from_bytes(bytes.size()));
    }
    if flags & 8 != 0 {
        let ranges =
            (0..bytes.u8() % 4).map(|_| ByteRange::at(bytes.size(), DataSize::from_bytes(bytes.size()))).collect();
        let mirror = (flags & 32 == 0).then_some(UrlId(0));
        config.resume = Some(Resume { total: DataSize::from_bytes(size), validator: validator(0), ranges, mirror });
    }
    if flags & 64 != 0 {
        config.digest = Some(if flags & 128 == 0 {
            DigestScope::File
        } else {
            DigestScope::Pieces(DataSize::from_bytes(bytes.size()))
        });
    }
    if flags & 16 != 0 {
        config.retries = u32::from(bytes.u8() % 4);
        config.max_connections = u32::from(bytes.u8() % 5);
    }
    config
}

/// The strong validator of a version of the file.
fn validator(version: u8) -> Validator {
    if version == 3 {
        return Validator::LastModified("Sun, 06 Nov 1994 08:49:37 GMT".to_owned());
    }
    Validator::Etag(format!("\"{version}\""))
}

/// Kinds of links from which the input chooses.
const LINK_KINDS: [LinkKind; 3] = [LinkKind::Wifi, LinkKind::Lte, LinkKind::Ethernet];
