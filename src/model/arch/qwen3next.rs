//! Qwen3-Next and Qwen3-Coder-Next: as Qwen3.5's mixture, with value heads in groups and plain rotation.
//! Source: the Qwen3-Next reference model; GGUF name: qwen3next.

use super::qwen35::hybrid;
use crate::architecture::Entry;
use crate::blocks::HeadOrder;
use crate::decoder;

pub(super) const ENTRY: Entry = Entry {
    names: &["qwen3next"],
    nextn: true,
    open: |file| decoder::open(file, |keys| hybrid(keys, HeadOrder::Grouped)),
};
