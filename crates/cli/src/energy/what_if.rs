//! A recorded download on other devices.
//!
//! In: a log of `--trace` and one or more models. Out: joules per link and per state of its radio, for each model.
//!
//! 1. The log is read once, however many models there are.
//! 2. What is counted is what `marline get` counts: the same function is told of the same records, so that a log and the
//!    report of its run agree.
//! 3. Times stay as they were: a device that needs longer to wake up would have shifted the transfer, and a log cannot
//!    know how.

use std::io::BufRead;
use std::path::Path;

use marline_core::decision_log::Record;
use marline_core::energy::Model;
use marline_core::stream;
use marline_core::units::DataSize;
use marline_download::{Joules, LinkEnergy};
use serde::Serialize;

use super::{json, table};
use crate::Exit;
use crate::log::{self, Config, Input, Log, Output};

/// Counts the log at `path` under every model.
pub(super) fn run(path: &Path, models: Vec<Model>, as_json: bool) -> Result<String, Exit> {
    let counted = count(log::open(path)?, models)
        .map_err(|(line, what)| Exit::failed(format!("{}:{line}: {what}", path.display())))?;
    if as_json { json(&counted) } else { Ok(shown(&counted)) }
}

/// What came out (`docs/json.md`).
#[derive(Debug, Serialize)]
struct Counted {
    /// The newest time of the log.
    seconds: f64,
    /// The line at which the log breaks off, because the run was killed.
    broken_off: Option<u64>,
    models: Vec<OfModel>,
}

#[derive(Debug, Serialize)]
struct OfModel {
    model: String,
    /// Null: the model describes none of the links.
    energy_j: Option<f64>,
    platform_j: f64,
    links: Vec<OfLink>,
}

#[derive(Debug, Serialize)]
struct OfLink {
    name: String,
    kind: &'static str,
    bytes: u64,
    /// Null: the model describes no such radio.
    energy_j: Option<f64>,
    energy: Option<LinkEnergy>,
}

fn count(log: impl BufRead, models: Vec<Model>) -> Result<Counted, (u64, String)> {
    let mut log = Log::new(log);
    let mut joules: Vec<Joules> = models.into_iter().map(Joules::new).collect();
    while let Some(record) = log.next()? {
        for joules in &mut joules {
            match &record {
                Record::Start { config: Config::Paths(_), .. } => {
                    // Its bytes are only seen where the policy looked: what it knows of joules it tells itself.
                    let what = "this is a log of `marline paths`: `marline paths status` says what its run drew";
                    return Err((log.line(), what.to_owned()));
                }
                Record::Start { config: Config::Accel(_), .. } => {
                    let what = "this is a log of `marline accel`, which knows nothing of joules";
                    return Err((log.line(), what.to_owned()));
                }
                Record::Start { .. } | Record::In { input: Input::Paths(_) | Input::Accel(_), .. } => {}
                Record::In { at, input: Input::Stream(stream::Input::Fetch(input)) } => joules.input(*at, input),
                Record::In { at, input: Input::Stream(stream::Input::Player(_)) } | Record::Tick { at } => {
                    joules.tick(*at);
                }
                Record::Out { output: Output::Stream(stream::Output::Fetch(output)) } => joules.output(output),
                Record::Out { .. } => {}
            }
        }
    }
    Ok(Counted {
        seconds: joules.first().map_or(0.0, |joules| joules.now().as_secs_f64()),
        broken_off: log.broken_off(),
        models: joules.iter().map(of_model).collect(),
    })
}

fn of_model(joules: &Joules) -> OfModel {
    let account = joules.account();
    let mut links = Vec::new();
    for (link, profile, bytes) in joules.links() {
        let bill = account.radio(link);
        links.push(OfLink {
            name: profile.name.clone(),
            kind: profile.kind.name(),
            bytes: bytes.bytes(),
            energy_j: bill.map(|bill| bill.total().as_joules_f64()),
            energy: bill.map(Into::into),
        });
    }
    OfModel {
        model: joules.meter().model().name().to_owned(),
        energy_j: links.iter().any(|link| link.energy_j.is_some()).then(|| account.total().as_joules_f64()),
        platform_j: account.platform.as_joules_f64(),
        links,
    }
}

/// One table per model.
fn shown(counted: &Counted) -> String {
    let mut text = String::new();
    for model in &counted.models {
        if !text.is_empty() {
            text += "\n";
        }
        let heads = ["LINK", "KIND", "CARRIED", "PROMOTION", "ACTIVE", "TAIL", "IDLE", "ALL"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        for link in &model.links {
            let mut row = vec![link.name.clone(), link.kind.into(), DataSize::from_bytes(link.bytes).to_string()];
            match (&link.energy, link.energy_j) {
                (Some(parts), Some(all)) => {
                    let parts = [parts.promotion_j, parts.active_j, parts.tail_j, parts.idle_j, all];
                    row.extend(parts.map(|joules| format!("{joules:.2} J")));
                }
                _ => row.push("not in this model".into()),
            }
            rows.push(row);
        }
        let all = model.energy_j.map_or_else(|| "nothing known".into(), |joules| format!("{joules:.2} J"));
        text += &format!("{}: {all} in {:.2} s and its tails", model.model, counted.seconds);
        if model.platform_j > 0.0 {
            text += &format!(", {:.2} J of it the device without its radios", model.platform_j);
        }
        text += "\n";
        text += &table(&rows);
    }
    if let Some(line) = counted.broken_off {
        text += &format!("\nThe log breaks off in line {line} (the run was killed).\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::energy::file;

    /// A download of 1 MB over LTE in two seconds, half of it each; a cable is there as well.
    fn log() -> String {
        let mut text = String::new();
        let mut line = |json: String| text += &(json + "\n");
        let config = serde_json::to_string(&marline_core::fetch::Config::default()).unwrap();
        line(format!(r#"{{"log":"start","version":"0","config":{config}}}"#));
        for (link, name, kind) in [(0, "wwan0", "lte"), (1, "eth0", "ethernet")] {
            let profile =
                format!(r#"{{"name":"{name}","kind":"{kind}","metered":false,"budget":null,"rate_limit":null}}"#);
            line(format!(r#"{{"log":"in","at":0,"input":{{"in":"link_up","link":{link},"profile":{profile}}}}}"#));
        }
        line(r#"{"log":"out","output":{"out":"connect","conn":0,"link":0,"origin":0}}"#.into());
        line(r#"{"log":"out","output":{"out":"request","req":0,"conn":0,"range":"whole","if_range":null}}"#.into());
        for ms in (100..=2000).step_by(100) {
            line(format!(r#"{{"log":"in","at":{ms}000000,"input":{{"in":"data","req":0,"len":50000}}}}"#));
        }
        line(r#"{"log":"tick","at":2500000000}"#.into());
        text
    }

    fn models(names: &[&str]) -> Vec<Model> {
        names.iter().map(|name| file::find(name).unwrap().model).collect()
    }

    #[test]
    fn a_log_is_counted_by_hand_and_by_machine_alike() {
        let counted = count(log().as_bytes(), models(&["greenbag", "thesis-s7"])).unwrap();
        assert!((counted.seconds - 2.5).abs() < 1e-9);
        let greenbag = &counted.models[0];
        let lte = &greenbag.links[0];
        assert_eq!((lte.name.as_str(), lte.kind, lte.bytes), ("wwan0", "lte", 1_000_000));
        // 2 s at 2022.2 mW, 8 Mbit at 16.72 nJ, and the tail.
        let active = 2.0 * 2.0222 + 8e6 * 16.72e-9;
        assert!((lte.energy.unwrap().active_j - active).abs() < 1e-6);
        assert!((lte.energy_j.unwrap() - active - 15.12).abs() < 1e-6);
        assert_eq!(greenbag.links[1].energy_j, None);
        assert_eq!(greenbag.energy_j, lte.energy_j);
        // The whole device: 0.7 W for 2.5 s beside its radio.
        let s7 = &counted.models[1];
        assert!((s7.platform_j - 1.75).abs() < 1e-6);
        assert!((s7.energy_j.unwrap() - 1.75 - 2.0 * 0.393 - 8e6 * 13.5e-9).abs() < 1e-6);
    }

    #[test]
    fn it_is_shown_as_one_table_per_model() {
        let text = shown(&count(log().as_bytes(), models(&["greenbag", "thesis-s7"])).unwrap());
        let expected = "\
greenbag: 19.30 J in 2.50 s and its tails
LINK   KIND      CARRIED  PROMOTION          ACTIVE  TAIL     IDLE    ALL
wwan0  lte       1.0MB    0.00 J             4.18 J  15.12 J  0.00 J  19.30 J
eth0   ethernet  0B       not in this model

thesis-s7: 2.64 J in 2.50 s and its tails, 1.75 J of it the device without its radios
";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn a_log_that_breaks_off_counts_up_to_there() {
        let whole = log();
        let text = &whole[..whole.len() - 10];
        let counted = count(text.as_bytes(), models(&["greenbag"])).unwrap();
        assert_eq!(counted.broken_off, Some(whole.lines().count() as u64));
        assert!(shown(&counted).ends_with("(the run was killed).\n"));
        let (line, what) = count("no log\n".as_bytes(), models(&["greenbag"])).unwrap_err();
        assert!(line == 1 && what.starts_with("this is no log of marline"), "{what}");
    }
}
