//! Options of sessions: what every stream of a proxy has in common, derived from the proxy's [`Options`].

use std::path::PathBuf;
use std::time::Duration;

use marline_core::energy::Model;
use marline_core::link::LinkKind;
use marline_core::proxy::{SpreadMode, StartMode};
use marline_core::stream::{Config, Policy};
use marline_core::units::Power;

use crate::options::Options;
use crate::upstream::origin_headers::OriginHeaders;

/// The part of [`Options`] that sessions need; see the [module documentation](self).
#[derive(Clone, Debug)]
pub(crate) struct SessionOptions {
    /// The configuration with which each stream begins.
    pub(crate) stream: Config,
    /// The device whose energy is reported; `None`: no energy is reported.
    pub(crate) energy_model: Option<Model>,
    /// Whether the start of playback may be delayed. Only marline's own policy does that.
    pub(crate) start_mode: StartMode,
    /// Whether the connections of one client to one host are spread over the links.
    pub(crate) spread_mode: SpreadMode,
    /// A tunnel without any traffic is closed after this time.
    pub(crate) idle_timeout: Duration,
    /// Header fields for one origin.
    pub(crate) origin_headers: Option<OriginHeaders>,
    /// Price of received data by interface name, in millionths of the currency for 10^9 bytes.
    pub(crate) prices: Vec<(String, u64)>,
    /// The folder for decision logs.
    pub(crate) trace_dir: Option<PathBuf>,
}

impl SessionOptions {
    pub(crate) fn from_options(options: &Options) -> Self {
        let mut stream = Config { policy: options.policy, objective: options.objective, ..Config::default() };
        stream.fetch.metered = options.metered;
        stream.greenbag = options.greenbag;
        // A real player decides itself when to start. The startup gate of `FilmPlayback` delays its first picture
        // instead.
        stream.may_delay_start = false;
        // Without a model no radio costs energy, so no link is put on standby.
        let no_energy_model = || {
            let radios: [(LinkKind, _); 0] = [];
            Model::new("none", radios.into(), Default::default(), Power::ZERO)
        };
        if let Some(model) = options.energy_model.clone().or_else(|| no_energy_model().ok()) {
            stream.energy = model;
        }
        Self {
            stream,
            start_mode: if options.policy == Policy::Marline { options.start_mode } else { StartMode::Fast },
            energy_model: options.energy_model.clone(),
            spread_mode: options.spread_mode,
            idle_timeout: options.idle_timeout,
            origin_headers: options.origin_headers.clone(),
            prices: options.prices.clone(),
            trace_dir: options.trace_dir.clone(),
        }
    }
    /// The first response number above those of existing logs, which are never overwritten.
    pub(crate) fn first_log_number(&self) -> u64 {
        let log_files = self.trace_dir.as_ref().and_then(|folder| std::fs::read_dir(folder).ok());
        let number = |name: &str| name.strip_suffix(".ndjson")?.parse::<u64>().ok();
        let last_number =
            log_files.into_iter().flatten().flatten().filter_map(|log| number(log.file_name().to_str()?)).max();
        last_number.unwrap_or(0).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use marline_download::Links;

    use super::*;

    #[test]
    fn logs_of_earlier_runs_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let options =
            Options { trace_dir: Some(folder.path().to_owned()), ..Options::new(Links::Named(Vec::new())) };
        assert_eq!(SessionOptions::from_options(&options).first_log_number(), 1);
        for name in ["000002.ndjson", "000041.ndjson", "notes.txt", "99.json"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(SessionOptions::from_options(&options).first_log_number(), 42);
    }
}
