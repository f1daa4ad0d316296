//! How sessions play: what every stream of a proxy has in common.

use std::path::PathBuf;

use marline_core::energy::Model;
use marline_core::link::LinkKind;
use marline_core::stream::Config;
use marline_core::units::Power;

use super::Options;

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// What each stream begins with.
    pub(super) stream: Config,
    /// The device whose joules are told; none: none are.
    pub(super) energy: Option<Model>,
    /// What bytes cost, by interface.
    pub(super) prices: Vec<(String, u64)>,
    /// The folder of logs.
    pub(super) trace: Option<PathBuf>,
}

impl Terms {
    pub(super) fn of(options: &Options) -> Self {
        let mut stream = Config { policy: options.policy, minimise: options.minimise, ..Config::default() };
        stream.fetch.metered = options.metered;
        // A real player starts when it likes: what is held back at its start it would wait for in the middle.
        stream.patient = false;
        // Without a model no radio costs anything, and none rests.
        let nothing = || {
            let radios: [(LinkKind, _); 0] = [];
            Model::new("none", radios.into(), Default::default(), Power::ZERO)
        };
        if let Some(model) = options.energy.clone().or_else(|| nothing().ok()) {
            stream.energy = model;
        }
        Self {
            stream,
            energy: options.energy.clone(),
            prices: options.prices.clone(),
            trace: options.trace.clone(),
        }
    }
}
