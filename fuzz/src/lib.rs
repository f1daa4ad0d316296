//! Fuzz targets: one function per parser of external input, and one for each state machine that is fuzzed.
//!
//! A target takes any bytes. It returns nothing, and panics if the tested code violates a guarantee.
//!
//! 1. A target is a pure function of its bytes: it uses no clock, socket or file, and keeps no state between two runs.
//! 2. The absence of panics is the minimum. A target also checks the guarantees for parsed values, that written values
//!    parse to the same values, and that the result does not depend on where a byte stream is cut.
//! 3. Allocations are counted and must be proportional to the length of the input ([`Memory`]).
//! 4. The driver of a machine fulfils its part of the contract for every input, and lets everything happen that a network
//!    can do; see [`fetch`].
//!
//! The same functions run under libFuzzer (script `run`), and on any machine with the committed corpus (`cargo test`).
#![forbid(unsafe_code)]

pub mod accel;
mod bytes;
pub mod fetch;
pub mod fleet;
pub mod http;
pub mod journal;
pub mod kernel;
pub mod names;
pub mod packet;
pub mod proxy;
pub mod replay;
pub mod rtp;
pub mod text_formats;

use std::panic::{catch_unwind, resume_unwind};

/// A function that takes any bytes and panics if the tested code violates a guarantee.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target, of its corpus folder, and the value for `MARLINE_FUZZ_TARGET`.
    pub name: &'static str,
    /// Runs the target once, without counting allocations.
    pub run: fn(&[u8]),
    /// Limits of its allocations.
    pub memory: Memory,
}

/// Limits of a target's allocations: a constant, and an amount per byte of input.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Maximum number of bytes held at the same time: constant, and per byte of input.
    pub peak: (u64, u64),
    /// Maximum of the sum of all allocations, which also bounds the work: constant, and per byte of input.
    pub total: (u64, u64),
}

impl Target {
    const fn new(name: &'static str, run: fn(&[u8])) -> Self {
        Self { name, run, memory: Memory { peak: (256 << 10, 64), total: (1 << 20, 256) } }
    }

    const fn allocates(mut self, peak: (u64, u64), total: (u64, u64)) -> Self {
        self.memory = Memory { peak, total };
        self
    }

    /// Runs the target once and panics if it exceeds its limits. This finds small inputs with disproportionate cost.
    pub fn check(&self, bytes: &[u8]) {
        let mut result = Ok(());
        // A panic that unwinds through `measure` would leave the counter running.
        let used = allocation_counter::measure(|| result = catch_unwind(|| (self.run)(bytes)));
        if let Err(panic) = result {
            resume_unwind(panic);
        }
        let (len, Memory { peak, total }) = (bytes.len() as u64, self.memory);
        let limit = |(constant, per_byte): (u64, u64)| constant + per_byte * len;
        assert!(used.bytes_max <= limit(peak), "{} bytes held at once for {len} bytes of input", used.bytes_max);
        assert!(used.bytes_total <= limit(total), "{} bytes allocated for {len} bytes of input", used.bytes_total);
    }
}

/// All targets.
pub const TARGETS: [Target; 37] = [
    Target::new("http_responses", http::responses),
    Target::new("http_chunks", http::chunks),
    Target::new("http_fields", http::fields),
    // Each cookie is compared with the stored cookies, whose number is limited.
    Target::new("cookies", http::cookies).allocates((1 << 20, 256), (16 << 20, 64 << 10)),
    // A cookie has several strings and is written again.
    Target::new("cookie_file", http::cookie_file).allocates((1 << 20, 1024), (16 << 20, 64 << 10)),
    Target::new("netrc", http::netrc),
    Target::new("proxy_response", http::proxy_response),
    Target::new("mirror_urls", http::mirror_urls),
    Target::new("file_name", names::file),
    Target::new("dns_reply", names::dns_reply),
    Target::new("dns_question", names::dns_question),
    Target::new("netlink", kernel::netlink),
    Target::new("mptcp", kernel::mptcp),
    Target::new("diag", kernel::diag),
    Target::new("packet", packet::packet),
    Target::new("http_map", accel::http_map),
    Target::new("rtsp", rtp::rtsp),
    Target::new("rtp_merge", rtp::merge),
    Target::new("byte_ranges", accel::ranges),
    Target::new("dbus", kernel::dbus),
    Target::new("journal", journal::journal),
    Target::new("replay", replay::log),
    Target::new("units", text_formats::units),
    Target::new("links", text_formats::links),
    Target::new("traces", text_formats::traces),
    Target::new("scenarios", text_formats::scenarios),
    // The number of operations grows with the input; the log and the reference model take memory as well.
    Target::new("fetch_ops", fetch::ops).allocates((4 << 20, 1024), (16 << 20, 64 << 10)),
    Target::new("proxy_target", proxy::target),
    Target::new("proxy_range", proxy::range),
    Target::new("proxy_socks", proxy::socks),
    // The rewritten text is up to four mebibytes longer, and is parsed again.
    Target::new("playlist", proxy::playlist).allocates((16 << 20, 64), (64 << 20, 1024)),
    Target::new("manifest", proxy::manifest).allocates((16 << 20, 64), (64 << 20, 1024)),
    // Each member of a gzip body has tables, and takes only 20 bytes of input.
    Target::new("content_coding", proxy::content_coding).allocates((1 << 20, 64), (4 << 20, 4096)),
    Target::new("container", proxy::container),
    Target::new("player", proxy::player),
    Target::new("connect_head", fleet::connect_head),
    Target::new("relay_response", fleet::relay_response),
];

/// Finds a target by its name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
