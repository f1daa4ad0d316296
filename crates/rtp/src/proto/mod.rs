//! Streams over UDP with a second link beside the first, and nothing changed at the server: Super-aggregation §5, over RTP.
//!
//! In: what a player and an unmodified server say to each other, by RTSP (RFC 2326), RTP and RTCP (RFC 3550). Out: over
//! which link each of it goes, and one stream of media made from what both links bring.
//!
//! 1. *RtcpRouter offloaded* (§5.1.1): a receiver's reports leave over the second link ([`RtcpRouter`]). They keep coming while
//!    the first one is dark, and do not compete with media for its air.
//! 2. *Commands duplicated* (§5.1.2): what may be heard twice is said over both links, and the first good answer counts:
//!    feedback by RTCP ([`RtcpRouter`]), requests by RTSP ([`rtsp::is_repeatable`], [`DuplicatedRequest`]).
//! 3. *Base layer mirrored* (§5.1.3): the frames that others depend on are asked for a second time over the second link,
//!    and put into the first link's stream where it has a hole ([`StreamMerger`]).
//! 4. Nothing needs the first link's source address on the second link: a receiver is known by its SSRC and a session by its
//!    name, so that all of it passes NAT.
//! 5. Views borrow, never panic and keep nothing; what they do not understand passes as it came.

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
