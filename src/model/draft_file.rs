//! What a file that is given for drafts is: a head for the target, or a model of its own.
//! Owns the rule. Whether the file fits is found when it is opened.

use std::sync::Arc;

use ggml::Mapping;
use gguf::Header;

use crate::arch;
use crate::error::LoadError;
use crate::head_file::architecture_of;

/// What a file is beside a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftFile {
    /// Its NextN head, or an assistant, is what it is for.
    Head,
    /// A whole model, which drafts by itself.
    Model,
}

impl DraftFile {
    /// Looks at the names in `file`, all shards of it, and at the first file of `target`. A whole model with a head counts as a
    /// head where the target is of the same architecture and width, and as a model elsewhere or without a target.
    ///
    /// # Errors
    /// No GGUF file, or one that does not say its architecture.
    pub fn of(file: &[Arc<Mapping>], target: Option<&[u8]>) -> Result<Self, LoadError> {
        let (mut is_whole, mut has_head) = (false, false);
        for part in file {
            for tensor in Header::parse(part.bytes())?.tensors() {
                is_whole |= tensor.name.starts_with("blk.0.");
                has_head |= tensor.name.contains(".nextn.");
            }
        }
        let sizes = |bytes| -> Result<_, LoadError> {
            let header = Header::parse(bytes)?;
            let meta = header.metadata();
            let name = meta.require_str("general.architecture")?;
            Ok((name.to_owned(), meta.u64(&format!("{name}.embedding_length"))?))
        };
        let Some(first) = file.first() else { return Ok(Self::Head) };
        let own = sizes(first.bytes())?;
        let is_head_file = arch::find_head(&own.0).is_some()
            || arch::find_feature_head(&own.0).is_some()
            || architecture_of(&own.0) != own.0;
        let fits = match target.filter(|_| has_head) {
            Some(target) => own == sizes(target)?,
            None => false,
        };
        Ok(if is_head_file || !is_whole || fits { Self::Head } else { Self::Model })
    }
}
