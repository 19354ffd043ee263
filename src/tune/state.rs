//! Where a training stands, in a file: the numbers, what the optimizer keeps, and how far it is. Owns the file, which is always whole.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::block::Head;
use crate::optimizer::Optimizer;

/// How far a training is.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Progress {
    /// What it is: the model, the texts and all that shapes the result. Another training is not taken up.
    pub identity: String,
    /// Steps that were made.
    pub n_steps: usize,
    /// Tokens that counted in them.
    pub n_tokens: usize,
    /// Seconds that they took.
    pub seconds: f64,
    /// Measured on the way: tokens learned from, and the share of right drafts by depth.
    pub measured: Vec<(usize, Vec<f64>)>,
}

/// The file's key for [`Progress`] is no tensor's name.
const BEST: &str = "best:";

/// A training that was broken off.
pub struct Saved {
    tensors: HashMap<String, Tensor>,
    /// How far it was.
    pub progress: Progress,
}

/// A training's numbers and words are one file, so that it is whole or the one before.
fn path(folder: &Path) -> PathBuf {
    folder.join("state.safetensors")
}

/// The words, as bytes.
const WORDS: &str = "progress";

/// Writes where a training stands; `best` are the numbers that were best by measure.
///
/// # Errors
/// The disk's. What was there before stays.
pub fn save(
    folder: &Path,
    head: &Head,
    optimizer: &Optimizer,
    best: &HashMap<String, Tensor>,
    progress: &Progress,
) -> anyhow::Result<()> {
    let path = path(folder);
    let best = best.iter().map(|(name, tensor)| (format!("{BEST}{name}"), tensor.clone()));
    let all = named(head).into_iter().chain(optimizer.tensors()).chain(best);
    // The library's own copy from a device would panic where that fails.
    let on_host = all.map(|(name, tensor)| Ok((name, tensor.to_device(&Device::Cpu)?)));
    let mut tensors = on_host.collect::<candle_core::Result<HashMap<String, Tensor>>>()?;
    let words = serde_json::to_vec(progress)?;
    tensors.insert(WORDS.to_owned(), Tensor::from_slice(&words, words.len(), &Device::Cpu)?);
    let failed = || format!("{}: cannot be written", path.display());
    let part = path.with_extension("part");
    let written = candle_core::safetensors::save(&tensors, &part).map_err(anyhow::Error::from);
    written.and_then(|()| Ok(std::fs::rename(&part, &path)?)).with_context(failed).inspect_err(|_| {
        // A full disk wants the room.
        drop(std::fs::remove_file(&part));
    })
}

/// What [`save`] left; `None` where nothing is there.
///
/// # Errors
/// A file that is broken.
pub fn load(folder: &Path) -> anyhow::Result<Option<Saved>> {
    let path = path(folder);
    if !path.is_file() {
        return Ok(None);
    }
    let broken = |e: String| anyhow!("{}: {e}; remove {} to begin anew", path.display(), folder.display());
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).map_err(|e| broken(e.to_string()))?;
    let words = tensors.remove(WORDS).ok_or_else(|| broken("not a training's state".into()))?;
    let words = words.to_vec1::<u8>().map_err(|e| broken(e.to_string()))?;
    let progress = serde_json::from_slice(&words).map_err(|e| broken(e.to_string()))?;
    Ok(Some(Saved { tensors, progress }))
}

impl Saved {
    /// Puts the numbers into `head`; gives the optimizer, and the numbers that were best.
    ///
    /// # Errors
    /// Numbers of another head.
    pub fn restore(self, head: &Head) -> anyhow::Result<(Optimizer, HashMap<String, Tensor>)> {
        put(head, &self.tensors)?;
        let names: Vec<String> = named(head).into_keys().collect();
        let find = |name: &str| self.tensors.get(name).map(|tensor| tensor.to_device(head.device())).transpose();
        let optimizer = Optimizer::restored(names.iter().map(String::as_str), find, self.progress.n_steps)?;
        let best = self.tensors.iter().filter_map(|(name, x)| Some((name.strip_prefix(BEST)?.to_owned(), x.clone())));
        Ok((optimizer, best.collect()))
    }
}

/// All variables by name.
pub fn named(head: &Head) -> HashMap<String, Tensor> {
    let layers = head.layers().iter().enumerate();
    layers
        .flat_map(|(il, layer)| layer.vars().map(move |(name, var)| (format!("{il}.{name}"), var.as_detached_tensor())))
        .collect()
}

/// Puts numbers in the place of a head's.
///
/// # Errors
/// One is missing, or has another shape.
pub fn put(head: &Head, tensors: &HashMap<String, Tensor>) -> anyhow::Result<()> {
    for (il, layer) in head.layers().iter().enumerate() {
        for (name, var) in layer.vars() {
            let name = format!("{il}.{name}");
            let tensor = tensors.get(&name).with_context(|| format!("{name} is missing"))?;
            ensure!(tensor.dims() == var.dims(), "{name}: {:?} expected, {:?} found", var.dims(), tensor.dims());
            var.set(&tensor.to_device(var.device())?.copy()?)?;
        }
    }
    Ok(())
}
