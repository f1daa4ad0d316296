//! Loader of device energy models: built-in models by name, and model files by path.
//!
//! A model describes the power of a device's radios, who measured it, and how reliable the figures are. The format of a file is
//! defined by [`marline_core::energy::ModelSpec`].
//!
//! 1. An invalid file is rejected with its name and the line of the mistake.
//! 2. A text with a `/` or a `.` is a path; every other text is the name of a built-in model.

use std::path::Path;

use marline_core::energy::{BUILT_IN, Model, ModelOrigin, ModelSpec};

/// A device energy model with its origin.
#[derive(Clone, Debug)]
pub(super) struct LoadedModel {
    /// The model that counts energy.
    pub(super) model: Model,
    /// Device, source and reliability of the figures.
    pub(super) origin: ModelOrigin,
}

/// Loads the built-in model of this name, or the model file at this path.
///
/// # Errors
/// One line: the name is unknown (with the known names), or the file cannot be read or is invalid.
pub(super) fn load(name: &str) -> Result<LoadedModel, String> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
        return parse(text, name, name);
    }
    if !name.contains(['/', '.']) {
        let names: Vec<&str> = built_in_names().collect();
        return Err(format!(
            "unknown energy model `{name}`: use {}, or a file with its path, such as ./{name}.toml",
            names.join(", ")
        ));
    }
    let path = Path::new(name);
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}: cannot read the energy model"))?;
    let stem = path.file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy());
    parse(&text, &stem, name)
}

/// Names of the built-in models, the default first.
pub(super) fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

/// Parses a model file; errors begin with `display_name`.
fn parse(text: &str, name: &str, display_name: &str) -> Result<LoadedModel, String> {
    let file: ModelSpec = toml::from_str(text).map_err(|error| {
        let error_start = error.span().map_or(0, |span| span.start.min(text.len()));
        let text_before = text.as_bytes().get(..error_start).unwrap_or_default();
        let line = text_before.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("{display_name}:{line}: {}", error.message().trim().replace('\n', " "))
    })?;
    let (model, origin) = file.into_model(name).map_err(|error| format!("{display_name}: {error}"))?;
    Ok(LoadedModel { model, origin })
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::energy::{Direction, RadioModel};
    use marline_core::link::LinkKind;
    use marline_core::units::{Bitrate, DataSize, Power};

    #[test]
    fn every_built_in_model_is_valid() {
        for name in built_in_names() {
            let file = load(name).unwrap();
            assert_eq!(file.model.name(), name);
            assert!(file.model.radios().count() > 0);
            let ModelOrigin { published, fitted, from_memory: memory, assumed, .. } = file.origin;
            assert!(published.or(fitted).or(memory).or(assumed).is_some(), "{name} does not state its reliability");
        }
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../core/models")).unwrap();
        assert_eq!(files.count(), BUILT_IN.len());
    }

    #[test]
    fn the_energy_of_a_single_packet_is_that_of_the_papers() {
        for (name, kind, joules) in [
            ("greenbag", LinkKind::Lte, 15.12),
            ("greenbag", LinkKind::Wifi, 0.0),
            ("huang2012", LinkKind::Lte, 12.585),
            ("huang2012", LinkKind::Umts, 7.382),
            ("huang2012", LinkKind::Wifi, 0.038),
            ("emptcp-s3", LinkKind::Lte, 12.585),
        ] {
            let packet = load(name).unwrap().model.radio(kind).unwrap().single_packet_energy();
            assert!((packet.as_joules_f64() - joules).abs() < 5e-4, "{name} {kind}: {packet}");
        }
    }

    #[test]
    fn the_typical_device_has_the_radios_of_the_models_it_names() {
        let model = |name| load(name).unwrap().model;
        let typical = model("typical");
        for (from, kind) in [
            ("greenbag", LinkKind::Wifi),
            ("greenbag", LinkKind::Lte),
            ("huang2012", LinkKind::Umts),
            ("narayanan2021-nsa-low", LinkKind::Nr),
        ] {
            assert_eq!(typical.radio(kind), model(from).radio(kind), "{kind}");
        }
        assert_eq!(typical.radios().count(), 4);
    }

    /// Table 7.1 of the multi-link HTTP thesis: seconds and joules for 250 MB over single links, then with Algorithm 3, which
    /// transfers half of it over each link.
    #[test]
    fn the_phones_of_the_thesis_have_the_energy_of_its_tables() {
        let mbps = |seconds: f64| Bitrate::from_bits_per_sec((2e9 / seconds) as u64);
        for (name, wifi, lte, both, within) in [
            ("thesis-s6", (26.06, 58.68), (52.97, 103.10), (16.68, 75.53), 0.02),
            ("thesis-s7", (26.25, 50.20), (33.79, 66.83), (16.55, 62.13), 0.07),
        ] {
            let model = load(name).unwrap().model;
            let assert_draw = |loads: &[(LinkKind, Direction, Bitrate)], (seconds, joules): (f64, f64)| {
                let found = (model.active_power(loads) + model.platform()).as_watts_f64() * seconds;
                assert!((found / joules - 1.0).abs() < within, "{name}: {found} J, not {joules}");
            };
            assert_draw(&[(LinkKind::Wifi, Direction::Down, mbps(wifi.0))], wifi);
            assert_draw(&[(LinkKind::Lte, Direction::Down, mbps(lte.0))], lte);
            let half = mbps(both.0) / 2;
            assert_draw(&[(LinkKind::Wifi, Direction::Down, half), (LinkKind::Lte, Direction::Down, half)], both);
        }
    }

    #[test]
    fn the_built_in_phone_of_emptcp_gives_its_table_2_within_six_percent() {
        use marline_core::energy::EnergyInfoBase;
        let kbps = |rate: u64| Bitrate::from_bits_per_sec(rate * 1000);
        let is_close = |found: Bitrate, kbps: u64| found.bits_per_sec().abs_diff(kbps * 1000) <= kbps * 60;
        let model = load("emptcp-s3").unwrap().model;
        let base = EnergyInfoBase::new(&model, LinkKind::Wifi, LinkKind::Lte).unwrap();
        // The first threshold of the table, 43, does not fit any linear model and is left out.
        for (lte, below, above) in
            [(500, None, 234), (1000, Some(134), 502), (1500, Some(209), 803), (2000, Some(304), 1070)]
        {
            let row = base.row(kbps(lte));
            assert!(row.has_both && below.is_none_or(|below| is_close(row.second_below, below)), "{row:?}");
            assert!(is_close(row.first_above.unwrap(), above), "{row:?}");
        }
    }

    #[test]
    fn the_uplink_curve_defaults_to_the_downlink_curve() {
        let text = "device='d'\nsource='s'\nconfidence='50%'\n[radio.lte]\ndown={base='1W',per_bit='2nJ/bit'}\n";
        let radio = *parse(text, "m", "m").unwrap().model.radio(LinkKind::Lte).unwrap();
        assert_eq!((radio.up, radio.gap, radio.idle), (radio.down, RadioModel::GAP, Power::ZERO));
        assert_eq!(
            radio
                .transfer_energy(Direction::Up, DataSize::from_bytes(1_000_000), Bitrate::from_mbps(8))
                .to_string(),
            "1.016J"
        );
    }

    #[test]
    fn the_sample_in_the_guide_is_valid_and_has_every_key() {
        let guide = include_str!("../../../../docs/energy.md");
        let sample = guide.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let model = parse(sample, "sample", "docs/energy.md").unwrap().model;
        let huang = load("huang2012").unwrap().model;
        assert_eq!(model.radio(LinkKind::Lte), huang.radio(LinkKind::Lte));
        for key in ["published", "memory", "assumed", "platform", "shared", "extra", "idle", "gap"] {
            assert!(sample.contains(key), "{key}");
        }
    }

    #[test]
    fn an_invalid_model_is_rejected_in_one_line() {
        let head = "device='d'\nsource='s'\nconfidence='50%'\n";
        let radio = "[radio.lte]\ndown={base='1W',per_bit='2nJ/bit'}\n";
        for (text, expected) in [
            (format!("{head}{radio}tial=[]\n"), "m.toml:6: unknown field `tial`"),
            (format!("{head}plattform='1W'\n{radio}"), "m.toml:4: unknown field `plattform`"),
            (
                format!("{head}[radio.wify]\ndown={{base='1W',per_bit='2nJ/bit'}}\n"),
                "m.toml:4: unknown variant `wify`",
            ),
            (format!("{head}{radio}idle='20'\n"), "m.toml:6: `20` is not a power such as 1350mW"),
            (format!("{head}{radio}idle=20\n"), "m.toml:6: invalid type"),
            (format!("{head}{radio}tail=[{{power='1W'}}]\n"), "missing field `time`"),
            (format!("{head}{radio}gap='100'\n"), "`100` is not a duration"),
            (format!("{head}[radio.lte]\ndown={{base='1W'}}\n"), "missing field `per_bit`"),
            (format!("{head}[radio.lte]\n"), "missing field `down`"),
            (head.to_owned(), "m.toml: describes no radio"),
            (format!("device='d'\nconfidence='50%'\n{radio}"), "missing field `source`"),
            (format!("device='d'\nsource='s'\nconfidence='150%'\n{radio}"), "150% is more than 100%"),
            (format!("{head}[concurrent]\nshared_base='2W'\n{radio}"), "m.toml: lte: base power 1000.0mW is less"),
            (
                format!("{head}{radio}tail=[{}]\n", "{power='1W',time='1s'},".repeat(5)),
                "m.toml: [radio.lte]: a tail has at most 4 stages",
            ),
            (format!("{head}{radio}{radio}"), "duplicate"),
            ("[".into(), "m.toml:1: "),
        ] {
            let error = parse(&text, "m", "m.toml").unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn the_error_for_an_unknown_model_lists_the_known_ones() {
        let error = load("grenbag").unwrap_err();
        assert!(error.starts_with("unknown energy model `grenbag`: use typical, greenbag, huang2012"), "{error}");
        assert!(load("./absent.toml").unwrap_err().starts_with("./absent.toml: No such file"));
    }
}
