//! Plain TCP in this simulation, and an accelerator without mechanisms.

use marline_core::units::{Bitrate, DataSize};

use super::*;
use crate::accel::{Close, FlowScript, Outage};
use crate::spec::LinkSpec;
use crate::tcp::{Algorithm, TcpCloseReason, TcpState};

fn link(rtt: u64) -> LinkSpec {
    LinkSpec::constant("wifi", Bitrate::from_mbps(20), Duration::from_millis(rtt))
}

fn with_machine(scenario: &Scenario) -> Scenario {
    Scenario { config: Some(Config::new(Scenario::PRIMARY, None)), ..scenario.clone() }
}

#[test]
fn a_download_takes_as_long_as_its_link_needs() {
    let scenario = Scenario::new(link(50), FlowScript::download(5_000_000));
    let outcome = World::new(scenario.clone()).run();
    assert_eq!((outcome.flows[0].read, &outcome.defects), (5_000_000, &vec![]));
    let taken = outcome.flows[0].finished.expect("it ends").as_secs_f64();
    let ideal = DataSize::from_bytes(5_000_000) / Bitrate::from_mbps(20);
    assert!(taken < ideal.as_secs_f64() * 1.25, "{taken} s");
    for algorithm in [Algorithm::Cubic, Algorithm::Reno] {
        for (sack, timestamps, scale) in [(true, false, 7), (false, true, 7), (false, false, 0)] {
            let script = FlowScript {
                algorithm,
                sack,
                timestamps,
                scale,
                close: Close::Client,
                ..FlowScript::download(700_000)
            };
            let scenario = Scenario {
                primary: "wifi,rate=20Mbit/s,rtt=50ms,loss=1%".parse().unwrap(),
                ..Scenario::new(link(50), script)
            };
            let outcome = World::new(scenario).run();
            assert!(outcome.flows[0].finished.is_some(), "{algorithm:?} {sack} {timestamps} {scale}: {outcome:?}");
            assert_eq!(outcome.flows[0].state, Some(TcpState::Closed(TcpCloseReason::Finished)));
        }
    }
}

#[test]
fn an_accelerator_without_mechanisms_changes_nothing() {
    let mut scenario = Scenario::new(link(50), FlowScript::download(3_000_000));
    scenario.outages = vec![Outage {
        link: Scenario::PRIMARY,
        at: Duration::from_millis(700),
        duration: Duration::from_secs(2),
        is_carrier_lost: true,
    }];
    let plain = World::new(scenario.clone()).run();
    let mut scenario = with_machine(&scenario);
    if let Some(config) = &mut scenario.config {
        config.mechanisms = marline_core::accel::Mechanisms::of(&[]);
    }
    let outcome = World::new(scenario).run();
    assert_eq!(
        outcome.outputs.keys().copied().collect::<Vec<_>>(),
        ["forward"],
        "packets are forwarded, and nothing else happens"
    );
    assert_eq!(outcome.flows, plain.flows);
    assert!(outcome.defects.is_empty(), "{:?}", outcome.defects);
}
