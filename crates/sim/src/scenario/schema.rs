//! Schema of a scenario file, with its validation.
//!
//! 1. Each value is parsed by its own type, so that an error points to its line.
//! 2. A reference to something unknown (an event of an unknown link) is reported at the line of the reference, a missing value at the line
//!    of the case.

use std::fmt;
use std::str::FromStr;

use marline_core::units::{Bitrate, DataSize, Duration, parse_duration};
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use toml::Spanned;

use super::{Baseline, Case, Client, Protocol, Scenario, Threshold};
use crate::spec::{Downlink, LinkEvent, LinkSpec};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    name: Spanned<String>,
    description: String,
    protocol: Option<Text<Protocol>>,
    runs: Option<Spanned<u32>>,
    clients: Spanned<Vec<Text<Client>>>,
    links: Option<Spanned<Vec<LinkSpec>>>,
    events: Option<Vec<Spanned<LinkEvent>>>,
    size: Option<Spanned<Text<DataSize>>>,
    threshold: Option<Spanned<ThresholdTable>>,
    baseline: Option<BaselineTable>,
    sigma: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    case: Vec<Spanned<CaseTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseTable {
    name: Spanned<String>,
    links: Option<Spanned<Vec<LinkSpec>>>,
    events: Option<Vec<Spanned<LinkEvent>>>,
    size: Option<Spanned<Text<DataSize>>>,
    threshold: Option<Spanned<ThresholdTable>>,
    baseline: Option<BaselineTable>,
    sigma: Option<Vec<Spanned<String>>>,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct ThresholdTable {
    ideal: Option<f64>,
    paired: Option<f64>,
    worst: Option<f64>,
    curl: Option<f64>,
    extra_time: Option<Text<DurationText>>,
    max_time: Option<Text<DurationText>>,
    rss: Option<Text<DataSize>>,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct BaselineTable {
    name: String,
    ideal: f64,
}

/// Offset in the text in bytes, and the problem found there.
type FileProblem = (usize, String);

/// The scenario, or the line number and the problem.
pub(super) fn parse(text: &str) -> Result<Scenario, (usize, String)> {
    let line = |offset: usize| text.bytes().take(offset).filter(|b| *b == b'\n').count() + 1;
    let file: ScenarioFile = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        (line(offset), error.message().trim().to_string())
    })?;
    validate(file).map_err(|(offset, problem)| (line(offset), problem))
}

fn validate(file: ScenarioFile) -> Result<Scenario, FileProblem> {
    let defaults = CaseTable {
        name: file.name,
        links: file.links,
        events: file.events,
        size: file.size,
        threshold: file.threshold,
        baseline: file.baseline,
        sigma: file.sigma,
    };
    check_name(&defaults.name)?;
    let runs = match file.runs {
        Some(runs) if *runs.get_ref() == 0 => return Err((runs.span().start, "runs is zero: write 1".into())),
        Some(runs) => runs.into_inner(),
        None => 1,
    };
    let clients_at = file.clients.span().start;
    let clients: Vec<Client> = file.clients.into_inner().into_iter().map(|value| value.0).collect();
    if clients.is_empty() {
        return Err((clients_at, "clients is empty: write for example [\"marline\"]".into()));
    }
    let mut cases = Vec::new();
    if file.case.is_empty() {
        cases.push(read_case(&defaults, &defaults, defaults.name.span().start)?);
    }
    for written in &file.case {
        let read = read_case(written.get_ref(), &defaults, written.span().start)?;
        if cases.iter().any(|other: &Case| other.name == read.name) {
            return Err((
                written.get_ref().name.span().start,
                format!("the case name `{}` is used twice", read.name),
            ));
        }
        cases.push(read);
    }
    for client in &clients {
        for case in &cases {
            if client.only_link().is_some_and(|only| case.links.iter().all(|link| link.name != only)) {
                return Err((clients_at, format!("client `{client}`: case `{}` has no such link", case.name)));
            }
        }
    }
    Ok(Scenario {
        name: defaults.name.into_inner(),
        description: file.description,
        protocol: file.protocol.map_or(Protocol::Http, |value| value.0),
        runs,
        clients,
        cases,
    })
}

fn read_case(table: &CaseTable, defaults: &CaseTable, offset: usize) -> Result<Case, FileProblem> {
    check_name(&table.name)?;
    let name = table.name.get_ref().clone();
    let links = table.links.as_ref().or(defaults.links.as_ref());
    let links = links.ok_or_else(|| (offset, format!("case `{name}` has no links")))?;
    let (links_at, links) = (links.span().start, links.get_ref().clone());
    if links.is_empty() {
        return Err((links_at, "links is empty: write at least one link".into()));
    }
    if let Some(duplicate) =
        links.iter().enumerate().find(|(n, link)| links[..*n].iter().any(|l| l.name == link.name))
    {
        return Err((links_at, format!("the link name `{}` is used twice", duplicate.1.name)));
    }
    let check_link = |link: &str, offset: usize| match links.iter().any(|known| known.name == link) {
        true => Ok(()),
        false => Err((offset, format!("case `{name}` has no link `{link}`"))),
    };
    let mut events = Vec::new();
    for event in table.events.as_ref().or(defaults.events.as_ref()).into_iter().flatten() {
        check_link(&event.get_ref().link, event.span().start)?;
        events.push(event.get_ref().clone());
    }
    let size = table.size.as_ref().or(defaults.size.as_ref());
    let size = size.ok_or_else(|| (offset, format!("case `{name}` has no size")))?;
    if size.get_ref().0.is_zero() {
        return Err((size.span().start, "the size is zero: write at least 1B".into()));
    }
    let mut sigma = Vec::new();
    for written_deviation in table.sigma.as_ref().or(defaults.sigma.as_ref()).into_iter().flatten() {
        let offset = written_deviation.span().start;
        let (link, rate) = parse_deviation(written_deviation.get_ref()).map_err(|problem| (offset, problem))?;
        check_link(&link, offset)?;
        let has_rate = links.iter().any(|l| l.name == link && matches!(l.downlink, Downlink::Rate { .. }));
        if !has_rate {
            return Err((offset, format!("link `{link}` has no rate= that could deviate")));
        }
        sigma.push((link, rate));
    }
    let threshold = table.threshold.as_ref().or(defaults.threshold.as_ref());
    let threshold = threshold
        .map(|threshold| read_threshold(threshold.get_ref()).map_err(|p| (threshold.span().start, p)))
        .transpose()?;
    let baseline = table.baseline.as_ref().or(defaults.baseline.as_ref());
    let baseline = baseline.map(|baseline| Baseline { name: baseline.name.clone(), times_ideal: baseline.ideal });
    Ok(Case { name, links, events, size: size.get_ref().0, threshold, baseline, sigma })
}

/// Names are used in file names, so only safe characters are allowed.
fn check_name(name: &Spanned<String>) -> Result<(), FileProblem> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match name.get_ref() {
        text if !text.is_empty() && text.chars().all(plain) && !text.starts_with('.') => Ok(()),
        text => {
            Err((name.span().start, format!("`{text}` is not a valid name: use letters, digits, `-`, `_` and `.`")))
        }
    }
}

fn parse_deviation(text: &str) -> Result<(String, Bitrate), String> {
    let expected = || format!("`{text}`: expected LINK=RATE such as lte=11.3Mbit/s");
    let (link, rate) = text.split_once('=').ok_or_else(expected)?;
    Ok((link.to_string(), rate.parse().map_err(|_| expected())?))
}

fn read_threshold(table: &ThresholdTable) -> Result<Threshold, String> {
    let ThresholdTable { ideal, paired, worst, curl, extra_time, max_time, rss } = table.clone();
    let fields = (ideal, (paired, worst), (curl, extra_time, max_time), rss);
    match fields {
        (Some(ideal), (None, None), (None, None, None), None) => Ok(Threshold::TimesIdeal(ideal)),
        (None, (Some(median), Some(worst)), (None, None, None), None) => {
            Ok(Threshold::TimesAria2 { median, worst })
        }
        (None, (None, None), (Some(factor), Some(extra_time), max_time), None) => {
            let max_time = max_time.map(|max_time| max_time.0.0);
            Ok(Threshold::TimesCurl { factor, extra_time: extra_time.0.0, max_time })
        }
        (None, (None, None), (None, None, None), Some(rss)) => Ok(Threshold::MaxRss(rss.0)),
        _ => {
            Err("expected { ideal }, { paired, worst }, { curl, extra_time } with or without max_time, or { rss }"
                .into())
        }
    }
}

/// A value that is written as a string.
#[derive(Clone)]
struct Text<T>(T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}

/// A duration as text; the type of the standard library cannot be parsed.
#[derive(Clone)]
struct DurationText(Duration);

impl FromStr for DurationText {
    type Err = marline_core::units::ParseUnitError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        parse_duration(s).map(Self)
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "http" => Ok(Self::Http),
            "https" => Ok(Self::Https),
            _ => Err(format!("`{s}` is not a protocol: write http or https")),
        }
    }
}
