//! ACK offload: pure ACKs of a download leave over a secondary link, so that they do not compete with data for the air
//! of the primary one (Super-aggregation §3.1, §4.2).
//!
//! `trial` decides by comparison whether a flow gains from it, `loss_guard` whether it has too many holes for it, and
//! `ack_path` puts both together and selects the link of each ACK. `ack_sender` sends ACKs over a secondary link at its
//! rate; `path_delay` measures how much longer that path is, and `delay_queue` delays ACKs on the primary link by as
//! much.

pub(super) mod ack_path;
pub(super) mod ack_sender;
pub(super) mod delay_queue;
pub(super) mod loss_guard;
mod output_link;
pub(super) mod path_delay;
pub(super) mod trial;
