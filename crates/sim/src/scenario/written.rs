//! A scenario as it stands in its file, and the one place where it is judged.
//!
//! In: TOML. Out: a [`Scenario`], or a line and what is wrong with it.
//!
//! 1. Each value is read by its own type, so that an error points at its line.
//! 2. What only shows when values are put together (an event of a link that is not there) names the line of its case.

use std::fmt;
use std::str::FromStr;

use marline_core::units::{Bitrate, DataSize, Duration, parse_duration};
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use toml::Spanned;

use super::{Case, Client, Floor, Peer, Protocol, Scenario};
use crate::spec::{Carrier, Event, LinkSpec};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Spanned<String>,
    description: String,
    protocol: Option<Word<Protocol>>,
    runs: Option<Spanned<u32>>,
    clients: Spanned<Vec<Word<Client>>>,
    links: Option<Spanned<Vec<LinkSpec>>>,
    events: Option<Vec<Spanned<Event>>>,
    size: Option<Spanned<Word<DataSize>>>,
    floor: Option<Spanned<WrittenFloor>>,
    peer: Option<WrittenPeer>,
    sigma: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    case: Vec<Spanned<WrittenCase>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCase {
    name: Spanned<String>,
    links: Option<Spanned<Vec<LinkSpec>>>,
    events: Option<Vec<Spanned<Event>>>,
    size: Option<Spanned<Word<DataSize>>>,
    floor: Option<Spanned<WrittenFloor>>,
    peer: Option<WrittenPeer>,
    sigma: Option<Vec<Spanned<String>>>,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct WrittenFloor {
    ideal: Option<f64>,
    paired: Option<f64>,
    worst: Option<f64>,
    curl: Option<f64>,
    plus: Option<Word<Time>>,
    most: Option<Word<Time>>,
    rss: Option<Word<DataSize>>,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct WrittenPeer {
    name: String,
    ideal: f64,
}

/// A place in the text, in bytes, and what is wrong there.
type Wrong = (usize, String);

/// The scenario, or the line and the problem.
pub(super) fn parse(text: &str) -> Result<Scenario, (usize, String)> {
    let line = |place: usize| text.bytes().take(place).filter(|b| *b == b'\n').count() + 1;
    let file: File = toml::from_str(text).map_err(|error| {
        let place = error.span().map_or(0, |span| span.start);
        (line(place), error.message().trim().to_string())
    })?;
    judge(file).map_err(|(place, problem)| (line(place), problem))
}

fn judge(file: File) -> Result<Scenario, Wrong> {
    let top = WrittenCase {
        name: file.name,
        links: file.links,
        events: file.events,
        size: file.size,
        floor: file.floor,
        peer: file.peer,
        sigma: file.sigma,
    };
    named(&top.name)?;
    let runs = match file.runs {
        Some(runs) if *runs.get_ref() == 0 => return Err((runs.span().start, "no runs at all: write 1".into())),
        Some(runs) => runs.into_inner(),
        None => 1,
    };
    let clients_at = file.clients.span().start;
    let clients: Vec<Client> = file.clients.into_inner().into_iter().map(|word| word.0).collect();
    if clients.is_empty() {
        return Err((clients_at, "no client: write for example [\"marline\"]".into()));
    }
    let mut cases = Vec::new();
    if file.case.is_empty() {
        cases.push(case(&top, &top, top.name.span().start)?);
    }
    for written in &file.case {
        let made = case(written.get_ref(), &top, written.span().start)?;
        if cases.iter().any(|other: &Case| other.name == made.name) {
            return Err((written.get_ref().name.span().start, format!("a second case `{}`", made.name)));
        }
        cases.push(made);
    }
    for client in &clients {
        for case in &cases {
            if client.only().is_some_and(|only| case.links.iter().all(|link| link.name != only)) {
                return Err((clients_at, format!("client `{client}`: case `{}` has no such link", case.name)));
            }
        }
    }
    Ok(Scenario {
        name: top.name.into_inner(),
        description: file.description,
        protocol: file.protocol.map_or(Protocol::Http, |word| word.0),
        runs,
        clients,
        cases,
    })
}

fn case(written: &WrittenCase, top: &WrittenCase, place: usize) -> Result<Case, Wrong> {
    named(&written.name)?;
    let name = written.name.get_ref().clone();
    let links = written.links.as_ref().or(top.links.as_ref());
    let links = links.ok_or_else(|| (place, format!("case `{name}` has no links")))?;
    let (links_at, links) = (links.span().start, links.get_ref().clone());
    if links.is_empty() {
        return Err((links_at, "no link at all".into()));
    }
    if let Some(twice) = links.iter().enumerate().find(|(n, link)| links[..*n].iter().any(|l| l.name == link.name))
    {
        return Err((links_at, format!("two links are called `{}`", twice.1.name)));
    }
    let known = |link: &str, place: usize| match links.iter().any(|known| known.name == link) {
        true => Ok(()),
        false => Err((place, format!("case `{name}` has no link `{link}`"))),
    };
    let mut events = Vec::new();
    for event in written.events.as_ref().or(top.events.as_ref()).into_iter().flatten() {
        known(&event.get_ref().link, event.span().start)?;
        events.push(event.get_ref().clone());
    }
    let size = written.size.as_ref().or(top.size.as_ref());
    let size = size.ok_or_else(|| (place, format!("case `{name}` has no size")))?;
    if size.get_ref().0.is_zero() {
        return Err((size.span().start, "a download of nothing".into()));
    }
    let mut sigma = Vec::new();
    for deviation in written.sigma.as_ref().or(top.sigma.as_ref()).into_iter().flatten() {
        let place = deviation.span().start;
        let (link, rate) = deviates(deviation.get_ref()).map_err(|problem| (place, problem))?;
        known(&link, place)?;
        let varies = links.iter().any(|l| l.name == link && matches!(l.down, Carrier::Rate { .. }));
        if !varies {
            return Err((place, format!("link `{link}` has no rate= that could deviate")));
        }
        sigma.push((link, rate));
    }
    let floor = written.floor.as_ref().or(top.floor.as_ref());
    let floor = floor.map(|floor| bound(floor.get_ref()).map_err(|p| (floor.span().start, p))).transpose()?;
    let peer = written.peer.as_ref().or(top.peer.as_ref());
    let peer = peer.map(|peer| Peer { name: peer.name.clone(), ideal: peer.ideal });
    Ok(Case { name, links, events, size: size.get_ref().0, floor, peer, sigma })
}

/// Names become names of files.
fn named(name: &Spanned<String>) -> Result<(), Wrong> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match name.get_ref() {
        word if !word.is_empty() && word.chars().all(plain) && !word.starts_with('.') => Ok(()),
        word => Err((name.span().start, format!("`{word}` is no name: letters, digits, `-`, `_` and `.`"))),
    }
}

fn deviates(written: &str) -> Result<(String, Bitrate), String> {
    let expected = || format!("`{written}`: expected LINK=RATE such as lte=11.3Mbit/s");
    let (link, rate) = written.split_once('=').ok_or_else(expected)?;
    Ok((link.to_string(), rate.parse().map_err(|_| expected())?))
}

fn bound(written: &WrittenFloor) -> Result<Floor, String> {
    let WrittenFloor { ideal, paired, worst, curl, plus, most, rss } = written.clone();
    let written = (ideal, (paired, worst), (curl, plus, most), rss);
    match written {
        (Some(ideal), (None, None), (None, None, None), None) => Ok(Floor::Ideal(ideal)),
        (None, (Some(median), Some(worst)), (None, None, None), None) => Ok(Floor::Paired { median, worst }),
        (None, (None, None), (Some(share), Some(plus), most), None) => {
            Ok(Floor::Curl { share, plus: plus.0.0, most: most.map(|most| most.0.0) })
        }
        (None, (None, None), (None, None, None), Some(rss)) => Ok(Floor::Rss(rss.0)),
        _ => Err("expected { ideal }, { paired, worst }, { curl, plus } with or without most, or { rss }".into()),
    }
}

/// A value that stands as a text.
#[derive(Clone)]
struct Word<T>(T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}

/// A duration; the standard library's has no text.
#[derive(Clone)]
struct Time(Duration);

impl FromStr for Time {
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
            _ => Err(format!("`{s}` is no protocol: http or https")),
        }
    }
}
