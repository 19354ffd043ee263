//! The rotation of positions, out of a file's metadata and what the user says over them.
//! Sources: Su et al. 2021; Chen et al. 2023 (linear scaling); Peng et al. 2023 (YaRN).

use ggml::Rope;

use crate::error::LoadError;
use crate::head_shape::HeadRotation;
use crate::keys::{Keys, WIDTH};
use crate::rope_options::RopeScaling;

/// How far positions are scaled.
struct Scaling {
    kind: RopeScaling,
    /// Factor on positions.
    scale: f32,
    /// That of the file.
    scale_of_file: f32,
    /// Context of the original training.
    n_ctx_orig: usize,
}

impl Scaling {
    fn read(keys: &Keys<'_, '_>) -> Result<Self, LoadError> {
        let options = keys.rope_options();
        let kind = match (options.scaling, keys.text("rope.scaling.type")?) {
            (Some(kind), _) => kind,
            // A factor without a type is of files older than the types.
            (None, None) => RopeScaling::Linear,
            (None, Some(name)) => name.parse().map_err(|what: String| keys.error("rope.scaling.type", what))?,
        };
        let scale_of_file = 1.0 / factor_of_file(keys)?.unwrap_or(1.0);
        let scale = match kind {
            RopeScaling::None => 1.0,
            _ => options.freq_scale.unwrap_or(scale_of_file),
        };
        let n_ctx_orig = match options.yarn_orig_ctx {
            Some(n) => n as usize,
            None if kind == RopeScaling::Yarn => n_ctx_orig(keys)?,
            // Of a head alone it may not be known, and only YaRN asks for it.
            None => match keys.find("rope.scaling.original_context_length", WIDTH)? {
                Some(n) => n,
                None => keys.n_ctx_train().unwrap_or(0),
            },
        };
        Ok(Self { kind, scale, scale_of_file, n_ctx_orig })
    }
}

/// The factor by which the file's context is stretched, under its name or the older one; 0 is none.
fn factor_of_file(keys: &Keys<'_, '_>) -> Result<Option<f32>, LoadError> {
    for key in ["rope.scaling.factor", "rope.scale_linear"] {
        match keys.float(key, 0.0..=1e6)? {
            None => {}
            Some(0.0) => return Ok(None),
            Some(factor) if factor < 1e-3 => {
                return Err(keys.error(key, format!("{factor} found, 0 or 0.001 to 1000000 expected")));
            }
            factor => return Ok(factor),
        }
    }
    Ok(None)
}

/// Context of the original training, as the file has it.
pub(crate) fn n_ctx_orig(keys: &Keys<'_, '_>) -> Result<usize, LoadError> {
    match keys.find("rope.scaling.original_context_length", WIDTH)? {
        Some(n) => Ok(n),
        None => keys.n_ctx_train(),
    }
}

/// Positions that the model can be used for: what it was trained for, unless the user stretches that by YaRN.
pub(crate) fn n_ctx_usable(keys: &Keys<'_, '_>) -> Result<usize, LoadError> {
    let scaling = Scaling::read(keys)?;
    if scaling.kind != RopeScaling::Yarn || scaling.scale == scaling.scale_of_file {
        return keys.n_ctx_train();
    }
    Ok(((scaling.n_ctx_orig as f32 / scaling.scale) as usize).clamp(1, MAX_CTX))
}

/// The longest context that is believed.
const MAX_CTX: usize = 1 << 28;

/// The rotation for heads of `d_head` elements: base, rotated share, linear or YaRN scaling.
pub(crate) fn rope(keys: &Keys<'_, '_>, d_head: usize, neox: bool) -> Result<Rope, LoadError> {
    let options = keys.rope_options();
    let base = match options.freq_base {
        Some(base) => base,
        None => keys.float("rope.freq_base", BASE)?.unwrap_or(10_000.0),
    };
    scaled(keys, base, n_dims(keys, &["rope.dimension_count"], d_head)?, neox)
}

/// The rotation as DeepSeek's models have it, and a factor on scores. Where the file says how the magnitude grows with the
/// context, scores grow by its square and rotated values not at all; else both do, as in llama.cpp, which the files are
/// made for.
pub(crate) fn rope_and_scores(keys: &Keys<'_, '_>, d_head: usize) -> Result<(Rope, f32), LoadError> {
    let rope = rope(keys, d_head, false)?;
    if rope.ext_factor == 0.0 {
        return Ok((rope, 1.0));
    }
    let factor = 1.0 / rope.scale;
    let of_file = keys.float("rope.scaling.yarn_log_multiplier", 0.0..=1e6)?.filter(|&m| m != 0.0);
    // As if rotated values had no magnitude of their own.
    let values = of_file.map_or(1.0, |m| magnitude(factor, m) / magnitude(factor, 1.0));
    let rope = Rope { attn_factor: rope.attn_factor * values, ..rope };
    // Converters write a tenth of the published number.
    let scores = magnitude(factor, of_file.unwrap_or(0.0) / 0.1);
    Ok((rope, (rope.attn_factor * (1.0 + 0.1 * factor.ln()) * scores).powi(2)))
}

/// That of layers with a window, which may have a base and a rotated share of their own (`rope.freq_base_swa`,
/// `rope.dimension_count_swa`). The base is else `base`, or that of the other layers; the share is as theirs.
/// `scales`: positions are scaled in these layers, too. What the user says of the base is about the other layers.
pub(crate) fn rope_swa(
    keys: &Keys<'_, '_>,
    d_head: usize,
    neox: bool,
    base: Option<f32>,
    scales: bool,
) -> Result<Rope, LoadError> {
    let of_file = match keys.float("rope.freq_base_swa", BASE)?.or(base) {
        None => keys.float("rope.freq_base", BASE)?,
        own => own,
    };
    let base = of_file.unwrap_or(10_000.0);
    let n_dims = n_dims(keys, &["rope.dimension_count_swa", "rope.dimension_count"], d_head)?;
    if scales { scaled(keys, base, n_dims, neox) } else { Ok(Rope { neox, ..Rope::neox(n_dims, base) }) }
}

/// Bases of frequencies that are believed.
const BASE: std::ops::RangeInclusive<f32> = 1.0..=1e12;

/// Elements of a head that are rotated: by the first of these keys that the file has, else all.
fn n_dims(keys: &Keys<'_, '_>, names: &[&str], d_head: usize) -> Result<i32, LoadError> {
    for key in names {
        match keys.find(key, WIDTH)? {
            None => {}
            Some(n) if n <= d_head && n % 2 == 0 => return Ok(n as i32),
            Some(n) => {
                let what = format!("{n} found, an even number up to the head size of {d_head} expected");
                return Err(keys.error(key, what));
            }
        }
    }
    if !d_head.is_multiple_of(2) {
        return Err(keys.error(names[0], format!("is missing, and heads of {d_head} elements have no pairs")));
    }
    Ok(d_head as i32)
}

/// A rotation whose positions are scaled as the file or the user says.
fn scaled(keys: &Keys<'_, '_>, base: f32, n_dims: i32, neox: bool) -> Result<Rope, LoadError> {
    let options = keys.rope_options();
    let scaling = Scaling::read(keys)?;
    let is_yarn = scaling.kind == RopeScaling::Yarn;
    let of_file = |key: &str| keys.float(&format!("rope.scaling.{key}"), 0.0..=1e6);
    let ext_factor = match options.yarn_ext_factor {
        Some(share) => share,
        None if is_yarn => of_file("yarn_ext_factor")?.unwrap_or(1.0),
        None => 0.0,
    };
    // ggml multiplies the rotated values with `1 + 0.1 ln(factor)` where it extrapolates. The magnitude that the model was
    // trained with may be another.
    let attn_factor = if ext_factor == 0.0 {
        match options.yarn_attn_factor {
            Some(factor) => factor,
            None => of_file("yarn_attn_factor")?.unwrap_or(1.0),
        }
    } else {
        let factor = 1.0 / scaling.scale;
        let magnitude = match of_file("yarn_log_multiplier")?.filter(|&m| m != 0.0) {
            Some(m) => magnitude(factor, 1.0) / magnitude(factor, m),
            None => of_file("yarn_attn_factor")?.unwrap_or_else(|| magnitude(factor, 1.0)),
        };
        magnitude / (1.0 + 0.1 * factor.ln())
    };
    let border = |key: &str, given: Option<f32>, default: f32| match given {
        Some(border) => Ok::<f32, LoadError>(border),
        None => Ok(of_file(key)?.unwrap_or(default)),
    };
    Ok(Rope {
        n_dims,
        neox,
        base,
        scale: scaling.scale,
        n_ctx_orig: scaling.n_ctx_orig as i32,
        ext_factor,
        attn_factor: attn_factor * of_file("attn_factor")?.unwrap_or(1.0),
        beta_fast: border("yarn_beta_fast", options.yarn_beta_fast, 32.0)?,
        beta_slow: border("yarn_beta_slow", options.yarn_beta_slow, 1.0)?,
    })
}

/// A rotation of which [`yarn_factors`] are the other part: ggml rounds YaRN's borders, these are exact.
pub(crate) fn without_yarn(rope: &Rope) -> Rope {
    if rope.ext_factor == 0.0 {
        return *rope;
    }
    // What ggml would multiply with where it extrapolates.
    let implied = 1.0 + 0.1 * (1.0 / rope.scale).ln();
    Rope { scale: 1.0, ext_factor: 0.0, attn_factor: rope.attn_factor * implied, ..*rope }
}

/// What YaRN divides the frequency of each pair by. Source: Peng et al. 2023, 3.2, with borders that are not rounded.
pub(crate) fn yarn_factors(rope: &Rope) -> Vec<f32> {
    divisors(rope, |low, high| (low, high)).map(|divisor| divisor as f32).collect()
}

/// The rotation as a NextN head has it: as ggml computes it, which rounds YaRN's borders to pairs. `freq_factors`: the model's
/// factors on frequencies count.
pub(crate) fn rotation_of_head(rope: &Rope, freq_factors: bool) -> HeadRotation {
    let frequency = |i: i32| f64::from(rope.base).powf(-2.0 * f64::from(i) / f64::from(rope.n_dims));
    let divisors = divisors(rope, |low, high| (low.floor(), high.ceil()));
    let implied = if rope.ext_factor == 0.0 { 1.0 } else { 1.0 + 0.1 * (1.0 / rope.scale).ln() };
    HeadRotation {
        frequencies: (0..).zip(divisors).map(|(i, divisor)| frequency(i) / divisor).collect(),
        freq_factors,
        magnitude: rope.attn_factor * implied,
        neox: rope.neox,
    }
}

/// What the scaling of positions divides the frequency of each pair by. `round` makes of YaRN's borders those that count.
fn divisors(rope: &Rope, round: fn(f64, f64) -> (f64, f64)) -> impl Iterator<Item = f64> {
    let (n_dims, base, scale) = (f64::from(rope.n_dims), f64::from(rope.base), f64::from(rope.scale));
    let border = |rotations: f32| {
        let wave = f64::from(rope.n_ctx_orig) / (f64::from(rotations) * 2.0 * std::f64::consts::PI);
        n_dims * wave.ln() / (2.0 * base.ln())
    };
    let (low, high) = round(border(rope.beta_fast), border(rope.beta_slow));
    let (low, high) = (low.max(0.0), high.min(n_dims - 1.0));
    let extrapolated = f64::from(rope.ext_factor);
    (0..rope.n_dims / 2).map(move |i| {
        let slow = ((f64::from(i) - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let kept = (1.0 - slow) * extrapolated;
        1.0 / (scale * (1.0 - kept) + kept)
    })
}

/// YaRN's factor on rotated values for a context stretched by `factor`.
fn magnitude(factor: f32, multiplier: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * multiplier * factor.ln() + 1.0 }
}
