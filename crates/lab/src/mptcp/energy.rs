//! Energy that the client's radios would have used for the packets that passed its end of the links.
//!
//! 1. Every packet counts as traffic, including ACKs, MP_PRIO and probes.
//! 2. A packet of the client counts when it is sent, whether or not it arrives.
//! 3. The result is complete: it includes promotions, and the tails after the last packet.

use std::time::Duration;

use marline_core::energy::{Direction, EnergyBreakdown, Meter, Model};
use marline_core::link::LinkId;
use marline_core::units::{DataSize, Instant};

use crate::{EmulationReport, TrafficSample};

/// Energy of all radios until they are idle.
pub(crate) fn energy_of_packets(emulation: &EmulationReport, model: Model) -> EnergyBreakdown {
    meter_with_packets(emulation, model, |_, _| {}).energy_until_idle(Instant::FAR_FUTURE)
}

/// For each link, how often its radio left the idle state.
pub(crate) fn promotions(emulation: &EmulationReport, model: Model) -> Vec<u32> {
    let meter = meter_with_packets(emulation, model, |_, _| {});
    let promotions_of = |link| meter.radio(link).map_or(0, |radio| radio.totals(Instant::FAR_FUTURE).promotions);
    (0..).map(LinkId).zip(&emulation.links).map(|(link, _)| promotions_of(link)).collect()
}

/// Energy used up to `time`, without tails after it: what a daemon can report at that time.
pub(crate) fn energy_until(emulation: &EmulationReport, model: Model, time: Duration) -> EnergyBreakdown {
    let end = Instant::ZERO + time;
    let mut cut = emulation.clone();
    cut.links.iter_mut().for_each(|link| link.traffic_samples.retain(|sample| sample.at <= time));
    meter_with_packets(&cut, model, |_, _| {}).energy_so_far(end)
}

/// Total energy in joules at the end of each step, up to `end`.
pub(crate) fn energy_curve(emulation: &EmulationReport, model: Model, step: Duration, end: Duration) -> Vec<f64> {
    let (mut curve, mut next) = (Vec::new(), step);
    let meter = meter_with_packets(emulation, model, |meter, at| {
        while at >= next && next <= end {
            curve.push(meter.energy_so_far(Instant::ZERO + next).total().as_joules_f64());
            next += step;
        }
    });
    while next <= end {
        curve.push(meter.energy_so_far(Instant::ZERO + next).total().as_joules_f64());
        next += step;
    }
    curve
}

/// An energy meter that has processed the packets; `before` is called before each of them.
fn meter_with_packets(
    emulation: &EmulationReport,
    model: Model,
    mut before: impl FnMut(&Meter, Duration),
) -> Meter {
    let mut meter = Meter::new(model, Instant::ZERO);
    let mut samples: Vec<(LinkId, TrafficSample)> = Vec::new();
    for (id, link) in (0..).map(LinkId).zip(&emulation.links) {
        meter.add_link(Instant::ZERO, id, link.kind);
        samples.extend(link.traffic_samples.iter().map(|sample| (id, *sample)));
    }
    samples.sort_by_key(|(id, sample)| (sample.at, *id));
    for (id, sample) in samples {
        before(&meter, sample.at);
        let at = Instant::ZERO + sample.at;
        for (direction, bytes) in [(Direction::Down, sample.down), (Direction::Up, sample.up)] {
            if bytes > 0 {
                meter.on_bytes(at, id, direction, DataSize::from_bytes(bytes.into()));
            }
        }
    }
    meter
}

/// Energy of the link with this index, in joules.
pub(crate) fn link_energy(account: &EnergyBreakdown, at: usize) -> f64 {
    let link = u16::try_from(at).ok().and_then(|at| account.radio(LinkId(at)));
    link.map_or(0.0, |energy| energy.total().as_joules_f64())
}

#[cfg(test)]
mod tests {
    use marline_core::link::LinkKind;

    use super::*;
    use crate::results::energy::device_model;
    use crate::{Lateness, LinkReport};

    fn link(name: &str, kind: LinkKind, samples: Vec<TrafficSample>) -> LinkReport {
        LinkReport { traffic_samples: samples, ..LinkReport::without_packets(name, kind) }
    }

    #[test]
    fn the_energy_curve_is_monotonic_and_agrees_with_the_totals() {
        let sample = |millis, down| TrafficSample { at: Duration::from_millis(millis), down, up: 0, payload: 0 };
        let links = vec![link("lte", LinkKind::Lte, vec![sample(100, 1500), sample(4000, 1500)])];
        let emulation =
            EmulationReport { links, lateness: Lateness::default(), cpu_time: Duration::ZERO, is_real_time: false };
        let model = || device_model("emptcp-s3");
        let second = Duration::from_secs(1);
        let curve = energy_curve(&emulation, model(), second, second * 30);
        assert_eq!(curve.len(), 30);
        assert!(curve.windows(2).all(|pair| pair[0] <= pair[1]), "{curve:?}");
        let total_j = energy_of_packets(&emulation, model()).total().as_joules_f64();
        assert!((curve[29] - total_j).abs() < 1e-6, "{} {total_j}", curve[29]);
        let part = energy_until(&emulation, model(), second * 3).total().as_joules_f64();
        assert!((curve[2] - part).abs() < 1e-6, "{} {part}", curve[2]);
    }

    #[test]
    fn a_second_lte_packet_costs_only_a_longer_tail() {
        let sample = |millis, down, up| TrafficSample { at: Duration::from_millis(millis), down, up, payload: 0 };
        let energy = |samples| {
            let links = vec![link("wifi", LinkKind::Wifi, Vec::new()), link("lte", LinkKind::Lte, samples)];
            let emulation = EmulationReport {
                links,
                lateness: Lateness::default(),
                cpu_time: Duration::ZERO,
                is_real_time: false,
            };
            energy_of_packets(&emulation, device_model("emptcp-s3"))
        };
        assert_eq!(link_energy(&energy(Vec::new()), 1), 0.0);
        let one = energy(vec![sample(5, 0, 60)]);
        assert!((link_energy(&one, 1) - 12.59).abs() < 0.01, "{}", link_energy(&one, 1));
        assert_eq!(link_energy(&one, 0), 0.0);
        // After one second the radio is still active: the second packet only extends the tail by a second.
        let two = energy(vec![sample(5, 0, 60), sample(1005, 1500, 0)]);
        let difference_j = link_energy(&two, 1) - link_energy(&one, 1);
        assert!((0.7..1.5).contains(&difference_j), "{difference_j}");
    }
}
