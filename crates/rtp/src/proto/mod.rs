//! Decisions and wire formats of an RTP stream over two links (Super-aggregation, section 5), without I/O and without a clock.
//!
//! 1. *Reports are offloaded* (section 5.1.1): the player's RTCP reports take the secondary link ([`RtcpRouter`]), so that they
//!    continue in an outage of the primary link and do not compete with its media.
//! 2. *Commands are duplicated* (section 5.1.2): messages that may arrive twice are sent over both links, and the first
//!    successful response counts. This holds for RTCP feedback ([`RtcpRouter`]) and for repeatable RTSP requests
//!    ([`rtsp::is_repeatable`], [`DuplicatedRequest`]).
//! 3. *The base layer is mirrored* (section 5.1.3): the frames that others depend on are requested a second time over the
//!    secondary link, and fill holes in the stream of the primary link ([`StreamMerger`]).
//!
//! The secondary link never needs the primary link's source address: a receiver is identified by its SSRC and a session by its
//! identifier. Therefore all of it works behind NAT. Datagrams that cannot be parsed are forwarded
//! unchanged.
//!
//! The server stays unmodified: RTSP as in RFC 2326, RTP and RTCP as in RFC 3550.

mod duplicate_request;
pub mod merge;
mod rtcp_router;
pub mod wire;

pub use duplicate_request::{DuplicatedRequest, LinkRole};
pub use merge::{AlignmentState, Layer, MergeCounts, StreamMerger};
pub use rtcp_router::{Route, RtcpRouter};
pub use wire::rtcp::RtcpKind;
pub use wire::rtp::RtpPacket;
pub use wire::{rtsp, rtsp_transport, sdp, url_rewrite};
