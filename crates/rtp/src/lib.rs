//! RTSP and RTP streams over two links: `marline accel rtp`.
//!
//! A player on this host opens a stream of an unmodified RTSP server through [`RtspListener`]. Media arrives over the primary
//! link. RTCP reports, repeatable RTSP requests and the base layer of the stream use the secondary link as well (Super-aggregation,
//! section 5).
//!
//! [`proto`] decides, without I/O: which link a message takes, and how two RTP streams become one. The other modules own the
//! sockets. No privilege is needed, and the host configuration stays as it is.
//!
//! Where to start reading: `session` (one player), `track` (media and reports of one track), `proto::merge` (the base layer
//! fills holes of the primary stream).

mod base_layer_session;
mod error;
mod listener;
pub mod proto;
mod rtsp_conn;
mod rtsp_url;
mod run_state;
mod session;
mod sockets;
mod track;

pub use error::RtpError;
pub use listener::RtspListener;
pub use rtsp_url::{RtspUrl, RtspUrlError};
pub use run_state::{RtpStats, StreamOptions};
