//! Wire formats of a stream: RTP, RTCP, RTSP messages, the Transport header and session descriptions.

pub mod rtcp;
pub mod rtp;
pub mod rtsp;
pub mod rtsp_transport;
pub mod sdp;
pub mod url_rewrite;
