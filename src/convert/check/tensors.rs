//! The tensors that are there against those that should be.
//! Owns the comparison; which tensors belong to a model is told by the model's schema.

use std::collections::HashSet;

use ggml::Dtype;
use gguf::TensorType;
use model::TensorSchema;
use serde::Serialize;

use crate::checkpoint::Faults;
use crate::error::Error;
use crate::heads::{Content, ModelInfo, expected};
use crate::source::Source;

/// What the comparison gave. Optional tensors count as expected where they are there.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Gate {
    /// Tensors that the metadata ask for.
    pub n_expected: usize,
    /// Of these, there and sound.
    pub n_present: usize,
    /// Of the NextN block alone: asked for.
    pub n_head_expected: usize,
    /// Of the NextN block alone: there and sound.
    pub n_head_present: usize,
    /// Not there.
    pub missing: Vec<String>,
    /// There, and not asked for.
    pub extra: Vec<String>,
    /// Of another shape, with both.
    pub wrong_shape: Vec<String>,
    /// Of a type that such a tensor cannot have.
    pub wrong_type: Vec<String>,
}

impl Gate {
    /// # Errors
    /// A size is not in the metadata.
    pub(crate) fn of(source: &Source, info: &ModelInfo) -> Result<Gate, String> {
        let expected = expected(source, info)?;
        let mut gate = Gate::compare(source, &expected, |name| info.is_head(name));
        // A file that promises nothing but has tensors of a head: they are told as such by the rules.
        if info.content == Content::Unannounced {
            gate.extra.retain(|name| !info.is_head(name));
        }
        Ok(gate)
    }

    /// The tensors of a file against those `expected` of it.
    pub(crate) fn compare(source: &Source, expected: &[TensorSchema], is_head: impl Fn(&str) -> bool) -> Gate {
        let mut gate = Gate::default();
        let mut known = HashSet::new();
        let by_name: std::collections::HashMap<&str, &crate::source::SourceTensor> =
            source.tensors.iter().map(|t| (t.name.as_str(), t)).collect();
        for schema @ TensorSchema { name, ne, required } in expected {
            known.insert(name.as_str());
            let found = by_name.get(name.as_str());
            if found.is_none() && !required {
                continue;
            }
            let of_head = is_head(name);
            gate.n_expected += 1;
            gate.n_head_expected += usize::from(of_head);
            let Some(t) = found else {
                gate.missing.push(name.clone());
                continue;
            };
            if !schema.has_shape(&t.ne) {
                gate.wrong_shape.push(format!("{name}: {ne:?} expected, {:?} found", t.ne));
            } else if let Some(what) = wrong_type(t.dtype, ne.len()) {
                gate.wrong_type.push(format!("{name}: {what} expected, {} found", t.dtype));
            } else {
                gate.n_present += 1;
                gate.n_head_present += usize::from(of_head);
            }
        }
        let extra = source
            .tensors
            .iter()
            .filter(|t| !known.contains(t.name.as_str()) && !is_side(&t.name, &known))
            .map(|t| t.name.clone());
        gate.extra = extra.collect();
        gate
    }

    /// Of the tensors of a checkpoint.
    pub(crate) fn of_checkpoint(faults: Faults) -> Gate {
        let is_shape = |e: &Error| matches!(e, Error::Shape { .. });
        let (shapes, others): (Vec<Error>, Vec<Error>) = faults.wrong.into_iter().partition(is_shape);
        let words = |errors: Vec<Error>| errors.iter().map(Error::to_string).collect::<Vec<_>>();
        Gate {
            n_expected: faults.n_expected,
            n_present: faults.n_expected - faults.missing.len() - shapes.len() - others.len(),
            n_head_expected: faults.n_head_expected,
            n_head_present: faults.n_head_present,
            missing: faults.missing,
            extra: faults.extra,
            wrong_shape: words(shapes),
            wrong_type: words(others),
        }
    }

    /// Changes all names in it.
    pub(crate) fn rename(&mut self, by: impl Fn(&str) -> String) {
        for list in [&mut self.missing, &mut self.extra, &mut self.wrong_shape, &mut self.wrong_type] {
            list.iter_mut().for_each(|name| *name = by(name));
        }
    }

    /// What of it makes a file unusable, in sentences with the first few names.
    pub(crate) fn damage(&self) -> Vec<String> {
        let lists = [
            self.list("missing", &self.missing),
            self.list("of a wrong shape", &self.wrong_shape),
            self.list("of a wrong type", &self.wrong_type),
        ];
        lists.into_iter().flatten().collect()
    }

    /// A sentence about some names; None when there are none.
    pub(crate) fn list(&self, what: &str, names: &[String]) -> Option<String> {
        let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let more = if names.len() > SHOWN { format!(" and {} more", names.len() - SHOWN) } else { String::new() };
        (!names.is_empty()).then(|| format!("{} {what}: {shown}{more}", names.len()))
    }
}

fn wrong_type(dtype: TensorType, n_dims: usize) -> Option<&'static str> {
    let for_weights = Dtype::from_id(dtype.id()).is_ok_and(Dtype::is_for_weights);
    match dtype {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => None,
        _ if !for_weights => Some("a weight type"),
        _ if n_dims == 1 => Some("f32, f16 or bf16"),
        _ => None,
    }
}

/// Tensors that stand beside others: scales, frequencies of the rotation, a reduced draft vocabulary.
fn is_side(name: &str, known: &HashSet<&str>) -> bool {
    let stem = name.strip_suffix("input_scale").or_else(|| name.strip_suffix("scale"));
    let scale = stem.is_some_and(|stem| known.contains(format!("{stem}weight").as_str()));
    scale || matches!(name, "rope_freqs.weight" | "d2t" | "cls.output.weight" | "cls.output.bias")
}

/// Names in one sentence.
const SHOWN: usize = 4;
