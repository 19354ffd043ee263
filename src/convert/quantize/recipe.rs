//! Which type each tensor gets in a file of a given type.
//! Owns the rules; docs/FILES.md has them as a table. They follow what llama.cpp's files have, so that sizes and quality
//! are those that people know by the names, with two exceptions that cost little: the head and the embedding.

use gguf::TensorType;
use model::{ProjectorSchema, architectures, block_of};

use super::imatrix::Imatrix;
use super::projector;
use super::types::FileType;
use crate::error::Error;
use crate::gguf_model::{Key, Model, metadata};
use crate::heads::is_draft_head;
use crate::stream::TensorPlan;

/// How a file is to be typed.
///
/// ```
/// use convert::quantize::{FileType, Recipe};
/// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pocket-q4_k_m.gguf");
/// let mut model = convert::Source::open(file.as_ref())?.into_model()?;
/// let n_bytes = model.n_bytes();
/// let recipe = Recipe { file_type: FileType::Q8_0, head: None, plain: false, imatrix: None, requantize: true };
/// recipe.apply(&mut model)?;
/// assert!(model.n_bytes() > n_bytes, "eight bits are more than four");
/// # Ok::<(), convert::Error>(())
/// ```
#[derive(Debug)]
pub struct Recipe<'r> {
    /// The name of the mix.
    pub file_type: FileType,
    /// The type of the head's matrices; None: Q8_0 in quantised files, else that of the others.
    pub head: Option<TensorType>,
    /// Without the two exceptions: as llama.cpp does it.
    pub plain: bool,
    /// What errors count.
    pub imatrix: Option<&'r Imatrix>,
    /// Whether tensors that are quantised already may be quantised again.
    pub requantize: bool,
}

/// What the rules look at.
struct Rules {
    /// Layers with the head's.
    n_layer: u64,
    /// The first layer of the head.
    first_of_head: u64,
    has_output: bool,
    /// Value projections, those of recurrent layers included.
    n_value: u64,
    grouped: bool,
    has_imatrix: bool,
}

impl Recipe<'_> {
    /// Gives every tensor of a model its type, and the keys that tell of it. Quantised files have their tensors by layer
    /// and name and those keys last, as llama.cpp's have. A projector's file is F32, F16, BF16 or Q8_0, in the order that
    /// it has.
    ///
    /// # Errors
    /// The architecture is not one whose tensors the rules know; a tensor is quantised already and would change; an
    /// importance matrix that does not fit.
    pub fn apply(&self, model: &mut Model) -> Result<(), Error> {
        if ProjectorSchema::is_for(&metadata(&model.keys)) {
            return self.apply_to_projector(model);
        }
        let arch = match model.key("general.architecture") {
            Some(Key::Str(name)) => String::from_utf8_lossy(name).into_owned(),
            _ => return Err(Error::tensor("general.architecture", "missing, or no text")),
        };
        let is_head = is_draft_head(&arch);
        if !is_head && !architectures().contains(&arch.trim_end_matches("_mtp")) {
            let known = architectures().join(", ");
            let what = format!("{arch:?} found, whose tensors are not known here; one of {known} expected");
            return Err(Error::tensor("general.architecture", what));
        }
        if self.file_type.is_quantized() {
            for t in &mut model.tensors {
                // Dimensions of one at the end are none to ggml.
                t.ne.truncate(n_dims(t));
            }
            model.tensors.sort_by(|a, b| layer(&a.name).cmp(&layer(&b.name)).then_with(|| a.name.cmp(&b.name)));
        }
        let rules = self.rules(model, &arch);
        let mut i_value = 0;
        for t in &mut model.tensors {
            // What is packed already stays so, unless it was asked for: it loses nothing, in files of all types.
            let stays = t.is_mxfp4() && !self.requantize;
            if stays {
                t.dtype = TensorType::MXFP4;
            } else if may_change(t) {
                let dtype = self.dtype(t, &rules, &mut i_value);
                self.set(t, dtype)?;
            }
        }
        let (version, kind) = (Key::U32(2), Key::U32(self.file_type.id()));
        if self.file_type.is_quantized() {
            model.set_last("general.quantization_version", version);
            model.set_last("general.file_type", kind);
        } else if model.tensors.iter().any(TensorPlan::is_repacked) {
            model.set("general.file_type", Key::U32(MXFP4_MOE));
        } else {
            model.set("general.file_type", kind);
        }
        if let Some(imatrix) = self.imatrix {
            model.side_inputs.push(imatrix.path().to_owned());
            for (key, value) in imatrix.keys() {
                model.set_last(key, value);
            }
        }
        Ok(())
    }

    /// Projectors have types of their own, and neither a NextN layer nor anything that imatrices are made of.
    fn apply_to_projector(&self, model: &mut Model) -> Result<(), Error> {
        let kind = projector::kind(model, self.file_type)?;
        if self.imatrix.is_some() {
            return Err(Error::tensor("imatrix", "made of a text model; a projector takes none"));
        }
        for t in &mut model.tensors {
            let dtype = projector::dtype(&kind, t, self.file_type);
            self.set(t, dtype)?;
        }
        model.set("general.file_type", Key::U32(self.file_type.id()));
        Ok(())
    }

    /// What of it changes the bytes of a file without showing in its header, for [`Model::into_job`].
    pub fn stamp(&self) -> String {
        self.imatrix.map_or(String::new(), |imatrix| format!("imatrix {}", imatrix.stamp()))
    }

    fn rules(&self, model: &Model, arch: &str) -> Rules {
        let number = |key: &str| model.key(&format!("{arch}.{key}")).and_then(Key::as_u64);
        let n_layer = number("block_count").unwrap_or(0);
        let (n_head, n_head_kv) = (number("attention.head_count"), number("attention.head_count_kv"));
        Rules {
            n_layer,
            first_of_head: n_layer - number("nextn_predict_layers").unwrap_or(0).min(n_layer),
            has_output: model.tensors.iter().any(|t| t.name == "output.weight"),
            n_value: model.tensors.iter().filter(|t| is_value(&t.name)).count() as u64,
            grouped: n_head.zip(n_head_kv).is_some_and(|(all, kv)| kv > 0 && all / kv >= 4),
            has_imatrix: self.imatrix.is_some(),
        }
    }

    /// The type by the rules; what its rows cannot have gives way.
    fn dtype(&self, t: &TensorPlan, rules: &Rules, i_value: &mut u64) -> TensorType {
        let base = self.file_type.base();
        if !self.file_type.is_quantized() {
            return base;
        }
        let n_cols = t.ne[0];
        if layer(&t.name).is_some_and(|il| il >= rules.first_of_head)
            && let Some(dtype) = self.head.or((!self.plain).then_some(TensorType::Q8_0))
        {
            return fitting(dtype, n_cols);
        }
        let mixed = self.mixed(&t.name, n_cols, rules, i_value);
        let kept = if t.name == "token_embd.weight" && !self.plain { mixed.max_of(TensorType::Q6_K) } else { mixed };
        fitting(kept, n_cols)
    }

    /// The rules of the mixes.
    fn mixed(&self, name: &str, n_cols: u64, rules: &Rules, i_value: &mut u64) -> TensorType {
        use FileType as F;
        use TensorType as T;
        let base = self.file_type.base();
        let tied = name == "token_embd.weight" && !rules.has_output;
        if name == "output.weight" || tied {
            let whole = n_cols.is_multiple_of(base.block_size());
            return if base == T::Q8_0 || !whole { T::Q8_0 } else { T::Q6_K };
        }
        if is_value(name) {
            let i = *i_value;
            *i_value += 1;
            return match self.file_type {
                F::Q2_K if rules.grouped => T::Q4_K,
                F::Q2_K => T::Q3_K,
                F::Q3_K_M if i < 2 => T::Q5_K,
                F::Q3_K_M => T::Q4_K,
                F::Q3_K_L => T::Q5_K,
                F::IQ4_NL | F::IQ4_XS if rules.grouped => T::Q5_K,
                F::Q4_K_M | F::Q5_K_M if gets_more(i, rules.n_value) => T::Q6_K,
                F::Q4_K_S if i < 4 => T::Q5_K,
                _ => base,
            };
        }
        if name.contains("ffn_down") {
            let (i, n) = (layer(name).unwrap_or(0), rules.n_layer);
            return match self.file_type {
                F::Q2_K => T::Q3_K,
                F::Q3_K_M if i < n / 16 => T::Q5_K,
                F::Q3_K_M => T::Q4_K,
                F::Q3_K_L => T::Q5_K,
                F::Q4_K_M | F::Q5_K_M if gets_more(i, n) => T::Q6_K,
                F::IQ4_NL | F::IQ4_XS if i < n / 8 && !rules.has_imatrix => T::Q5_K,
                F::Q4_K_S if i < n / 8 => T::Q5_K,
                F::Q4_0 if i < n / 8 && rules.has_imatrix => T::Q4_1,
                F::Q5_0 if i < n / 8 && rules.has_imatrix => T::Q5_1,
                _ => base,
            };
        }
        if name.contains("attn_output.weight") {
            return match self.file_type {
                F::Q2_K => T::Q3_K,
                F::Q3_K_M => T::Q4_K,
                F::Q3_K_L => T::Q5_K,
                _ => base,
            };
        }
        base
    }

    fn set(&self, t: &mut TensorPlan, dtype: TensorType) -> Result<(), Error> {
        let quantized = |piece: &crate::stream::Piece| matches!(piece.stored, crate::stream::Stored::Ggml(d) if d.is_quantized() && d.id() != dtype.id());
        if t.pieces.iter().any(quantized) && !self.requantize {
            let what = format!(
                "is quantized already and would become {dtype}, which loses twice; quantize the original, or say --requantize"
            );
            return Err(Error::tensor(&t.name, what));
        }
        t.dtype = dtype;
        if let Some(imatrix) = self.imatrix
            && dtype.block_size() > 1
            && !t.is_copy()
        {
            t.importance = imatrix.of(t)?;
        }
        Ok(())
    }
}

/// The type of a file whose experts are MXFP4 and whose other matrices are floats.
const MXFP4_MOE: u32 = 38;

/// Matrices, but for norms, routers and the convolution.
fn may_change(t: &TensorPlan) -> bool {
    let kept = ["_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d", "shortconv.conv"];
    n_dims(t) >= 2 && t.name.ends_with("weight") && !kept.iter().any(|k| t.name.contains(k))
}

/// Dimensions as ggml counts them: up to the last that is not one, at least one.
fn n_dims(t: &TensorPlan) -> usize {
    t.ne.iter().rposition(|n| *n > 1).map_or(1, |i| i + 1)
}

/// The value projection, or one that has it in it.
fn is_value(name: &str) -> bool {
    name.contains("attn_v.weight") || name.contains("attn_qkv.weight")
}

/// The layers that get more bits: the first and the last eighth, and every third between.
fn gets_more(i: u64, n: u64) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// The layer that a name is in. Names outside of layers come first.
fn layer(name: &str) -> Option<u64> {
    block_of(name).map(|(layer, _)| layer)
}

/// The type, or one with smaller blocks when the rows are no whole blocks of it.
fn fitting(dtype: TensorType, n_cols: u64) -> TensorType {
    use TensorType as T;
    if n_cols.is_multiple_of(dtype.block_size()) {
        return dtype;
    }
    let smaller = match dtype {
        T::Q2_K | T::Q3_K => T::Q4_0,
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K => T::Q8_0,
        T::IQ4_XS => T::IQ4_NL,
        other => other,
    };
    if n_cols.is_multiple_of(smaller.block_size()) { smaller } else { T::F16 }
}

/// The larger of two types.
trait MaxOf {
    fn max_of(self, other: Self) -> Self;
}

impl MaxOf for TensorType {
    fn max_of(self, other: TensorType) -> TensorType {
        let bits = |t: TensorType| t.type_size() as f64 / t.block_size() as f64;
        if bits(other) > bits(self) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_no_whole_blocks_get_smaller_ones() {
        assert_eq!(fitting(TensorType::Q4_K, 512), TensorType::Q4_K);
        assert_eq!(fitting(TensorType::Q4_K, 128), TensorType::Q5_0);
        assert_eq!(fitting(TensorType::Q6_K, 32), TensorType::Q8_0);
        assert_eq!(fitting(TensorType::Q8_0, 48), TensorType::F16);
    }

    #[test]
    fn every_third_layer_and_both_ends_get_more() {
        let more: Vec<u64> = (0..16).filter(|i| gets_more(*i, 16)).collect();
        assert_eq!(more, [0, 1, 4, 7, 10, 13, 14, 15]);
    }

    #[test]
    fn types_have_their_names() {
        assert_eq!("q4_k_m".parse::<FileType>().unwrap(), FileType::Q4_K_M);
        assert_eq!(FileType::Q4_K_M.to_string(), "Q4_K_M");
        assert!("q4".parse::<FileType>().unwrap_err().contains("q4_k_m"));
    }
}
