//! What a link's bytes cost, by what is to be small.
//!
//! In: the objective ([`Minimise`]), the radios' models, which links are metered, prices. Out: one tariff for each link,
//! in the form of a radio's draw, so that the planner weighs all objectives by the same rules.
//!
//! 1. Energy: the radio's own model, with its promotion and its tail.
//! 2. Metered bytes: each byte over a metered link costs one unit; over others nothing, and waking costs nothing.
//! 3. Money: each byte costs what the user says; waking costs nothing.
//!
//! What a unit is does not matter: costs are only compared with costs of the same objective. A cost type of its own was
//! not used, because the papers' energy prices have the same form (a price a bit, a price for a wake-up).

use super::{Objective, Stream};
use crate::energy::{PowerCurve, RadioModel};
use crate::link::LinkId;
use crate::units::{EnergyPerBit, Power};

impl Stream {
    /// What this link's bytes and its wake-ups cost; none: nothing.
    pub(super) fn tariff(&self, link: LinkId) -> Option<RadioModel> {
        match self.config.objective {
            Objective::Energy => self.energy_meter.radio(link).map(|radio| *radio.model()),
            Objective::MeteredBytes => self.metered_links.contains(&link).then(|| per_bit_tariff(COST_UNIT)),
            Objective::Cost => {
                let price = self.config.prices.iter().find(|price| price.link == link)?;
                Some(per_bit_tariff(EnergyPerBit::from_picojoules(price.micros_per_gb)))
            }
        }
    }
}

fn per_bit_tariff(per_bit: EnergyPerBit) -> RadioModel {
    RadioModel::new(PowerCurve { base: Power::ZERO, per_bit, ..PowerCurve::default() })
}

/// A unit is a nanojoule a bit, which is 8 J a gigabyte: of the order of what radios cost.
const COST_UNIT: EnergyPerBit = EnergyPerBit::from_picojoules(1000);
