//! Early ACK (loss hiding by ranges): acknowledges past losses before the missing bytes have arrived, and fetches them
//! by HTTP range requests over another connection (Super-aggregation §3.3, §4.2).
//!
//! The sender sees no loss, so its congestion window stays large. Off by default: after a crash, or where the bytes
//! cannot be fetched, such a flow can only be reset.
//!
//! | module | responsibility |
//! |---|---|
//! | `http_map`, `head_reassembler`, `http_head` | which bytes of which HTTP resource a range of sequence numbers is |
//! | `engine` | what is acknowledged and what has to be fetched |
//! | `flow_state` | both together for one flow, and what is injected into the local stack |
//! | `fetch` | which ranges are requested when, and over which link |
//! | `stage` | early ACK as the first stage of the ACK pipeline: whether a hole is worth it |
//! | `latency_guard` | whether holes are filled in time |
//! | `peer_state` | what injected segments repeat of the peer |
//! | `pending`, `repair` | what a crashed process has left to repair, and its repair |

pub(super) mod engine;
pub(super) mod fetch;
pub(super) mod flow_state;
pub(super) mod head_reassembler;
pub(super) mod http_head;
pub(super) mod http_map;
pub(super) mod latency_guard;
pub(super) mod options;
pub(super) mod peer_state;
pub(super) mod pending;
pub(super) mod repair;
pub(super) mod stage;
