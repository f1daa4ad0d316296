//! Which cases an artefact consists of.
//!
//! | artefact | cases | ways |
//! |---|---|---|
//! | `F5` | each set of two Wi-Fi and two 4G links | each link alone; edge and relay with all of the set |
//! | `F8` | distances | edge to relay over two links |
//! | `F9`, `F10` | three relays and an origin, each time others | through each relay; to and from each; the service's choice |
//! | `F11`, `F12` | 60 origins, two links of 8 Mbit/s | each link alone; through a relay over one link, and over both |
//! | `X-upload` | the sets of links that uploads have floors for | as `F5` |
//!
//! 1. The relay of an origin in `F11` is the one that BASS's line 6 says, min(B(c, s), B_o(s)), with rates of virtual time.
//! 2. `F10` is the distribution of what `F9` measures, and `F12` that of `F11`.

use marline_core::units::Duration;
use marline_sim::spec::LinkSpec;

use super::setting::{self, Case, Leg, ORIGINS, POSITIONS, Relay, Way, link};
use super::simulate;

/// The artefacts that are measured; the others are made of them.
pub(super) const MEASURED: [&str; 5] = ["F5", "X-upload", "F8", "F9", "F11"];
/// What can be asked for.
pub(super) const KNOWN: [&str; 7] = ["F5", "F8", "F9", "F10", "F11", "F12", "X-upload"];

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) runs: u32,
    pub(super) quick: bool,
    /// Whether the service chooses too.
    pub(super) fleet: bool,
}

/// The measured artefact that another one is made of.
pub(super) fn measured_for(artefact: &str) -> &str {
    match artefact {
        "F10" => "F9",
        "F12" => "F11",
        other => other,
    }
}

/// The cases of a measured artefact.
pub(super) fn cases(artefact: &str, effort: Effort) -> Vec<Case> {
    let once = match artefact {
        "F5" => sets(effort.quick),
        "X-upload" => uploads(effort.quick),
        "F8" => distances(effort.quick),
        "F9" => choices(effort),
        "F11" => origins(effort.quick),
        _ => Vec::new(),
    };
    let length = Duration::from_secs(match artefact {
        _ if effort.quick => QUICK_S,
        "X-upload" => STREAM_S,
        _ => LENGTH_S,
    });
    let again = |run: u32| {
        once.iter().map(move |case| Case { seed: case.seed + u64::from(run) * 1000, length, ..case.clone() })
    };
    (0..effort.runs).flat_map(again).collect()
}

/// Two Wi-Fi and two 4G links. chosen: rates as in BASS figures 3 and 4, whose better access points have several Mbit/s up.
fn four() -> Vec<LinkSpec> {
    vec![link("wifi0", 8, 20), link("wifi1", 5, 30), link("lte0", 10, 50), link("lte1", 6, 60)]
}

fn sets(quick: bool) -> Vec<Case> {
    let all = four();
    let wanted = |mask: &u32| mask.count_ones() > 1 && (!quick || [0b0101, 0b1111].contains(mask));
    let of = |mask: u32| {
        let links = all.iter().enumerate().filter(|(at, _)| mask & (1 << at) != 0).map(|(_, link)| link.clone());
        upload("F5", links.collect(), u64::from(mask))
    };
    (1..16).filter(wanted).map(of).collect()
}

/// The floor's table of uploads: 8 + 8, 5 + 10 + 3, 20 + 2 Mbit/s, round trips of 20 to 120 ms.
fn uploads(quick: bool) -> Vec<Case> {
    let all = [
        ("8+8", vec![link("wifi0", 8, 20), link("lte0", 8, 60)]),
        ("5+10+3", vec![link("wifi0", 5, 20), link("lte0", 10, 60), link("lte1", 3, 120)]),
        ("20+2", vec![link("wifi0", 20, 20), link("lte0", 2, 120)]),
    ];
    let kept = if quick { 1 } else { all.len() };
    let of = |((rates, links), seed): ((&str, _), u64)| Case {
        name: format!("{rates} Mbit/s"),
        ..upload("X-upload", links, seed)
    };
    all.into_iter().take(kept).zip(1..).map(of).collect()
}

fn upload(artefact: &'static str, links: Vec<LinkSpec>, seed: u64) -> Case {
    let ways = (0..links.len()).map(Way::Direct).chain([Way::Through(0)]).collect();
    let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
    let near = Relay::near();
    Case {
        artefact,
        name: names.join("+"),
        direct: Leg { rtt: near.to.rtt + near.onward.rtt, ..near.to },
        links,
        relays: vec![near],
        ways,
        length: Duration::ZERO,
        seed,
    }
}

fn distances(quick: bool) -> Vec<Case> {
    let all = [100_u32, 500, 1000, 2000, 4000, 8000, 12_000];
    let of = |kilometres: &u32| {
        let to = setting::away_by(*kilometres);
        Case {
            artefact: "F8",
            name: format!("{kilometres} km"),
            links: setting::two_of_eight(),
            direct: to,
            relays: vec![Relay { to, onward: Relay::near().onward }],
            ways: vec![Way::To(0)],
            length: Duration::ZERO,
            seed: u64::from(*kilometres),
        }
    };
    all.iter().step_by(if quick { 5 } else { 1 }).map(of).collect()
}

fn choices(effort: Effort) -> Vec<Case> {
    let of = |n: u64| {
        let (direct, relays) = setting::choice(n);
        let each = |way: fn(usize) -> Way| (0..relays.len()).map(way);
        let mut ways: Vec<Way> = each(Way::To).chain(each(Way::From)).chain(each(Way::Through)).collect();
        ways.extend(effort.fleet.then_some(Way::Fleet));
        Case {
            artefact: "F9",
            name: format!("origin {}", n + 1),
            links: setting::two_of_eight(),
            direct,
            relays,
            ways,
            length: Duration::ZERO,
            seed: n + 1,
        }
    };
    (0..if effort.quick { 1 } else { CHOICES }).map(of).collect()
}

fn origins(quick: bool) -> Vec<Case> {
    let of = |n: u64| {
        let direct = setting::origin(n);
        let links = setting::two_of_eight();
        let relays: Vec<Relay> = POSITIONS.map(|part| Relay::at(direct, part)).into();
        let mut case = Case {
            artefact: "F11",
            name: format!("origin {}", n + 1),
            links,
            direct,
            relays,
            ways: Vec::new(),
            length: Duration::from_secs(LENGTH_S),
            seed: n + 1,
        };
        let relay = simulate::best_relay(&case);
        case.ways = vec![Way::Direct(0), Way::Direct(1), Way::Split(relay), Way::Through(relay)];
        case
    };
    (0..if quick { QUICK_ORIGINS } else { ORIGINS }).map(of).collect()
}

/// Seconds of an upload. chosen: iperf's usual ten, as BASS measured with it.
const LENGTH_S: u64 = 10;
/// The same where the floor is that of a stream, which lasts. chosen: six times what `marline paths` takes to find a link of no use.
const STREAM_S: u64 = 30;
/// The same in a hurry, and so many origins.
const QUICK_S: u64 = 4;
const QUICK_ORIGINS: u64 = 3;
/// Origins of the choice among relays. chosen: an hour's quarter in real time.
const CHOICES: u64 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Effort = Effort { runs: 1, quick: false, fleet: true };

    #[test]
    fn every_set_of_four_links_is_measured_and_every_origin() {
        assert_eq!(cases("F5", WHOLE).len(), 11);
        assert_eq!(cases("F11", WHOLE).len(), 60);
        assert_eq!(cases("F5", Effort { runs: 3, ..WHOLE }).len(), 33);
        let cells =
            |artefact| cases(artefact, Effort { quick: true, ..WHOLE }).iter().map(|c| c.ways.len()).sum::<usize>();
        let all: usize = MEASURED.into_iter().map(cells).sum();
        assert!(all <= 40, "{all}: too much for a hurry");
    }

    #[test]
    fn no_two_cases_of_an_artefact_have_one_name() {
        for artefact in MEASURED {
            let mut names: Vec<String> = cases(artefact, WHOLE).into_iter().map(|case| case.name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count, "{artefact}");
        }
    }

    #[test]
    fn what_is_asked_for_is_measured() {
        for artefact in KNOWN {
            assert!(MEASURED.contains(&measured_for(artefact)));
            assert!(!cases(measured_for(artefact), Effort { quick: true, ..WHOLE }).is_empty());
        }
    }
}
