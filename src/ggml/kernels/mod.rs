//! Products of a quantised weight with 1 to 8 rows on the CPU, by kernels of our own behind ggml's custom nodes.
//! Owns no memory: rows are quantised into a node that the products of one input share. Knows nothing of models.
//!
//! ggml reads a weight once for each row, or computes more than the memory needs; here every block of the weight is loaded
//! once for all rows, and later ones are prefetched. So a few rows cost little more than one, which is what verifying
//! drafted tokens needs. Results have the bits of ggml's `vec_dot`, row by row; a product is served either way.
//!
//! Q8_0 on x86-64 with AVX-512 VNNI or AVX2. Elsewhere, and for other types, ggml computes; there are no kernels for NEON
//! yet. The environment variable `NEXTN_KERNELS` chooses for comparisons, read once: `off`, `avx2`, `avx512`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod nodes;
mod rows;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use ggml_sys as sys;

use crate::device::DeviceKind;
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};
use rows::{BLOCK, Columns, MAX_ROWS, Shape, WeightBlock};

/// Weight rows that a kernel takes at a time.
const GROUP: usize = 4;

/// Weight bytes are prefetched at least this far ahead.
const AHEAD: usize = 4096;

/// The instructions that a kernel uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// 256-bit integers; AVX-VNNI is not used.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit integers with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// Four weight rows and where the bytes lie that come next.
struct Group {
    rows: [*const WeightBlock; GROUP],
    ahead: *const u8,
}

/// Dot products of four weight rows with up to eight rows.
type Dots = [[f32; MAX_ROWS]; GROUP];

impl Path {
    /// The paths that this CPU has and whose results have the bits of this build of ggml, best first.
    #[cfg(target_arch = "x86_64")]
    fn available() -> Vec<Path> {
        // SAFETY: no preconditions.
        let (avx2, fma) = (unsafe { sys::ggml_cpu_has_avx2() }, unsafe { sys::ggml_cpu_has_fma() });
        // Without them, ggml was compiled to sum in another order.
        if avx2 == 0 || fma == 0 {
            return vec![];
        }
        let has_avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let has_avx512 = has_avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        [(Path::Avx512, has_avx512), (Path::Avx2, has_avx2)].into_iter().filter(|p| p.1).map(|p| p.0).collect()
    }

    /// None: kernels for this architecture are not written yet.
    #[cfg(not(target_arch = "x86_64"))]
    fn available() -> Vec<Path> {
        vec![]
    }

    /// The path that products take, chosen once.
    fn chosen() -> Option<Path> {
        static CHOSEN: OnceLock<Option<Path>> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let available = Path::available();
            let wanted = std::env::var("NEXTN_KERNELS").unwrap_or_default();
            let named = |name: &str| available.iter().copied().find(|p| format!("{p:?}").eq_ignore_ascii_case(name));
            let chosen = if wanted.is_empty() || wanted == "on" { available.first().copied() } else { named(&wanted) };
            tracing::debug!(path = ?chosen, "kernels");
            chosen
        })
    }

    /// Four weight rows times `y.n` rows.
    ///
    /// # Safety
    /// The path is available; all rows of `group` and `y` have `y.n_blocks` blocks; `y.n` is 1 to [`MAX_ROWS`].
    unsafe fn dots(self, group: &Group, y: &Columns) -> Dots {
        match self {
            // SAFETY: the caller's promise.
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => unsafe { avx2::dots(group, y) },
            // SAFETY: the caller's promise.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => unsafe { avx512::dots(group, y) },
        }
    }
}

impl<'g> Graph<'g> {
    /// `mul_mat(a, b)` by a kernel, if there is one for these operands; they fit each other (checked by the caller).
    pub(crate) fn kernel_product(&self, a: Tensor<'g>, b: Tensor<'g>) -> Option<Tensor<'g>> {
        let (na, nb) = (a.ne(), b.ne());
        let k = usize::try_from(na[0]).ok()?;
        let n = usize::try_from(nb[1]).ok()?;
        let n_blocks = k / BLOCK;
        let served = self.device_kind() == DeviceKind::Cpu
            && a.dtype() == Dtype::Q8_0
            && na[2] == 1
            && na[3] == 1
            && k.is_multiple_of(BLOCK)
            && a.nb()[1] == n_blocks * size_of::<WeightBlock>()
            && b.dtype() == Dtype::F32
            && (1..=MAX_ROWS).contains(&n)
            && nb[2] == 1
            && nb[3] == 1
            && b.nb()[0] == 4
            && !a.is_repacked();
        if !served || Path::chosen().is_none() {
            return None;
        }
        let shape = Shape { n, n_blocks };
        let quantised = self.once_for(b, || {
            self.custom("mul_mat", Dtype::F32, [shape.n_bytes().div_ceil(4) as i64, 1, 1, 1], &[b], nodes::quantise)
        });
        Some(self.custom("mul_mat", Dtype::F32, [na[1], nb[1], 1, 1], &[a, quantised, b], nodes::product))
    }
}
