//! Scenario files: their content, rejected errors, and that all files of the repository are valid.

use std::path::PathBuf;

use marline_core::fetch::Policy;

use super::*;

const GOOD: &str = r#"
name = "two"
description = "two links"
size = "100MB"
runs = 3
clients = ["marline", "single:wifi", "aria2-s2", "curl"]
links = ["wifi,rate=80Mbit/s,rtt=20ms", "lte,rate=61Mbit/s,rtt=50ms"]
events = ["3s:wifi=down"]
threshold = { ideal = 1.045 }
baseline = { name = "aria2-s2", ideal = 1.062 }
sigma = ["lte=10Mbit/s"]
"#;

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse(text, Path::new("x.toml")).map_err(|error| error.to_string())
}

#[test]
fn a_file_without_cases_is_one_case() {
    let scenario = parse(GOOD).unwrap();
    assert_eq!((scenario.runs, scenario.protocol, scenario.cases.len()), (3, Protocol::Http, 1));
    assert_eq!(scenario.clients[0], Client::MARLINE);
    assert_eq!(scenario.clients[1], Client::Marline { policy: Policy::Single, only_link: Some("wifi".into()) });
    let case = scenario.case("two").unwrap();
    assert_eq!(case.size, DataSize::from_bytes(100_000_000));
    assert_eq!(case.threshold, Some(Threshold::TimesIdeal(1.045)));
    assert_eq!(case.events[0].to_string(), "3s:wifi=down");
    assert_eq!(case.sigma, [("lte".to_string(), Bitrate::from_mbps(10))]);
}

#[test]
fn a_case_inherits_values_from_the_top_level() {
    let text = format!("{GOOD}\n[[case]]\nname = \"a\"\nsize = \"10KB\"\n[[case]]\nname = \"b\"\nevents = []\n");
    let scenario = parse(&text).unwrap();
    let memory = parse(&GOOD.replace("{ ideal = 1.045 }", "{ rss = \"12MB\" }")).unwrap();
    assert_eq!(memory.cases[0].threshold, Some(Threshold::MaxRss(DataSize::from_bytes(12_000_000))));
    let [a, b] = scenario.cases.as_slice() else { panic!("{scenario:?}") };
    assert_eq!((a.size, a.events.len()), (DataSize::from_bytes(10_000), 1));
    assert_eq!((b.size, b.events.len()), (DataSize::from_bytes(100_000_000), 0));
    assert_eq!(a.links, b.links);
}

#[test]
fn errors_name_the_line_and_the_problem() {
    let swap = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        GOOD.replace(from, to)
    };
    let table = [
        (swap("runs = 3", "rums = 3"), 5, "unknown field `rums`"),
        (swap("runs = 3", "runs = 0"), 5, "runs is zero"),
        (swap("\"100MB\"", "\"100\""), 4, "a size such as"),
        (swap("\"100MB\"", "\"0B\""), 4, "the size is zero"),
        (swap("\"two\"", "\"t/wo\""), 2, "not a valid name"),
        (swap("\"marline\", ", "\"marlin\", "), 6, "`marlin` is not a client"),
        (swap("single:wifi", "single"), 6, "`single` is not a client"),
        (swap("single:wifi", "single:wlan"), 6, "no such link"),
        (swap("aria2-s2\", \"curl", "aria2-s17"), 6, "not a client"),
        (swap("rate=80Mbit/s", "rate=80"), 7, "rate: `80`"),
        (swap("\"lte,", "\"wifi,"), 7, "the link name `wifi` is used twice"),
        (swap("3s:wifi=down", "3s:wlan=down"), 8, "no link `wlan`"),
        (swap("3s:wifi=down", "3:wifi=down"), 8, "event: `3:wifi=down`"),
        (swap("ideal = 1.045 }", "ideal = 1.045, worst = 2.0 }"), 9, "expected { ideal }"),
        (swap("lte=10Mbit/s", "lte=10"), 11, "LINK=RATE"),
        (swap("lte=10Mbit/s", "nr=10Mbit/s"), 11, "no link `nr`"),
        (swap("size = \"100MB\"", ""), 2, "no size"),
        (format!("{GOOD}protocol = \"ftp\"\n"), 12, "`ftp` is not a protocol"),
        (format!("{GOOD}[[case]]\nname = \"a\"\n[[case]]\nname = \"a\"\n"), 15, "the case name `a` is used twice"),
    ];
    for (text, line, part) in table {
        let error = parse(&text).unwrap_err();
        assert!(error.starts_with(&format!("x.toml:{line}: ")), "line {line} expected: {error}");
        assert!(error.contains(part), "{error} does not contain {part}");
    }
}

#[test]
fn the_best_single_link_is_the_one_that_finishes_first() {
    let mut case = parse(GOOD).unwrap().cases.remove(0);
    // Wi-Fi is faster, but down from 3 s on.
    assert_eq!(case.best_single_link().name, "lte");
    case.events.clear();
    assert_eq!(case.best_single_link().name, "wifi");
}

#[test]
fn the_rates_of_a_run_are_drawn_around_the_mean() {
    let case = parse(GOOD).unwrap().cases.remove(0);
    assert_eq!(case.with_sampled_rates(0), case);
    let rates: Vec<String> = (1..4).map(|run| case.with_sampled_rates(run).links[1].to_string()).collect();
    assert!(rates.iter().all(|rate| *rate != case.links[1].to_string()), "{rates:?}");
    assert_eq!(case.with_sampled_rates(1).links[0], case.links[0], "a link without deviation stays");
}

#[test]
fn a_scaled_case_keeps_its_proportions() {
    let case = parse(GOOD).unwrap().cases.remove(0);
    let tenth = case.scaled(0.1);
    assert_eq!(tenth.size, DataSize::from_bytes(10_000_000));
    assert_eq!(tenth.events[0].to_string(), "300ms:wifi=down");
    let ratio = tenth.ideal_time().unwrap().as_secs_f64() / case.ideal_time().unwrap().as_secs_f64();
    assert!((ratio - 0.1).abs() < 0.001, "{ratio}");
}

#[test]
fn clients_round_trip_through_text() {
    for client in ["marline", "single:wifi", "marline:lte", "bdp-limit", "aria2-s16", "curl", "curl:lte"] {
        assert_eq!(client.parse::<Client>().unwrap().to_string(), client);
    }
    for client in ["", "single", "single:", "aria2", "aria2-s0", "aria2-s17", "aria2-s2:wifi", "wget"] {
        assert!(client.parse::<Client>().is_err(), "{client}");
    }
}

#[test]
fn every_scenario_of_the_repository_is_valid() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let files: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "toml"))
        .collect();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        let scenario = Scenario::read(&file).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(Some(scenario.name.as_str()), file.file_stem().and_then(|stem| stem.to_str()));
        for case in scenario.cases.iter().filter(|case| case.links.iter().all(LinkSpec::is_loaded)) {
            assert!(case.ideal_time().is_some(), "{} {} never ends", scenario.name, case.name);
        }
    }
}
