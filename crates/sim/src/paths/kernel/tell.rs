//! What the machine is told of links, connections and subflows, as the driver tells it (core/paths/event.rs, duties 1 and 2).

use marline_core::link::LinkId;
use marline_core::paths::{CloseReason, Counters, EstablishedSubflow, Input, SubflowId};
use marline_core::units::{DataSize, Instant};

use super::{Kernel, Stage, name};

impl Kernel {
    /// Of each link that has come, and of each that has carrier.
    pub(in super::super) fn tell_links(&mut self) {
        let come = self.scene.arrivals.iter().filter(|arrival| Instant::ZERO + arrival.at <= self.now);
        self.inbox.extend(come.map(|arrival| Input::LinkAdded { config: arrival.terms.clone() }));
        let works = (0..).map(LinkId).zip(&self.links).filter(|(_, link)| link.carrier);
        self.inbox.extend(works.map(|(link, _)| Input::LinkUp { link }));
    }

    /// To a machine that was not there before.
    pub(in super::super) fn tell_adopted(&mut self) {
        for at in 0..self.conns.len() {
            if self.conns[at].stage == Stage::Told {
                self.tell_opened(at, true);
                for sub in self.conns[at].subs.clone() {
                    if self.subs[sub].here && self.subs[sub].told {
                        self.tell_up(sub);
                    }
                }
            }
        }
    }

    pub(super) fn tell_opened(&mut self, conn: usize, adopted: bool) {
        self.inbox.push_back(Input::Opened { conn: name(conn), adopted, deny_join_id0: false });
    }

    pub(super) fn tell_up(&mut self, at: usize) {
        let sub = &mut self.subs[at];
        sub.told = true;
        let subflow = EstablishedSubflow {
            id: SubflowId(at as u64),
            link: Some(LinkId(u16::try_from(sub.link).unwrap_or(u16::MAX))),
            initial: sub.initial,
            backup: sub.backup,
            rtt: Some(sub.rtt),
        };
        self.inbox.push_back(Input::SubflowUp { conn: name(sub.conn), subflow });
    }

    pub(super) fn tell_down(&mut self, at: usize, why: CloseReason) {
        let sub = &mut self.subs[at];
        if sub.here && sub.told {
            self.inbox.push_back(Input::SubflowDown {
                conn: name(sub.conn),
                subflow: SubflowId(at as u64),
                reason: why,
            });
        }
        sub.here = false;
    }

    pub(super) fn counters(&self, at: usize) -> Counters {
        let sub = &self.subs[at];
        Counters {
            received: DataSize::from_bytes(sub.receiver.received()),
            sent: DataSize::from_bytes(sub.asked),
            outstanding: DataSize::from_bytes(sub.waiting),
            rtt: Some(sub.rtt),
            receiver_rtt: Some(sub.sender.rtt()),
            timeouts: sub.timeouts,
            backup: sub.backup,
            peer_backup: false,
            data_seq: None,
        }
    }
}
