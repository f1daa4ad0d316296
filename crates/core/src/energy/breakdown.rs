//! Energy per state: converts the times and bytes of a radio into a [`RadioEnergy`], and those into the
//! [`EnergyBreakdown`] of a device.
//!
//! The parts of the active state are added in femtojoules and rounded once. Otherwise a rounding step of the shared
//! part could make a radio's energy decrease.

use alloc::vec::Vec;

use super::{ConcurrentDraw, RadioModel, Tail};
use crate::link::LinkId;
use crate::units::{DataSize, Duration, Energy, EnergyPerBit, Power};

/// Time that a radio spent in each state, and the bytes it carried. Arrays hold download, then upload.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StateTotals {
    /// Time in promotion.
    pub promotion: Duration,
    /// Active time, by the direction of the traffic.
    pub active: [Duration; 2],
    /// Time in each stage of the tail.
    pub tail: [Duration; Tail::MAX_STAGES],
    /// Idle time.
    pub idle: Duration,
    /// Bytes carried, by direction.
    pub carried: [DataSize; 2],
    /// Those of the carried bytes that exceed the rate up to which the first line of the power curve is valid
    /// ([`super::SecondSlope`]), by the mean rate of each transfer.
    pub excess_bytes: [DataSize; 2],
    /// Number of times the radio left idle.
    pub promotions: u32,
    /// Active time in which another radio was already active; that radio is charged the shared base power.
    pub shared_time: Duration,
    /// Bytes carried while another radio was active.
    pub concurrent_bytes: DataSize,
}

impl StateTotals {
    /// Energy of these times and bytes.
    pub fn energy(&self, model: &RadioModel, concurrent: ConcurrentDraw) -> RadioEnergy {
        let [down, up] = self.active;
        let [received, sent] = self.carried;
        let base = power_femtojoules(model.down.base, down) + power_femtojoules(model.up.base, up);
        let bits = bits_femtojoules(model.down.per_bit, received) + bits_femtojoules(model.up.per_bit, sent);
        let extra_per_bit =
            |draw: super::PowerCurve| draw.second_slope.map(|beyond| beyond.extra_per_bit).unwrap_or_default();
        let bits = bits
            + bits_femtojoules(extra_per_bit(model.down), self.excess_bytes[0])
            + bits_femtojoules(extra_per_bit(model.up), self.excess_bytes[1]);
        let concurrent_extra = bits_femtojoules(concurrent.extra_per_bit, self.concurrent_bytes);
        let active = (base + bits + concurrent_extra)
            .saturating_sub(power_femtojoules(concurrent.shared_base, self.shared_time))
            / 1_000_000;
        let mut tail = [Energy::ZERO; Tail::MAX_STAGES];
        for ((energy, time), stage) in tail.iter_mut().zip(self.tail).zip(model.tail.stages()) {
            *energy = stage.power * time;
        }
        RadioEnergy {
            promotion: model.promotion.power * self.promotion,
            active: Energy::from_nanojoules(u64::try_from(active).unwrap_or(u64::MAX)),
            tail,
            idle: model.idle * self.idle,
        }
    }
}

/// Microwatts times nanoseconds: femtojoules. Limited to a sixteenth of the type's range, so that several values
/// can be added.
fn power_femtojoules(power: Power, time: Duration) -> u128 {
    u128::from(power.microwatts()).saturating_mul(time.as_nanos()).min(u128::MAX / 16)
}

/// Picojoules per bit times bytes, in femtojoules.
fn bits_femtojoules(per_bit: EnergyPerBit, size: DataSize) -> u128 {
    (u128::from(per_bit.picojoules()) * u128::from(size.bytes())).saturating_mul(8000).min(u128::MAX / 16)
}

/// Energy that one radio drew, by state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RadioEnergy {
    /// During promotions, from idle to active.
    pub promotion: Energy,
    /// While active.
    pub active: Energy,
    /// In each stage of the tail; zero for stages that the model does not have.
    pub tail: [Energy; Tail::MAX_STAGES],
    /// While idle.
    pub idle: Energy,
}

impl RadioEnergy {
    /// Sum over the stages of the tail.
    pub fn tail_total(&self) -> Energy {
        self.tail.iter().copied().sum()
    }

    /// Sum over all states.
    pub fn total(&self) -> Energy {
        self.promotion + self.active + self.tail_total() + self.idle
    }
}

/// Energy that a device drew, by link.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EnergyBreakdown {
    /// Energy of the rest of the device; zero in models of radios alone.
    pub platform: Energy,
    /// Energy of each link, sorted by link number; `None`: the model does not describe this kind of link.
    pub links: Vec<(LinkId, Option<RadioEnergy>)>,
}

impl EnergyBreakdown {
    /// Energy of one link; `None`: the link is unknown or not described by the model.
    pub fn radio(&self, link: LinkId) -> Option<RadioEnergy> {
        self.links.iter().find(|(id, _)| *id == link).and_then(|(_, energy)| *energy)
    }

    /// The platform and all described links.
    pub fn total(&self) -> Energy {
        self.platform
            + self.links.iter().filter_map(|(_, energy)| *energy).map(|link_energy| link_energy.total()).sum()
    }
}
