//! Taking the NextN block out of a file that has a main model.
//! Owns the way back from `graft`; computes no numbers.

use super::info::{Content, ModelInfo};
use super::keys;
use super::new_file::NewFile;
use crate::error::Error;
use crate::gguf_model::{Key, Model};
use crate::source::Source;

/// The main model of a combined file: without the tensors of the NextN block, with `block_count` and per-layer arrays
/// that no longer count it, and without `nextn_predict_layers`. A main model that had said something about a head
/// before one was grafted gets its own words back. Files that promise a head and have none become plain main models.
///
/// ```no_run
/// # fn main() -> Result<(), convert::Error> {
/// let new = convert::heads::strip(convert::Source::open("model.gguf".as_ref())?)?;
/// new.write("main-model.gguf".as_ref(), 2, &Default::default())
/// # }
/// ```
///
/// # Errors
/// There is no head and none is promised, or there is nothing else.
pub fn strip(source: Source) -> Result<NewFile, Error> {
    let info = ModelInfo::with_blocks(&source)?;
    match info.content {
        Content::Combined | Content::Promised | Content::Unannounced => {}
        Content::MainModel => {
            return Err(Error::input(&source.path, "has no NextN head: there is nothing to take out"));
        }
        Content::Head(_) | Content::Assistant => {
            return Err(Error::input(&source.path, "is a head without a main model: nothing would be left"));
        }
    }
    let mut keys = source.model_keys();
    let restore = source.text(keys::RESTORE).unwrap_or_default().to_owned();
    keys.retain(|(key, _)| key != keys::RESTORE);
    let n_nextn = info.full("nextn_predict_layers");
    match restore.as_str() {
        keys::RESTORE_PROMISE => {}
        _ => {
            keys::shorten(&mut keys, &info);
            keys::set_number(&mut keys, &info.full("block_count"), info.n_layer);
            if restore == keys::RESTORE_ZERO {
                keys::set_number(&mut keys, &n_nextn, 0);
            } else {
                keys.retain(|(key, _)| *key != n_nextn);
            }
        }
    }
    let main_model = source.tensors.iter().filter(|t| !info.is_head(&t.name));
    let tensors = main_model.map(|t| t.plan(0)).collect::<Result<Vec<_>, _>>()?;
    let model = Model { keys, tensors, inputs: source.inputs, side_inputs: Vec::new(), version: source.version };
    Ok(NewFile { model, notes: Vec::new() })
}

/// Which word of [`keys::RESTORE`] brings a main model's keys back, if one is needed.
pub(super) fn restore_word(info: &ModelInfo, source: &Source) -> Option<Key> {
    match (info.content, source.key(&info.full("nextn_predict_layers"))) {
        (Content::Promised, _) => Some(Key::from(keys::RESTORE_PROMISE)),
        (_, Some(_)) => Some(Key::from(keys::RESTORE_ZERO)),
        (_, None) => None,
    }
}
