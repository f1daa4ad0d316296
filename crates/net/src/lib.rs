//! How Linux does it: sockets per link, names, HTTP, files, and the pump that drives the machines of core.
//!
//! Everything that touches the operating system during a transfer is here, and nothing here decides what goes over
//! which link, or when: that is core's.

#[cfg(feature = "accel")]
pub mod accel;
pub mod admission;
pub mod control;
mod cookies;
pub mod descriptors;
pub mod dns;
pub mod get;
pub mod http;
pub mod links;
mod logged;
pub mod metalink;
pub mod mptcp;
mod pass;
pub mod paths;
pub mod power;
pub mod private_file;
pub mod proxy;
pub mod queue;
pub mod reach;
pub mod run;
pub mod store;

/// Escaping of text from outside; in core because the laboratory needs it without this crate.
pub use marline_core::printable;

/// Doors to the private parsers, for the fuzz targets alone: no part of what this crate promises.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::accel::fill::fuzzing::byte_ranges;
    pub use crate::cookies::fuzzing::{cookie_file, cookies};
    pub use crate::dns::fuzzing::{dns_question, dns_reply};
    pub use crate::http::fuzzing::{Answers, chunked, connect_status, fields};
    pub use crate::links::fuzzing::{bus_answer, bus_value};
    pub use crate::proxy::fuzzing::{
        List, container, mpv_lines, page_state, proxy_encoded, proxy_manifest, proxy_playlist, proxy_range,
        proxy_socks, proxy_target,
    };
}
