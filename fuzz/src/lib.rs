//! What hostile bytes may not do to marline: one function for each parser, and one that drives each machine.
//!
//! In: any bytes. Out: nothing, or a panic that says which promise was broken.
//!
//! 1. A target is a pure function of its bytes: no clock, no socket, no file, nothing kept between two runs.
//! 2. Not to panic is the least. A target also checks what the parser promises of its result, that a written value
//!    reads back as itself, and that it makes no difference where a stream of bytes was cut.
//! 3. A machine's driver keeps its own side of the contract, whatever the bytes say; everything that a network can do
//!    is allowed. See [`fetch`].
//!
//! The same functions run under libFuzzer (`run`) and, on any machine, over the committed corpus (`cargo test`).
#![forbid(unsafe_code)]

pub mod accel;
mod bytes;
pub mod fetch;
pub mod fleet;
pub mod http;
pub mod kernel;
pub mod names;
pub mod packet;
pub mod proxy;
pub mod replay;
pub mod stored;
pub mod streaming;
pub mod written;

/// Something that takes any bytes and panics when a promise is broken.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: the folder of its corpus, and what `MARLINE_FUZZ_TARGET` takes.
    pub name: &'static str,
    /// Runs it once.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 31] = [
    Target { name: "http_answers", run: http::answers },
    Target { name: "http_chunks", run: http::chunks },
    Target { name: "http_fields", run: http::fields },
    Target { name: "file_name", run: names::file },
    Target { name: "dns_reply", run: names::dns_reply },
    Target { name: "dns_question", run: names::dns_question },
    Target { name: "netlink", run: kernel::netlink },
    Target { name: "mptcp", run: kernel::mptcp },
    Target { name: "diag", run: kernel::diag },
    Target { name: "packet", run: packet::packet },
    Target { name: "mirror", run: accel::mirror },
    Target { name: "rtsp", run: streaming::rtsp },
    Target { name: "rtp_merge", run: streaming::merge },
    Target { name: "byte_ranges", run: accel::ranges },
    Target { name: "dbus", run: kernel::dbus },
    Target { name: "journal", run: stored::journal },
    Target { name: "replay", run: replay::log },
    Target { name: "units", run: written::units },
    Target { name: "links", run: written::links },
    Target { name: "traces", run: written::traces },
    Target { name: "scenarios", run: written::scenarios },
    Target { name: "fetch_ops", run: fetch::ops },
    Target { name: "proxy_target", run: proxy::target },
    Target { name: "proxy_range", run: proxy::range },
    Target { name: "proxy_socks", run: proxy::socks },
    Target { name: "playlist", run: proxy::playlist },
    Target { name: "manifest", run: proxy::manifest },
    Target { name: "container", run: proxy::container },
    Target { name: "player", run: proxy::player },
    Target { name: "connect_head", run: fleet::head },
    Target { name: "relay_answer", run: fleet::answer },
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
