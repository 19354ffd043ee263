//! Rows of floats into the types of files and back, outside of any graph: for tools that write models.
//! Owns the list of types that can be made of any finite numbers. Computes on the caller's thread: split the rows for more.

use std::borrow::Cow;

use ggml_sys as sys;

use crate::dtype::Dtype;
use crate::error::Error;

/// Packs whole rows of `n_per_row` floats each. `importance`, if given, has a weight for each place in a row, used for
/// all rows: a larger one makes errors there smaller.
///
/// # Errors
/// [`Error::Row`]: `n_per_row` is no multiple of the type's block. [`Error::Pack`]: `src` is not made of whole rows, `dst`
/// or `importance` are not of their size, a number is not finite or too large for the type, or the type is one of
/// [`Dtype::can_be_packed`] false.
pub fn pack_rows(
    dtype: Dtype,
    src: &[f32],
    n_per_row: usize,
    importance: Option<&[f32]>,
    dst: &mut [u8],
) -> Result<(), Error> {
    let refused = |what: String| Error::Pack { dtype: dtype.name(), what };
    if !dtype.can_be_packed() {
        return Err(refused("this type cannot be made of floats here; take another".into()));
    }
    if n_per_row == 0 || !src.len().is_multiple_of(n_per_row) {
        return Err(refused(format!("{} floats are no whole rows of {n_per_row}", src.len())));
    }
    let row_bytes = dtype.row_bytes(n_per_row as i64)?;
    let n_rows = src.len() / n_per_row;
    if dst.len() != row_bytes * n_rows {
        return Err(refused(format!("{} bytes of room, {} needed", dst.len(), row_bytes * n_rows)));
    }
    if let Some(weights) = importance {
        if weights.len() != n_per_row {
            return Err(refused(format!("{} weights for rows of {n_per_row}", weights.len())));
        }
        if let Some(w) = weights.iter().find(|w| !(w.is_finite() && **w >= 0.0)) {
            return Err(refused(format!("weight {w} found, finite ones of 0 and more expected")));
        }
    }
    if let Some(i) = src.iter().position(|x| !x.is_finite()) {
        let (row, column) = (i / n_per_row, i % n_per_row);
        return Err(refused(format!("{} in row {row}, column {column}; finite numbers expected", src[i])));
    }
    // The scales of blocks are halves: with larger numbers they could become infinite.
    let most = if dtype == Dtype::F32 || dtype == Dtype::BF16 { f32::MAX } else { F16_MAX };
    if let Some(x) = src.iter().find(|x| x.abs() > most) {
        return Err(refused(format!("{x:e} found, at most {most} allowed")));
    }
    if n_rows == 0 {
        return Ok(());
    }
    let mut own = Vec::new();
    let direct = (dst.as_ptr() as usize).is_multiple_of(alignment(dtype));
    let to: *mut u8 = if direct {
        dst.as_mut_ptr()
    } else {
        own.resize(dst.len().div_ceil(4), 0u32);
        own.as_mut_ptr().cast()
    };
    let weights = importance.map_or(std::ptr::null(), <[f32]>::as_ptr);
    // SAFETY: `src` has `n_rows * n_per_row` floats, `to` has room for as many packed rows and is aligned, `weights` is
    // null or has `n_per_row` floats; the types of `can_be_packed` need no weights and assert nothing else.
    let n = unsafe {
        sys::ggml_quantize_chunk(dtype.raw(), src.as_ptr(), to.cast(), 0, n_rows as i64, n_per_row as i64, weights)
    };
    debug_assert_eq!(n, dst.len());
    if !direct {
        // SAFETY: `own` has at least as many bytes, all written.
        let packed = unsafe { std::slice::from_raw_parts(own.as_ptr().cast::<u8>(), dst.len()) };
        dst.copy_from_slice(packed);
    }
    Ok(())
}

/// Unpacks whole blocks into as many floats as `dst` has room for.
///
/// # Errors
/// [`Error::Row`]: the floats are no whole number of blocks. [`Error::Pack`]: `src` has not their size, or ggml cannot
/// unpack the type.
pub fn unpack(dtype: Dtype, src: &[u8], dst: &mut [f32]) -> Result<(), Error> {
    let refused = |what: String| Error::Pack { dtype: dtype.name(), what };
    let need = dtype.row_bytes(dst.len() as i64)?;
    if src.len() != need {
        return Err(refused(format!("{} bytes found, {need} expected for {} floats", src.len(), dst.len())));
    }
    if dtype == Dtype::F32 {
        for (to, from) in dst.iter_mut().zip(src.as_chunks().0) {
            *to = f32::from_le_bytes(*from);
        }
        return Ok(());
    }
    if !dtype.unpacks() {
        return Err(refused("ggml cannot turn this type into floats".into()));
    }
    let src = aligned(dtype, src);
    // SAFETY: `dtype` is below GGML_TYPE_COUNT; the table is static.
    let traits = unsafe { sys::ggml_get_type_traits(dtype.raw()) };
    // SAFETY: an entry of the static table.
    let to_float = unsafe { &*traits }.to_float.expect("`unpacks` has looked");
    // SAFETY: `src` has the bytes of `dst.len()` elements, aligned for their block; any bytes are valid blocks.
    unsafe { to_float(src.as_ptr().cast(), dst.as_mut_ptr(), dst.len() as i64) };
    Ok(())
}

/// What a block's fields need. Sizes of blocks are multiples of it, so slices at whole blocks keep it.
fn alignment(dtype: Dtype) -> usize {
    match dtype.block_bytes() {
        n if n.is_multiple_of(4) => 4,
        n if n.is_multiple_of(2) => 2,
        _ => 1,
    }
}

/// The bytes where they are, or a copy at an address that fits.
fn aligned(dtype: Dtype, bytes: &[u8]) -> Cow<'_, [u8]> {
    if (bytes.as_ptr() as usize).is_multiple_of(alignment(dtype)) {
        return Cow::Borrowed(bytes);
    }
    // Allocators give far more than 4, also for bytes.
    Cow::Owned(bytes.to_vec())
}

const F16_MAX: f32 = 65504.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 0.37).sin() * (1.0 + (i % 7) as f32)).collect()
    }

    #[test]
    fn packed_rows_unpack_to_about_the_same() {
        let x = wave(1024);
        for (dtype, most) in [
            (Dtype::F32, 0.0),
            (Dtype::F16, 4e-3),
            (Dtype::BF16, 3e-2),
            (Dtype::Q8_0, 0.05),
            (Dtype::Q6_K, 0.25),
            (Dtype::Q4_K, 0.6),
            (Dtype::Q4_0, 1.0),
        ] {
            let mut packed = vec![0; dtype.row_bytes(1024).unwrap()];
            pack_rows(dtype, &x, 512, None, &mut packed).unwrap();
            let mut back = vec![0.0; 1024];
            unpack(dtype, &packed, &mut back).unwrap();
            let worst = x.iter().zip(&back).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= most, "{dtype}: {worst}");
        }
    }

    #[test]
    fn an_odd_address_gives_the_same_bytes() {
        let x = wave(512);
        for dtype in [Dtype::Q8_0, Dtype::Q4_K, Dtype::F32] {
            let n = dtype.row_bytes(512).unwrap();
            let (mut even, mut odd) = (vec![0; n], vec![0; n + 1]);
            pack_rows(dtype, &x, 256, None, &mut even).unwrap();
            pack_rows(dtype, &x, 256, None, &mut odd[1..]).unwrap();
            assert_eq!(even, odd[1..], "{dtype}");
            let (mut a, mut b) = (vec![0.0; 512], vec![0.0; 512]);
            unpack(dtype, &even, &mut a).unwrap();
            unpack(dtype, &odd[1..], &mut b).unwrap();
            assert_eq!(a, b, "{dtype}");
        }
    }

    #[test]
    fn importance_moves_the_error() {
        // Only the first half of each block counts: it must come out better than when all count alike.
        let x = wave(256);
        let weights: Vec<f32> = (0..256).map(|i| if i % 32 < 16 { 1.0 } else { 1e-6 }).collect();
        let error = |importance: Option<&[f32]>| {
            let mut packed = vec![0; Dtype::Q4_K.row_bytes(256).unwrap()];
            pack_rows(Dtype::Q4_K, &x, 256, importance, &mut packed).unwrap();
            let mut back = vec![0.0; 256];
            unpack(Dtype::Q4_K, &packed, &mut back).unwrap();
            (0..256).filter(|i| i % 32 < 16).map(|i| (x[i] - back[i]).powi(2)).sum::<f32>()
        };
        assert!(error(Some(&weights)) < error(None));
    }

    #[test]
    fn what_ggml_would_abort_on_is_refused() {
        let mut dst = vec![0; Dtype::Q4_K.row_bytes(256).unwrap()];
        let mut x = wave(256);
        x[17] = f32::NAN;
        let e = pack_rows(Dtype::Q4_K, &x, 256, None, &mut dst).unwrap_err().to_string();
        assert!(e.contains("row 0, column 17"), "{e}");
        x[17] = 3e38;
        let e = pack_rows(Dtype::Q8_0, &x, 256, None, &mut [0; 272]).unwrap_err().to_string();
        assert!(e.contains("at most 65504"), "{e}");
        x[17] = 1.0;
        assert!(pack_rows(Dtype::Q4_K, &x, 255, None, &mut dst).is_err());
        assert!(pack_rows(Dtype::Q4_K, &x, 256, None, &mut dst[1..]).is_err());
        assert!(pack_rows(Dtype::Q4_K, &x, 256, Some(&x[1..]), &mut dst).is_err());
        let iq2_xxs = Dtype::from_id(16).unwrap();
        assert!(pack_rows(iq2_xxs, &x, 256, None, &mut dst).is_err());
        assert!(unpack(Dtype::Q4_K, &dst[1..], &mut x).is_err());
        assert!(unpack(Dtype::I32, &[0; 8], &mut [0.0; 2]).is_err());
    }
}
