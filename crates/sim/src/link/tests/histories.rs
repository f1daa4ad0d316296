//! Random histories: every packet is accounted for, and the deliveries do not depend on when the driver polls.

use proptest::prelude::*;

use super::*;

fn any_spec() -> impl Strategy<Value = LinkSpec> {
    let carrier = prop_oneof![
        (1..200_u64).prop_map(|mbps| format!("rate={mbps}Mbit/s")),
        Just("rate=5Mbit/s,up=300kbit/s,steps=50ms:0bit/s+100ms:40Mbit/s".to_string()),
        prop_oneof![Just("11g-mixed"), Just("11g"), Just("11b"), Just("11b-rts"), Just("11b-paper")]
            .prop_map(|medium| format!("medium={medium}")),
        Just("trace=t".to_string()),
    ];
    let options = prop_oneof![
        Just(""),
        Just(",loss=5%"),
        Just(",loss=ge:5%/25%/50%,codel"),
        Just(",jitter=4ms,reorder"),
        Just(",jitter=10ms,queue=4kB"),
        Just(",mtu=1280B,codel,queue=20ms"),
        Just(",police=2Mbit/s:3kB,loss=5%"),
    ];
    (carrier, options).prop_map(|(carrier, suffix)| {
        let mut spec: LinkSpec = format!("wifi,{carrier},rtt=20ms{suffix}").parse().unwrap();
        if let Downlink::Trace(file) = &mut spec.downlink {
            file.trace = Some(std::sync::Arc::new(Trace::parse("0\n3\n3\n4\n20\n").unwrap()));
        }
        spec
    })
}

#[derive(Clone, Debug)]
enum LinkStep {
    Push(Direction, u64),
    Pop,
    Wait(u64),
    WaitForEvent,
    Change(LinkEventKind),
    Schedule(u64, LinkEventKind),
}

fn any_change() -> impl Strategy<Value = LinkEventKind> {
    prop_oneof![
        (0..100_u64).prop_map(|mbps| LinkEventKind::Rate(Bitrate::from_mbps(mbps))),
        (0..100_u64).prop_map(|mbps| LinkEventKind::UplinkRate(Bitrate::from_mbps(mbps))),
        Just(LinkEventKind::Down),
        Just(LinkEventKind::Hold),
        Just(LinkEventKind::Restore),
        Just(LinkEventKind::Restore),
        (0..50_u64).prop_map(|ms| LinkEventKind::Rtt(Duration::from_millis(ms))),
        (0..9_u64).prop_map(|ms| LinkEventKind::Jitter(Duration::from_millis(ms))),
        Just(LinkEventKind::Loss(marline_core::units::Ratio::from_percent(20).into())),
    ]
}

fn any_step() -> impl Strategy<Value = LinkStep> {
    let direction = prop_oneof![Just(Direction::Down), Just(Direction::Up)];
    prop_oneof![
        8 => (direction, 20..1600_u64).prop_map(|(direction, bytes)| LinkStep::Push(direction, bytes)),
        4 => Just(LinkStep::Pop),
        2 => (0..5_000_000_u64).prop_map(LinkStep::Wait),
        4 => Just(LinkStep::WaitForEvent),
        1 => any_change().prop_map(LinkStep::Change),
        1 => (0..100_000_000_u64, any_change()).prop_map(|(after, change)| LinkStep::Schedule(after, change)),
    ]
}

/// Executes the steps, then lets the link drain. An error describes the violated property.
fn run_history(spec: &LinkSpec, steps: Vec<LinkStep>, seed: u64) -> Result<(), TestCaseError> {
    let (mut link, mut n) = (Link::new(spec, seed), [0_u64; 2]);
    let (mut now, mut last_delivered) = (Instant::ZERO, [None; 2]);
    for step in steps {
        match step {
            LinkStep::Push(direction, bytes) => {
                link.push(direction, NumberedPacket { number: n[direction.index()], bytes }, now);
                n[direction.index()] += 1;
            }
            LinkStep::Pop => {
                let predicted_event = link.next_event();
                let Some((due, direction, packet)) = link.pop_due(now) else {
                    // A driver that waits for the next event must not spin.
                    prop_assert!(link.next_event().is_none_or(|at| at > now), "{:?} {now}", link.next_event());
                    continue;
                };
                prop_assert!(
                    due <= now && predicted_event.is_some_and(|at| at <= due),
                    "{predicted_event:?} {due}"
                );
                if !spec.reorder {
                    prop_assert!(last_delivered[direction.index()] < Some(packet.number), "order");
                    last_delivered[direction.index()] = Some(packet.number);
                }
            }
            LinkStep::Wait(nanos) => now += Duration::from_nanos(nanos),
            LinkStep::WaitForEvent => {
                let predicted_event = link.next_event();
                now = now.max(predicted_event.filter(|at| *at < now + Duration::from_secs(1)).unwrap_or(now));
            }
            LinkStep::Change(change) => link.change(&change, now),
            LinkStep::Schedule(after, change) => link.schedule(now + Duration::from_nanos(after), change),
        }
        prop_assert!(is_conserved(&link));
    }
    // Once everything works again, all packets in the link must come out.
    for change in [
        LinkEventKind::Restore,
        LinkEventKind::Rate(Bitrate::from_mbps(10)),
        LinkEventKind::UplinkRate(Bitrate::from_mbps(10)),
    ] {
        link.schedule(now + Duration::from_secs(1), change);
    }
    let mut step_count = 0;
    now += Duration::from_secs(1);
    while link.pop(now).is_some() {}
    while let Some(at) = link.next_event() {
        step_count += 1;
        prop_assert!(step_count < 10_000, "no progress at {at}");
        now = now.max(at);
        while link.pop(now).is_some() {}
    }
    prop_assert!(is_conserved(&link));
    prop_assert_eq!(link.stats(Direction::Down).in_link, PacketCount::default());
    prop_assert_eq!(link.stats(Direction::Up).in_link, PacketCount::default());
    Ok(())
}

/// Found by the property below: after a collision, the smaller frame came first and earlier than predicted.
#[test]
fn a_collision_causes_no_delivery_before_the_predicted_time() {
    let spec = "wifi,medium=11b-rts,rtt=20ms".parse().unwrap();
    let steps = vec![
        LinkStep::Push(Direction::Down, 1060),
        LinkStep::Push(Direction::Up, 20),
        LinkStep::WaitForEvent,
        LinkStep::Pop,
    ];
    run_history(&spec, steps, 1_126_292_166_926_244_356).unwrap();
}

/// Found by the property below: a frame was sent before its station had a rate.
#[test]
fn a_station_without_a_rate_delivers_nothing_before_the_predicted_time() {
    let spec = "wifi,medium=11g-mixed,rtt=20ms".parse().unwrap();
    let steps = vec![
        LinkStep::Push(Direction::Down, 20),
        LinkStep::Change(LinkEventKind::Rate(Bitrate::ZERO)),
        LinkStep::Schedule(10_280_183, LinkEventKind::UplinkRate(Bitrate::from_mbps(94))),
        LinkStep::Push(Direction::Up, 20),
        LinkStep::WaitForEvent,
        LinkStep::Pop,
    ];
    run_history(&spec, steps, 0).unwrap();
}

proptest! {
    #[test]
    fn every_packet_is_delivered_dropped_or_in_the_link_and_never_early(
        spec in any_spec(),
        steps in proptest::collection::vec(any_step(), 1..300),
        seed in any::<u64>(),
    ) {
        run_history(&spec, steps, seed)?;
    }

    #[test]
    fn the_same_seed_and_times_give_the_same_deliveries(
        spec in any_spec(),
        pushes in proptest::collection::vec((0..3_000_000_u64, any::<bool>(), 20..1280_u64), 1..200),
        seed in any::<u64>(),
    ) {
        // Polled once at every event and once only at the end: the same packets must have the same due times.
        let run = |eager: bool| {
            let (mut link, mut now, mut out) = (Link::new(&spec, seed), Instant::ZERO, Vec::new());
            for (n, (after, up, bytes)) in pushes.iter().enumerate() {
                let next = now + Duration::from_nanos(*after);
                while let Some(at) = link.next_event().filter(|at| eager && *at <= next) {
                    now = now.max(at);
                    while let Some(popped) = link.pop_due(now) {
                        out.push(popped);
                    }
                }
                now = next;
                let direction = if *up { Direction::Up } else { Direction::Down };
                link.push(direction, NumberedPacket { number: n as u64, bytes: *bytes }, now);
            }
            while let Some(popped) = link.pop_due(now + Duration::from_secs(100)) {
                out.push(popped);
            }
            out.sort_by_key(|(due, direction, packet)| (*due, *direction, packet.number));
            out
        };
        prop_assert_eq!(run(true), run(false));
    }
}
