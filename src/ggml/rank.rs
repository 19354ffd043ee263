//! Which of the devices that compute a model together one is. Plain numbers; what they do together is `ranks.rs`.

/// One of several devices, each of which computes a part of every layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank {
    /// What nodes know the group by.
    pub(crate) group: i32,
    pub(crate) index: usize,
    /// Ranks that there are.
    pub(crate) of: usize,
}
