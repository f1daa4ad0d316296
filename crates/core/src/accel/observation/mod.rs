//! What the packets of a flow, of a path and of a link show.
//!
//! Each module is one estimator: it takes what was seen and the time, and answers questions. None of them changes a packet.

pub(super) mod congestion_response;
pub(super) mod goodput;
pub(super) mod loss_classifier;
pub(super) mod min_rtt;
pub(super) mod minmax_filter;
pub(super) mod path_test;
pub(super) mod peer_clock;
pub(super) mod queue_drop_test;
pub(super) mod rtt;
pub(super) mod sack_holes;
pub(super) mod tcp_model;
pub(super) mod tsval_check;
pub(super) mod upload;
