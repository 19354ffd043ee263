//! Products of weights with a few rows of activations on the CPU, and two ops of recurrent layers (`delta.rs`, `conv.rs`), by
//! kernels of our own behind ggml's custom nodes.
//! Owns no memory: rows are quantised into a node that the products of one input share. Knows nothing of models.
//!
//! ggml reads a weight once for each row, or computes more than the memory needs; here every block of the weight is loaded
//! once for up to eight rows, and later ones are prefetched. So a few rows cost little more than one, which is what
//! verifying drafted tokens needs. A row has the same bits in any company and on every processor; with quantised weights
//! those of ggml's `vec_dot` on x86-64.
//!
//! Which types, how many rows, on what: `docs/KERNELS.md`. Elsewhere ggml computes. The environment variable `NEXTN_KERNELS` chooses for
//! comparisons, read once: `off`, `scalar`, `avx2`, `avx512`, `neon`.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod delta_rule;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod dispatch;
mod experts;
mod f32x16;
#[cfg(target_arch = "aarch64")]
mod neon;
mod nodes;
mod product;
mod quantise;
mod scalar;
mod short_conv;
#[cfg(test)]
mod tests;
mod weight_type;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

use ggml_sys as sys;

use crate::device::DeviceKind;
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};
use crate::weights::Weights;
use activations::{Columns, MAX_ROWS, Shape};
use weight_type::{Format, Kind};

/// Weight rows that a kernel takes at a time.
const GROUP: usize = 4;

/// The instructions that a kernel uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// One value at a time: slow, the measure of the others. Only by name.
    Scalar,
    /// 256-bit integers; AVX-VNNI is not used.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit integers with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 128-bit integers with dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// Four weight rows and where the bytes lie that come next.
struct Group {
    rows: [*const u8; GROUP],
    ahead: *const u8,
}

/// Dot products of four weight rows with up to eight rows.
type Dots = [[f32; MAX_ROWS]; GROUP];

impl Path {
    /// The paths that this CPU has, best first, whatever ggml was compiled for.
    #[cfg(target_arch = "x86_64")]
    fn available() -> Vec<Path> {
        let has_avx2 =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        let has_avx512 = has_avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        [(Path::Avx512, has_avx512), (Path::Avx2, has_avx2), (Path::Scalar, true)]
            .into_iter()
            .filter(|p| p.1)
            .map(|p| p.0)
            .collect()
    }

    /// The paths that this CPU has, best first. Their results have the bits that they have on x86-64.
    #[cfg(not(target_arch = "x86_64"))]
    fn available() -> Vec<Path> {
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            return vec![Path::Neon, Path::Scalar];
        }
        vec![Path::Scalar]
    }

    /// True when results have the bits of this build of ggml: elsewhere, and compiled for less, it sums in another order.
    #[cfg(all(test, target_arch = "x86_64"))]
    fn has_bits_of_ggml() -> bool {
        // SAFETY: no preconditions.
        let (avx2, fma) = (unsafe { sys::ggml_cpu_has_avx2() }, unsafe { sys::ggml_cpu_has_fma() });
        avx2 != 0 && fma != 0
    }

    /// The path that products take, chosen once.
    fn chosen() -> Option<Path> {
        static CHOSEN: OnceLock<Option<Path>> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let available = Path::available();
            let wanted = std::env::var("NEXTN_KERNELS").unwrap_or_default();
            let named = |name: &str| available.iter().copied().find(|p| format!("{p:?}").eq_ignore_ascii_case(name));
            let best = available.first().copied().filter(|p| *p != Path::Scalar);
            let chosen = if wanted.is_empty() || wanted == "on" { best } else { named(&wanted) };
            tracing::debug!(path = ?chosen, "kernels");
            chosen
        })
    }

    /// Four weight rows of this kind times `y.n` rows.
    ///
    /// # Safety
    /// The path is available; all rows of `group` and `y` have `y.n_blocks` blocks, those of `y` in the kind's format;
    /// `y.n` is 1 to [`MAX_ROWS`].
    unsafe fn dots(self, kind: Kind, group: &Group, y: &Columns) -> Dots {
        match self {
            // SAFETY: the caller's promise.
            Path::Scalar => unsafe { scalar::dots(kind, group, y) },
            // SAFETY: the caller's promise.
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => unsafe { avx2::dots(kind, group, y) },
            // SAFETY: the caller's promise.
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => unsafe { avx512::dots(kind, group, y) },
            // SAFETY: the caller's promise.
            #[cfg(target_arch = "aarch64")]
            Path::Neon => unsafe { neon::dots(kind, group, y) },
        }
    }
}

/// Rows that the kernels take of any kind.
const FEW: i64 = 32;

/// Rows up to which ggml's own products of quantised weights on a CPU give each the bits that it has alone, where they do.
const FEW_OF_GGML: usize = 7;

/// True when ggml's own product with weights of this type is of one class for up to [`FEW_OF_GGML`] rows. On 64-bit ARM it
/// takes rows in pairs, or in tiles, where the processor has instructions for it.
fn few_of_ggml_are_alike(dtype: Dtype) -> bool {
    // SAFETY: the table is static and has every type.
    let traits = unsafe { sys::ggml_get_type_traits_cpu(dtype.raw()) };
    // SAFETY: an entry of ggml's static table.
    let one_by_one = unsafe { &*traits }.nrows <= 1;
    cfg!(target_arch = "x86_64") || (one_by_one && Kind::of(dtype.raw()).is_none())
}

impl Weights {
    /// Rows of a pass up to which each has the bits that it has alone; `None` where a row's bits depend on how many there are:
    /// where some weights lie on another device than a CPU, and on processors other than x86-64 where the kernels do not
    /// serve all. Large matrices of floats are not counted on x86-64 that the kernels do not serve: with these a row may
    /// differ from the row alone.
    pub fn rows_alike(&self) -> Option<usize> {
        if self.devices().iter().any(|d| d.kind() != DeviceKind::Cpu) {
            return None;
        }
        let served = |t: Dtype| Path::chosen().is_some() && Kind::of(t.raw()).is_some();
        if self.dtypes().all(served) {
            return Some(FEW as usize);
        }
        self.dtypes().all(|t| served(t) || few_of_ggml_are_alike(t)).then_some(FEW_OF_GGML)
    }
}

impl<'g> Graph<'g> {
    /// `mul_mat(a, b)` by a kernel, if there is one for these operands; they fit each other (checked by the caller).
    pub(crate) fn kernel_product(&self, a: Tensor<'g>, b: Tensor<'g>) -> Option<Tensor<'g>> {
        let (na, nb) = (a.ne(), b.ne());
        let kind = self.kernel_for(a)?;
        let one_matrix = na[2] == 1 && na[3] == 1 && nb[2] == 1 && nb[3] == 1 && nb[1] <= kind.max_rows(na[0] * na[1]);
        let quantised = one_matrix.then(|| self.quantised(kind.format(), b))??;
        Some(self.custom("mul_mat", Dtype::F32, [na[1], nb[1], 1, 1], &[a, quantised, b], nodes::product))
    }

    /// `mul_mat_id(experts, b, ids)` by a kernel, likewise.
    pub(crate) fn kernel_experts(&self, experts: Tensor<'g>, b: Tensor<'g>, ids: Tensor<'g>) -> Option<Tensor<'g>> {
        let (ne, ni) = (experts.ne(), ids.ne());
        let kind = self.kernel_for(experts)?;
        let even = experts.nb()[2] == experts.nb()[1] * ne[1] as usize && ni[1] <= kind.max_rows(ne[0] * ne[1] * ne[2]);
        let quantised = even.then(|| self.quantised(kind.format(), b))??;
        let args = [experts, quantised, ids, b];
        Some(self.custom("mul_mat_id", Dtype::F32, [ne[1], ni[0], ni[1], 1], &args, experts::products))
    }

    /// True when `mul_mat` with this weight may be given a row alone: it has the bits that it has among up to eight (quantised
    /// weights, and floats where there are kernels for them), or bits are not in our hands (on a GPU).
    pub fn row_may_stand_alone(&self, w: Tensor<'g>) -> bool {
        w.dtype().is_quantized() || self.kernel_for(w).is_some() || !w.lies_on_host()
    }

    /// The kind of weight that `a` is, if kernels serve it.
    fn kernel_for(&self, a: Tensor<'g>) -> Option<Kind> {
        let kind = Kind::of(a.dtype().raw())?;
        let k = usize::try_from(a.ne()[0]).ok()?;
        let served = a.lies_on_host()
            && k.is_multiple_of(kind.format().block())
            && a.nb()[1] == kind.row_bytes(k)
            && !a.is_repacked()
            // Cells of attention stay with ggml for any number of rows: their products are of one class from 2 rows on.
            && (kind.format() != Format::F32 || a.is_weight())
            && Path::chosen().is_some();
        served.then_some(kind)
    }

    /// The rows of `b` quantised, in a node that all products with them share; `None` for rows that kernels do not read.
    fn quantised(&self, format: Format, b: Tensor<'g>) -> Option<Tensor<'g>> {
        let (ne, nb) = (b.ne(), b.nb());
        let n = usize::try_from(ne[1] * ne[2] * ne[3]).ok()?;
        let even = (ne[2] == 1 || nb[2] == nb[1] * ne[1] as usize) && ne[3] == 1;
        if b.dtype() != Dtype::F32 || nb[0] != 4 || !even {
            return None;
        }
        if format == Format::F32 {
            return Some(b);
        }
        let shape = Shape { n, k: usize::try_from(ne[0]).ok()?, format };
        let words = shape.n_bytes().div_ceil(4) as i64;
        let (purpose, fun): (_, Fun) = match format {
            Format::Q8_0 => ("rows for Q8_0", nodes::quantise_32),
            Format::Q8K | Format::F32 => ("rows for K types", nodes::quantise_256),
        };
        Some(self.once_for(b, purpose, || self.custom("mul_mat", Dtype::F32, [words, 1, 1, 1], &[b], fun)))
    }
}

/// What ggml's threads call.
type Fun = unsafe extern "C" fn(*mut sys::ggml_tensor, std::ffi::c_int, std::ffi::c_int, *mut std::ffi::c_void);
