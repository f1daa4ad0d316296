//! Random bytes of the kernel, for keys, tokens and names that cannot be guessed.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// At most 256 random bytes: so many come in one piece (getrandom(2)). Early in the boot the call waits.
///
/// # Errors
/// The kernel has no random source.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    let len = rustix::io::retry_on_intr(|| getrandom(&mut bytes[..], GetRandomFlags::empty()))?;
    if len == N { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
