//! Whatever it is told, in whatever order: the machine does not panic, wants time to pass, and commands only what it was
//! told of.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use proptest::prelude::*;

use super::world::{LTE, WIFI, config};
use crate::link::{LinkId, LinkKind};
use crate::machine::Machine;
use crate::paths::*;
use crate::units::{DataSize, Instant};

/// Two that the configuration names, one that may come later, and one that nobody tells of.
fn link() -> impl Strategy<Value = LinkId> {
    prop::sample::select(alloc::vec![WIFI, LTE, LATER, LinkId(9)])
}

const LATER: LinkId = LinkId(7);

fn later() -> impl Strategy<Value = Input> {
    let terms = |budget| LinkTerms { link: LATER, name: "usb".into(), kind: LinkKind::Nr, metered: true, budget };
    prop::option::of(size()).prop_map(move |budget| Input::Link { terms: terms(budget) })
}

fn conn() -> impl Strategy<Value = ConnId> {
    (0_u32..3).prop_map(ConnId)
}

fn subflow() -> impl Strategy<Value = SubflowId> {
    (0_u64..8).prop_map(SubflowId)
}

fn size() -> impl Strategy<Value = DataSize> {
    prop_oneof![Just(0), 0_u64..100_000, 0..100_000_000_u64, any::<u64>()].prop_map(DataSize::from_bytes)
}

fn round_trip() -> impl Strategy<Value = Option<Duration>> {
    prop::option::of(prop_oneof![Just(0_u64), 0_u64..500, any::<u64>()].prop_map(Duration::from_millis))
}

fn counters() -> impl Strategy<Value = Counters> {
    (
        size(),
        size(),
        size(),
        round_trip(),
        round_trip(),
        0_u8..4,
        any::<bool>(),
        any::<bool>(),
        prop::option::of(size()),
    )
        .prop_map(
            |(received, sent, outstanding, rtt, receiver_rtt, timeouts, backup, peer_backup, reached)| Counters {
                received,
                sent,
                outstanding,
                rtt,
                receiver_rtt,
                timeouts,
                backup,
                peer_backup,
                reached,
            },
        )
}

fn up() -> impl Strategy<Value = Input> {
    (conn(), subflow(), prop::option::of(link()), any::<bool>(), any::<bool>(), round_trip()).prop_map(
        |(conn, id, link, initial, backup, rtt)| Input::SubflowUp {
            conn,
            subflow: Subflow { id, link, initial, backup, rtt },
        },
    )
}

fn down() -> impl Strategy<Value = Input> {
    let why =
        prop::sample::select(alloc::vec![Why::Closed, Why::Reset, Why::TimedOut, Why::Unreachable, Why::Other]);
    (conn(), subflow(), why).prop_map(|(conn, subflow, why)| Input::SubflowDown { conn, subflow, why })
}

fn done() -> impl Strategy<Value = Input> {
    let refusal = prop::sample::select(alloc::vec![
        Refusal::NoConnection,
        Refusal::NoSubflow,
        Refusal::NotYet,
        Refusal::HalfClosed,
        Refusal::NoAddress,
        Refusal::NotAnnounced(IpFamily::V6),
        Refusal::SocketFamily(IpFamily::V6),
        Refusal::NotPermitted,
        Refusal::Other(-1),
    ]);
    (0_u64..60, prop::option::weighted(0.3, refusal))
        .prop_map(|(command, refused)| Input::Done { command: CommandId(command), refused })
}

fn interface() -> impl Strategy<Value = Input> {
    (link(), any::<u16>(), any::<bool>()).prop_map(|(link, mtu, v4)| Input::Interface { link, mtu, v4 })
}

fn input() -> impl Strategy<Value = Input> {
    let opened = (conn(), any::<bool>(), prop::bool::weighted(0.2))
        .prop_map(|(conn, adopted, only_announced)| Input::Opened { conn, adopted, only_announced });
    let seen = (conn(), subflow(), counters()).prop_map(|(conn, subflow, counters)| Input::Seen {
        conn,
        subflow,
        counters,
    });
    prop_oneof![
        2 => prop_oneof![link().prop_map(|link| Input::LinkUp { link }), interface()],
        2 => prop_oneof![later(), link().prop_map(|link| Input::LinkDown { link })],
        2 => (link(), size(), size()).prop_map(|(link, received, sent)| Input::Traffic { link, received, sent }),
        2 => opened,
        1 => conn().prop_map(|conn| Input::Announced { conn }),
        1 => conn().prop_map(|conn| Input::Closed { conn }),
        4 => up(),
        2 => down(),
        16 => seen,
        4 => done(),
    ]
}

/// What the machine was told of and not told to be gone, and so may command.
#[derive(Default)]
struct Told {
    conns: BTreeSet<ConnId>,
    subflows: BTreeSet<(ConnId, SubflowId)>,
    known: BTreeSet<LinkId>,
    links: BTreeSet<LinkId>,
}

impl Told {
    fn hear(&mut self, input: &Input) {
        match *input {
            Input::Link { ref terms } => drop(self.known.insert(terms.link)),
            Input::LinkUp { link } if self.known.contains(&link) => drop(self.links.insert(link)),
            Input::LinkDown { link } => drop(self.links.remove(&link)),
            Input::Opened { conn, .. } => drop(self.conns.insert(conn)),
            Input::Closed { conn } => {
                self.conns.remove(&conn);
                self.subflows.retain(|(of, _)| *of != conn);
            }
            Input::SubflowUp { conn, subflow } if self.conns.contains(&conn) => {
                self.subflows.insert((conn, subflow.id));
            }
            Input::SubflowDown { conn, subflow, .. } => drop(self.subflows.remove(&(conn, subflow))),
            _ => {}
        }
    }

    fn allows(&self, conn: ConnId, what: Command) -> bool {
        match what {
            Command::Join { link, .. } => self.conns.contains(&conn) && self.links.contains(&link),
            Command::Prioritise { subflow, .. } | Command::Destroy { subflow } => {
                self.subflows.contains(&(conn, subflow))
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_input_in_any_order_is_borne(
        policy in prop::sample::select(Policy::ALL.to_vec()),
        profile in prop::sample::select(alloc::vec![
            Profile::Energy, Profile::Throughput, Profile::Latency, Profile::Metered
        ]),
        budget in prop::option::of(size()),
        steps in prop::collection::vec((prop_oneof![Just(0_u64), 0_u64..200, 0_u64..20_000], input()), 1..200),
    ) {
        let mut config = Config { policy, profile, ..config() };
        (config.links[1].budget, config.links[1].metered) = (budget, true);
        let (mut paths, mut told) = (Paths::new(config), Told { known: [WIFI, LTE].into(), ..Told::default() });
        let mut now = Instant::ZERO;
        let opening = [
            Input::LinkUp { link: WIFI },
            Input::LinkUp { link: LTE },
            Input::Opened { conn: ConnId(0), adopted: false, only_announced: false },
        ];
        let steps: Vec<_> = opening.into_iter().map(|input| (0, input)).chain(steps).collect();
        for (wait, input) in steps {
            now += Duration::from_millis(wait);
            told.hear(&input);
            paths.handle(now, input.clone());
            for tick in [false, true] {
                if tick {
                    paths.tick(now);
                }
                let mut gone = BTreeSet::new();
                while let Some(output) = paths.poll() {
                    match output {
                        Output::Do { conn, what, .. } => {
                            prop_assert!(told.allows(conn, what), "{:?} after {:?}", what, input);
                            if let Command::Destroy { subflow } = what {
                                prop_assert!(gone.insert((conn, subflow)), "{:?} twice", what);
                            }
                        }
                        Output::Look { conn } => prop_assert!(told.conns.contains(&conn)),
                        Output::Mtu { mtu, reason, .. } => {
                            prop_assert!(mtu.is_none_or(|mtu| (576..=1280).contains(&mtu)));
                            prop_assert!(reason.is_none_or(|line| !line.contains('\n')));
                        }
                        Output::Note { conn, reason } => {
                            prop_assert!(told.conns.contains(&conn) && !reason.contains('\n'), "{}", reason);
                        }
                    }
                }
            }
            let deadline = paths.deadline();
            prop_assert!(deadline.is_none_or(|(at, _)| at > now), "{:?} at {:?}", deadline, now);
            let _ = paths.conns().filter_map(|conn| paths.view(conn)).count();
            let _ = (paths.spent(now), paths.finish(now), paths.links().count());
        }
    }
}
