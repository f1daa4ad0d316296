//! Cases of each artefact of BASS.
//!
//! | artefact | cases | routes |
//! |---|---|---|
//! | `F5` | each set of two or more of two Wi-Fi and two 4G links | each link alone; edge and relay with all links of the set |
//! | `F8` | distances | edge to relay over two links |
//! | `F9`, `F10` | three relays and an origin, generated for each case | through each relay; to and from each relay; the fleet service's choice |
//! | `F11`, `F12` | 60 origins, two links of 8 Mbit/s | each link alone; through a relay over one link, and over both |
//! | `X-upload` | the sets of links for which uploads have thresholds | as `F5` |
//!
//! 1. The relay of an origin in `F11` is selected by line 6 of BASS's Algorithm 1, min(B(c, s), B_o(s)), with rates
//!    of virtual time.
//! 2. `F10` is the distribution of the values of `F9`, and `F12` that of `F11`.

use marline_core::units::Duration;
use marline_sim::spec::LinkSpec;

use super::config::{self, ORIGINS, POSITIONS, PathSegment, RelayPosition, UploadCase, UploadRoute, link};
use super::simulate;

/// The artefacts that are measured; the others are derived from them.
pub(super) const MEASURED_ARTEFACTS: [&str; 5] = ["F5", "X-upload", "F8", "F9", "F11"];
/// The artefacts that can be selected.
pub(super) const ARTEFACTS: [&str; 7] = ["F5", "F8", "F9", "F10", "F11", "F12", "X-upload"];

/// Extent of a reproduction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) runs: u32,
    pub(super) quick: bool,
    /// Whether relays assigned by the fleet service are measured too.
    pub(super) includes_fleet: bool,
}

/// The measured artefact that this one is derived from.
pub(super) fn measured_artefact(artefact: &str) -> &str {
    match artefact {
        "F10" => "F9",
        "F12" => "F11",
        other => other,
    }
}

/// The cases of a measured artefact.
pub(super) fn cases(artefact: &str, effort: Effort) -> Vec<UploadCase> {
    let once = match artefact {
        "F5" => link_sets(effort.quick),
        "X-upload" => upload_cases(effort.quick),
        "F8" => distance_cases(effort.quick),
        "F9" => relay_choice_cases(effort),
        "F11" => origin_cases(effort.quick),
        _ => Vec::new(),
    };
    let length = Duration::from_secs(match artefact {
        _ if effort.quick => QUICK_UPLOAD_S,
        "X-upload" => STREAM_UPLOAD_S,
        _ => UPLOAD_S,
    });
    let again = |run: u32| {
        once.iter().map(move |case| UploadCase { seed: case.seed + u64::from(run) * 1000, length, ..case.clone() })
    };
    (0..effort.runs).flat_map(again).collect()
}

/// Two Wi-Fi and two 4G links. Our choice: rates as in figures 3 and 4 of BASS, whose better access points have several
/// Mbit/s up.
fn four_links() -> Vec<LinkSpec> {
    vec![link("wifi0", 8, 20), link("wifi1", 5, 30), link("lte0", 10, 50), link("lte1", 6, 60)]
}

fn link_sets(quick: bool) -> Vec<UploadCase> {
    let all = four_links();
    let wanted = |mask: &u32| mask.count_ones() > 1 && (!quick || [0b0101, 0b1111].contains(mask));
    let make_case = |mask: u32| {
        let links = all.iter().enumerate().filter(|(at, _)| mask & (1 << at) != 0).map(|(_, link)| link.clone());
        upload_case("F5", links.collect(), u64::from(mask))
    };
    (1..16).filter(wanted).map(make_case).collect()
}

/// The uploads that have thresholds: 8 + 8, 5 + 10 + 3, 20 + 2 Mbit/s, RTT 20 to 120 ms.
fn upload_cases(quick: bool) -> Vec<UploadCase> {
    let all = [
        ("8+8", vec![link("wifi0", 8, 20), link("lte0", 8, 60)]),
        ("5+10+3", vec![link("wifi0", 5, 20), link("lte0", 10, 60), link("lte1", 3, 120)]),
        ("20+2", vec![link("wifi0", 20, 20), link("lte0", 2, 120)]),
    ];
    let case_count = if quick { 1 } else { all.len() };
    let make_case = |((rates, links), seed): ((&str, _), u64)| UploadCase {
        name: format!("{rates} Mbit/s"),
        ..upload_case("X-upload", links, seed)
    };
    all.into_iter().take(case_count).zip(1..).map(make_case).collect()
}

fn upload_case(artefact: &'static str, links: Vec<LinkSpec>, seed: u64) -> UploadCase {
    let routes = (0..links.len()).map(UploadRoute::Direct).chain([UploadRoute::Through(0)]).collect();
    let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
    let near = RelayPosition::near_edge();
    UploadCase {
        artefact,
        name: names.join("+"),
        direct: PathSegment { rtt: near.from_edge.rtt + near.to_origin.rtt, ..near.from_edge },
        links,
        relays: vec![near],
        routes,
        length: Duration::ZERO,
        seed,
    }
}

fn distance_cases(quick: bool) -> Vec<UploadCase> {
    let all = [100_u32, 500, 1000, 2000, 4000, 8000, 12_000];
    let make_case = |kilometres: &u32| {
        let to = config::path_of_length(*kilometres);
        UploadCase {
            artefact: "F8",
            name: format!("{kilometres} km"),
            links: config::two_8mbps_links(),
            direct: to,
            relays: vec![RelayPosition { from_edge: to, to_origin: RelayPosition::near_edge().to_origin }],
            routes: vec![UploadRoute::ToRelay(0)],
            length: Duration::ZERO,
            seed: u64::from(*kilometres),
        }
    };
    all.iter().step_by(if quick { 5 } else { 1 }).map(make_case).collect()
}

fn relay_choice_cases(effort: Effort) -> Vec<UploadCase> {
    let make_case = |seed: u64| {
        let (direct, relays) = config::random_relays(seed);
        let each = |route: fn(usize) -> UploadRoute| (0..relays.len()).map(route);
        let mut routes: Vec<UploadRoute> = each(UploadRoute::ToRelay)
            .chain(each(UploadRoute::FromRelay))
            .chain(each(UploadRoute::Through))
            .collect();
        routes.extend(effort.includes_fleet.then_some(UploadRoute::Assigned));
        UploadCase {
            artefact: "F9",
            name: format!("origin {}", seed + 1),
            links: config::two_8mbps_links(),
            direct,
            relays,
            routes,
            length: Duration::ZERO,
            seed: seed + 1,
        }
    };
    (0..if effort.quick { 1 } else { RELAY_CHOICE_COUNT }).map(make_case).collect()
}

fn origin_cases(quick: bool) -> Vec<UploadCase> {
    let make_case = |seed: u64| {
        let direct = config::random_origin(seed);
        let links = config::two_8mbps_links();
        let relays: Vec<RelayPosition> = POSITIONS.map(|part| RelayPosition::at_fraction(direct, part)).into();
        let mut case = UploadCase {
            artefact: "F11",
            name: format!("origin {}", seed + 1),
            links,
            direct,
            relays,
            routes: Vec::new(),
            length: Duration::from_secs(UPLOAD_S),
            seed: seed + 1,
        };
        let relay = simulate::best_relay(&case);
        case.routes = vec![
            UploadRoute::Direct(0),
            UploadRoute::Direct(1),
            UploadRoute::Split(relay),
            UploadRoute::Through(relay),
        ];
        case
    };
    (0..if quick { QUICK_ORIGINS } else { ORIGINS }).map(make_case).collect()
}

/// Length of an upload in seconds. Our choice: the default of iperf, which BASS used.
const UPLOAD_S: u64 = 10;
/// Length where the threshold is that of a continuous stream. Our choice: six times as long as `marline paths` needs to
/// recognize a useless link.
const STREAM_UPLOAD_S: u64 = 30;
/// Length with `--quick`, and number of origins.
const QUICK_UPLOAD_S: u64 = 4;
const QUICK_ORIGINS: u64 = 3;
/// Number of origins for the selection of relays. Our choice: a quarter of an hour in real time.
const RELAY_CHOICE_COUNT: u64 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Effort = Effort { runs: 1, quick: false, includes_fleet: true };

    #[test]
    fn every_set_of_links_and_every_origin_is_measured() {
        assert_eq!(cases("F5", FULL).len(), 11);
        assert_eq!(cases("F11", FULL).len(), 60);
        assert_eq!(cases("F5", Effort { runs: 3, ..FULL }).len(), 33);
        let cells = |artefact| {
            cases(artefact, Effort { quick: true, ..FULL }).iter().map(|c| c.routes.len()).sum::<usize>()
        };
        let all: usize = MEASURED_ARTEFACTS.into_iter().map(cells).sum();
        assert!(all <= 40, "{all}: too much for a hurry");
    }

    #[test]
    fn the_cases_of_an_artefact_have_different_names() {
        for artefact in MEASURED_ARTEFACTS {
            let mut names: Vec<String> = cases(artefact, FULL).into_iter().map(|case| case.name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count, "{artefact}");
        }
    }

    #[test]
    fn every_artefact_has_cases() {
        for artefact in ARTEFACTS {
            assert!(MEASURED_ARTEFACTS.contains(&measured_artefact(artefact)));
            assert!(!cases(measured_artefact(artefact), Effort { quick: true, ..FULL }).is_empty());
        }
    }
}
