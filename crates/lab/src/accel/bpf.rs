//! Cost of the accelerator's BPF program: the time that it takes for an ACK of a busy flow, many runs in a row, and the
//! time that the kernel has counted at the link.
//!
//! 1. In a row, the program and its maps are in the processor's caches. For single packets they are not, and the
//!    kernel's counting is included: both are reported.
//! 2. The ACK belongs to no connection. Its flow counts as busy from the second ACK on, which acknowledges much more
//!    than the first, a tenth of a second later.

use std::io;
use std::time::Duration;

use marline_sys::bpf;

/// The program of a process; see the [module documentation](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bpf {
    /// The program's number in the kernel.
    program: u32,
    /// Runs at the link that the kernel has counted (0: it does not count), and in `nanos` their total time.
    runs: u64,
    nanos: u64,
}

impl Bpf {
    /// The program of this process, if it has one.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()?;
        files.flatten().filter_map(|file| std::fs::read_to_string(file.path()).ok()).find_map(|text| read(&text))
    }

    /// Nanoseconds of a run at the link; none: the kernel has not counted.
    pub(crate) fn in_place(&self) -> Option<f64> {
        (self.runs > 0).then(|| self.nanos as f64 / self.runs as f64)
    }

    /// The time of a run, in a row.
    pub(crate) fn in_a_row(&self) -> io::Result<Duration> {
        let program = bpf::program_by_id(self.program)?;
        bpf::test_run(&program, &acknowledgement(1), 1)?;
        std::thread::sleep(BUSY_AFTER);
        bpf::test_run(&program, &acknowledgement(1 << 20), RUNS).map(|(_, time)| time)
    }
}

/// Reads the kernel's description of a descriptor that is a BPF program.
fn read(text: &str) -> Option<Bpf> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    let program = u32::try_from(field("prog_id:")?).ok()?;
    Some(Bpf { program, runs: field("run_cnt:")?, nanos: field("run_time_ns:")? })
}

/// A pure ACK of IPv4 with timestamps and this acknowledgment number. Links of a lab have no header before that of IP, but a trial run
/// takes the first bytes for an Ethernet header: so the beginning of the source address is the type of IP in Ethernet (0x0800).
fn acknowledgement(number: u32) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 52, 0, 1, 0x40, 0, 64, 6, 0, 0, 0x08, 0x00, 0, 1, 10, 9, 9, 9];
    packet.extend([0xc0, 0, 1, 187, 0, 0, 0, 1]);
    packet.extend(number.to_be_bytes());
    packet.extend([0x80, 0x10, 1, 0, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1]);
    packet
}

/// A little more than the tenth of a second after which the program counts a flow as busy.
const BUSY_AFTER: Duration = Duration::from_millis(120);
/// Our choice: some milliseconds, in which the flow stays busy.
const RUNS: u32 = 100_000;

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
    fn an_ack_has_the_length_of_its_header() {
        assert_eq!(acknowledgement(7).len(), 52);
    }
}
