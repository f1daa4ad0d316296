//! Programs in the kernel (BPF): what one makes of a packet, and how long it takes.
//!
//! In: the number of a program that is loaded, whoever has loaded it; a packet. Out: the program's word, and the mean time of as
//! many runs in a row as were asked for (`BPF_PROG_TEST_RUN`). The packet goes nowhere.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Of `union bpf_attr` what a trial run needs (`linux/bpf.h`).
#[repr(C)]
#[derive(Default)]
struct Trial {
    program: u32,
    word: u32,
    length: u32,
    room: u32,
    packet: u64,
    out: u64,
    times: u32,
    nanos: u32,
}

/// The program with this number.
///
/// # Errors
/// There is none; without CAP_SYS_ADMIN.
pub fn program(number: u32) -> io::Result<OwnedFd> {
    // `start_id`, `next_id`, `open_flags`.
    let mut attributes = [number, 0, 0];
    // SAFETY: the kernel reads no more than the size that is given.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, GET_BY_NUMBER, attributes.as_mut_ptr(), size_of_val(&attributes)) };
    let fd = super::check(fd as libc::c_int)?;
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the program says to this packet, beginning with its Ethernet header, and how long it takes on average.
///
/// # Errors
/// It is none that looks at packets; the packet is too short or too long.
pub fn run(program: impl AsFd, packet: &[u8], times: u32) -> io::Result<(u32, Duration)> {
    let mut trial = Trial {
        program: program.as_fd().as_raw_fd().cast_unsigned(),
        length: u32::try_from(packet.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        packet: packet.as_ptr() as u64,
        times,
        ..Trial::default()
    };
    // SAFETY: `trial` names `packet`, which the kernel reads; it writes into `trial` alone, within the size that is given.
    let done = unsafe { libc::syscall(libc::SYS_bpf, TEST_RUN, &raw mut trial, size_of::<Trial>()) };
    super::check(done as libc::c_int)?;
    Ok((trial.word, Duration::from_nanos(trial.nanos.into())))
}

/// `BPF_PROG_TEST_RUN`.
const TEST_RUN: libc::c_int = 10;
/// `BPF_PROG_GET_FD_BY_ID`.
const GET_BY_NUMBER: libc::c_int = 13;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        program(u32::MAX - 1).unwrap_err();
        run(std::fs::File::open("/dev/null").unwrap(), &[0; 64], 1).unwrap_err();
    }
}
