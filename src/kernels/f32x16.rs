//! Sixteen floats at a time: in one register, in two, in four, or in an array. Every kind gives the same bits.

// Loads, stores and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

/// Sixteen floats.
pub(super) trait Lanes: Copy {
    fn zero() -> Self;

    fn all(x: f32) -> Self;

    /// # Safety
    /// Sixteen floats can be read at `p`.
    unsafe fn load(p: *const f32) -> Self;

    /// # Safety
    /// Sixteen floats can be written at `p`.
    unsafe fn store(self, p: *mut f32);

    /// As [`Lanes::store`], past the caches: for what is not read again soon. [`fence`] before another thread reads it.
    ///
    /// # Safety
    /// As [`Lanes::store`]; `p` is a multiple of 64.
    unsafe fn stream(self, p: *mut f32);

    fn add(self, other: Self) -> Self;

    fn mul(self, other: Self) -> Self;

    /// `self * by + more`, rounded once.
    fn mul_add(self, by: Self, more: Self) -> Self;

    /// Lanes `t` and `t + 8` together, then the tree of the other kernels.
    fn sum(self) -> f32;
}

impl Lanes for [f32; 16] {
    fn zero() -> Self {
        [0.0; 16]
    }

    fn all(x: f32) -> Self {
        [x; 16]
    }

    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self>().read_unaligned() }
    }

    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<Self>().write_unaligned(self) };
    }

    unsafe fn stream(self, p: *mut f32) {
        // SAFETY: the caller's promise.
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
        super::scalar::tree(std::array::from_fn(|i| self[i] + self[i + 8]))
    }
}

/// What was streamed comes before what is written from now on.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    use std::arch::x86_64::*;

    use super::super::x86::tree;
    use super::Lanes;

    /// One register of AVX-512. Made only where the CPU has AVX2, FMA and AVX-512 F and DQ.
    #[derive(Clone, Copy)]
    pub(in super::super) struct One(__m512);

    /// Two registers of AVX. Made only where the CPU has AVX2 and FMA.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Two(__m256, __m256);

    // Inlined into functions that are compiled for these features; called by nothing else.
    impl Lanes for One {
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
            // SAFETY: the caller's promise.
            Self(unsafe { _mm512_loadu_ps(p) })
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(p, self.0) };
        }

        #[inline(always)]
        unsafe fn stream(self, p: *mut f32) {
            // SAFETY: the caller's promise.
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
            unsafe { tree(_mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps::<1>(self.0))) }
        }
    }

    impl Lanes for Two {
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
            // SAFETY: the caller's promise.
            unsafe { Self(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: the caller's promise.
            unsafe {
                _mm256_storeu_ps(p, self.0);
                _mm256_storeu_ps(p.add(8), self.1);
            }
        }

        #[inline(always)]
        unsafe fn stream(self, p: *mut f32) {
            // SAFETY: the caller's promise.
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
            unsafe { tree(_mm256_add_ps(self.0, self.1)) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) mod neon {
    use std::arch::aarch64::*;

    use super::super::neon::tree;
    use super::Lanes;

    /// Four registers of NEON, which every 64-bit ARM CPU has that Rust's standard library runs on.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Four([float32x4_t; 4]);

    impl Lanes for Four {
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
            // SAFETY: the caller's promise.
            Self(std::array::from_fn(|i| unsafe { vld1q_f32(p.add(4 * i)) }))
        }

        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            for (i, x) in self.0.into_iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { vst1q_f32(p.add(4 * i), x) };
            }
        }

        /// Like any other: stores past the caches have no intrinsic.
        #[inline(always)]
        unsafe fn stream(self, p: *mut f32) {
            // SAFETY: the caller's promise.
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
            unsafe { tree([vaddq_f32(a, c), vaddq_f32(b, d)]) }
        }
    }
}

/// `fun::<V, ..>(..)` for the lanes of a path: the body is compiled for what the path needs.
macro_rules! on_lanes {
    ($name:ident, $fun:ident $(<const $n:ident>)?, ($($arg:ident: $type:ty),*)) => {
        /// # Safety
        /// The path is available; the rest is the function's to say.
        unsafe fn $name$(<const $n: usize>)?(path: Path, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512dq")]
            unsafe fn avx512$(<const $n: usize>)?($($arg: $type),*) {
                // SAFETY: the caller's promise.
                unsafe { $fun::<$crate::kernels::f32x16::x86::One $(, $n)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            unsafe fn avx2$(<const $n: usize>)?($($arg: $type),*) {
                // SAFETY: the caller's promise.
                unsafe { $fun::<$crate::kernels::f32x16::x86::Two $(, $n)?>($($arg),*) }
            }
            // SAFETY: the caller's promise.
            unsafe {
                match path {
                    Path::Scalar => $fun::<[f32; 16] $(, $n)?>($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Path::Avx2 => avx2$(::<$n>)?($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Path::Avx512 => avx512$(::<$n>)?($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    Path::Neon => $fun::<$crate::kernels::f32x16::neon::Four $(, $n)?>($($arg),*),
                }
            }
        }
    };
}
pub(super) use on_lanes;
