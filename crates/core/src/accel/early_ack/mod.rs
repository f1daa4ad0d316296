//! Early ACK: ACKs go past losses, and the bytes are fetched by HTTP range requests (Super-aggregation §3.3, §4.2).

mod admission;
pub(super) mod engine;
pub(super) mod fetch;
pub(super) mod flow_state;
pub(super) mod head_reassembler;
pub(super) mod http_head;
pub(super) mod http_map;
pub(super) mod latency_guard;
pub(super) mod peer_state;
pub(super) mod pending;
pub(super) mod repair;
