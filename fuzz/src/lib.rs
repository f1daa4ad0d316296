//! What hostile bytes may not do to marline: one function for each parser, and one that drives each machine.
//!
//! In: any bytes. Out: nothing, or a panic that says which promise was broken.
//!
//! 1. A target is a pure function of its bytes: no clock, no socket, no file, nothing kept between two runs.
//! 2. Not to panic is the least. A target also checks what the parser promises of its result, that a written value
//!    reads back as itself, and that it makes no difference where a stream of bytes was cut.
//! 3. What it allocates is counted, and must be in proportion to its bytes ([`Memory`]).
//! 4. A machine's driver keeps its own side of the contract, whatever the bytes say; everything that a network can do
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
pub mod rtp;
pub mod stored;
pub mod written;

use std::panic::{catch_unwind, resume_unwind};

/// Something that takes any bytes and panics when a promise is broken.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: the folder of its corpus, and what `MARLINE_FUZZ_TARGET` takes.
    pub name: &'static str,
    /// Runs it once, without counting what it allocates.
    pub run: fn(&[u8]),
    /// What it may allocate.
    pub memory: Memory,
}

/// What a target may allocate: in proportion to its bytes, beyond what it needs for none.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Bytes held at a time, for no input and for each byte of it.
    pub peak: (u64, u64),
    /// Bytes in all, which bounds the work as well.
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

    /// Runs it once and panics if it allocates more than in proportion to the input: that finds inputs which make much out
    /// of little.
    pub fn check(&self, bytes: &[u8]) {
        let mut ended = Ok(());
        // A panic that unwinds through the counter would leave it counting.
        let used = allocation_counter::measure(|| ended = catch_unwind(|| (self.run)(bytes)));
        if let Err(panic) = ended {
            resume_unwind(panic);
        }
        let (len, Memory { peak, total }) = (bytes.len() as u64, self.memory);
        let most = |(base, each): (u64, u64)| base + each * len;
        assert!(used.bytes_max <= most(peak), "{} bytes at a time for an input of {len}", used.bytes_max);
        assert!(used.bytes_total <= most(total), "{} bytes in all for an input of {len}", used.bytes_total);
    }
}

/// All targets.
pub const TARGETS: [Target; 37] = [
    Target::new("http_answers", http::answers),
    Target::new("http_chunks", http::chunks),
    Target::new("http_fields", http::fields),
    // Each cookie is compared with those that are known, of which there are few.
    Target::new("cookies", http::cookies).allocates((1 << 20, 256), (16 << 20, 64 << 10)),
    // A cookie has some strings of its own, and is written once more.
    Target::new("cookie_file", http::cookie_file).allocates((1 << 20, 1024), (16 << 20, 64 << 10)),
    Target::new("netrc", http::netrc),
    Target::new("proxy_answer", http::proxy_answer),
    Target::new("sources", http::sources),
    Target::new("file_name", names::file),
    Target::new("dns_reply", names::dns_reply),
    Target::new("dns_question", names::dns_question),
    Target::new("netlink", kernel::netlink),
    Target::new("mptcp", kernel::mptcp),
    Target::new("diag", kernel::diag),
    Target::new("packet", packet::packet),
    Target::new("mirror", accel::mirror),
    Target::new("rtsp", rtp::rtsp),
    Target::new("rtp_merge", rtp::merge),
    Target::new("byte_ranges", accel::ranges),
    Target::new("dbus", kernel::dbus),
    Target::new("journal", stored::journal),
    Target::new("replay", replay::log),
    Target::new("units", written::units),
    Target::new("links", written::links),
    Target::new("traces", written::traces),
    Target::new("scenarios", written::scenarios),
    // A machine that goes on for as long as the input has operations, with logs and a model of the network beside it.
    Target::new("fetch_ops", fetch::ops).allocates((4 << 20, 1024), (16 << 20, 64 << 10)),
    Target::new("proxy_target", proxy::target),
    Target::new("proxy_range", proxy::range),
    Target::new("proxy_socks", proxy::socks),
    // A text that becomes longer by four mebibytes at most, and is read once more.
    Target::new("playlist", proxy::playlist).allocates((16 << 20, 64), (64 << 20, 1024)),
    Target::new("manifest", proxy::manifest).allocates((16 << 20, 64), (64 << 20, 1024)),
    // Each member of a gzip body, of 20 bytes, has tables of its own.
    Target::new("encoded", proxy::encoded).allocates((1 << 20, 64), (4 << 20, 4096)),
    Target::new("container", proxy::container),
    Target::new("player", proxy::player),
    Target::new("connect_head", fleet::head),
    Target::new("relay_answer", fleet::answer),
];

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
