//! Configuration of the C library's allocator.

/// Makes the allocator return blocks of one mebibyte and more to the kernel as soon as they are freed, and grow them
/// without copying. By default glibc does so from 128 KiB, but raises that threshold to up to 32 MiB as such blocks are
/// freed, and then keeps freed blocks below it for each thread. Other C libraries do not, so nothing is set there.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        const MEBIBYTE: libc::c_int = 1 << 20;
        // SAFETY: it sets a parameter of the allocator, which any thread may do at any time.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MEBIBYTE) };
    }
}
