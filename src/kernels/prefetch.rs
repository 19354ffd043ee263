//! Asking for bytes before they are needed.

/// Asks for the `n` bytes from `p` on, to be read soon. Addresses past the weight are harmless: a prefetch never faults.
#[inline(always)]
pub(crate) fn prefetch(p: *const u8, n: usize) {
    for line in (0..n).step_by(64) {
        let p = p.wrapping_add(line);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 CPU has the instruction; it never faults.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast())
        };
        #[cfg(target_arch = "aarch64")]
        // SAFETY: every 64-bit ARM CPU has the instruction; it never faults and changes nothing.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) p, options(readonly, nostack, preserves_flags))
        };
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = p;
    }
}

/// As [`prefetch`], into the second cache: what is this far ahead, many rows, would drive out of the first what is read now.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch_far(p: *const u8, n: usize) {
    for line in (0..n).step_by(64) {
        // SAFETY: every x86-64 CPU has the instruction; it never faults.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.wrapping_add(line).cast()) };
    }
}
