//! From times and bytes to joules, by state.
//!
//! In: the sums that a radio keeps. Out: a [`Bill`] per link and an [`Account`] of the device.
//!
//! The parts of the active state are added up in femtojoules and rounded once, so that what is shared cannot make a bill
//! fall by a rounding step.

use alloc::vec::Vec;

use super::{ConcurrentDraw, RadioModel, Tail};
use crate::link::LinkId;
use crate::units::{DataSize, Duration, Energy, EnergyPerBit, Power};

/// How long a radio was in each state, and what it carried. Arrays are indexed down, up.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StateTotals {
    /// In promotion.
    pub promotion: Duration,
    /// Active, by the direction of the traffic.
    pub active: [Duration; 2],
    /// In each stage of the tail.
    pub tail: [Duration; Tail::MAX_STAGES],
    /// Idle.
    pub idle: Duration,
    /// Bytes carried.
    pub carried: [DataSize; 2],
    /// Of those: bytes that came faster than the first line of the radio's power reaches ([`super::Beyond`]), on the mean
    /// of a transfer.
    pub excess_bytes: [DataSize; 2],
    /// How often it left idle.
    pub promotions: u32,
    /// Active while another radio was active already, which therefore pays what both share.
    pub shared_time: Duration,
    /// Bytes carried while another radio was active.
    pub concurrent_bytes: DataSize,
}

impl StateTotals {
    /// What it comes to.
    pub fn energy(&self, model: &RadioModel, concurrent: ConcurrentDraw) -> RadioEnergy {
        let [down, up] = self.active;
        let [received, sent] = self.carried;
        let base = power_femtojoules(model.down.base, down) + power_femtojoules(model.up.base, up);
        let bits = bits_femtojoules(model.down.per_bit, received) + bits_femtojoules(model.up.per_bit, sent);
        let extra =
            |draw: super::PowerCurve| draw.second_slope.map(|beyond| beyond.extra_per_bit).unwrap_or_default();
        let bits = bits
            + bits_femtojoules(extra(model.down), self.excess_bytes[0])
            + bits_femtojoules(extra(model.up), self.excess_bytes[1]);
        let crowded = bits_femtojoules(concurrent.extra_per_bit, self.concurrent_bytes);
        let active = (base + bits + crowded)
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

/// Microwatts times nanoseconds: femtojoules. A part of the range, so that several of them can be added.
fn power_femtojoules(power: Power, time: Duration) -> u128 {
    u128::from(power.microwatts()).saturating_mul(time.as_nanos()).min(u128::MAX / 16)
}

/// Picojoules per bit times bytes, in femtojoules.
fn bits_femtojoules(per_bit: EnergyPerBit, size: DataSize) -> u128 {
    (u128::from(per_bit.picojoules()) * u128::from(size.bytes())).saturating_mul(8000).min(u128::MAX / 16)
}

/// What one radio drew, by state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RadioEnergy {
    /// From idle to active.
    pub promotion: Energy,
    /// While it carried bytes.
    pub active: Energy,
    /// In each stage of the tail; stages that the model has not are zero.
    pub tail: [Energy; Tail::MAX_STAGES],
    /// While nothing happened.
    pub idle: Energy,
}

impl RadioEnergy {
    /// All stages of the tail.
    pub fn tail_total(&self) -> Energy {
        self.tail.iter().copied().sum()
    }

    /// All states.
    pub fn total(&self) -> Energy {
        self.promotion + self.active + self.tail_total() + self.idle
    }
}

/// What a device drew.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EnergyBreakdown {
    /// The rest of the device; zero in models of radios alone.
    pub platform: Energy,
    /// Each link in the order of their numbers; no bill: the model does not describe this kind of link.
    pub links: Vec<(LinkId, Option<RadioEnergy>)>,
}

impl EnergyBreakdown {
    /// The bill of one link.
    pub fn radio(&self, link: LinkId) -> Option<RadioEnergy> {
        self.links.iter().find(|(id, _)| *id == link).and_then(|(_, bill)| *bill)
    }

    /// The platform and all links that have a bill.
    pub fn total(&self) -> Energy {
        self.platform + self.links.iter().filter_map(|(_, bill)| *bill).map(|bill| bill.total()).sum()
    }
}
