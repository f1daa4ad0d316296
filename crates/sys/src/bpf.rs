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
struct TestRunAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

/// The program with this number.
///
/// # Errors
/// There is none; without CAP_SYS_ADMIN.
pub fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    // `start_id`, `next_id`, `open_flags`.
    let mut attributes = [id, 0, 0];
    // SAFETY: the kernel reads no more than the size that is given.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_GET_FD_BY_ID, attributes.as_mut_ptr(), size_of_val(&attributes))
    };
    let fd = super::check(fd as libc::c_int)?;
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the program says to this packet, beginning with its Ethernet header, and how long it takes on average.
///
/// # Errors
/// It is none that looks at packets; the packet is too short or too long.
pub fn test_run(program: impl AsFd, packet: &[u8], repeat: u32) -> io::Result<(u32, Duration)> {
    let mut attr = TestRunAttr {
        prog_fd: program.as_fd().as_raw_fd().cast_unsigned(),
        data_size_in: u32::try_from(packet.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        data_in: packet.as_ptr() as u64,
        repeat,
        ..TestRunAttr::default()
    };
    // SAFETY: `trial` names `af_packet`, which the kernel reads; it writes into `trial` alone, within the size that is given.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attr, size_of::<TestRunAttr>()) };
    super::check(result as libc::c_int)?;
    Ok((attr.retval, Duration::from_nanos(attr.duration.into())))
}

/// `BPF_PROG_TEST_RUN`.
const BPF_PROG_TEST_RUN: libc::c_int = 10;
/// `BPF_PROG_GET_FD_BY_ID`.
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        program_by_id(u32::MAX - 1).unwrap_err();
        test_run(std::fs::File::open("/dev/null").unwrap(), &[0; 64], 1).unwrap_err();
    }
}
