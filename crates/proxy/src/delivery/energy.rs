//! Energy meter of the proxy: the modelled radio energy of all media transfers together, by link and radio state.
//!
//! One meter serves all transfers, because a radio has one tail (the time for which it stays active after traffic)
//! for all of them. With one meter for each transfer, as `download` has, every segment of a film would be charged for
//! a tail that the next segment cuts short.

use std::collections::BTreeMap;

use marline_core::energy::{Direction, Meter, Model};
use marline_core::link::{LinkId, LinkKind};
use marline_core::units::{DataSize, Instant};
use marline_download::LinkEnergy;
use serde_json::{Value, json};

/// The meter; see the [module documentation](self).
#[derive(Debug)]
pub(crate) struct EnergyMeter {
    /// `None`: there is no model, so only bytes are counted.
    meter: Option<Meter>,
    links: BTreeMap<String, LinkTraffic>,
}

#[derive(Debug)]
struct LinkTraffic {
    id: LinkId,
    /// Bytes received over the link so far.
    bytes: u64,
    /// The time of the last sample.
    sampled_at: Instant,
}

impl EnergyMeter {
    /// Creates a meter. Without a model it counts only bytes.
    pub(crate) fn new(model: Option<Model>) -> Self {
        Self { meter: model.map(|model| Meter::new(model, Instant::ZERO)), links: BTreeMap::new() }
    }

    /// Accounts bytes that a link has received since its last sample.
    pub(crate) fn on_received(&mut self, now: Instant, name: &str, kind: LinkKind, bytes: u64) {
        let next_id = LinkId(u16::try_from(self.links.len()).unwrap_or(u16::MAX));
        let initial = LinkTraffic { id: next_id, bytes: 0, sampled_at: now };
        let link = self.links.entry(name.to_owned()).or_insert(initial);
        link.bytes += bytes;
        // Bytes between two samples are assumed to have arrived evenly.
        let interval_start = if now.since(link.sampled_at) < MAX_SAMPLE_GAP { link.sampled_at } else { now };
        link.sampled_at = now;
        if let Some(meter) = &mut self.meter {
            meter.add_link(now, link.id, kind);
            if bytes > 0 {
                meter.on_flow(interval_start, now, link.id, Direction::Down, DataSize::from_bytes(bytes));
            }
        }
    }

    /// The energy of the device so far; null without a model.
    pub(crate) fn device_json(&self, now: Instant) -> Value {
        self.meter.as_ref().map_or(Value::Null, |meter| {
            json!({
                "model": meter.model().name(),
                "energy_j": meter.energy_so_far(now).total().as_joules_f64(),
                "with_tails_j": meter.energy_until_idle(now).total().as_joules_f64(),
            })
        })
    }

    /// The bytes, energy by state and radio state of one link so far; energy is null without a model.
    pub(crate) fn link_json(&self, now: Instant, name: &str) -> Value {
        let Some(link) = self.links.get(name) else { return json!({"bytes": 0}) };
        let energy = self.meter.as_ref().and_then(|meter| meter.energy_so_far(now).radio(link.id));
        let energy_with_tail = self.meter.as_ref().and_then(|meter| meter.energy_until_idle(now).radio(link.id));
        let radio = self.meter.as_ref().and_then(|meter| meter.radio(link.id));
        json!({
            "bytes": link.bytes,
            "energy_j": energy.map(|energy| energy.total().as_joules_f64()),
            "with_tail_j": energy_with_tail.map(|energy| energy.total().as_joules_f64()),
            "energy": energy.map(LinkEnergy::from),
            "radio": radio.map(|radio| radio.state(now).name()),
        })
    }
}

/// Transfers report their progress ten times a second, with some delay.
const MAX_SAMPLE_GAP: std::time::Duration = std::time::Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use marline_core::stream::GreenBagRadio;

    use super::*;

    #[test]
    fn two_transfers_over_one_radio_share_one_tail() {
        let mut radios = EnergyMeter::new(Some(GreenBagRadio::greenbag()));
        let at = |millis| Instant::from_millis(millis);
        for n in 0..=20 {
            radios.on_received(at(1000 + n * 100), "wwan0", LinkKind::Lte, if n == 0 { 0 } else { 25_000 });
        }
        assert_eq!(radios.link_json(at(3000), "wwan0")["bytes"], 500_000);
        let end = at(3000) + Duration::from_secs(60);
        // Two seconds of β (W), 4 Mbit of α (J/Mbit), and one tail, which costs 15.12 J.
        let joules = radios.device_json(end)["energy_j"].as_f64().unwrap();
        assert!((joules - (2.0 * 2.0222 + 4.0 * 0.016_72 + 15.12)).abs() < 0.01, "{joules}");
        assert_eq!(radios.link_json(at(3100), "wwan0")["radio"], "active");
        assert_eq!(radios.link_json(at(9000), "wwan0")["radio"], "tail");
        assert_eq!(radios.link_json(end, "wwan0")["radio"], "idle");
        assert_eq!(radios.link_json(end, "eth0")["bytes"], 0);
    }
}
