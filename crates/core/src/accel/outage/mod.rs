//! Outages of the primary link: their detection, and what restarts senders when they end (Super-aggregation §3.2).

pub(super) mod detector;
pub(super) mod options;
pub(super) mod recovery;
