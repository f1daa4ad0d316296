//! From times and bytes to joules, by state.
//!
//! In: the sums that a radio keeps. Out: a [`Bill`] per link and an [`Account`] of the device.
//!
//! The parts of the active state are added up in femtojoules and rounded once, so that what is shared cannot make a bill
//! fall by a rounding step.

use alloc::vec::Vec;

use super::{RadioModel, Tail, Together};
use crate::link::LinkId;
use crate::units::{DataSize, Duration, Energy, EnergyPerBit, Power};

/// How long a radio was in each state, and what it carried. Arrays are indexed down, up.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sums {
    /// In promotion.
    pub promotion: Duration,
    /// Active, by the direction of the traffic.
    pub active: [Duration; 2],
    /// In each stage of the tail.
    pub tail: [Duration; Tail::MAX],
    /// Idle.
    pub idle: Duration,
    /// Bytes carried.
    pub carried: [DataSize; 2],
    /// Of those: bytes that came faster than the first line of the radio's power reaches ([`super::Beyond`]), on the mean
    /// of a transfer.
    pub excess: [DataSize; 2],
    /// How often it left idle.
    pub wakes: u32,
    /// Active while another radio was active already, which therefore pays what both share.
    pub shared: Duration,
    /// Bytes carried while another radio was active.
    pub crowded: DataSize,
}

impl Sums {
    /// What it comes to.
    pub fn bill(&self, model: &RadioModel, together: Together) -> Bill {
        let [down, up] = self.active;
        let [came, went] = self.carried;
        let drawn = held(model.down.base, down) + held(model.up.base, up);
        let bits = price(model.down.per_bit, came) + price(model.up.per_bit, went);
        let more = |draw: super::Draw| draw.beyond.map(|beyond| beyond.more).unwrap_or_default();
        let bits = bits + price(more(model.down), self.excess[0]) + price(more(model.up), self.excess[1]);
        let crowded = price(together.extra, self.crowded);
        let active = (drawn + bits + crowded).saturating_sub(held(together.shared, self.shared)) / 1_000_000;
        let mut tail = [Energy::ZERO; Tail::MAX];
        for ((bill, time), stage) in tail.iter_mut().zip(self.tail).zip(model.tail.stages()) {
            *bill = stage.power * time;
        }
        Bill {
            promotion: model.promotion.power * self.promotion,
            active: Energy::from_nanojoules(u64::try_from(active).unwrap_or(u64::MAX)),
            tail,
            idle: model.idle * self.idle,
        }
    }
}

/// Microwatts times nanoseconds: femtojoules. A part of the range, so that several of them can be added.
fn held(power: Power, time: Duration) -> u128 {
    u128::from(power.microwatts()).saturating_mul(time.as_nanos()).min(u128::MAX / 16)
}

/// Picojoules per bit times bytes, in femtojoules.
fn price(per_bit: EnergyPerBit, size: DataSize) -> u128 {
    (u128::from(per_bit.picojoules()) * u128::from(size.bytes())).saturating_mul(8000).min(u128::MAX / 16)
}

/// What one radio drew, by state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bill {
    /// From idle to active.
    pub promotion: Energy,
    /// While it carried bytes.
    pub active: Energy,
    /// In each stage of the tail; stages that the model has not are zero.
    pub tail: [Energy; Tail::MAX],
    /// While nothing happened.
    pub idle: Energy,
}

impl Bill {
    /// All stages of the tail.
    pub fn tails(&self) -> Energy {
        self.tail.iter().copied().sum()
    }

    /// All states.
    pub fn total(&self) -> Energy {
        self.promotion + self.active + self.tails() + self.idle
    }
}

/// What a device drew.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Account {
    /// The rest of the device; zero in models of radios alone.
    pub platform: Energy,
    /// Each link in the order of their numbers; no bill: the model does not describe this kind of link.
    pub links: Vec<(LinkId, Option<Bill>)>,
}

impl Account {
    /// The bill of one link.
    pub fn link(&self, link: LinkId) -> Option<Bill> {
        self.links.iter().find(|(id, _)| *id == link).and_then(|(_, bill)| *bill)
    }

    /// The platform and all links that have a bill.
    pub fn total(&self) -> Energy {
        self.platform + self.links.iter().filter_map(|(_, bill)| *bill).map(|bill| bill.total()).sum()
    }
}
