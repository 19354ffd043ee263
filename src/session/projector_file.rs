//! Which projector belongs to a model's file, and how it is opened beside the model.
//! Owns the choice: the one that was named, the one that a hub's repository has, or one in the model's folder that is made for
//! its width and architecture. A projector that was not asked for by name never keeps a model from opening.

use std::path::{Path, PathBuf};

use ggml::Mapping;
use gguf::Header;
use model::{Model, Projector, ProjectorSchema};

use crate::files::ModelSource;
use crate::open_error::OpenError;
use crate::options::ModelOptions;
use crate::sight::Sight;

/// The file of a model's projector, and the projector; `None` where there is none.
pub(crate) fn open_projector(
    source: &ModelSource,
    options: &ModelOptions,
) -> Result<Option<(PathBuf, Projector)>, OpenError> {
    let images = &options.images;
    let found = || match source {
        _ if images.without => None,
        ModelSource::File(model) => options.projector_beside.clone().or_else(|| beside(model)),
        ModelSource::Embedded(_) => None,
    };
    let Some(file) = images.mmproj.clone().or_else(found) else { return Ok(None) };
    let threads = options.run.compute.engine_config().n_threads();
    match images.open(&file, &options.run.compute.device, threads, options.progress.of(&file)) {
        Ok(projector) => Ok(Some((file, projector))),
        Err(error) => unseen(error.into(), options).map(|()| None),
    }
}

/// The projector as what `model` sees with; `None` where it does not fit and was not asked for.
pub(crate) fn sight_of(
    file: &Path,
    projector: Projector,
    model: &Model,
    options: &ModelOptions,
) -> Result<Option<Sight>, OpenError> {
    let images = &options.images;
    match Sight::new(projector, model, &images.limits.limits(), images.max_bytes()) {
        Ok(sight) => {
            tracing::info!(file = %file.display(), kind = sight.kind(), "images are read by the projector");
            Ok(Some(sight))
        }
        Err(error) => {
            let error = OpenError::Projector(format!("{}: {error}", file.display()));
            unseen(error, options).map(|()| None)
        }
    }
}

/// An error where the projector was asked for by name; else a warning.
fn unseen(error: OpenError, options: &ModelOptions) -> Result<(), OpenError> {
    if options.images.mmproj.is_some() {
        return Err(error);
    }
    tracing::warn!(%error, "the projector beside the model cannot be used: images are refused");
    Ok(())
}

/// The projector in the folder of a model: a file `*mmproj*.gguf` that fits it. Of several the one whose name begins most like
/// the model's, then the one with the most usual type. A file that cannot be read is passed over.
pub(crate) fn beside(model: &Path) -> Option<PathBuf> {
    let folder = model.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let own = stem(model)?;
    let named = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut named = named.filter(|path| path != model && is_projector(path)).peekable();
    // Most folders have none, and a model's header is long.
    named.peek()?;
    let (architecture, n_embd) = text_model(model)?;
    let fitting = named.filter_map(|path| {
        let fits = projector(&path)?.fits(&architecture, n_embd).is_ok();
        fits.then_some((rank(&stem(&path)?, &own), path))
    });
    fitting.min().map(|(_, path)| path)
}

/// Whether a GGUF file is a projector by its name.
pub fn is_projector(path: &Path) -> bool {
    stem(path).is_some_and(|name| name.contains("mmproj"))
}

/// Where a file stands among several that fit: the least is taken.
fn rank(name: &str, model: &str) -> (std::cmp::Reverse<usize>, usize) {
    const TYPES: [&str; 4] = ["bf16", "f16", "f32", "q8_0"];
    let bare = name.replacen("mmproj", "", 1);
    let bare = bare.trim_matches(|c: char| !c.is_alphanumeric());
    let n_alike = bare.bytes().zip(model.bytes()).take_while(|(a, b)| a == b).count();
    let dtype = TYPES.iter().position(|dtype| name.contains(dtype)).unwrap_or(TYPES.len());
    // `f16` is in `bf16`, and is the type that is read by all.
    (std::cmp::Reverse(n_alike), [1, 0, 2, 3, 4][dtype])
}

/// A file's name in small letters, without `.gguf`.
fn stem(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    name.strip_suffix(".gguf").map(str::to_owned)
}

/// Architecture and width of a model.
fn text_model(path: &Path) -> Option<(String, usize)> {
    let mapping = Mapping::open(path).ok()?;
    let header = Header::parse(mapping.bytes()).ok()?;
    let meta = header.metadata();
    let architecture = meta.str("general.architecture").ok()??;
    let n_embd = meta.u32(&format!("{architecture}.embedding_length")).ok()??;
    Some((architecture.to_owned(), n_embd as usize))
}

fn projector(path: &Path) -> Option<ProjectorSchema> {
    let mapping = Mapping::open(path).ok()?;
    let header = Header::parse(mapping.bytes()).ok()?;
    ProjectorSchema::of(&header).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_projector_of_the_models_name_is_taken_and_the_usual_type() {
        let model = "qwen3.5-27b-q4_k_m";
        let mut names = ["mmproj-qwen3.5-9b-f16", "mmproj-qwen3.5-27b-bf16", "mmproj-qwen3.5-27b-f16", "mmproj-f16"];
        names.sort_by_key(|name| rank(name, model));
        assert_eq!(names[..2], ["mmproj-qwen3.5-27b-f16", "mmproj-qwen3.5-27b-bf16"]);
        assert!(rank("qwen3.5-27b.mmproj-q8_0", model) < rank("mmproj-f16", model));
    }

    #[test]
    fn what_is_no_model_has_no_projector() {
        assert_eq!(beside(Path::new("/nowhere/model.gguf")), None);
        assert_eq!(beside(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").as_path()), None);
    }
}
