//! What the packets of a flow, of a path and of a link show.
//!
//! Each module is one estimator: it takes packets or ACKs and the time, and answers a question. None of them changes a
//! packet, so the rewriters of ACKs can be added and removed without touching them.
//!
//! | module | question |
//! |---|---|
//! | `sack_holes` | which ranges are missing, and since when |
//! | `rtt`, `upload` | the round-trip time of a flow |
//! | `goodput` | the rate of the last two seconds |
//! | `peer_clock`, `tsval_check` | the timestamp clock of the peer; whether a captured timestamp can be the peer's |
//! | `loss_classifier`, `queue_drop_test` | whether a loss is random or congestion, by queueing delay |
//! | `path_test` | whether the losses of a path depend on the sending rate |
//! | `congestion_response` | whether the sender slows down after a loss at all |
//! | `tcp_model` | what plain TCP would reach with the same loss |

pub(super) mod congestion_response;
pub(super) mod flow_meter;
pub(super) mod goodput;
pub(super) mod loss_classifier;
pub(super) mod minmax_filter;
pub(super) mod options;
pub(super) mod path_test;
pub(super) mod peer_clock;
pub(super) mod queue_drop_test;
pub(super) mod rtt;
pub(super) mod sack_holes;
pub(super) mod tcp_model;
pub(super) mod tsval_check;
pub(super) mod upload;
