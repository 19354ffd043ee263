//! The tokens that the rows of a draft head's output matrix stand for, where they are part of the vocabulary.
//! Owns how checkpoints store them: by how much each token's number is greater than its row's.

use gguf::TensorType;
use model::TensorSchema;

use crate::error::Error;
use crate::io::Input;
use crate::safetensors::{Dtype, Place, Shards, quoted};
use crate::stream::TensorPlan;

/// Its name, in checkpoints and in files.
pub(crate) const WORDS: &str = "d2t";

/// The numbers of these tokens, each once, of a vocabulary of `n_vocab`.
///
/// # Errors
/// It is no list of integers, of another length than `expected`, or names a token twice or one that there is not.
pub(super) fn words(shards: &Shards, place: Place, n_vocab: u64, expected: &TensorSchema) -> Result<TensorPlan, Error> {
    let t = shards.tensor(place);
    let refused = |what: String| Error::tensor(WORDS, what);
    let size = match t.dtype {
        Dtype::I64 => 8,
        Dtype::I32 => 4,
        other => return Err(refused(format!("{} is {other}, integers of 64 or 32 bits expected", quoted(&t.name)))),
    };
    let ne: Vec<u64> = t.shape.iter().rev().copied().collect();
    if !expected.has_shape(&ne) {
        return Err(Error::Shape { name: WORDS.to_owned(), found: ne, expected: expected.ne.clone() });
    }
    let mut bytes = vec![0; (t.n_elements() * size) as usize];
    Input::open(&shards.path(place))?.read_at(&mut bytes, t.start)?;
    let mut seen = vec![false; n_vocab as usize];
    let mut ids = Vec::with_capacity(bytes.len() / size as usize);
    for (bytes, row) in bytes.chunks_exact(size as usize).zip(0i64..) {
        let more = match *bytes {
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => i64::MAX,
        };
        let id = row.checked_add(more).and_then(|id| usize::try_from(id).ok()).filter(|id| *id < seen.len());
        match id {
            // Numbers of tokens are whole in floats.
            Some(id) if !std::mem::replace(&mut seen[id], true) => ids.push(id as f32),
            Some(id) => return Err(refused(format!("row {row} stands for token {id}, as one before it does"))),
            None => return Err(refused(format!("row {row} is {more} from its token, outside of {n_vocab} tokens"))),
        }
    }
    Ok(TensorPlan { dtype: TensorType::I64, ..TensorPlan::made(WORDS.to_owned(), ids) })
}
