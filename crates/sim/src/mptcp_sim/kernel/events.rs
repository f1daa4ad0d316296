//! Reports about links, connections and subflows, with the duties of a driver (1, 2 and 6 in core/paths/event.rs).

use marline_core::link::LinkId;
use marline_core::paths::{CloseReason, Counters, EstablishedSubflow, Input, SubflowId};
use marline_core::units::{DataSize, Instant};

use super::{ConnStage, KernelModel, conn_id};

impl KernelModel {
    /// Reports each link that has arrived, and each that has carrier.
    pub(in super::super) fn report_links(&mut self) {
        let arrived = self.scenario.link_arrivals.iter().filter(|arrival| Instant::ZERO + arrival.at <= self.now);
        self.machine_inputs.extend(arrived.map(|arrival| Input::LinkAdded { config: arrival.config.clone() }));
        let up = (0..).map(LinkId).zip(&self.links).filter(|(_, link)| link.has_carrier);
        self.machine_inputs.extend(up.map(|(link, _)| Input::LinkUp { link }));
    }

    /// Reports the open connections to a new machine.
    pub(in super::super) fn report_open_conns(&mut self) {
        for conn in 0..self.conns.len() {
            if self.conns[conn].stage == ConnStage::Reported {
                self.report_opened(conn, true);
                for sub in self.conns[conn].subflows.clone() {
                    if self.subflows[sub].is_open_at_client && self.subflows[sub].is_reported {
                        self.report_subflow_up(sub);
                    }
                }
            }
        }
    }

    pub(super) fn report_opened(&mut self, conn: usize, adopted: bool) {
        self.machine_inputs.push_back(Input::Opened { conn: conn_id(conn), adopted, deny_join_id0: false });
    }

    pub(super) fn report_subflow_up(&mut self, index: usize) {
        let sub = &mut self.subflows[index];
        sub.is_reported = true;
        let subflow = EstablishedSubflow {
            id: SubflowId(index as u64),
            link: Some(LinkId(u16::try_from(sub.link).unwrap_or(u16::MAX))),
            initial: sub.initial,
            backup: sub.client_backup,
            rtt: Some(sub.rtt),
        };
        self.machine_inputs.push_back(Input::SubflowUp { conn: conn_id(sub.conn), subflow });
    }

    pub(super) fn report_subflow_down(&mut self, index: usize, reason: CloseReason) {
        let sub = &mut self.subflows[index];
        if sub.is_open_at_client && sub.is_reported {
            self.machine_inputs.push_back(Input::SubflowDown {
                conn: conn_id(sub.conn),
                subflow: SubflowId(index as u64),
                reason,
            });
        }
        sub.is_open_at_client = false;
    }

    pub(super) fn counters(&self, index: usize) -> Counters {
        let sub = &self.subflows[index];
        Counters {
            received: DataSize::from_bytes(sub.receiver.received()),
            sent: DataSize::from_bytes(sub.request_bytes_acked),
            outstanding: DataSize::from_bytes(sub.request_bytes_unacked),
            rtt: Some(sub.rtt),
            receiver_rtt: Some(sub.sender.rtt()),
            timeouts: sub.timeouts,
            backup: sub.client_backup,
            peer_backup: false,
            data_seq: None,
        }
    }
}
