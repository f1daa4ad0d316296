//! Tests of the order of links and of the schedule of attempts, in virtual time.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use core::time::Duration;

use super::*;

fn at(millis: u64) -> Instant {
    Instant::from_millis(1_000_000 + millis)
}

fn observation(name: &str) -> LinkObservation {
    LinkObservation {
        name: name.to_string(),
        index: 1,
        is_unresponsive: false,
        is_receiving: false,
        metered: false,
    }
}

fn choice_of(names: &[&str]) -> LinkChoice {
    let mut choice = LinkChoice::default();
    choice.set_links(at(0), names.iter().map(|name| observation(name)).collect());
    choice
}

/// What each link does: a result after so many milliseconds; `None`: no response until the attempt's own limit of
/// 1.5 s.
type Behaviour<'a> = &'a [LinkBehaviour<'a>];
type LinkBehaviour<'a> = (&'a str, Option<(u64, Result<(), LinkFailure>)>);

/// Runs a connection that starts at `begins` to its end; returns when it was established and over which link.
fn run(choice: &mut LinkChoice, begins: u64, behaviour: Behaviour<'_>) -> Option<(u64, String)> {
    let mut race = HappyEyeballs::new(at(begins), choice);
    let mut running: Vec<(u64, usize, Result<(), LinkFailure>)> = Vec::new();
    let (mut won, mut names) = (None, Vec::<String>::new());
    for millis in begins..begins + 10_000 {
        for (_, number, result) in running.iter().filter(|(when, ..)| *when == millis) {
            race.handle(at(millis), *number, result.map(|()| None));
            if result.is_ok() && won.is_none() {
                won = Some((millis - begins, names[*number].clone()));
            }
        }
        while let Some((number, link)) = race.poll(at(millis)) {
            let does = behaviour.iter().find(|(name, _)| *name == link).unwrap().1;
            let (after, result) = does.unwrap_or((1500, Err(LinkFailure::NoResponse)));
            running.push((millis + after, number, result));
            names.push(link);
        }
        for (link, outcome) in race.new_outcomes(at(millis)) {
            choice.record(at(millis), &link, outcome);
        }
    }
    won
}

const HEALTHY: Option<(u64, Result<(), LinkFailure>)> = Some((40, Ok(())));

#[test]
fn a_failure_of_the_first_link_delays_only_the_first_connection() {
    use LinkFailure::*;
    // wan1's behaviour, and milliseconds until the connection over wan2 is established: at most 300 until wan2 is
    // tried, and 40 for its handshake.
    for (does, longest) in [
        (None, 340),
        (Some((30, Err(Unreachable))), 70),
        (Some((30, Err(Refused))), 70),
        (Some((80, Err(WrongCertificate))), 120),
        (Some((1400, Err(Dns))), 340),
        (Some((1300, Err(MptcpDropped))), 340),
        (Some((2500, Ok(()))), 340),
    ] {
        let mut choice = choice_of(&["wan1", "wan2"]);
        let behaviour = [("wan1", does), ("wan2", HEALTHY)];
        assert_eq!(run(&mut choice, 0, &behaviour), Some((longest, "wan2".to_string())), "{does:?}");
        assert_eq!(run(&mut choice, 10_000, &behaviour), Some((40, "wan2".to_string())), "{does:?}");
        let kind = does.map_or(Some(NoResponse), |(_, result)| result.err()).unwrap_or(Slow);
        assert_eq!(choice.failure("wan1"), Some(kind));
        assert_eq!(choice.failing_links().is_empty(), kind == Slow);
        assert_eq!(choice.failure("wan2"), None);
    }
}

#[test]
fn a_destination_that_no_link_reaches_does_not_count_against_the_links() {
    for does in [None, Some((5, Err(LinkFailure::Refused))), Some((5, Err(LinkFailure::WrongCertificate)))] {
        let mut choice = choice_of(&["wan1", "wan2", "wan3"]);
        assert_eq!(run(&mut choice, 0, &[("wan1", does), ("wan2", does), ("wan3", does)]), None);
        assert_eq!(choice.failing_links(), [], "{does:?}");
    }
}

#[test]
fn a_portal_is_detected_while_the_relay_is_unreachable() {
    let mut choice = choice_of(&["wan1", "wan2"]);
    let portal = Some((5, Err(LinkFailure::WrongCertificate)));
    assert_eq!(run(&mut choice, 0, &[("wan1", portal), ("wan2", None)]), None);
    assert_eq!(choice.failing_links(), [("wan1".to_string(), LinkFailure::WrongCertificate)]);
    assert_eq!(choice.order(), ["wan2", "wan1"]);
}

#[test]
fn a_portal_is_detected_before_the_attempt_to_an_unreachable_relay_times_out() {
    let mut choice = choice_of(&["wan1", "wan2"]);
    let mut race = HappyEyeballs::new(at(0), &choice);
    assert_eq!(race.poll(at(0)).unwrap().1, "wan1");
    race.handle(at(5), 0, Err(LinkFailure::WrongCertificate));
    assert_eq!((race.poll(at(5)).unwrap().1, race.deadline()), ("wan2".to_string(), Some(at(305))));
    assert_eq!(race.new_outcomes(at(304)), []);
    for (link, outcome) in race.new_outcomes(at(305)) {
        choice.record(at(305), &link, outcome);
    }
    assert_eq!(choice.failing_links(), [("wan1".to_string(), LinkFailure::WrongCertificate)]);
    assert_eq!(race.deadline(), None);
}

#[test]
fn a_server_without_authentication_is_not_contacted_over_a_portal_while_another_link_works() {
    let mut choice = choice_of(&["wan1", "wan2"]);
    choice.record(at(0), "wan1", Outcome::Failed(LinkFailure::WrongCertificate));
    let first = |choice: &LinkChoice| HappyEyeballs::to_unauthenticated(at(1), choice).poll(at(1)).unwrap().1;
    assert_eq!((HappyEyeballs::to_unauthenticated(at(1), &choice).len(), first(&choice)), (1, "wan2".to_string()));
    choice.record(at(2), "wan2", Outcome::Failed(LinkFailure::NoResponse));
    assert_eq!((HappyEyeballs::to_unauthenticated(at(3), &choice).len(), first(&choice)), (2, "wan2".to_string()));
}

#[test]
fn a_link_that_drops_mptcp_is_last_in_the_order_but_used_if_it_is_the_only_one() {
    let mut choice = choice_of(&["wan1"]);
    let mut race = HappyEyeballs::new(at(0), &choice);
    let (number, link) = race.poll(at(0)).unwrap();
    race.handle(at(1200), number, Ok(Some(LinkFailure::MptcpDropped)));
    for (link, outcome) in race.new_outcomes(at(1200)) {
        choice.record(at(1200), &link, outcome);
    }
    assert_eq!(choice.failing_links(), [(link, LinkFailure::MptcpDropped)]);
    assert!(!LinkFailure::MptcpDropped.is_outage());
    choice.set_links(at(1300), vec![observation("wan1"), observation("wan2")]);
    assert_eq!(choice.order(), ["wan2", "wan1"]);
}

#[test]
fn a_failed_link_is_probed_at_growing_intervals_and_used_again_after_a_success() {
    let mut choice = choice_of(&["wan1", "wan2"]);
    run(&mut choice, 0, &[("wan1", None), ("wan2", HEALTHY)]);
    let mut times = Vec::new();
    for _ in 0..8 {
        let (when, link) = choice.next_probe().unwrap();
        assert_eq!(link, "wan1");
        choice.on_probe_started(when, "wan1");
        // The probe itself fails shortly afterwards.
        choice.record(when + Duration::from_millis(900), "wan1", Outcome::Failed(LinkFailure::NoResponse));
        times.push(when);
    }
    let pauses: Vec<u64> = times.windows(2).map(|pair| pair[1].since(pair[0]).as_secs()).collect();
    assert_eq!(pauses, [2, 4, 8, 16, 30, 30, 30]);
    choice.record(at(200_000), "wan1", Outcome::Connected(Duration::from_millis(50)));
    assert_eq!((choice.order(), choice.next_probe()), (vec!["wan1".to_string(), "wan2".to_string()], None));
}

#[test]
fn many_connections_that_fail_together_count_once() {
    let mut choice = choice_of(&["wan1", "wan2"]);
    for millis in 0..900 {
        choice.record(at(millis), "wan1", Outcome::Failed(LinkFailure::NoResponse));
    }
    assert_eq!(choice.next_probe().unwrap().0, at(1000));
}

#[test]
fn an_interface_that_was_down_or_replaced_starts_with_an_empty_record() {
    for meanwhile in
        [vec![observation("wan2")], vec![LinkObservation { index: 9, ..observation("wan1") }, observation("wan2")]]
    {
        let mut choice = choice_of(&["wan1", "wan2"]);
        run(&mut choice, 0, &[("wan1", None), ("wan2", HEALTHY)]);
        choice.set_links(at(20_000), meanwhile);
        choice.set_links(at(22_000), vec![observation("wan1"), observation("wan2")]);
        assert_eq!(choice.order(), ["wan1", "wan2"]);
    }
}

#[test]
fn a_link_with_unresponsive_subflows_is_last_and_received_data_triggers_a_probe() {
    let mut choice = choice_of(&["wan1", "wan2"]);
    choice.set_links(
        at(10),
        vec![LinkObservation { is_unresponsive: true, ..observation("wan1") }, observation("wan2")],
    );
    assert_eq!(choice.order(), ["wan2", "wan1"]);
    choice.set_links(at(20), vec![observation("wan1"), observation("wan2")]);
    assert_eq!(choice.order(), ["wan1", "wan2"]);
    run(&mut choice, 0, &[("wan1", None), ("wan2", HEALTHY)]);
    for n in 0..4 {
        choice.on_probe_started(at(10_000 + n * 60_000), "wan1");
    }
    let next_at = choice.next_probe().unwrap().0;
    let receives = || vec![LinkObservation { is_receiving: true, ..observation("wan1") }, observation("wan2")];
    choice.set_links(at(191_000), receives());
    assert_eq!(choice.next_probe().unwrap().0, at(191_000).min(next_at));
    // Only the beginning of received data triggers a probe, not all data after it.
    choice.on_probe_started(at(191_000), "wan1");
    let next = choice.next_probe();
    choice.set_links(at(193_000), receives());
    assert_eq!(choice.next_probe(), next);
}

#[test]
fn a_link_without_response_is_not_downgraded_to_slow_when_it_loses_a_race() {
    let mut choice = choice_of(&["wan1", "wan2"]);
    choice.record(at(0), "wan2", Outcome::Failed(LinkFailure::NoResponse));
    choice.on_probe_started(at(2_000), "wan2");
    let (failing, next) = (choice.failing_links(), choice.next_probe());
    // The first link takes longer than its attempt delay and wins all the same.
    run(&mut choice, 3_000, &[("wan1", Some((650, Ok(())))), ("wan2", None)]);
    assert_eq!(choice.failing_links(), failing);
    assert!(choice.next_probe() >= next, "the pauses grow");
}

#[test]
fn a_link_with_a_long_rtt_gets_half_a_second_before_the_next_link_is_tried() {
    let mut choice = choice_of(&["sat", "wan2"]);
    choice.record(at(0), "sat", Outcome::Connected(Duration::from_millis(1200)));
    let won = run(&mut choice, 0, &[("sat", Some((450, Ok(())))), ("wan2", HEALTHY)]);
    assert_eq!(won, Some((450, "sat".to_string())));
    assert_eq!(run(&mut choice, 20_000, &[("sat", Some((1200, Ok(())))), ("wan2", HEALTHY)]).unwrap().1, "wan2");
    assert_eq!(choice.order(), ["wan2", "sat"]);
    assert!(choice.failing_links().is_empty(), "{}", format!("{choice:?}"));
}

#[test]
fn a_link_that_is_never_first_is_checked_after_two_seconds_and_then_every_ten_minutes() {
    let mut choice = choice_of(&["wan1", "wan2"]);
    run(&mut choice, 0, &[("wan1", HEALTHY), ("wan2", HEALTHY)]);
    let mut times = Vec::new();
    for _ in 0..3 {
        let (when, link) = choice.next_check().unwrap();
        assert_eq!(link, "wan2");
        choice.on_probe_started(when, &link);
        choice.record(when + Duration::from_secs(1), "wan1", Outcome::Connected(Duration::from_millis(40)));
        times.push(when.since(at(0)).as_secs());
    }
    assert_eq!(times, [2, 602, 1202]);
    // A failed link is probed instead of checked, and a single link is not checked.
    choice.record(at(2_000_000), "wan2", Outcome::Failed(LinkFailure::MptcpStripped));
    assert_eq!(choice.next_check().unwrap().1, "wan1");
    assert_eq!(choice.order(), ["wan1", "wan2"]);
    choice.forget_failures(LinkFailure::MptcpStripped);
    assert_eq!(choice.failing_links(), []);
    assert_eq!(choice_of(&["wan1"]).next_check(), None);
}

/// The relay has a wrong certificate, which each link shows after this number of milliseconds.
fn wrong_certificate(first: u64, second: u64) -> [LinkBehaviour<'static>; 2] {
    let shows = |after| Some((after, Err(LinkFailure::WrongCertificate)));
    [("wan1", shows(first)), ("wan2", shows(second))]
}

#[test]
fn a_wrong_certificate_of_the_relay_is_not_taken_for_a_portal_even_if_one_link_shows_it_late() {
    for (first, second) in [(30, 30), (30, 900), (700, 30)] {
        let mut choice = choice_of(&["wan1", "wan2"]);
        assert_eq!(run(&mut choice, 0, &wrong_certificate(first, second)), None);
        assert_eq!(choice.failing_links(), [], "{first} {second}");
    }
    // The link was first taken for one with a portal, because the other link had an outage.
    let mut choice = choice_of(&["wan1", "wan2"]);
    run(&mut choice, 0, &[wrong_certificate(30, 30)[0], ("wan2", None)]);
    assert!(choice.failure("wan1").is_some_and(LinkFailure::is_portal));
    run(&mut choice, 10_000, &wrong_certificate(30, 900));
    assert_eq!(choice.failing_links(), []);
}

#[test]
fn another_failure_ends_a_suspected_portal_although_no_relay_is_reached() {
    use LinkFailure::*;
    for (does, after) in [
        (None, None),
        (Some((30, Err(Refused))), None),
        (Some((30, Err(Unreachable))), None),
        (Some((30, Err(Other))), None),
        (Some((30, Ok(()))), None),
        (Some((30, Err(WrongCertificate))), Some(WrongCertificate)),
        (Some((30, Err(Dns))), Some(WrongCertificate)),
    ] {
        let mut choice = choice_of(&["wan1", "wan2"]);
        choice.record(at(0), "wan1", Outcome::Failed(WrongCertificate));
        run(&mut choice, 5_000, &[("wan1", does), ("wan2", None)]);
        assert_eq!(choice.failure("wan1"), after, "{does:?}");
    }
}

#[test]
fn a_connection_answered_by_a_portal_does_not_change_the_records() {
    for kind in [LinkFailure::WrongCertificate, LinkFailure::Portal] {
        let mut choice = choice_of(&["wan1", "wan2"]);
        choice.record(at(0), "wan1", Outcome::Failed(kind));
        choice.record(at(0), "wan2", Outcome::Failed(LinkFailure::NoResponse));
        let before = choice.failing_links();
        let mut race = HappyEyeballs::to_unauthenticated(at(10), &choice);
        while race.poll(at(400)).is_some() {}
        let portal = race.len() - 1;
        race.poll(at(900));
        race.handle(at(910), portal, Ok(None));
        assert_eq!(race.new_outcomes(at(2000)), []);
        assert_eq!(choice.failing_links(), before);
    }
}

/// Calls `step` every 100 ms for `seconds`, with the time in milliseconds. Returns the seconds at which portal probes
/// start, by link.
fn portal_probe_times(
    mut choice: LinkChoice,
    seconds: u64,
    step: impl Fn(&mut LinkChoice, u64),
) -> impl Fn(&str) -> Vec<u64> {
    let mut probes = Vec::new();
    for millis in (0..seconds * 1000).step_by(100) {
        step(&mut choice, millis);
        while let Some((_, link)) = choice.next_portal_probe().filter(|(due, _)| *due <= at(millis)) {
            choice.on_portal_probe_started(at(millis), &link);
            probes.push((millis / 1000, link));
        }
    }
    move |name| probes.iter().filter(|(_, link)| link == name).map(|(at, _)| *at).collect()
}

#[test]
fn portal_probes_follow_a_new_link_a_failure_and_use_without_a_relay_at_a_limited_rate() {
    let probe_times = portal_probe_times(choice_of(&["wan1", "wan2"]), 160, |choice, millis| match millis {
        20_000 | 22_000 => choice.record(at(millis), "wan1", Outcome::Failed(LinkFailure::NoResponse)),
        // Many flows, none of which a relay carries.
        60_000.. => choice.on_unauthenticated_use(at(millis)),
        _ => {}
    });
    assert_eq!(probe_times("wan1"), [0, 20, 25, 60, 90, 120, 150]);
    assert_eq!(probe_times("wan2"), [0, 60, 90, 120, 150]);
}

#[test]
fn a_metered_link_is_probed_for_portals_only_if_connections_start_over_it() {
    let all = || vec![observation("wan1"), LinkObservation { metered: true, ..observation("wwan0") }];
    let mut choice = LinkChoice::default();
    choice.set_links(at(0), all());
    let used = |choice: &mut LinkChoice, millis| {
        if millis == 100_000 {
            choice.record(at(millis), "wan1", Outcome::Failed(LinkFailure::Unreachable));
        }
        choice.on_unauthenticated_use(at(millis));
    };
    let probe_times = portal_probe_times(choice, 150, used);
    assert_eq!(probe_times("wan1"), [0, 30, 60, 90, 100, 130]);
    assert_eq!(probe_times("wwan0"), [0, 100, 130]);
}

#[test]
fn a_flapping_link_is_probed_for_portals_at_most_every_five_seconds() {
    let probe_times = portal_probe_times(choice_of(&["wan1", "wan2"]), 20, |choice, millis| {
        // The link is down for half of each second and has another interface index each time.
        let wan1 = LinkObservation { index: u32::try_from(millis / 1000).unwrap(), ..observation("wan1") };
        let is_up = millis % 1000 < 500;
        choice.set_links(at(millis), is_up.then_some(wan1).into_iter().chain([observation("wan2")]).collect());
    });
    assert_eq!((probe_times("wan1"), probe_times("wan2")), (vec![0, 5, 10, 15], vec![0]));
}

#[test]
fn portal_responses_over_all_links_do_not_count_before_the_server_has_responded() {
    use PortalProbeResult::*;
    let mut choice = choice_of(&["wan1", "wan2"]);
    choice.on_portal_probe_result(at(100), "wan1", Captive);
    assert_eq!((choice.failure("wan1"), choice.is_portal_probe_doubted()), (Some(LinkFailure::Portal), false));
    choice.on_portal_probe_result(at(200), "wan2", Captive);
    assert_eq!((choice.failing_links(), choice.is_portal_probe_doubted()), (vec![], true));
    choice.on_portal_probe_result(at(5_200), "wan1", Captive);
    assert_eq!((choice.failing_links(), choice.is_portal_probe_doubted()), (vec![], true));
    // The server responds over one link, so the URL is right.
    choice.on_portal_probe_result(at(9_000), "wan2", Open);
    assert_eq!(
        (choice.failing_links(), choice.is_portal_probe_doubted()),
        (vec![("wan1".to_string(), LinkFailure::Portal)], false)
    );
    choice.on_portal_probe_result(at(15_000), "wan2", Captive);
    assert_eq!((choice.failing_links().len(), choice.is_portal_probe_doubted()), (2, false));
    // A link without response shows nothing about the URL, and neither does a single link.
    for second in [Some(NoResponse), None] {
        let mut choice = choice_of(if second.is_some() { &["wan1", "wan2"] } else { &["wan1"] });
        choice.on_portal_probe_result(at(100), "wan1", Captive);
        second.into_iter().for_each(|answer| choice.on_portal_probe_result(at(200), "wan2", answer));
        assert_eq!((choice.failure("wan1"), choice.is_portal_probe_doubted()), (Some(LinkFailure::Portal), false));
    }
}

#[test]
fn a_portal_counts_until_the_server_or_the_relay_responds() {
    use LinkFailure::*;
    let captive = || {
        let mut choice = choice_of(&["wan1", "wan2"]);
        choice.on_portal_probe_result(at(100), "wan1", PortalProbeResult::Captive);
        assert_eq!(
            (choice.failure("wan1"), choice.order()),
            (Some(Portal), vec!["wan2".to_string(), "wan1".to_string()])
        );
        assert_eq!(HappyEyeballs::to_unauthenticated(at(200), &choice).len(), 1);
        choice
    };
    // The portal drops or refuses other connections, which does not replace the failure "portal".
    let mut choice = captive();
    for kind in [NoResponse, Refused, Unreachable, WrongCertificate, Slow] {
        choice.record(at(1_000), "wan1", Outcome::Failed(kind));
        choice.record(at(1_000), "wan1", Outcome::Retracted);
        assert_eq!(choice.failure("wan1"), Some(Portal));
    }
    // Each probe of the link schedules another portal probe.
    let (when, link) = choice.next_probe().unwrap();
    ["wan1", "wan2"].iter().for_each(|link| choice.on_portal_probe_started(at(1_500), link));
    choice.on_probe_started(when, &link);
    assert_eq!(choice.next_portal_probe().unwrap().0, at(6_500));
    choice.on_portal_probe_result(at(7_000), "wan1", PortalProbeResult::Open);
    assert_eq!((choice.failing_links(), choice.order()), (vec![], vec!["wan1".to_string(), "wan2".to_string()]));
    // The relay proves its identity by its certificate.
    let mut choice = captive();
    choice.record(at(2_000), "wan1", Outcome::Connected(Duration::from_millis(40)));
    assert_eq!(choice.failing_links(), []);
    // The portal no longer responds.
    let mut choice = captive();
    choice.on_portal_probe_result(at(2_000), "wan1", PortalProbeResult::NoResponse);
    assert_eq!(choice.failure("wan1"), Some(NoResponse));
}

#[test]
fn a_wrong_certificate_is_the_relays_own_if_a_probe_shows_that_there_is_no_portal() {
    let [portal, silent] = [wrong_certificate(30, 30)[0], ("wan2", None)];
    // The link showed before or shows afterwards that it has no portal.
    for before in [true, false] {
        let mut choice = choice_of(&["wan1", "wan2"]);
        if before {
            choice.on_portal_probe_result(at(0), "wan1", PortalProbeResult::Open);
        }
        run(&mut choice, 10_000, &[portal, silent]);
        assert_eq!(choice.failing_links().is_empty(), before);
        choice.on_portal_probe_result(at(21_000), "wan1", PortalProbeResult::Open);
        assert_eq!(choice.failing_links(), []);
    }
    // Another link shows the right certificate, so a middlebox on this link terminates TLS in the relay's place.
    let mut choice = choice_of(&["wan1", "wan2"]);
    run(&mut choice, 0, &[portal, ("wan2", HEALTHY)]);
    choice.on_portal_probe_result(at(11_000), "wan1", PortalProbeResult::Open);
    assert_eq!(choice.failure("wan1"), Some(LinkFailure::WrongCertificate));
}
