//! The NextN head of a checkpoint, for putting into a GGUF file that lacks it: from a whole checkpoint, from those of its
//! shards that hold it, or from a file with nothing else.
//! Owns what such a source looks like from outside; which block it becomes is the caller's.

use std::io::Write;
use std::path::Path;

use gguf::TensorType;

use super::gather;
use super::names::{Name, meaning};
use crate::error::Error;
use crate::gguf_model::Model;
use crate::io::Input;
use crate::safetensors::Shards;
use crate::stream::TensorPlan;

/// A head that was found. Reads its data when it is asked for.
///
/// ```no_run
/// # fn main() -> Result<(), convert::Error> {
/// let head = convert::checkpoint::Head::open("Qwen3.5-9B".as_ref())?;
/// for (i, t) in head.tensors().iter().enumerate() {
///     println!("blk.L+{}.{} {:?}, {}", t.layer, t.name, t.ne, t.dtype);
///     let mut bytes = Vec::new();
///     head.write(i, gguf::TensorType::Q8_0, &mut bytes)?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Head {
    tensors: Vec<HeadTensor>,
    plans: Vec<TensorPlan>,
    inputs: Vec<Input>,
}

/// One tensor of a head as a GGUF file has it: norms with their one added, experts stacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadTensor {
    /// Which layer of the head; 0 in all known models.
    pub layer: u64,
    /// Without the block, such as `nextn.eh_proj.weight` or `attn_q.weight`.
    pub name: String,
    /// Fastest dimension first.
    pub ne: Vec<u64>,
    /// The type that keeps what the source has: F32 for norms, the router and whatever is a vector; else the source's.
    /// For 8-bit floats it is BF16.
    pub dtype: TensorType,
}

impl Head {
    /// Finds the head in a `.safetensors` file or in a folder. Of a folder with an index only the shards that hold the
    /// head are opened; the others may be missing.
    ///
    /// # Errors
    /// A file is missing or damaged, there is no tensor of a head, its experts are not complete, or it is stored in a way
    /// that is not known. Whether it is complete and fits a model is not looked at.
    pub fn open(path: &Path) -> Result<Head, Error> {
        let of_head = |name: &str| match meaning(name, false) {
            Name::Head(..) => true,
            Name::Scale(weight) => matches!(meaning(&weight, false), Name::Head(..)),
            _ => false,
        };
        let shards = Shards::open(path, of_head)?;
        let (layers, plans): (Vec<u64>, Vec<TensorPlan>) = gather::head(&shards, path)?.into_iter().unzip();
        let tensor = |(layer, plan): (u64, &TensorPlan)| HeadTensor {
            layer,
            name: plan.name.clone(),
            ne: plan.ne.clone(),
            dtype: plan.dtype,
        };
        let tensors = layers.into_iter().zip(&plans).map(tensor).collect();
        Ok(Head { tensors, plans, inputs: shards.into_inputs() })
    }

    /// Its tensors.
    pub fn tensors(&self) -> &[HeadTensor] {
        &self.tensors
    }

    /// Writes all bytes of tensor `i` in the given type, a few MiB at a time.
    ///
    /// # Errors
    /// The file cannot be read, `dtype` cannot be made or does not fit the rows, or `out` refuses.
    ///
    /// # Panics
    /// There is no tensor `i`.
    pub fn write(&self, i: usize, dtype: TensorType, out: &mut dyn Write) -> Result<(), Error> {
        let plan = TensorPlan { dtype, ..self.plans[i].clone() };
        crate::stream::write_tensor(&plan, &self.inputs, out)
    }

    /// The head alone as a model: no keys, and tensors without a block in their names.
    pub fn into_model(self) -> Model {
        Model { keys: Vec::new(), tensors: self.plans, inputs: self.inputs, side_inputs: Vec::new(), version: 3 }
    }
}
