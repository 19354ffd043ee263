//! Sixteen floats at a time: in one register, in two, in four, or in an array. Every kind gives the same bits.

/// Sixteen floats.
pub(crate) trait F32x16: Copy {
    /// Registers that they take.
    const N_REGISTERS: usize;

    fn zero() -> Self;

    fn all(x: f32) -> Self;

    /// # Safety
    /// Sixteen floats can be read at `p`.
    unsafe fn load(p: *const f32) -> Self;

    /// Sixteen halves.
    ///
    /// # Safety
    /// 32 bytes can be read at `p`.
    unsafe fn load_f16(p: *const u8) -> Self;

    /// Sixteen upper halves of floats.
    ///
    /// # Safety
    /// As [`F32x16::load_f16`].
    unsafe fn load_bf16(p: *const u8) -> Self;

    /// The entries of `table` that sixteen codes of `BITS` bits name, 3 or 4; they follow each other, the first in the lowest
    /// bits. A table of codes of 3 bits has its eight entries twice.
    ///
    /// # Safety
    /// `BITS + 4` bytes can be read at `codes`.
    unsafe fn look_up<const BITS: usize>(codes: *const u8, table: &[f32; 16]) -> Self;

    /// # Safety
    /// Sixteen floats can be written at `p`.
    unsafe fn store(self, p: *mut f32);

    /// As [`F32x16::store`], past the caches: for what is not read again soon. [`fence`] before another thread reads it.
    ///
    /// # Safety
    /// As [`F32x16::store`]; `p` is a multiple of 64.
    unsafe fn stream(self, p: *mut f32);

    fn add(self, other: Self) -> Self;

    fn mul(self, other: Self) -> Self;

    /// `self * by + more`, rounded once.
    fn mul_add(self, by: Self, more: Self) -> Self;

    /// Lanes `t` and `t + 8` together, then as in the other kernels.
    fn sum(self) -> f32;
}

impl F32x16 for [f32; 16] {
    const N_REGISTERS: usize = 16;

    fn zero() -> Self {
        [0.0; 16]
    }

    fn all(x: f32) -> Self {
        [x; 16]
    }

    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: sixteen floats can be read at `p` (the caller).
        unsafe { p.cast::<Self>().read_unaligned() }
    }

    unsafe fn load_f16(p: *const u8) -> Self {
        // SAFETY: 32 bytes can be read at `p` (the caller).
        let halves = unsafe { p.cast::<[u16; 16]>().read_unaligned() };
        // SAFETY: no preconditions.
        halves.map(|half| unsafe { ggml_sys::ggml_fp16_to_fp32(u16::from_le(half)) })
    }

    unsafe fn load_bf16(p: *const u8) -> Self {
        // SAFETY: 32 bytes can be read at `p` (the caller).
        let halves = unsafe { p.cast::<[u16; 16]>().read_unaligned() };
        halves.map(|half| f32::from_bits(u32::from(u16::from_le(half)) << 16))
    }

    unsafe fn look_up<const BITS: usize>(codes: *const u8, table: &[f32; 16]) -> Self {
        // SAFETY: `BITS + 4` bytes can be read (the caller).
        let halves = unsafe { eights::<BITS>(codes) };
        std::array::from_fn(|i| {
            let code = halves[i / 8] >> (BITS * (i % 8));
            table[code as usize & ((1 << BITS) - 1)]
        })
    }

    unsafe fn store(self, p: *mut f32) {
        // SAFETY: sixteen floats can be written at `p` (the caller).
        unsafe { p.cast::<Self>().write_unaligned(self) };
    }

    unsafe fn stream(self, p: *mut f32) {
        // SAFETY: sixteen floats can be written at `p`, a multiple of 64 (the caller).
        unsafe { self.store(p) };
    }

    fn add(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] + other[i])
    }

    fn mul(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] * other[i])
    }

    fn mul_add(self, by: Self, more: Self) -> Self {
        std::array::from_fn(|i| self[i].mul_add(by[i], more[i]))
    }

    fn sum(self) -> f32 {
        crate::lanes::sum_array(std::array::from_fn(|i| self[i] + self[i + 8]))
    }
}

/// Two words of eight codes of `BITS` bits each, in the lowest bits.
///
/// # Safety
/// `BITS + 4` bytes can be read at `codes`.
#[inline(always)]
unsafe fn eights<const BITS: usize>(codes: *const u8) -> [u32; 2] {
    // SAFETY: four bytes from each place on (the caller).
    [0, BITS].map(|at| u32::from_le(unsafe { codes.add(at).cast::<u32>().read_unaligned() }))
}

/// What was streamed comes before what is written from now on.
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use super::{F32x16, eights};
    use crate::lanes::sum_lanes;

    /// One register of AVX-512. Used with `Isa::Avx512` and `Isa::Amx` alone: the CPU has AVX2, FMA and AVX-512 F and DQ.
    #[derive(Clone, Copy)]
    pub(crate) struct Zmm(__m512);

    /// Two registers of AVX. Used with `Isa::Avx2` and `Isa::AvxVnni` alone: the CPU has AVX2, FMA and F16C.
    #[derive(Clone, Copy)]
    pub(crate) struct YmmPair(__m256, __m256);

    // Inlined into functions that are compiled for these features; called by nothing else.
    impl F32x16 for Zmm {
        const N_REGISTERS: usize = 1;

        #[inline(always)]
        fn zero() -> Self {
            Self::all(0.0)
        }

        #[inline(always)]
        fn all(x: f32) -> Self {
            // SAFETY: the CPU has AVX-512 F.
            Self(unsafe { _mm512_set1_ps(x) })
        }

        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: sixteen floats can be read at `p` (the caller).
            Self(unsafe { _mm512_loadu_ps(p) })
        }

        #[inline(always)]
        unsafe fn load_f16(p: *const u8) -> Self {
            // SAFETY: 32 bytes can be read at `p` (the caller).
            Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) })
        }

        #[inline(always)]
        unsafe fn load_bf16(p: *const u8) -> Self {
            // SAFETY: 32 bytes can be read at `p` (the caller).
            unsafe {
                let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)))
            }
        }

        #[inline(always)]
        unsafe fn look_up<const BITS: usize>(codes: *const u8, table: &[f32; 16]) -> Self {
            let b = BITS as i32;
            // SAFETY: `BITS + 4` bytes can be read (the caller); the CPU has AVX-512 F. The lowest four bits of a lane name an
            // entry, of codes of 3 bits whatever the fourth is.
            unsafe {
                let [low, high] = eights::<BITS>(codes);
                let words = _mm512_castsi256_si512(_mm256_set1_epi32(low as i32));
                let words = _mm512_inserti64x4::<1>(words, _mm256_set1_epi32(high as i32));
                let shifts = _mm256_mullo_epi32(_mm256_set1_epi32(b), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
                let words = _mm512_srlv_epi32(words, _mm512_broadcast_i64x4(shifts));
                Self(_mm512_permutexvar_ps(words, _mm512_loadu_ps(table.as_ptr())))
            }
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: sixteen floats can be written at `p` (the caller).
            unsafe { _mm512_storeu_ps(p, self.0) };
        }

        #[inline(always)]
        unsafe fn stream(self, p: *mut f32) {
            // SAFETY: sixteen floats can be written at `p`, a multiple of 64 (the caller).
            unsafe { _mm512_stream_ps(p, self.0) };
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: the CPU has AVX-512 F.
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: the CPU has AVX-512 F.
            Self(unsafe { _mm512_mul_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn mul_add(self, by: Self, more: Self) -> Self {
            // SAFETY: the CPU has AVX-512 F.
            Self(unsafe { _mm512_fmadd_ps(self.0, by.0, more.0) })
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: the CPU has AVX-512 DQ and AVX2.
            unsafe { sum_lanes(_mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0))) }
        }
    }

    /// The entries of `table` that the eight codes of a word name.
    ///
    /// # Safety
    /// The CPU has AVX2.
    #[inline(always)]
    unsafe fn look_up_eight<const BITS: usize>(word: u32, table: &[f32; 16]) -> __m256 {
        // SAFETY: the CPU has AVX2; the table has two times eight floats. The lowest three bits of a lane name an entry of
        // eight; the fourth says which eight.
        unsafe {
            let shifts = _mm256_mullo_epi32(_mm256_set1_epi32(BITS as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
            let places = _mm256_srlv_epi32(_mm256_set1_epi32(word as i32), shifts);
            let first = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), places);
            if BITS == 3 {
                return first;
            }
            let second = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr().add(8)), places);
            _mm256_blendv_ps(first, second, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(places)))
        }
    }

    impl F32x16 for YmmPair {
        const N_REGISTERS: usize = 2;

        #[inline(always)]
        fn zero() -> Self {
            Self::all(0.0)
        }

        #[inline(always)]
        fn all(x: f32) -> Self {
            // SAFETY: the CPU has AVX.
            let x = unsafe { _mm256_set1_ps(x) };
            Self(x, x)
        }

        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: sixteen floats can be read at `p` (the caller).
            unsafe { Self(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
        }

        #[inline(always)]
        unsafe fn load_f16(p: *const u8) -> Self {
            // SAFETY: 32 bytes can be read at `p` (the caller).
            unsafe {
                let (low, high) = (_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(16).cast()));
                Self(_mm256_cvtph_ps(low), _mm256_cvtph_ps(high))
            }
        }

        #[inline(always)]
        unsafe fn load_bf16(p: *const u8) -> Self {
            // SAFETY: 32 bytes can be read at `p` (the caller).
            unsafe {
                let low = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())));
                let high = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(16).cast())));
                Self(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
            }
        }

        #[inline(always)]
        unsafe fn look_up<const BITS: usize>(codes: *const u8, table: &[f32; 16]) -> Self {
            // SAFETY: `BITS + 4` bytes can be read (the caller).
            let [low, high] = unsafe { eights::<BITS>(codes) };
            // SAFETY: the CPU has AVX2. Not in a closure, which is not compiled for it.
            let (low, high) = unsafe { (look_up_eight::<BITS>(low, table), look_up_eight::<BITS>(high, table)) };
            Self(low, high)
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: sixteen floats can be written at `p` (the caller).
            unsafe {
                _mm256_storeu_ps(p, self.0);
                _mm256_storeu_ps(p.add(8), self.1);
            }
        }

        #[inline(always)]
        unsafe fn stream(self, p: *mut f32) {
            // SAFETY: sixteen floats can be written at `p`, a multiple of 64 (the caller).
            unsafe {
                _mm256_stream_ps(p, self.0);
                _mm256_stream_ps(p.add(8), self.1);
            }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: the CPU has AVX.
            unsafe { Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: the CPU has AVX.
            unsafe { Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
        }

        #[inline(always)]
        fn mul_add(self, by: Self, more: Self) -> Self {
            // SAFETY: the CPU has FMA.
            unsafe { Self(_mm256_fmadd_ps(self.0, by.0, more.0), _mm256_fmadd_ps(self.1, by.1, more.1)) }
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: the CPU has AVX2.
            unsafe { sum_lanes(_mm256_add_ps(self.0, self.1)) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon {
    use std::arch::aarch64::*;

    use super::{F32x16, eights};
    use crate::lanes::sum_lanes;

    /// Four registers of NEON, which every 64-bit ARM CPU has that Rust's standard library runs on.
    #[derive(Clone, Copy)]
    pub(crate) struct NeonQuad([float32x4_t; 4]);

    impl F32x16 for NeonQuad {
        const N_REGISTERS: usize = 4;

        #[inline(always)]
        fn zero() -> Self {
            Self::all(0.0)
        }

        #[inline(always)]
        fn all(x: f32) -> Self {
            // SAFETY: the CPU has NEON.
            Self([unsafe { vdupq_n_f32(x) }; 4])
        }

        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: sixteen floats can be read at `p` (the caller).
            Self(std::array::from_fn(|i| unsafe { vld1q_f32(p.add(4 * i)) }))
        }

        #[inline(always)]
        unsafe fn load_f16(p: *const u8) -> Self {
            // SAFETY: 32 bytes can be read at `p` (the caller).
            unsafe {
                let (a, b) = (vld1q_u16(p.cast()), vld1q_u16(p.add(16).cast()));
                let (a0, b0) = (vreinterpret_f16_u16(vget_low_u16(a)), vreinterpret_f16_u16(vget_low_u16(b)));
                let (a1, b1) = (vreinterpretq_f16_u16(a), vreinterpretq_f16_u16(b));
                Self([vcvt_f32_f16(a0), vcvt_high_f32_f16(a1), vcvt_f32_f16(b0), vcvt_high_f32_f16(b1)])
            }
        }

        #[inline(always)]
        unsafe fn load_bf16(p: *const u8) -> Self {
            // SAFETY: 32 bytes can be read at `p` (the caller).
            unsafe {
                let (a, b, zero) = (vld1q_u16(p.cast()), vld1q_u16(p.add(16).cast()), vdupq_n_u16(0));
                let [a, c] = [vzip1q_u16(zero, a), vzip2q_u16(zero, a)].map(|x| vreinterpretq_f32_u16(x));
                let [b, d] = [vzip1q_u16(zero, b), vzip2q_u16(zero, b)].map(|x| vreinterpretq_f32_u16(x));
                Self([a, c, b, d])
            }
        }

        #[inline(always)]
        unsafe fn look_up<const BITS: usize>(codes: *const u8, table: &[f32; 16]) -> Self {
            // SAFETY: `BITS + 4` bytes can be read (the caller); the CPU has NEON. Each lane gets the four bytes of an entry.
            unsafe {
                let bytes = vld1q_u8_x4(table.as_ptr().cast());
                let halves = eights::<BITS>(codes);
                Self(std::array::from_fn(|i| {
                    let b = BITS as i32;
                    let first = (i % 2) as i32 * 4 * b;
                    let shifts = [-first, -first - b, -first - 2 * b, -first - 3 * b];
                    let words = vshlq_u32(vdupq_n_u32(halves[i / 2]), vld1q_s32(shifts.as_ptr()));
                    let places = vandq_u32(words, vdupq_n_u32((1 << BITS) - 1));
                    let places = vmlaq_u32(vdupq_n_u32(0x0302_0100), places, vdupq_n_u32(0x0404_0404));
                    vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(places)))
                }))
            }
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            for (i, x) in self.0.into_iter().enumerate() {
                // SAFETY: sixteen floats can be written at `p` (the caller).
                unsafe { vst1q_f32(p.add(4 * i), x) };
            }
        }

        /// Like any other: stores past the caches have no intrinsic.
        #[inline(always)]
        unsafe fn stream(self, p: *mut f32) {
            // SAFETY: sixteen floats can be written at `p`, a multiple of 64 (the caller).
            unsafe { self.store(p) };
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: the CPU has NEON.
            Self(std::array::from_fn(|i| unsafe { vaddq_f32(self.0[i], other.0[i]) }))
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: the CPU has NEON.
            Self(std::array::from_fn(|i| unsafe { vmulq_f32(self.0[i], other.0[i]) }))
        }

        #[inline(always)]
        fn mul_add(self, by: Self, more: Self) -> Self {
            // SAFETY: the CPU has NEON.
            Self(std::array::from_fn(|i| unsafe { vfmaq_f32(more.0[i], self.0[i], by.0[i]) }))
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            let [a, b, c, d] = self.0;
            // SAFETY: the CPU has NEON.
            unsafe { sum_lanes([vaddq_f32(a, c), vaddq_f32(b, d)]) }
        }
    }
}

/// `$fun::<V, ..>(..)` for the sixteen floats `V` of an instruction set, compiled for the features that it needs.
macro_rules! by_isa {
    ($vis:vis $name:ident, $fun:ident $(<const $n:ident>)?, ($($arg:ident: $type:ty),*) $(, $result:ty)?) => {
        /// # Safety
        /// The instruction set is available; the rest as for the function that it is compiled from.
        $vis unsafe fn $name$(<const $n: usize>)?(isa: Isa, $($arg: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512dq")]
            unsafe fn avx512$(<const $n: usize>)?($($arg: $type),*) $(-> $result)? {
                // SAFETY: the contract of the outer function, which calls this one with `Isa::Avx512` and `Isa::Amx` alone.
                unsafe { $fun::<$crate::f32x16::x86::Zmm $(, $n)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2$(<const $n: usize>)?($($arg: $type),*) $(-> $result)? {
                // SAFETY: the contract of the outer function, which calls this one with `Isa::Avx2` and `Isa::AvxVnni` alone.
                unsafe { $fun::<$crate::f32x16::x86::YmmPair $(, $n)?>($($arg),*) }
            }
            // SAFETY: the contract of this function; an available instruction set has the features of its function.
            unsafe {
                match isa {
                    Isa::Scalar => $fun::<[f32; 16] $(, $n)?>($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 | Isa::AvxVnni => avx2$(::<$n>)?($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 | Isa::Amx => avx512$(::<$n>)?($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    Isa::Neon | Isa::I8mm => $fun::<$crate::f32x16::neon::NeonQuad $(, $n)?>($($arg),*),
                }
            }
        }
    };
}
pub(crate) use by_isa;
