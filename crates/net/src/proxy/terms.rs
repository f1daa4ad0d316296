//! How sessions play: what every stream of a proxy has in common.

use std::path::PathBuf;

use marline_core::energy::Model;
use marline_core::link::LinkKind;
use marline_core::stream::{Config, Policy};
use marline_core::units::Power;

use super::{Options, Start};

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// What each stream begins with.
    pub(super) stream: Config,
    /// The device whose joules are told; none: none are.
    pub(super) energy: Option<Model>,
    /// Whether the start is held back; only our own policy does that.
    pub(super) start: Start,
    /// What bytes cost, by interface.
    pub(super) prices: Vec<(String, u64)>,
    /// The folder of logs.
    pub(super) trace: Option<PathBuf>,
}

impl Terms {
    pub(super) fn of(options: &Options) -> Self {
        let mut stream = Config { policy: options.policy, minimise: options.minimise, ..Config::default() };
        stream.fetch.metered = options.metered;
        stream.greenbag = options.greenbag;
        // A real player starts when it likes: it is held elsewhere (`hold`), before its first picture.
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
            start: if options.policy == Policy::Marline { options.start } else { Start::Fast },
            energy: options.energy.clone(),
            prices: options.prices.clone(),
            trace: options.trace.clone(),
        }
    }
}
