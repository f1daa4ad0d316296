//! Plain TCP in this world, and an accelerator that does nothing.

use marline_core::units::{Bitrate, DataSize};

use super::*;
use crate::accel::{Blackout, Close, Plan};
use crate::spec::LinkSpec;
use crate::tcp::Algorithm;

fn link(rtt: u64) -> LinkSpec {
    LinkSpec::constant("wifi", Bitrate::from_mbps(20), Duration::from_millis(rtt))
}

fn with_machine(scene: &Scene) -> Scene {
    Scene { config: Some(Config::new(Scene::PRIMARY, None)), ..scene.clone() }
}

#[test]
fn a_download_ends_as_over_values() {
    let scene = Scene::new(link(50), Plan::download(5_000_000));
    let outcome = World::new(scene.clone()).run();
    assert_eq!((outcome.flows[0].read, &outcome.wrong), (5_000_000, &vec![]));
    let taken = outcome.flows[0].finished.expect("it ends").as_secs_f64();
    let ideal = DataSize::from_bytes(5_000_000) / Bitrate::from_mbps(20);
    assert!(taken < ideal.as_secs_f64() * 1.25, "{taken} s");
    for algorithm in [Algorithm::Cubic, Algorithm::Reno] {
        for (sack, timestamps, scale) in [(true, false, 7), (false, true, 7), (false, false, 0)] {
            let plan = Plan { algorithm, sack, timestamps, scale, close: Close::Client, ..Plan::download(700_000) };
            let scene = Scene {
                primary: "wifi,rate=20Mbit/s,rtt=50ms,loss=1%".parse().unwrap(),
                ..Scene::new(link(50), plan)
            };
            let outcome = World::new(scene).run();
            assert!(outcome.flows[0].finished.is_some(), "{algorithm:?} {sack} {timestamps} {scale}: {outcome:?}");
            assert_eq!(outcome.flows[0].state, Some(TcpState::Closed(TcpCloseReason::Finished)));
        }
    }
}

#[test]
fn an_accelerator_without_mechanisms_changes_nothing() {
    let mut scene = Scene::new(link(50), Plan::download(3_000_000));
    scene.blackouts = vec![Blackout {
        link: Scene::PRIMARY,
        at: Duration::from_millis(700),
        lasts: Duration::from_secs(2),
        is_told: true,
    }];
    let plain = World::new(scene.clone()).run();
    let mut scene = with_machine(&scene);
    if let Some(config) = &mut scene.config {
        config.mechanisms = marline_core::accel::Mechanisms::of(&[]);
    }
    let beside = World::new(scene).run();
    assert_eq!(beside.asked.keys().copied().collect::<Vec<_>>(), ["leave"], "packets go on, and nothing else");
    assert_eq!(beside.flows, plain.flows);
    assert!(beside.wrong.is_empty(), "{:?}", beside.wrong);
}
