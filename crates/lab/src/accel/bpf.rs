//! What the accelerator's BPF program costs.
//!
//! In: the process. Out: how long its program takes for an acknowledgement of a busy flow, run by run, in a row; and what the kernel
//! has counted where it stands.
//!
//! 1. In a row means that the processor has the program and its maps at hand. Where packets come one by one it has not, and the
//!    kernel's own counting is in its figure: both are told.
//! 2. The acknowledgement is one of no connection's. It counts as busy from the second on, which acknowledges much more than the
//!    first, a tenth of a second later.

use std::io;
use std::time::Duration;

use marline_sys::bpf;

/// See the [module](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bpf {
    /// The program's number in the kernel.
    program: u32,
    /// Its runs, where the kernel counts them, and their nanoseconds.
    runs: u64,
    nanos: u64,
}

impl Bpf {
    /// The program of this process; none: it has none.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?;
        files.flatten().filter_map(|file| std::fs::read_to_string(file.path()).ok()).find_map(|text| read(&text))
    }

    /// Nanoseconds of a run where it stands; none: nobody has counted.
    pub(crate) fn in_place(&self) -> Option<f64> {
        (self.runs > 0).then(|| self.nanos as f64 / self.runs as f64)
    }

    /// The time of a run, in a row.
    pub(crate) fn in_a_row(&self) -> io::Result<Duration> {
        let program = bpf::program_by_id(self.program)?;
        bpf::test_run(&program, &acknowledgement(1), 1)?;
        std::thread::sleep(BUSY);
        bpf::test_run(&program, &acknowledgement(1 << 20), TIMES).map(|(_, time)| time)
    }
}

/// What the kernel says of a descriptor that is a BPF program.
fn read(text: &str) -> Option<Bpf> {
    let of = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    let program = u32::try_from(of("prog_id:")?).ok()?;
    Some(Bpf { program, runs: of("run_cnt:")?, nanos: of("run_time_ns:")? })
}

/// A pure ACK with timestamps, of IPv4. Links of a lab have no header before that of IP, but a trial run takes the first bytes
/// for an Ethernet's: so the beginning of the source's address is that of IP in an Ethernet (0x0800).
fn acknowledgement(number: u32) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 52, 0, 1, 0x40, 0, 64, 6, 0, 0, 0x08, 0x00, 0, 1, 10, 9, 9, 9];
    packet.extend([0xc0, 0, 1, 187, 0, 0, 0, 1]);
    packet.extend(number.to_be_bytes());
    packet.extend([0x80, 0x10, 1, 0, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1]);
    packet
}

/// What the program takes for a flow's tenth of a second, and a little.
const BUSY: Duration = Duration::from_millis(120);
/// chosen: some milliseconds, in which the flow stays busy.
const TIMES: u32 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_bpf_is_read_from_a_descriptor() {
        let text =
            "pos:\t0\nprog_type:\t3\nprog_id:\t17\nrun_time_ns:\t96000\nrun_cnt:\t1000\nrecursion_misses:\t0\n";
        let bpf = read(text).unwrap();
        assert_eq!((bpf.program, bpf.in_place()), (17, Some(96.0)));
        assert_eq!(read("pos:\t0\nflags:\t02\n"), None);
        assert_eq!(read("pos:\t0\nlink_type:\ttcx\nprog_id:\t17\n"), None, "a link to it is not the program");
    }

    #[test]
    fn an_acknowledgement_is_as_long_as_it_says() {
        assert_eq!(acknowledgement(7).len(), 52);
    }
}
