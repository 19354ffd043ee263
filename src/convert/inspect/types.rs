//! The types of a file's tensors, and what products with each promise on this processor.

use ggml::{BatchInvariance, Dtype};
use gguf::TensorType;
use serde::{Serialize, Serializer};

use crate::source::SourceTensor;

/// The tensors of one type.
#[derive(Clone, Debug, Serialize)]
pub struct TypeShare {
    /// ggml's name of the type, such as `q4_K`.
    pub name: String,
    /// Tensors.
    pub n_tensors: usize,
    /// Their bytes.
    pub n_bytes: u64,
    /// What products with them promise on this processor's cores.
    pub batch_invariant: Promise,
}

/// Whether a token has the same bits alone and in a batch. In JSON: `any`, a number of tokens, `no`, or `unusable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// In a batch of any width.
    Any,
    /// In batches of up to so many tokens.
    UpTo(usize),
    /// No: drafts may change greedy output at near ties.
    No,
    /// There are no products with this type: a model with such weights is not opened.
    Unusable,
}

impl Promise {
    /// Of a tensor of this type and so many bytes.
    pub fn of(dtype: TensorType, n_bytes: u64) -> Self {
        let n_bytes = usize::try_from(n_bytes).unwrap_or(usize::MAX);
        let dtype = Dtype::from_id(dtype.id()).ok().filter(|t| t.is_for_weights());
        match dtype.map(|t| BatchInvariance::of_tensor(t, n_bytes)) {
            Some(BatchInvariance::Any) => Self::Any,
            Some(BatchInvariance::UpTo(n)) => Self::UpTo(n),
            Some(BatchInvariance::No) => Self::No,
            None => Self::Unusable,
        }
    }

    /// Tokens of a batch at most; 0 where nothing is promised.
    pub fn width(self) -> usize {
        match self {
            Self::Any => usize::MAX,
            Self::UpTo(n) => n,
            Self::No | Self::Unusable => 0,
        }
    }
}

impl Serialize for Promise {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Any => s.serialize_str("any"),
            Self::UpTo(n) => s.serialize_u64(*n as u64),
            Self::No => s.serialize_str("no"),
            Self::Unusable => s.serialize_str("unusable"),
        }
    }
}

/// The types, largest share first.
pub(super) fn of<'t>(tensors: impl IntoIterator<Item = &'t SourceTensor>) -> Vec<TypeShare> {
    let mut all: Vec<TypeShare> = Vec::new();
    for t in tensors {
        let name = t.dtype.name();
        match all.iter_mut().find(|share| share.name == name) {
            Some(share) => {
                share.n_tensors += 1;
                share.n_bytes += t.n_bytes;
                share.batch_invariant = least(share.batch_invariant, Promise::of(t.dtype, t.n_bytes));
            }
            None => all.push(TypeShare {
                name: name.to_owned(),
                n_tensors: 1,
                n_bytes: t.n_bytes,
                batch_invariant: Promise::of(t.dtype, t.n_bytes),
            }),
        }
    }
    all.sort_by_key(|share| std::cmp::Reverse(share.n_bytes));
    all
}

/// What all of them promise together.
pub(super) fn together(types: &[TypeShare]) -> Option<Promise> {
    types.iter().map(|t| t.batch_invariant).reduce(least)
}

/// What both promise.
fn least(a: Promise, b: Promise) -> Promise {
    match (a, b) {
        (Promise::Unusable, _) | (_, Promise::Unusable) => Promise::Unusable,
        _ if a.width() <= b.width() => a,
        _ => b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(dtype: TensorType) -> TypeShare {
        let batch_invariant = Promise::of(dtype, 1 << 24);
        TypeShare { name: dtype.name().to_owned(), n_tensors: 1, n_bytes: 1, batch_invariant }
    }

    #[test]
    fn a_file_promises_what_its_weakest_type_does() {
        let whole = |types: &[TensorType]| together(&types.iter().copied().map(share).collect::<Vec<_>>());
        assert_eq!(whole(&[]), None);
        assert_eq!(whole(&[TensorType::Q8_0, TensorType::Q8_1]), Some(Promise::Unusable));
        assert_eq!(whole(&[TensorType::Q3_K]), Some(Promise::of(TensorType::Q3_K, 1)));
        let some = [TensorType::Q8_0, TensorType::IQ2_S, TensorType::Q6_K, TensorType::NVFP4];
        let least = some.map(|t| Promise::of(t, 1).width()).into_iter().min();
        assert_eq!(whole(&some).map(Promise::width), least);
    }

    #[test]
    fn only_types_of_activations_and_of_whole_numbers_have_no_products() {
        use TensorType::{F8_E4M3, F64, I8, I16, I32, I64, Q8_1, Q8_K};
        let without: Vec<_> = TensorType::ALL.iter().filter(|t| Promise::of(**t, 1) == Promise::Unusable).collect();
        assert_eq!(without, [&Q8_1, &Q8_K, &I8, &I16, &I32, &I64, &F64, &F8_E4M3]);
    }

    #[test]
    fn json_has_a_word_or_a_number_of_tokens() {
        let of = |promise: Promise| serde_json::to_value(promise).unwrap();
        assert_eq!(of(Promise::Any), "any");
        assert_eq!(of(Promise::UpTo(7)), 7);
        assert_eq!((of(Promise::No), of(Promise::Unusable)), ("no".into(), "unusable".into()));
    }
}
