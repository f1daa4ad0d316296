//! What the client's radios would have drawn for the packets that passed its end of the links.
//!
//! In: what the emulator saw. Out: an account of the device.
//!
//! 1. Every packet is a sign of traffic, whoever sent it and whatever for: acknowledgements, priorities, probes.
//! 2. A packet of the client counts when it is sent, whether or not it arrives.
//! 3. The account is whole: promotions, and the tails to come.

use marline_core::energy::{Account, Direction, Meter, Model};
use marline_core::link::LinkId;
use marline_core::units::{DataSize, Instant};

use crate::{Emulation, Sign};

/// See the [module](self).
pub(crate) fn of_packets(emulation: &Emulation, model: Model) -> Account {
    let mut meter = Meter::new(model, Instant::ZERO);
    let mut signs: Vec<(LinkId, Sign)> = Vec::new();
    for (id, link) in (0..).map(LinkId).zip(&emulation.links) {
        meter.on_link(Instant::ZERO, id, link.kind);
        signs.extend(link.signs.iter().map(|sign| (id, *sign)));
    }
    signs.sort_by_key(|(id, sign)| (sign.at, *id));
    for (id, sign) in signs {
        let at = Instant::ZERO + sign.at;
        for (direction, bytes) in [(Direction::Down, sign.down), (Direction::Up, sign.up)] {
            if bytes > 0 {
                meter.on_bytes(at, id, direction, DataSize::from_bytes(bytes.into()));
            }
        }
    }
    meter.finish(Instant::FAR_FUTURE)
}

/// The joules of the link with this place.
pub(crate) fn of_link(account: &Account, at: usize) -> f64 {
    let link = u16::try_from(at).ok().and_then(|at| account.link(LinkId(at)));
    link.map_or(0.0, |bill| bill.total().as_joules_f64())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use marline_core::link::LinkKind;

    use super::*;
    use crate::evidence::joules::device;
    use crate::{Lateness, LinkRun};

    fn link(name: &str, kind: LinkKind, signs: Vec<Sign>) -> LinkRun {
        LinkRun {
            name: name.into(),
            kind,
            down: Default::default(),
            up: Default::default(),
            down_timeline: Vec::new(),
            up_timeline: Vec::new(),
            down_span: None,
            unseen: 0,
            signs,
            priorities: Vec::new(),
        }
    }

    #[test]
    fn one_packet_over_lte_costs_a_promotion_and_a_tail_and_a_second_one_nothing_but_time() {
        let sign = |millis, down, up| Sign { at: Duration::from_millis(millis), down, up, payload: 0 };
        let joules = |signs| {
            let links = vec![link("wifi", LinkKind::Wifi, Vec::new()), link("lte", LinkKind::Lte, signs)];
            let emulation =
                Emulation { links, lateness: Lateness::default(), cpu: Duration::ZERO, real_time: false };
            of_packets(&emulation, device("emptcp-s3"))
        };
        assert_eq!(of_link(&joules(Vec::new()), 1), 0.0);
        let one = joules(vec![sign(5, 0, 60)]);
        assert!((of_link(&one, 1) - 12.59).abs() < 0.01, "{}", of_link(&one, 1));
        assert_eq!(of_link(&one, 0), 0.0);
        // A second later it is still awake: a second of its tail more.
        let two = joules(vec![sign(5, 0, 60), sign(1005, 1500, 0)]);
        let more = of_link(&two, 1) - of_link(&one, 1);
        assert!((0.7..1.5).contains(&more), "{more}");
    }
}
