//! How the C library's allocator treats large blocks.

/// From now on blocks of a mebibyte and more go back to the kernel as soon as they are freed, and grow without being copied.
/// By itself glibc raises that size to up to 32 MiB as such blocks are freed, and then keeps them, for each thread. Other C
/// libraries do nothing of the kind.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        const MEBIBYTE: libc::c_int = 1 << 20;
        // SAFETY: it sets a parameter of the allocator, which any thread may do at any time.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MEBIBYTE) };
    }
}
