//! Cost of a link's bytes under the configured objective.
//!
//! Each link gets a tariff, built from the objective ([`Objective`]), the radio models, the set of metered links and
//! the prices. A tariff has the form of a radio model, so the scheduler weighs all objectives by the same rules.
//!
//! 1. Energy: the radio's own model, with its promotion and tail energy.
//! 2. Metered bytes: each byte over a metered link costs one unit. Bytes over other links and activations cost nothing.
//! 3. Cost: each byte has the configured price. Activations cost nothing.
//!
//! The unit does not matter, because costs are only compared with costs of the same objective. A separate cost type
//! would add nothing: the papers' energy prices have the same form, a price per bit and a price per activation.

use super::{Objective, Stream};
use crate::energy::{PowerCurve, RadioModel};
use crate::link::LinkId;
use crate::units::{EnergyPerBit, Power};

impl Stream {
    /// Cost of this link's bytes and activations; `None` if they cost nothing.
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

/// Cost of a bit on a metered link: one nanojoule. Only comparisons count, so the value is arbitrary.
const COST_UNIT: EnergyPerBit = EnergyPerBit::from_picojoules(1000);
