//! Test runs of BPF programs in the kernel: the verdict for a packet, and the run time.
//!
//! It takes the id of a program that any process has loaded, and a packet. The result is the program's return value
//! (the verdict) and the mean time of the requested number of runs (`BPF_PROG_TEST_RUN`). The packet is not sent.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// The part of `union bpf_attr` for a test run (`linux/bpf.h`).
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

/// Opens the program with this id.
///
/// # Errors
/// No such program; without CAP_SYS_ADMIN.
pub fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    // `start_id`, `next_id`, `open_flags`.
    let mut attributes = [id, 0, 0];
    // SAFETY: the kernel reads no more than the size that is given.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_GET_FD_BY_ID, attributes.as_mut_ptr(), size_of_val(&attributes))
    };
    let fd = super::check(fd as libc::c_int)?;
    // SAFETY: the kernel has just opened this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs the program on a packet that starts with an Ethernet header. Returns the verdict and the mean run time.
///
/// # Errors
/// Not a packet program; the packet is too short or too long.
pub fn test_run(program: impl AsFd, packet: &[u8], repeat: u32) -> io::Result<(u32, Duration)> {
    let mut attr = TestRunAttr {
        prog_fd: program.as_fd().as_raw_fd().cast_unsigned(),
        data_size_in: u32::try_from(packet.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        data_in: packet.as_ptr() as u64,
        repeat,
        ..TestRunAttr::default()
    };
    // SAFETY: `attr` points to `packet`, which the kernel reads; it writes only into `attr`, within the given size.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attr, size_of::<TestRunAttr>()) };
    super::check(result as libc::c_int)?;
    Ok((attr.retval, Duration::from_nanos(attr.duration.into())))
}

/// Command number in `linux/bpf.h`.
const BPF_PROG_TEST_RUN: libc::c_int = 10;
/// Command number in `linux/bpf.h`.
const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_an_error() {
        program_by_id(u32::MAX - 1).unwrap_err();
        test_run(std::fs::File::open("/dev/null").unwrap(), &[0; 64], 1).unwrap_err();
    }
}
