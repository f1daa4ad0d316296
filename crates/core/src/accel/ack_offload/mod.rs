//! ACK offload: pure ACKs of a download leave over a secondary link, so that they do not compete with data for the air
//! of the primary one (Super-aggregation §3.1, §4.2).
//!
//! `trial` decides by comparison whether a flow gains from it, `loss_guard` whether it has too many holes for it, and
//! `ack_path` puts both together and selects the link of each ACK. `path_delay` measures how much longer the path over a
//! secondary link is, and `delay_queue` delays ACKs on the primary link by as much. [`super::secondary`] sends the ACKs.

pub(super) mod ack_path;
pub(super) mod delay_queue;
pub(super) mod loss_guard;
pub(super) mod options;
pub(super) mod path_delay;
pub(super) mod trial;
