//! ACK offload: pure ACKs of a download over a secondary link (Super-aggregation §3.1, §4.2).

pub(super) mod ack_path;
pub(super) mod ack_sender;
pub(super) mod delay_queue;
pub(super) mod loss_guard;
pub(super) mod path_delay;
pub(super) mod trial;
