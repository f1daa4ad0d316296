//! The seccomp filter: which system calls of a command are reported to its supervisor.
//!
//! It is a classic BPF program as data, for [`super::install_filter`]. The kernel runs it on every system call with
//! the call number, the architecture, and the six argument registers (seccomp(2), `struct seccomp_data`).
//!
//! 1. It reports `socket(AF_INET or AF_INET6, SOCK_STREAM with any flags, 0 or IPPROTO_TCP)`, and nothing else.
//! 2. Calls of another architecture (32-bit programs on a 64-bit kernel, x32) have other numbers and are permitted
//!    unchecked.
//! 3. Only the lower halves of registers are read, as by the kernel: `socket` takes three `int`s. No argument is a
//!    pointer, so nothing can change between check and use.
//!
//! A filter library is unnecessary for fifteen instructions, which the test below interprets.

use libc::sock_filter;

/// Audit architecture of the call numbers in `libc` (`linux/audit.h`); none if it is unknown here.
const AUDIT_ARCH: Option<u32> = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else if cfg!(target_arch = "riscv64") {
    Some(0xc000_00f3)
} else if cfg!(all(target_arch = "arm", target_endian = "little")) {
    Some(0x4000_0028)
} else {
    None
};

/// Offsets in `struct seccomp_data`.
const NR_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;

/// Offset of the lower half of an argument register.
const fn arg_offset(index: u32) -> u32 {
    16 + 8 * index + if cfg!(target_endian = "big") { 4 } else { 0 }
}

/// Bits of the socket type; the remaining bits are flags (`linux/net.h`).
const TYPE_MASK: u32 = 0xf;

/// The program; none on an unknown architecture.
pub(super) fn tcp_socket_filter() -> Option<[sock_filter; PROGRAM_LEN]> {
    Some([
        load(ARCH_OFFSET),
        jump_unless_equal(AUDIT_ARCH?, jump_to_allow(1)),
        load(NR_OFFSET),
        jump_unless_equal(libc::SYS_socket as u32, jump_to_allow(3)),
        load(arg_offset(0)),
        skip_next_if_equal(libc::AF_INET as u32),
        jump_unless_equal(libc::AF_INET6 as u32, jump_to_allow(6)),
        load(arg_offset(1)),
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, TYPE_MASK, 0, 0),
        jump_unless_equal(libc::SOCK_STREAM as u32, jump_to_allow(9)),
        load(arg_offset(2)),
        skip_next_if_equal(libc::IPPROTO_IP as u32),
        jump_unless_equal(libc::IPPROTO_TCP as u32, jump_to_allow(12)),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_USER_NOTIF, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ])
}

const PROGRAM_LEN: usize = 15;

/// Jump distance from the instruction at `index` to the last one, which permits the call.
const fn jump_to_allow(index: u8) -> u8 {
    PROGRAM_LEN as u8 - 2 - index
}

const fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

const fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

const fn jump_unless_equal(value: u32, jump: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, jump)
}

const fn skip_next_if_equal(value: u32) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 1, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the instructions used here, as the kernel does.
    fn interpret(program: &[sock_filter], call: &[u8; 64]) -> u32 {
        let (mut pc, mut accumulator) = (0, 0_u32);
        loop {
            let sock_filter { code, jt, jf, k } = program[pc];
            pc += 1;
            match u32::from(code) {
                c if c == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    let offset = k as usize;
                    accumulator = u32::from_ne_bytes(call[offset..offset + 4].try_into().unwrap());
                }
                c if c == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => accumulator &= k,
                c if c == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    pc += usize::from(if accumulator == k { jt } else { jf });
                }
                c if c == libc::BPF_RET | libc::BPF_K => return k,
                c => panic!("instruction {c:#x}"),
            }
        }
    }

    fn syscall_data(architecture: u32, number: i64, arguments: [u64; 3]) -> [u8; 64] {
        let mut bytes = [0xee; 64];
        bytes[..4].copy_from_slice(&(number as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&architecture.to_ne_bytes());
        for (index, argument) in arguments.iter().enumerate() {
            bytes[16 + 8 * index..24 + 8 * index].copy_from_slice(&argument.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn only_tcp_sockets_are_reported() {
        let Some(program) = tcp_socket_filter() else {
            eprintln!("skipped: the filter does not know this architecture");
            return;
        };
        let arch = AUDIT_ARCH.unwrap();
        let socket = libc::SYS_socket;
        let (inet, inet6, unix) = (libc::AF_INET as u64, libc::AF_INET6 as u64, libc::AF_UNIX as u64);
        let (stream, datagram) = (libc::SOCK_STREAM as u64, libc::SOCK_DGRAM as u64);
        let flags = (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) as u64;
        let upper_bits = 0xdead_beef_0000_0000;
        let table: &[(&str, [u8; 64], bool)] = &[
            ("IPv4", syscall_data(arch, socket, [inet, stream, 0]), true),
            ("IPv6 by its number", syscall_data(arch, socket, [inet6, stream, 6]), true),
            ("with flags", syscall_data(arch, socket, [inet, stream | flags, 0]), true),
            (
                "register halves that the kernel ignores",
                syscall_data(arch, socket, [upper_bits | inet, upper_bits | stream, upper_bits]),
                true,
            ),
            ("UDP", syscall_data(arch, socket, [inet, datagram, 0]), false),
            ("raw", syscall_data(arch, socket, [inet, libc::SOCK_RAW as u64, 6]), false),
            ("a packet socket", syscall_data(arch, socket, [libc::AF_PACKET as u64, stream, 0]), false),
            ("a local one", syscall_data(arch, socket, [unix, stream, 0]), false),
            ("SCTP", syscall_data(arch, socket, [inet, stream, 132]), false),
            ("MPTCP already", syscall_data(arch, socket, [inet, stream, 262]), false),
            ("another call", syscall_data(arch, libc::SYS_connect, [inet, stream, 0]), false),
            ("x32", syscall_data(arch, socket | 0x4000_0000, [inet, stream, 0]), false),
            ("a 32-bit program", syscall_data(0x4000_0003, socket, [inet, stream, 0]), false),
        ];
        for (name, call, is_notified) in table {
            let verdict = if *is_notified { libc::SECCOMP_RET_USER_NOTIF } else { libc::SECCOMP_RET_ALLOW };
            assert_eq!(interpret(&program, call), verdict, "{name}");
        }
    }

    #[test]
    fn no_jump_leaves_the_program() {
        for (index, operation) in tcp_socket_filter().into_iter().flatten().enumerate() {
            if u32::from(operation.code) & 7 == libc::BPF_JMP {
                let target = index + 1 + usize::from(operation.jt.max(operation.jf));
                assert!(target < PROGRAM_LEN, "instruction {index}");
            }
        }
    }
}
