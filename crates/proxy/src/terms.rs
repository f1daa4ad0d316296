//! How sessions play: what every stream of a proxy has in common.

use std::path::PathBuf;
use std::time::Duration;

use marline_core::energy::Model;
use marline_core::link::LinkKind;
use marline_core::stream::{Config, Policy};
use marline_core::units::Power;

use super::{Given, Options, Spread, Start};

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// What each stream begins with.
    pub(super) stream: Config,
    /// The device whose joules are told; none: none are.
    pub(super) energy: Option<Model>,
    /// Whether the start is held back; only our own policy does that.
    pub(super) start: Start,
    /// Whether a client's connections to one host are spread over the links.
    pub(super) spread: Spread,
    /// How long nothing may move in a tunnel.
    pub(super) idle: Duration,
    /// Header fields for one origin.
    pub(super) given: Option<Given>,
    /// What bytes cost, by interface.
    pub(super) prices: Vec<(String, u64)>,
    /// The folder of logs.
    pub(super) trace: Option<PathBuf>,
}

impl Terms {
    pub(super) fn of(options: &Options) -> Self {
        let mut stream = Config { policy: options.policy, objective: options.minimise, ..Config::default() };
        stream.fetch.metered = options.metered;
        stream.greenbag = options.greenbag;
        // A real player starts when it likes: it is held elsewhere (`hold`), before its first picture.
        stream.may_delay_start = false;
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
            spread: options.spread,
            idle: options.idle,
            given: options.given.clone(),
            prices: options.prices.clone(),
            trace: options.trace.clone(),
        }
    }
    /// The first number for an answer that no log of an earlier run has: those are kept.
    pub(super) fn first_number(&self) -> u64 {
        let logs = self.trace.as_ref().and_then(|folder| std::fs::read_dir(folder).ok());
        let number = |name: &str| name.strip_suffix(".ndjson")?.parse::<u64>().ok();
        let last = logs.into_iter().flatten().flatten().filter_map(|log| number(log.file_name().to_str()?)).max();
        last.unwrap_or(0).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use marline_download::Links;

    use super::*;

    #[test]
    fn logs_of_earlier_runs_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { trace: Some(folder.path().to_owned()), ..Options::new(Links::Named(Vec::new())) };
        assert_eq!(Terms::of(&options).first_number(), 1);
        for name in ["000002.ndjson", "000041.ndjson", "notes.txt", "99.json"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(Terms::of(&options).first_number(), 42);
    }
}
