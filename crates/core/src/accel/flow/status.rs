//! What is shown of a flow. Each mechanism reports in its own folder whether it acts on the flow, and why not.

use super::{Direction, FlowState};
use crate::accel::Mechanisms;
use crate::accel::early_ack::flow_state::EarlyAckFlow;
use crate::accel::status::FlowStatus;
use crate::units::{DataSize, Instant};

/// The flow as it is now.
pub(in crate::accel) fn flow_status(flow: &FlowState, now: Instant, mechanisms: &Mechanisms) -> FlowStatus {
    let report = flow.report(now, mechanisms);
    let (early_acked, missing, early_acked_holes) =
        flow.early_ack.flow.as_ref().map(EarlyAckFlow::counters).unwrap_or_default();
    let is_upload = flow.direction == Direction::Upload;
    FlowStatus {
        flow: if is_upload { flow.key.reversed() } else { flow.key },
        is_upload,
        opened: flow.meter.opened,
        active: report.active,
        inactive: report.inactive,
        received: flow.meter.goodput.total(),
        goodput: flow.meter.goodput.rate(now),
        plain_tcp: flow.plain_tcp(flow.local_holes.count()),
        holes: flow.local_holes.count(),
        random_losses: flow.eifel_undo.random_losses() + early_acked_holes,
        undone_reductions: flow.eifel_undo.undone_reductions(),
        early_acked: DataSize::from_bytes(early_acked),
        missing: DataSize::from_bytes(missing),
        acks: flow.counts.acks,
        offloaded: flow.counts.offloaded,
        replaced: flow.counts.replaced,
        restarts: flow.recovery.restarts(),
        mirrored_conn: None,
        queueing_delay: flow.loss_classifier.queueing_delay(now),
        rtt: flow.meter.rtt.smoothed(),
    }
}
