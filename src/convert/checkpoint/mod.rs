//! Hugging Face checkpoints: folders of safetensors with their descriptions.
//! Owns what their names mean, which tensor of a GGUF file they become and how their numbers change on the way, and the
//! keys that go with them. Never decides types of tensors; that is a recipe's.

mod config;
mod delta;
mod description;
mod experts;
mod families;
mod fields;
mod find_target;
mod gather;
mod head;
mod keys;
mod layer_list;
mod names;
mod pieces;
mod plan;
mod projector;
mod sentencepiece;
mod table;
mod target;
mod tekken;
mod token_files;
mod tokenizer;
mod words;

use std::path::Path;

pub use config::Config;
pub use fields::Quantized;
pub use gather::Faults;
pub use head::{Head, HeadTensor};
pub use projector::Projector;
pub(crate) use words::WORDS;

use crate::error::Error;
use crate::gguf_model::Model;
use crate::json::{MAX_JSON_BYTES, find_json};
use crate::safetensors::Shards;

/// A checkpoint folder that was read and found complete.
///
/// ```no_run
/// use convert::checkpoint::{Checkpoint, Options};
/// use convert::quantize::{FileType, Recipe};
/// use convert::stream::{Control, OnFailure};
/// let mut model = Checkpoint::open("Qwen3.5-9B".as_ref(), Options::default())?.model;
/// let file_type = FileType::Q4_K_M;
/// let recipe = Recipe { file_type, head: None, plain: false, imatrix: None, requantize: false };
/// recipe.apply(&mut model)?;
/// let job = model.into_job(recipe.stamp())?;
/// job.run("Qwen3.5-9B-Q4_K_M.gguf".as_ref(), 8, &Control::default(), OnFailure::Remove)?;
/// # Ok::<(), convert::Error>(())
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    /// What `config.json` says.
    pub config: Config,
    /// Layers of the head that are there; fewer than the config promises when tensors are missing altogether.
    pub n_head_layers: u64,
    /// The model as a GGUF file would have it, in the number types of the checkpoint.
    pub model: Model,
    /// Whether it has a tower too, which is no part of the model: a [`Projector`].
    pub sees: bool,
}

/// What a checkpoint is read for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'o> {
    /// Leaves the head out.
    pub without_head: bool,
    /// The model that a draft head in a checkpoint of its own drafts for: a checkpoint folder or a GGUF file.
    pub target: Option<&'o Path>,
    /// `general.name`; made from the folder's name when it is not given.
    pub name: Option<&'o str>,
}

impl Checkpoint {
    /// Reads `config.json` or `params.json`, the tokenizer and the headers of all shards of a folder. No data is read.
    ///
    /// # Errors
    /// A file is missing or damaged, the architecture or the way of quantisation is another one, a tensor has no place
    /// in such a model, is missing, or has another shape than the config says.
    pub fn open(folder: &Path, options: Options<'_>) -> Result<Checkpoint, Error> {
        let (checkpoint, faults) = Checkpoint::survey(folder, options)?;
        faults.into_error(folder).map_or(Ok(checkpoint), Err)
    }

    /// As [`Checkpoint::open`], with the tensors that are there and sound, and what is wrong about the others.
    ///
    /// # Errors
    /// A file is missing or damaged, or the architecture or the way of quantisation is another one.
    pub fn survey(folder: &Path, options: Options<'_>) -> Result<(Checkpoint, Faults), Error> {
        let json = |name: &str| find_json(&folder.join(name), MAX_JSON_BYTES);
        let Some((said_in, raw)) = description::find(folder)? else {
            return Err(Error::input(folder, "no config.json: the folder of a whole Hugging Face checkpoint expected"));
        };
        let target = options.target.map(find_target::open).transpose()?;
        let config = Config::with_target(&raw, target.as_ref());
        let config = config.map_err(|what| Error::input(&said_in, what))?;
        let shards = Shards::open(folder, |_| true)?;
        let gathered = gather::model_and_head(&shards, &config, folder, options.without_head)?;
        let title = keys::title(folder);
        let (tokenizer, title) = match &target {
            Some(target) => (target.tokenizer_of_head(config.table().and_then(|table| table.sizes.mask)), title),
            None => match tokenizer::Tokenizer::open(folder, &config, &raw) {
                Ok(tokenizer) => {
                    let special = config.table().map_or(&[][..], |table| table.row.special);
                    let title = tokenizer.name(title);
                    (tokenizer.with_special(special).into_keys(), title)
                }
                // Sizes that are wrong show in the tensors, and in the tokenizer as a consequence.
                Err(e) => return Err(gathered.faults.into_error(folder).unwrap_or(e)),
            },
        };
        let generation = json("generation_config.json")?;
        let n_head_layers = gathered.n_head_layers;
        let name = options.name.map_or(title, str::to_owned);
        let sources = keys::KeySources { config: &config, n_head_layers, name: &name, generation: generation.as_ref() };
        let keys = keys::all(&sources, &gathered.tensors, tokenizer);
        let inputs = shards.into_inputs();
        let mut side_inputs = description::beside(folder);
        side_inputs.extend(target.into_iter().flat_map(|target| target.read));
        let model = Model { keys, tensors: gathered.tensors, inputs, side_inputs, version: 3 };
        let sees = Projector::is_in(&raw);
        Ok((Checkpoint { config, n_head_layers, model, sees }, gathered.faults))
    }
}
