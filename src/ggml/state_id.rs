//! The name of a state tensor.

/// The position of a tensor in its [`crate::StateBuffer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId(pub(crate) u32);
