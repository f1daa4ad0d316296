//! Wire formats: RTP and RTCP packets, RTSP messages and their Transport header, session descriptions, URLs in texts.

pub mod rtcp;
pub mod rtp;
pub mod rtsp;
pub mod rtsp_transport;
pub mod sdp;
pub mod url_rewrite;
