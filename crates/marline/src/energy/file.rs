//! Device models as files: what a phone's radios draw, who measured it, and how sure that is.
//!
//! TOML text in, a [`ModelFile`] out. `docs/energy.md` explains every key; the models that come with the program are in
//! `models/`, one file each, and are part of the program itself, so that it finds them anywhere.
//!
//! 1. An unknown key, a value without its unit, or a figure that cannot be is refused with file and line.
//! 2. A model without its source is refused as well: a joule nobody can trace is a guess in disguise.
//! 3. A name is one of the models that come with the program; whatever has a `/` or a `.` in it is a file.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use marline_core::energy::{Draw, Model, RadioModel, Stage, Tail, Together};
use marline_core::link::LinkKind;
use marline_core::units::{Duration, EnergyPerBit, Power, Ratio, parse_duration};
use serde::{Deserialize, Deserializer, Serialize};

/// A device model with where it comes from.
#[derive(Clone, Debug)]
pub(super) struct ModelFile {
    /// What decides.
    pub(super) model: Model,
    /// Where it comes from.
    pub(super) origin: Origin,
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Origin {
    /// The device that was measured.
    pub(super) device: String,
    /// Who measured it, and where that is written.
    pub(super) source: String,
    /// How sure its figures are, as a share.
    #[serde(serialize_with = "as_share")]
    pub(super) confidence: Ratio,
    /// Which figures stand in the source.
    pub(super) published: Option<String>,
    /// Which figures were computed from its data.
    pub(super) fitted: Option<String>,
    /// Which figures were written down from memory.
    pub(super) memory: Option<String>,
    /// Which figures are nobody's.
    pub(super) assumed: Option<String>,
}

/// The model of this name, or in this file.
///
/// # Errors
/// One line: the name is no model's (with those that are), or the file cannot be read or is wrong.
pub(super) fn find(name: &str) -> Result<ModelFile, String> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
        return parse(text, name, name);
    }
    if !name.contains(['/', '.']) {
        let names: Vec<&str> = names().collect();
        return Err(format!(
            "`{name}` is no energy model: {}; a file of your own is named with its path, such as ./{name}.toml",
            names.join(", ")
        ));
    }
    let path = Path::new(name);
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}: no energy model"))?;
    let stem = path.file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy());
    parse(&text, &stem, name)
}

/// The models that come with the program, the default first.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(name, _)| *name)
}

/// What stands in the file; `shown` is what messages call it.
fn parse(text: &str, name: &str, shown: &str) -> Result<ModelFile, String> {
    let file: Written = toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let before = text.as_bytes().get(..start).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("{shown}:{line}: {}", error.message().trim().replace('\n', " "))
    })?;
    if file.radio.is_empty() {
        return Err(format!("{shown}: describes no radio: write [radio.wifi] or another kind of link"));
    }
    if file.confidence > Ratio::ONE {
        return Err(format!("{shown}: a confidence of {} is more than certain", file.confidence));
    }
    let mut radios = BTreeMap::new();
    for (kind, radio) in file.radio {
        radios.insert(kind, radio.model().map_err(|error| format!("{shown}: [radio.{kind}]: {error}"))?);
    }
    let together = Together { shared: file.together.shared, extra: file.together.extra };
    let model = Model::new(name, radios, together, file.platform).map_err(|error| format!("{shown}: {error}"))?;
    let origin = Origin {
        device: file.device,
        source: file.source,
        confidence: file.confidence,
        published: file.published,
        fitted: file.fitted,
        memory: file.memory,
        assumed: file.assumed,
    };
    Ok(ModelFile { model, origin })
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    device: String,
    source: String,
    #[serde(deserialize_with = "word")]
    confidence: Ratio,
    published: Option<String>,
    fitted: Option<String>,
    memory: Option<String>,
    assumed: Option<String>,
    #[serde(default, deserialize_with = "word")]
    platform: Power,
    #[serde(default)]
    together: WrittenTogether,
    #[serde(default)]
    radio: BTreeMap<LinkKind, WrittenRadio>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTogether {
    #[serde(default, deserialize_with = "word")]
    shared: Power,
    #[serde(default, deserialize_with = "word")]
    extra: EnergyPerBit,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRadio {
    down: WrittenDraw,
    up: Option<WrittenDraw>,
    promotion: Option<WrittenStage>,
    #[serde(default)]
    tail: Vec<WrittenStage>,
    #[serde(default, deserialize_with = "word")]
    idle: Power,
    #[serde(default, deserialize_with = "time")]
    gap: Option<Duration>,
}

impl WrittenRadio {
    fn model(self) -> Result<RadioModel, String> {
        let stages: Vec<Stage> = self.tail.iter().map(WrittenStage::stage).collect();
        let tail = Tail::new(&stages).ok_or_else(|| format!("a tail of more than {} stages", Tail::MAX))?;
        let down = self.down.draw();
        Ok(RadioModel {
            down,
            up: self.up.as_ref().map_or(down, WrittenDraw::draw),
            promotion: self.promotion.as_ref().map(WrittenStage::stage).unwrap_or_default(),
            tail,
            idle: self.idle,
            gap: self.gap.unwrap_or(RadioModel::GAP),
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenDraw {
    #[serde(deserialize_with = "word")]
    base: Power,
    #[serde(deserialize_with = "word")]
    per_bit: EnergyPerBit,
}

impl WrittenDraw {
    fn draw(&self) -> Draw {
        Draw { base: self.base, per_bit: self.per_bit }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenStage {
    #[serde(deserialize_with = "word")]
    power: Power,
    #[serde(deserialize_with = "time")]
    time: Option<Duration>,
}

impl WrittenStage {
    fn stage(&self) -> Stage {
        Stage { power: self.power, time: self.time.unwrap_or_default() }
    }
}

/// A value written with its unit: `"360.9mW"`, `"24.19nJ/bit"`, `"95%"`.
fn word<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: Display,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

fn as_share<S: serde::Serializer>(share: &Ratio, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(share.as_f64())
}

/// The default first, then by age of the device.
const BUILT_IN: [(&str, &str); 9] = [
    ("typical", include_str!("../../models/typical.toml")),
    ("greenbag", include_str!("../../models/greenbag.toml")),
    ("huang2012", include_str!("../../models/huang2012.toml")),
    ("emptcp-s3", include_str!("../../models/emptcp-s3.toml")),
    ("thesis-s6", include_str!("../../models/thesis-s6.toml")),
    ("thesis-s7", include_str!("../../models/thesis-s7.toml")),
    ("narayanan2021-lte", include_str!("../../models/narayanan2021-lte.toml")),
    ("narayanan2021-nsa-low", include_str!("../../models/narayanan2021-nsa-low.toml")),
    ("narayanan2021-mmwave", include_str!("../../models/narayanan2021-mmwave.toml")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use marline_core::energy::Direction;
    use marline_core::units::{Bitrate, DataSize};

    #[test]
    fn every_model_that_comes_along_is_understood() {
        for name in names() {
            let file = find(name).unwrap();
            assert_eq!(file.model.name(), name);
            assert!(file.model.radios().count() > 0);
            let Origin { published, fitted, memory, assumed, .. } = file.origin;
            assert!(published.or(fitted).or(memory).or(assumed).is_some(), "{name} does not say what is sure");
        }
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/models")).unwrap();
        assert_eq!(files.count(), BUILT_IN.len());
    }

    #[test]
    fn fixed_costs_are_those_of_the_papers() {
        for (name, kind, joules) in [
            ("greenbag", LinkKind::Lte, 15.12),
            ("greenbag", LinkKind::Wifi, 0.0),
            ("huang2012", LinkKind::Lte, 12.585),
            ("huang2012", LinkKind::Umts, 7.382),
            ("huang2012", LinkKind::Wifi, 0.038),
            ("emptcp-s3", LinkKind::Lte, 12.585),
        ] {
            let packet = find(name).unwrap().model.radio(kind).unwrap().one_packet();
            assert!((packet.as_joules_f64() - joules).abs() < 5e-4, "{name} {kind}: {packet}");
        }
    }

    #[test]
    fn the_typical_device_has_the_radios_of_the_models_it_names() {
        let model = |name| find(name).unwrap().model;
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

    /// Table 7.1: seconds and joules for 250 MB; single links, then Algorithm 3 with half of it on each.
    #[test]
    fn the_thesiss_phones_draw_what_its_tables_say() {
        let mbps = |seconds: f64| Bitrate::from_bits_per_sec((2e9 / seconds) as u64);
        for (name, wifi, lte, both, within) in [
            ("thesis-s6", (26.06, 58.68), (52.97, 103.10), (16.68, 75.53), 0.02),
            ("thesis-s7", (26.25, 50.20), (33.79, 66.83), (16.55, 62.13), 0.07),
        ] {
            let model = find(name).unwrap().model;
            let near = |loads: &[(LinkKind, Direction, Bitrate)], (seconds, joules): (f64, f64)| {
                let found = (model.active_power(loads) + model.platform()).as_watts_f64() * seconds;
                assert!((found / joules - 1.0).abs() < within, "{name}: {found} J, not {joules}");
            };
            near(&[(LinkKind::Wifi, Direction::Down, mbps(wifi.0))], wifi);
            near(&[(LinkKind::Lte, Direction::Down, mbps(lte.0))], lte);
            let half = mbps(both.0) / 2;
            near(&[(LinkKind::Wifi, Direction::Down, half), (LinkKind::Lte, Direction::Down, half)], both);
        }
    }

    #[test]
    fn up_is_as_down_unless_it_is_said() {
        let text = "device='d'\nsource='s'\nconfidence='50%'\n[radio.lte]\ndown={base='1W',per_bit='2nJ/bit'}\n";
        let radio = *parse(text, "m", "m").unwrap().model.radio(LinkKind::Lte).unwrap();
        assert_eq!((radio.up, radio.gap, radio.idle), (radio.down, RadioModel::GAP, Power::ZERO));
        assert_eq!(
            radio.transfer(Direction::Up, DataSize::from_bytes(1_000_000), Bitrate::from_mbps(8)).to_string(),
            "1.016J"
        );
    }

    #[test]
    fn the_sample_of_the_guide_is_understood_and_names_every_key() {
        let guide = include_str!("../../../../docs/energy.md");
        let sample = guide.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let model = parse(sample, "sample", "docs/energy.md").unwrap().model;
        let huang = find("huang2012").unwrap().model;
        assert_eq!(model.radio(LinkKind::Lte), huang.radio(LinkKind::Lte));
        for key in ["published", "memory", "assumed", "platform", "shared", "extra", "idle", "gap"] {
            assert!(sample.contains(key), "{key}");
        }
    }

    #[test]
    fn what_is_wrong_is_refused_in_one_line() {
        let head = "device='d'\nsource='s'\nconfidence='50%'\n";
        let radio = "[radio.lte]\ndown={base='1W',per_bit='2nJ/bit'}\n";
        for (text, says) in [
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
            (format!("device='d'\nsource='s'\nconfidence='150%'\n{radio}"), "more than certain"),
            (format!("{head}[together]\nshared='2W'\n{radio}"), "m.toml: lte: its base power of 1000.0mW is less"),
            (
                format!("{head}{radio}tail=[{}]\n", "{power='1W',time='1s'},".repeat(5)),
                "m.toml: [radio.lte]: a tail of more than 4 stages",
            ),
            (format!("{head}{radio}{radio}"), "duplicate"),
            ("[".into(), "m.toml:1: "),
        ] {
            let error = parse(&text, "m", "m.toml").unwrap_err();
            assert!(error.contains(says), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_name_that_is_none_is_answered_with_those_that_are() {
        let error = find("grenbag").unwrap_err();
        assert!(error.starts_with("`grenbag` is no energy model: typical, greenbag, huang2012"), "{error}");
        assert!(find("./absent.toml").unwrap_err().starts_with("./absent.toml: No such file"));
    }
}
