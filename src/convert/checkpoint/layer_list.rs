//! Keys with a number for each layer, those of a head behind the model's.

use gguf::ArrayBuf;

use crate::gguf_model::Key;

/// A list whose length a file's layers decide: a checkpoint may bring more layers of a head than a file takes, or fewer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LayerList {
    /// The numbers, and what further layers have.
    I32(Vec<i32>, i32),
    F32(Vec<f32>, f32),
    Bool(Vec<bool>, bool),
}

impl LayerList {
    /// The list of a file of so many layers.
    pub(crate) fn key(&self, n_layers: u64) -> Key {
        fn of<T: Copy>(list: &[T], more: T, n: u64) -> impl Iterator<Item = T> {
            list.iter().copied().chain(std::iter::repeat(more)).take(n as usize)
        }
        Key::Array(match self {
            Self::I32(list, more) => of(list, *more, n_layers).collect::<ArrayBuf>(),
            Self::F32(list, more) => of(list, *more, n_layers).collect(),
            Self::Bool(list, more) => of(list, *more, n_layers).collect(),
        })
    }
}
