//! The tiles of AMX: whether there are any, how they are set up, and products of them.
//!
//! A tile is up to sixteen rows of 64 bytes. A product of two adds, for every row of the one and every lane of 32 bits of the other,
//! the products of bytes to 32-bit sums. Columns of activations are rows of the one, as they lie in memory; weights are the other,
//! four bytes of each of sixteen weight rows in a line, as [`crate::avx512`] has them in registers. So a line of sums belongs to a
//! column, and a lane of it to a weight row.
//!
//! Compilers know nothing of what is in tiles; only this file has instructions for them.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Columns that are multiplied at a time.
pub(super) const COLUMNS: usize = 16;

/// Bytes of a line.
const LINE: usize = 64;

/// Bytes of a tile.
const TILE: usize = 16 * LINE;

/// 32-bit sums: a line for each column, a lane for each weight row.
pub(super) type Sums = [[i32; 16]; COLUMNS];

/// True if the CPU has tiles for products of bytes, and the system lets this process use them.
pub(crate) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && saves_tiles() && permitted())
}

/// AMX-TILE and AMX-INT8.
fn has_instructions() -> bool {
    let both = 1 << 24 | 1 << 25;
    __cpuid_count(0, 0).eax >= 7 && __cpuid_count(7, 0).edx & both == both
}

/// The system keeps tiles when it switches threads: parts 17 and 18 of what it saves.
fn saves_tiles() -> bool {
    #[target_feature(enable = "xsave")]
    fn saved() -> u64 {
        // SAFETY: register 0 is always there.
        unsafe { _xgetbv(0) }
    }
    // Bit 27: the system uses XSAVE, and the instruction can be executed.
    let enabled = __cpuid_count(1, 0).ecx & 1 << 27 != 0;
    // SAFETY: the CPU has XSAVE.
    enabled && unsafe { saved() } & 3 << 17 == 3 << 17
}

/// Linux wants to be asked, once for all threads: a thread's tiles are 8 KiB that it would have to save.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    /// From the kernel's `asm/prctl.h`.
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    // SAFETY: asks for a permission; changes no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

/// What other systems want was not tried.
#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// The shapes of tiles, as the instruction reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    line_bytes: [u16; 16],
    lines: [u8; 16],
}

/// Tiles that are set up: 0 and 1 for sums, 4 and 5 for columns, 6 and 7 for weights. Given back at the end.
pub(super) struct Tiles(());

impl Tiles {
    /// For `n` columns, at most [`COLUMNS`], and products of `k` bytes at a time, at most 64 and whole fours.
    ///
    /// # Safety
    /// [`available`] says yes. This thread has no other `Tiles`.
    pub(super) unsafe fn new(n: usize, k: usize) -> Self {
        let mut tiles = Self(());
        // SAFETY: the caller's.
        unsafe { tiles.reshape(n, k) };
        tiles
    }

    /// As [`Tiles::new`] says.
    ///
    /// # Safety
    /// That of [`Tiles::new`].
    pub(super) unsafe fn reshape(&mut self, n: usize, k: usize) {
        assert!((1..=COLUMNS).contains(&n) && (4..=LINE).contains(&k) && k.is_multiple_of(4), "{n} {k}");
        let mut shapes = Shapes { palette: 1, start: 0, reserved: [0; 14], line_bytes: [0; 16], lines: [0; 16] };
        for (tile, (lines, bytes)) in
            [(n, LINE), (n, LINE), (0, 0), (0, 0), (n, k), (n, k), (k / 4, LINE), (k / 4, LINE)].into_iter().enumerate()
        {
            (shapes.lines[tile], shapes.line_bytes[tile]) = (lines as u8, bytes as u16);
        }
        // SAFETY: 64 bytes that describe tiles; the CPU has them (the caller).
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly)) };
    }

    /// `sums = x * w`: 256 quants of each column from `x` on, columns `stride` bytes apart, times two bytes for each weight: unsigned
    /// ones at `w`, 64 lines of 64 bytes, give the first sums, signed ones behind them the other.
    ///
    /// # Safety
    /// The tiles are shaped for no more columns than there are, and for 64 bytes at a time; `w` begins 128 lines.
    #[inline(always)]
    pub(super) unsafe fn two_products_of_256(
        &mut self,
        x: *const u8,
        stride: usize,
        w: *const u8,
        sums: &mut [Sums; 2],
    ) {
        // SAFETY: reads 256 bytes of each column and 128 lines, writes as many lines of each sum as there are columns (the caller).
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tileloadd tmm4, [{x} + 1*{stride}]",
                "tileloadd tmm6, [{w} + 1*{line}]",
                "tdpbsud tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + 1*{line} + 4096]",
                "tdpbssd tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{x} + 1*{stride} + 64]",
                "tileloadd tmm6, [{w} + 1*{line} + 1024]",
                "tdpbsud tmm0, tmm5, tmm6",
                "tileloadd tmm7, [{w} + 1*{line} + 5120]",
                "tdpbssd tmm1, tmm5, tmm7",
                "tileloadd tmm4, [{x} + 1*{stride} + 128]",
                "tileloadd tmm6, [{w} + 1*{line} + 2048]",
                "tdpbsud tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + 1*{line} + 6144]",
                "tdpbssd tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{x} + 1*{stride} + 192]",
                "tileloadd tmm6, [{w} + 1*{line} + 3072]",
                "tdpbsud tmm0, tmm5, tmm6",
                "tileloadd tmm7, [{w} + 1*{line} + 7168]",
                "tdpbssd tmm1, tmm5, tmm7",
                "tilestored [{to} + 1*{line}], tmm0",
                "tilestored [{to} + 1*{line} + {tile}], tmm1",
                x = in(reg) x,
                stride = in(reg) stride,
                w = in(reg) w,
                line = in(reg) LINE,
                to = in(reg) sums.as_mut_ptr(),
                tile = const TILE,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// `sums = x * w`: 32 quants of each column from `x` on times signed bytes, eight lines at `w`; and the next 32, whose eight lines are
    /// `block` bytes further on.
    ///
    /// # Safety
    /// The tiles are shaped for no more columns than there are, and for 32 bytes at a time; the lines can be read.
    #[inline(always)]
    pub(super) unsafe fn two_products_of_32(
        &mut self,
        x: *const u8,
        stride: usize,
        w: *const u8,
        block: usize,
        sums: &mut [Sums; 2],
    ) {
        // SAFETY: reads 64 bytes of each column and 16 lines, writes as many lines of each sum as there are columns (the caller).
        unsafe {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm4, [{x} + 1*{stride}]",
                "tileloadd tmm6, [{w} + 1*{line}]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tilezero tmm1",
                "tileloadd tmm5, [{x} + 1*{stride} + 32]",
                "tileloadd tmm7, [{next} + 1*{line}]",
                "tdpbssd tmm1, tmm5, tmm7",
                "tilestored [{to} + 1*{line}], tmm0",
                "tilestored [{to} + 1*{line} + {tile}], tmm1",
                x = in(reg) x,
                stride = in(reg) stride,
                w = in(reg) w,
                next = in(reg) w.wrapping_add(block),
                line = in(reg) LINE,
                to = in(reg) sums.as_mut_ptr(),
                tile = const TILE,
                out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: no preconditions but that the CPU has tiles, which making these promised.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
