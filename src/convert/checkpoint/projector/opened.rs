//! The projector of a checkpoint: which of its tensors are the tower's, what they become, and the keys of the file.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use gguf::ArrayBuf;
use model::ProjectorSchema;
use serde_json::Value;

use super::plan::plans;
use super::row::{Config, Part, Row};
use super::table::find;
use crate::checkpoint::fields::{Fields, MAX_DIM};
use crate::checkpoint::gather::Faults;
use crate::checkpoint::keys;
use crate::checkpoint::names::scales_of;
use crate::error::Error;
use crate::gguf_model::{Key, Model, metadata};
use crate::json::{MAX_JSON_BYTES, find_json};
use crate::safetensors::{INDEX, Place, Shards, Tensor, quoted};
use crate::stream::TensorPlan;

/// The tower of a checkpoint folder, which was read and found complete.
///
/// ```no_run
/// use convert::checkpoint::Projector;
/// use convert::quantize::{FileType, Recipe};
/// use convert::stream::{Control, OnFailure};
/// let mut model = Projector::open("Qwen3.5-9B".as_ref(), None)?.model;
/// let file_type = FileType::BF16;
/// let recipe = Recipe { file_type, head: None, plain: false, imatrix: None, requantize: false };
/// recipe.apply(&mut model)?;
/// let job = model.into_job(recipe.stamp())?;
/// job.run("mmproj-Qwen3.5-9B.gguf".as_ref(), 8, &Control::default(), OnFailure::Remove)?;
/// # Ok::<(), convert::Error>(())
/// ```
#[derive(Debug)]
pub struct Projector {
    /// The projector as a GGUF file would have it, in the number types of the checkpoint.
    pub model: Model,
    /// Whether the checkpoint hears too, which the file leaves out.
    pub hears: bool,
}

impl Projector {
    /// Reads `config.json`, the processor's configuration and the headers of the shards that have the tower. No data is
    /// read. `name` is `general.name`, made from the folder's name when it is not given.
    ///
    /// # Errors
    /// The checkpoint is of another class or has no tower; a file is missing or damaged; a tensor has no place in the
    /// tower, is missing, or has another shape than the configuration says.
    pub fn open(folder: &Path, name: Option<&str>) -> Result<Projector, Error> {
        let json = |name: &str| find_json(&folder.join(name), MAX_JSON_BYTES);
        let root = json("config.json")?.ok_or_else(|| {
            Error::input(folder, "no config.json: the folder of a whole Hugging Face checkpoint expected")
        })?;
        let in_config = |what: String| Error::input(&folder.join("config.json"), what);
        let row = find(&root).map_err(in_config)?;
        let processor = processor(json("preprocessor_config.json")?, json("processor_config.json")?);
        let config = Config {
            vision: Fields { root: &root["vision_config"], text: None, defaults: &[] },
            text: Fields::of(&root),
            processor: Fields { root: &processor, text: None, defaults: &[] },
        };
        let sizes = sizes(row, &config).map_err(in_config)?;
        let is_tower = |name: &str| row.prefixes.iter().any(|prefix| within(name).starts_with(prefix));
        let shards = Shards::open(folder, is_tower)?;
        let tensors = tensors(row, &shards, &sizes, folder)?;
        let name = name.map_or_else(|| keys::title(folder), str::to_owned);
        let generation = json("generation_config.json")?;
        let mut keys = keys::general((ARCHITECTURE, "mmproj"), &name, generation.as_ref(), &tensors);
        keys.extend(sizes);
        keys.push(("general.quantization_version".to_owned(), Key::U32(2)));
        let side_inputs = DESCRIPTIONS.map(|name| folder.join(name)).to_vec();
        let model = Model { keys, tensors, inputs: shards.into_inputs(), side_inputs, version: 3 };
        Ok(Projector { model, hears: root.get("audio_config").is_some_and(Value::is_object) })
    }

    /// Whether a checkpoint of this `config.json` has a tower that becomes a projector.
    pub(crate) fn is_in(root: &Value) -> bool {
        find(root).is_ok()
    }
}

/// What both files say of the preprocessing: the processor's goes before, and what it says of pictures before all.
fn processor(of_pictures: Option<Value>, of_all: Option<Value>) -> Value {
    let mut all = serde_json::Map::new();
    for file in [of_pictures, of_all].into_iter().flatten() {
        let Value::Object(file) = file else { continue };
        let inner = file.get("image_processor").and_then(Value::as_object).cloned();
        all.extend(file);
        all.extend(inner.unwrap_or_default());
    }
    Value::Object(all)
}

/// The keys that shapes follow from, and the others of the tower.
fn sizes(row: &Row, c: &Config<'_>) -> Result<Vec<(String, Key)>, String> {
    let mut keys = vec![
        // A recipe replaces it.
        ("general.file_type".to_owned(), Key::U32(0)),
        ("clip.has_vision_encoder".to_owned(), Key::Bool(true)),
    ];
    let number = |key: &str, n: u64| (format!("clip.vision.{key}"), Key::U32(n as u32));
    keys.push(number("projection_dim", c.text.need("hidden_size", MAX_DIM)?));
    keys.push(number("image_size", (row.image_size)(c)?));
    for (key, field) in [
        ("patch_size", "patch_size"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("block_count", row.n_layer),
        ("attention.head_count", row.n_head),
    ] {
        keys.push(number(key, c.vision.need(field, MAX_DIM).map_err(|what| format!("vision_config: {what}"))?));
    }
    for key in ["image_mean", "image_std"] {
        let three: ArrayBuf = c.three(key)?.into_iter().collect();
        keys.push((format!("clip.vision.{key}"), Key::Array(three)));
    }
    keys.extend((row.keys)(c)?.into_iter().map(|(key, value)| (key.to_owned(), value)));
    Ok(keys)
}

/// The tower's tensors, in the order in which llama.cpp's converter writes them: file by file, by their names there.
fn tensors(row: &Row, shards: &Shards, sizes: &[(String, Key)], folder: &Path) -> Result<Vec<TensorPlan>, Error> {
    let mut faults = Faults::default();
    let (mut found, mut scales): (Vec<(Place, Part)>, HashMap<String, Place>) = Default::default();
    let mut all: Vec<(Place, &Tensor)> = shards.iter().collect();
    all.sort_by(|(a, t), (b, u)| (a.file, &t.name).cmp(&(b.file, &u.name)));
    for (place, t) in all {
        let name = within(&t.name);
        if !row.prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        match ((row.part)(name), scales_of(&t.name)) {
            (Some(part), _) => found.push((place, part)),
            (None, Some(weight)) => drop(scales.insert(weight, place)),
            (None, None) => faults.extra.push(format!("{} ({})", quoted(&t.name), t.dtype)),
        }
    }
    let mut made = Vec::new();
    for (place, part) in &found {
        made.extend(plans(shards, &scales, *place, part)?);
    }
    let mut names = HashSet::new();
    if let Some(twice) = made.iter().find(|plan| !names.insert(plan.name.as_str())) {
        return Err(Error::input(folder, format!("two tensors become {}", twice.name)));
    }
    let by_name: HashMap<&str, &TensorPlan> = made.iter().map(|plan| (plan.name.as_str(), plan)).collect();
    let n_rows = |name: &str| by_name.get(name).map(|plan| plan.ne.get(1).copied().unwrap_or(1));
    let mut keys = vec![("general.architecture".to_owned(), ARCHITECTURE.into())];
    keys.extend(sizes.iter().cloned());
    let schema = ProjectorSchema::of_meta(&metadata(&keys), &|name| by_name.contains_key(name), &n_rows);
    let schema = schema.map_err(|e| Error::input(folder, e.to_string()))?;
    let mut wanted = HashSet::new();
    for expected in &schema.tensors {
        wanted.insert(expected.name.as_str());
        match by_name.get(expected.name.as_str()) {
            None if expected.required => faults.missing.push(expected.name.clone()),
            Some(plan) if !expected.has_shape(&plan.ne) => {
                let (name, found) = (expected.name.clone(), plan.ne.clone());
                faults.wrong.push(Error::Shape { name, found, expected: expected.ne.clone() });
            }
            _ => {}
        }
    }
    faults.extra.extend(made.iter().filter(|plan| !wanted.contains(plan.name.as_str())).map(|plan| plan.name.clone()));
    faults.into_error(folder).map_or(Ok(made), Err)
}

/// The name without what wraps the model.
fn within(name: &str) -> &str {
    name.strip_prefix("model.").unwrap_or(name)
}

/// `general.architecture` of projectors.
const ARCHITECTURE: &str = "clip";

/// What a checkpoint has besides its weights; not all of it is in every one.
const DESCRIPTIONS: [&str; 5] =
    ["config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json", INDEX];
