//! Redirects ACKs to the secondary link in the kernel: a BPF program at the egress of the primary device (TCX).
//!
//! 1. It is the least that offload alone needs: no packet comes to user space. Rewriting and delaying need the queue.
//! 2. The attachment is a descriptor of this process: however that ends, the program is gone with it (Linux 6.6).
//! 3. It is switched off while the secondary link is down, which the caller has to know.
//!
//! The program is C (`steer.c`), compiled to `steer.o`, which is beside it: building this crate needs no compiler for
//! BPF. A test compiles it again and compares.

use std::io;
use std::net::Ipv6Addr;

use aya::Ebpf;
use aya::maps::{Array, PerCpuArray};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use marline_core::accel::{AddressFamilies, DATA_PER_ACK_BYTE};
use marline_core::units::Bitrate;
use marline_core::wire::netlink::{Link, Request, messages};
use marline_sys::netlink::RouteSocket;

use crate::AccelError;
use crate::links::AccelLink;

/// The attached program.
#[derive(Debug)]
pub(crate) struct BpfRedirect {
    program: Ebpf,
    settings: [u8; 56],
    /// Bytes before the IP header on the primary device.
    header: u32,
    /// The secondary link has no neighbours, or a router of IPv6 among them.
    has_v6: bool,
}

/// Counters of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BpfCounters {
    /// Pure ACKs that the program has seen.
    pub(crate) acks: u64,
    /// Redirected to the secondary link.
    pub(crate) redirected: u64,
    /// Not redirected because of a hole.
    pub(crate) holes: u64,
    /// Not redirected because the secondary link has no capacity.
    pub(crate) over_limit: u64,
}

impl BpfRedirect {
    /// Attaches the program to the primary link. It redirects nothing until it is switched on.
    pub(crate) fn attach(primary: &AccelLink, second: &AccelLink, up: Bitrate) -> Result<Self, AccelError> {
        let name = &primary.name;
        let unfit = |step: &str, error: &dyn std::fmt::Display| {
            AccelError::Unsupported(format!(
                "{name}: a program at its way out: {step}: {error} (it needs Linux 6.6, CAP_BPF and CAP_PERFMON)"
            ))
        };
        let socket = RouteSocket::open().map_err(AccelError::kernel("a socket for links"))?;
        let (header, _) = device_kind(&socket, primary)?;
        check_redirect(&socket, header, second)?;
        let program = load_and_attach(name).map_err(|(step, error)| unfit(step, &error))?;
        let mut steer = Self { program, settings: settings(header, up), header, has_v6: false };
        steer.set_secondary(second)?;
        Ok(steer)
    }

    /// Redirects ACKs of flows of these families; none: it is off.
    pub(crate) fn set_families(&mut self, on: Option<AddressFamilies>) -> Result<(), AccelError> {
        let families = on.map_or(0, |on| u32::from(on.has_v4()) | u32::from(on.has_v6() && self.has_v6) << 1);
        self.settings[..4].copy_from_slice(&families.to_ne_bytes());
        let settings = self.settings;
        let failed = |error: String| AccelError::kernel("a map of BPF")(io::Error::other(error));
        let map = self.program.map_mut("SETTINGS").ok_or_else(|| failed("it is not there".into()))?;
        let mut map: Array<_, [u8; 56]> =
            map.try_into().map_err(|error: aya::maps::MapError| failed(error.to_string()))?;
        map.set(0, settings, 0).map_err(|error| failed(error.to_string()))
    }

    /// Uses this secondary link from the next [`set_families`](Self::set_families) on.
    pub(crate) fn set_secondary(&mut self, second: &AccelLink) -> Result<(), AccelError> {
        let socket = RouteSocket::open().map_err(AccelError::kernel("a socket for links"))?;
        let has_hardware = check_redirect(&socket, self.header, second)?;
        self.settings[4..8].copy_from_slice(&second.index.to_ne_bytes());
        self.settings[12..16].copy_from_slice(&u32::from(has_hardware).to_ne_bytes());
        self.settings[40..].copy_from_slice(&second.router.unwrap_or(Ipv6Addr::UNSPECIFIED).octets());
        self.has_v6 = second.router.is_some() || !has_hardware;
        Ok(())
    }

    /// Its counters since it is attached.
    pub(crate) fn counters(&self) -> BpfCounters {
        let map = self.program.map("COUNTERS").and_then(|map| PerCpuArray::<_, [u64; 4]>::try_from(map).ok());
        let each = map.and_then(|map| map.get(&0, 0).ok());
        // Summed over all processors.
        let sum =
            |at: usize| each.iter().flat_map(|each| each.iter()).filter_map(|counters| counters.get(at)).sum();
        let [seen, steered, holes, full] = std::array::from_fn(sum);
        BpfCounters { acks: seen, redirected: steered, holes, over_limit: full }
    }
}

/// Loads the program and attaches it, switched off, to a device of this name; or which step failed, and why.
fn load_and_attach(name: &str) -> Result<Ebpf, (&'static str, String)> {
    let mut program = Ebpf::load(OBJECT).map_err(|error| ("it is not loaded", error_chain(&error)))?;
    let steer: Option<&mut SchedClassifier> = program.program_mut("steer").and_then(|steer| steer.try_into().ok());
    let steer = steer.ok_or_else(|| ("it is not loaded", "there is none in the object".to_owned()))?;
    steer.load().map_err(|error| ("the kernel refuses it", error_chain(&error)))?;
    let options = TcAttachOptions::TcxOrder(LinkOrder::default());
    let attached = steer.attach_with_options(name, TcAttachType::Egress, options);
    attached.map_err(|error| ("it is not attached", error_chain(&error)))?;
    Ok(program)
}

/// An error with its causes, which aya's errors do not print by themselves.
fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source()).map(|cause| format!(": {cause}"));
    std::iter::once(error.to_string())
        .chain(causes)
        .collect::<String>()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Whether the program can be loaded: it is attached to the loopback, switched off, and removed at once.
pub(crate) fn check_available() -> Result<(), String> {
    load_and_attach("lo").map(drop).map_err(|(step, why)| format!("{step}: {why}"))
}

/// `struct settings` of the program, switched off and without the secondary link.
fn settings(header: u32, up: Bitrate) -> [u8; 56] {
    let per_kib = 1024 * 8 * 1_000_000_000 / up.bits_per_sec().max(1) * 10 / USABLE_TENTHS;
    let mut bytes = [0; 56];
    bytes[8..12].copy_from_slice(&header.to_ne_bytes());
    // In a tenth of a second; never so much that sequence numbers wrap around.
    let most = (up.bits_per_sec() / 80 * USABLE_TENTHS / 10).saturating_mul(DATA_PER_ACK_BYTE).min(1 << 30);
    for (at, value) in [(16, per_kib), (24, BURST), (32, most)] {
        bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

/// Whether the secondary link has neighbours to which packets of a device with this header length can be redirected.
fn check_redirect(socket: &RouteSocket, header: u32, second: &AccelLink) -> Result<bool, AccelError> {
    let (_, has_hardware) = device_kind(socket, second)?;
    if has_hardware && header == 0 {
        // The kernel drops packets without a header to replace (`bpf_redirect_neigh`).
        return Err(AccelError::Unsupported(format!(
            "link {}: it has neighbours, and the primary link has none: the kernel cannot lead packets there",
            second.name
        )));
    }
    Ok(has_hardware)
}

/// Bytes before the IP header on a device, and whether it has neighbours.
fn device_kind(socket: &RouteSocket, link: &AccelLink) -> Result<(u32, bool), AccelError> {
    // Numbers of `linux/if_arp.h`.
    const ETHERNET: u16 = 1;
    const NONE: u16 = 0xfffe;
    const RAW_IP: u16 = 519;
    const PPP: u16 = 512;
    let reply = socket.request(&Request::link_by_index(link.index).finish(1));
    let reply = reply.map_err(AccelError::kernel(format!("link {}", link.name)))?;
    match messages(&reply).find_map(|message| Link::parse(&message)).map(|link| link.hardware_type) {
        Some(ETHERNET) => Ok((14, true)),
        Some(NONE | RAW_IP | PPP) => Ok((0, false)),
        other => {
            Err(AccelError::Unsupported(format!("link {}: hardware of kind {other:?} is not known", link.name)))
        }
    }
}

/// The compiled program.
static OBJECT: &[u8] = aya::include_bytes_aligned!("steer.o");
/// Our choice: nine tenths of the secondary link's rate, so that its queue stays empty.
const USABLE_TENTHS: u64 = 9;
/// Our choice: 50 ms of the secondary link's time, as much as its round trip varies anyway.
const BURST: u64 = 50_000_000;

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// The compiler of `steer.o`: another one's output may differ.
    const COMPILER: &str = "clang version 14.";

    #[test]
    fn the_object_is_what_its_source_compiles_to() {
        let version =
            Command::new("clang").arg("--version").output().map(|output| output.stdout).unwrap_or_default();
        if !String::from_utf8_lossy(&version).contains(COMPILER) {
            return eprintln!("skipped: needs {COMPILER}");
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bpf/steer.c");
        let directory = tempfile::tempdir().unwrap();
        let object = directory.path().join("steer.o");
        let mut compile = Command::new("clang");
        compile.args(["-O2", "-g", "-target", "bpf", "-Wall", "-Werror"]);
        compile.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH)).arg("-c").arg(source);
        let made = compile.arg("-o").arg(&object).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let code = |object: &[u8]| {
            let object = aya_code(object);
            assert!(object.len() > 1000, "{}", object.len());
            object
        };
        assert!(code(&std::fs::read(&object).unwrap()) == code(OBJECT), "compile bpf/steer.c again");
    }

    /// The bytes of the section `classifier` in an object file (ELF64, little-endian).
    fn aya_code(object: &[u8]) -> Vec<u8> {
        let number = |at: usize, length: usize| {
            object[at..at + length].iter().rev().fold(0_usize, |number, byte| number << 8 | usize::from(*byte))
        };
        let (table, size, count, names) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2), number(0x3e, 2));
        let section = |at: usize| {
            (number(table + at * size, 4), number(table + at * size + 0x18, 8), number(table + at * size + 0x20, 8))
        };
        let (_, names, _) = section(names);
        let found = (0..count).map(section).find(|(name, ..)| object[names + name..].starts_with(b"classifier\0"));
        let (_, from, length) = found.unwrap();
        object[from..from + length].to_vec()
    }

    #[test]
    fn the_secondary_rate_is_time_for_each_kibibyte() {
        let bytes = settings(14, Bitrate::from_bits_per_sec(400_000));
        let value = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((value(0), value(4), value(8), value(12)), (0, 0, 14, 0));
        let per_kib = u64::from_ne_bytes(bytes[16..24].try_into().unwrap());
        let most = u64::from_ne_bytes(bytes[32..40].try_into().unwrap());
        assert_eq!(most, 2_700_000, "216 Mbit/s");
        // 8192 bits at 360 kbit/s.
        assert!((22_755_000..22_756_000).contains(&per_kib), "{per_kib}");
    }
}
