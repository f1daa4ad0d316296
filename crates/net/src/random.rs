//! Random bytes from the kernel, for keys, tokens and names that cannot be guessed.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns N random bytes, at most 256: the kernel returns up to that many in one piece (getrandom(2)). Early during
/// boot the call blocks until the kernel's generator is seeded.
///
/// # Errors
/// The kernel has no random source.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    let len = rustix::io::retry_on_intr(|| getrandom(&mut bytes[..], GetRandomFlags::empty()))?;
    if len == N { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
