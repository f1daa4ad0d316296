//! Properties for arbitrary inputs in any order: the machine does not panic, lets time advance, and commands only
//! what was reported to exist.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use proptest::prelude::*;

use super::test_world::{LTE, WIFI, config};
use crate::link::{LinkId, LinkKind};
use crate::machine::Machine;
use crate::paths::*;
use crate::units::{DataSize, Instant};

/// Two links of the configuration, one that may be added later, and one that is never added.
fn link() -> impl Strategy<Value = LinkId> {
    prop::sample::select(alloc::vec![WIFI, LTE, ADDED_LINK, LinkId(9)])
}

const ADDED_LINK: LinkId = LinkId(7);

fn link_added() -> impl Strategy<Value = Input> {
    let link_config =
        |budget| LinkConfig { id: ADDED_LINK, name: "usb".into(), kind: LinkKind::Nr, metered: true, budget };
    prop::option::of(size()).prop_map(move |budget| Input::LinkAdded { config: link_config(budget) })
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

fn rtt() -> impl Strategy<Value = Option<Duration>> {
    prop::option::of(prop_oneof![Just(0_u64), 0_u64..500, any::<u64>()].prop_map(Duration::from_millis))
}

fn counters() -> impl Strategy<Value = Counters> {
    (size(), size(), size(), rtt(), rtt(), 0_u8..4, any::<bool>(), any::<bool>(), prop::option::of(size()))
        .prop_map(|(received, sent, outstanding, rtt, receiver_rtt, timeouts, backup, peer_backup, reached)| {
            Counters {
                received,
                sent,
                outstanding,
                rtt,
                receiver_rtt,
                timeouts,
                backup,
                peer_backup,
                data_seq: reached,
            }
        })
}

fn subflow_up() -> impl Strategy<Value = Input> {
    (conn(), subflow(), prop::option::of(link()), any::<bool>(), any::<bool>(), rtt()).prop_map(
        |(conn, id, link, initial, backup, rtt)| Input::SubflowUp {
            conn,
            subflow: EstablishedSubflow { id, link, initial, backup, rtt },
        },
    )
}

fn subflow_down() -> impl Strategy<Value = Input> {
    let why = prop::sample::select(alloc::vec![
        CloseReason::Closed,
        CloseReason::Reset,
        CloseReason::TimedOut,
        CloseReason::Unreachable,
        CloseReason::Other
    ]);
    (conn(), subflow(), why).prop_map(|(conn, subflow, why)| Input::SubflowDown { conn, subflow, reason: why })
}

fn command_done() -> impl Strategy<Value = Input> {
    let refusal = prop::sample::select(alloc::vec![
        CommandError::NoConnection,
        CommandError::NoSubflow,
        CommandError::NotYet,
        CommandError::HalfClosed,
        CommandError::NoAddress,
        CommandError::NotAnnounced(IpFamily::V6),
        CommandError::SocketFamily(IpFamily::V6),
        CommandError::NotPermitted,
        CommandError::Other(-1),
    ]);
    (0_u64..60, prop::option::weighted(0.3, refusal))
        .prop_map(|(command, refused)| Input::CommandDone { command: CommandId(command), error: refused })
}

fn interface() -> impl Strategy<Value = Input> {
    (link(), any::<u16>(), any::<bool>()).prop_map(|(link, mtu, v4)| Input::Interface { link, mtu, has_ipv4: v4 })
}

fn input() -> impl Strategy<Value = Input> {
    let opened = (conn(), any::<bool>(), prop::bool::weighted(0.2))
        .prop_map(|(conn, adopted, only_announced)| Input::Opened { conn, adopted, deny_join_id0: only_announced });
    let seen = (conn(), subflow(), counters()).prop_map(|(conn, subflow, counters)| Input::Counters {
        conn,
        subflow,
        counters,
    });
    prop_oneof![
        2 => prop_oneof![link().prop_map(|link| Input::LinkUp { link }), interface()],
        2 => prop_oneof![link_added(), link().prop_map(|link| Input::LinkDown { link })],
        2 => (link(), size(), size()).prop_map(|(link, received, sent)| Input::InterfaceCounters { link, received, sent }),
        2 => opened,
        1 => conn().prop_map(|conn| Input::AddressAnnounced { conn }),
        1 => conn().prop_map(|conn| Input::Closed { conn }),
        4 => subflow_up(),
        2 => subflow_down(),
        16 => seen,
        4 => command_done(),
    ]
}

/// Objects that were reported to the machine and not reported as gone, for which commands are allowed.
#[derive(Default)]
struct KnownState {
    conns: BTreeSet<ConnId>,
    subflows: BTreeSet<(ConnId, SubflowId)>,
    configured: BTreeSet<LinkId>,
    links: BTreeSet<LinkId>,
}

impl KnownState {
    fn observe(&mut self, input: &Input) {
        match *input {
            Input::LinkAdded { config: ref link_config } => drop(self.configured.insert(link_config.id)),
            Input::LinkUp { link } if self.configured.contains(&link) => drop(self.links.insert(link)),
            Input::LinkDown { link } => drop(self.links.remove(&link)),
            Input::Opened { conn, .. } => drop(self.conns.insert(conn)),
            Input::Closed { conn } => {
                self.conns.remove(&conn);
                self.subflows.retain(|(owner, _)| *owner != conn);
            }
            Input::SubflowUp { conn, subflow } if self.conns.contains(&conn) => {
                self.subflows.insert((conn, subflow.id));
            }
            Input::SubflowDown { conn, subflow, .. } => drop(self.subflows.remove(&(conn, subflow))),
            _ => {}
        }
    }

    fn allows(&self, conn: ConnId, command: Command) -> bool {
        match command {
            Command::Join { link, .. } => self.conns.contains(&conn) && self.links.contains(&link),
            Command::SetBackup { subflow, .. } | Command::Destroy { subflow } => {
                self.subflows.contains(&(conn, subflow))
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_input_in_any_order_is_handled(
        policy in prop::sample::select(Policy::ALL.to_vec()),
        goal in prop::sample::select(alloc::vec![
            Goal::Energy, Goal::Speed, Goal::Latency, Goal::Cost
        ]),
        budget in prop::option::of(size()),
        steps in prop::collection::vec((prop_oneof![Just(0_u64), 0_u64..200, 0_u64..20_000], input()), 1..200),
    ) {
        let mut config = Config { policy, goal, ..config() };
        (config.links[1].budget, config.links[1].metered) = (budget, true);
        let (mut paths, mut known) = (Paths::new(config), KnownState { configured: [WIFI, LTE].into(), ..KnownState::default() });
        let mut now = Instant::ZERO;
        let opening = [
            Input::LinkUp { link: WIFI },
            Input::LinkUp { link: LTE },
            Input::Opened { conn: ConnId(0), adopted: false, deny_join_id0: false },
        ];
        let steps: Vec<_> = opening.into_iter().map(|input| (0, input)).chain(steps).collect();
        for (wait, input) in steps {
            now += Duration::from_millis(wait);
            known.observe(&input);
            paths.handle(now, input.clone());
            for tick in [false, true] {
                if tick {
                    paths.tick(now);
                }
                let mut gone = BTreeSet::new();
                while let Some(output) = paths.poll() {
                    match output {
                        Output::Command { conn, command, .. } => {
                            prop_assert!(known.allows(conn, command), "{:?} after {:?}", command, input);
                            if let Command::Destroy { subflow } = command {
                                prop_assert!(gone.insert((conn, subflow)), "{:?} twice", command);
                            }
                        }
                        Output::Poll { conn } => prop_assert!(known.conns.contains(&conn)),
                        Output::SetMtu { mtu, reason, .. } => {
                            prop_assert!(mtu.is_none_or(|mtu| (576..=1280).contains(&mtu)));
                            prop_assert!(reason.is_none_or(|line| !line.contains('\n')));
                        }
                        Output::Note { conn, reason } => {
                            prop_assert!(known.conns.contains(&conn) && !reason.contains('\n'), "{}", reason);
                        }
                    }
                }
            }
            let deadline = paths.deadline();
            prop_assert!(deadline.is_none_or(|(at, _)| at > now), "{:?} at {:?}", deadline, now);
            let _ = paths.conn_ids().filter_map(|conn| paths.conn_status(conn)).count();
            let _ = (paths.energy_so_far(now), paths.energy_until_idle(now), paths.link_statuses().count());
        }
    }
}
