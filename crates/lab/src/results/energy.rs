//! Energy that a device's radios would have used in a run, computed from the bytes of each link over time.
//!
//! 1. Bytes are payload, and none are counted after the end of the run.
//! 2. If the timeline was not kept, the bytes are spread over the time in which the link was in use.
//! 3. If a client reports its own energy, that figure is used; otherwise that of [`DEFAULT_DEVICE`].

use marline_core::energy::{BUILT_IN, Direction, Meter, Model, ModelSpec};
use marline_core::link::LinkId;
use marline_core::units::{DataSize, Duration, Instant};

use super::{DownloadOutcome, LinkOutcome, SLOT_S};

/// Device model for clients that report no energy: the default of `marline get`.
const DEFAULT_DEVICE: &str = "typical";

/// The built-in device model of this name.
pub(crate) fn device_model(name: &str) -> Model {
    let text =
        BUILT_IN.iter().find(|(model_name, _)| *model_name == name).map(|(_, text)| *text).unwrap_or_default();
    let written: ModelSpec = toml::from_str(text).expect("built-in models parse");
    written.into_model(name).expect("built-in models are valid").0
}

impl DownloadOutcome {
    /// An energy meter of this device that has processed the run.
    pub(crate) fn energy_meter(&self, model: Model) -> Meter {
        let mut meter = Meter::new(model, Instant::ZERO);
        for (id, link) in (0..).map(LinkId).zip(&self.links) {
            meter.add_link(Instant::ZERO, id, link.kind);
        }
        let slots: Vec<Vec<u64>> = self.links.iter().map(payload_per_slot).collect();
        for slot_index in 0..slots.iter().map(Vec::len).max().unwrap_or(0) {
            let end = Instant::ZERO + Duration::from_secs_f64(((slot_index + 1) as f64 * SLOT_S).min(self.seconds));
            for (id, slots) in (0..).map(LinkId).zip(&slots) {
                if let Some(bytes) = slots.get(slot_index).filter(|bytes| **bytes > 0) {
                    meter.on_bytes(end, id, Direction::Down, DataSize::from_bytes(*bytes));
                }
            }
        }
        meter
    }

    /// Adds the energy of the default device, tails included, if the client reported none.
    pub(crate) fn with_energy(mut self) -> Self {
        if self.energy_j.is_none() {
            let end = Instant::ZERO + Duration::from_secs_f64(self.seconds);
            let breakdown = self.energy_meter(device_model(DEFAULT_DEVICE)).energy_until_idle(end);
            for (id, link) in (0..).map(LinkId).zip(&mut self.links) {
                link.energy_j = breakdown.radio(id).map(|radio_energy| radio_energy.total().as_joules_f64());
            }
            self.energy_j = Some(breakdown.total().as_joules_f64());
            self.energy_model = Some(DEFAULT_DEVICE.to_owned());
        }
        self
    }
}

/// Payload bytes per slot.
fn payload_per_slot(link: &LinkOutcome) -> Vec<u64> {
    if !link.timeline.is_empty() {
        return link.timeline.iter().map(|bytes| payload_of(*bytes)).collect();
    }
    let Some((first, last)) = link.span_s else { return Vec::new() };
    let (first, last) = ((first / SLOT_S) as usize, (last / SLOT_S) as usize);
    let bytes_per_slot = payload_of(link.ip_bytes) / (last - first.min(last) + 1) as u64;
    (0..=last).map(|slot| if slot < first { 0 } else { bytes_per_slot }).collect()
}

/// Payload of this many bytes of IP packets: 1448 of 1500.
pub(crate) const fn payload_of(bytes: u64) -> u64 {
    bytes / 1500 * 1448 + bytes % 1500 * 1448 / 1500
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::outcome::tests::example_outcome;

    #[test]
    fn a_client_without_energy_report_gets_the_energy_of_the_default_device() {
        let outcome = example_outcome("aria2-s4", 0, 6.0).with_energy();
        assert_eq!(outcome.energy_model.as_deref(), Some("typical"));
        let link_energy = |n: usize| outcome.links[n].energy_j.unwrap();
        // Wi-Fi: 360.9 mW, and 24.19 nJ per bit of 7.72 Mbit in a slot. LTE: 2022.2 mW, 16.72 nJ per bit, and 15.12
        // J for a tail.
        assert!((link_energy(0) - (0.3609 * 5.9 + 0.187 * 58.5)).abs() < 0.2, "{}", link_energy(0));
        assert!((link_energy(1) - (2.0222 * 5.9 + 0.0985 * 58.5 + 15.12)).abs() < 0.3, "{}", link_energy(1));
        assert!((outcome.energy_j.unwrap() - link_energy(0) - link_energy(1)).abs() < 1e-6);
    }

    #[test]
    fn a_clients_own_energy_report_is_used() {
        let reported = DownloadOutcome { energy_j: Some(7.0), ..example_outcome("marline", 0, 6.0) }.with_energy();
        assert_eq!((reported.energy_j, reported.energy_model, reported.links[0].energy_j), (Some(7.0), None, None));
    }
}
