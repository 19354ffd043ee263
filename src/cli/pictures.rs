//! Images of a conversation: files as they were read, and how they stand in a message and in a saved conversation.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};
use session::Video;

use super::input::read_bytes;
use program::exit::{Exit, OrExit, Outcome};

/// A file that holds an image.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Image {
    /// The file's, without its folder.
    pub name: String,
    #[serde(serialize_with = "to_base64", deserialize_with = "of_base64")]
    data: Arc<[u8]>,
}

impl Image {
    /// Reads a file; whether it is an image shows when it is looked at.
    ///
    /// # Errors
    /// With [`Exit::Prompt`]: a file that cannot be read, or is too long.
    pub fn read(path: &Path) -> Outcome<Self> {
        let name = path.display().to_string();
        let mut file = File::open(path).with_context(|| name.clone()).or_exit(Exit::Prompt)?;
        let data = read_bytes(&mut file, &name, MAX_BYTES).or_exit(Exit::Prompt)?;
        let name = path.file_name().map_or(name, |name| name.to_string_lossy().into_owned());
        Ok(Self { name, data: data.into() })
    }

    /// Reads several.
    ///
    /// # Errors
    /// As [`Image::read`].
    pub fn read_all(paths: &[PathBuf]) -> Outcome<Vec<Self>> {
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Arc<[u8]> {
        Arc::clone(&self.data)
    }
}

/// A video as files of frames, in the order in which they are shown.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Film {
    frames: Vec<Image>,
    /// Frames a second.
    fps: f64,
}

impl Film {
    /// Reads the frames that are named, and all files of folders in the order of their names, but hidden ones, which file
    /// managers leave there; `None` where none are named.
    ///
    /// # Errors
    /// With [`Exit::Prompt`]: a file or folder that cannot be read, a folder without files.
    pub fn read(paths: &[PathBuf], fps: f64) -> Outcome<Option<Self>> {
        let mut frames = Vec::new();
        for path in paths {
            if !path.is_dir() {
                frames.push(Image::read(path)?);
                continue;
            }
            let named = std::fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
            let named = named.with_context(|| path.display().to_string()).or_exit(Exit::Prompt)?;
            let seen = named.iter().filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
            let mut files: Vec<PathBuf> = seen.map(std::fs::DirEntry::path).filter(|path| path.is_file()).collect();
            if files.is_empty() {
                return Err(anyhow::anyhow!("{}: the folder has no frames (picture files)", path.display()))
                    .or_exit(Exit::Prompt);
            }
            files.sort();
            for file in files {
                frames.push(Image::read(&file)?);
            }
        }
        Ok((!paths.is_empty()).then_some(Self { frames, fps }))
    }

    /// As a conversation takes it.
    pub fn video(&self) -> Video {
        let names = self.frames.iter().map(|frame| frame.name.clone()).collect();
        Video { frames: self.frames.iter().map(Image::bytes).collect(), names, fps: self.fps }
    }
}

/// What a message holds: its images, its video, then its text.
pub fn content(text: &str, n_images: usize, has_video: bool) -> Value {
    if n_images == 0 && !has_video {
        return text.into();
    }
    let images = std::iter::repeat_n(json!({ "type": "image" }), n_images);
    images
        .chain(has_video.then(|| json!({ "type": "video" })))
        .chain([json!({ "type": "text", "text": text })])
        .collect()
}

fn to_base64<S: Serializer>(data: &Arc<[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&BASE64_STANDARD.encode(data))
}

fn of_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u8]>, D::Error> {
    let text = String::deserialize(deserializer)?;
    BASE64_STANDARD.decode(text).map(Into::into).map_err(D::Error::custom)
}

/// Of one file.
const MAX_BYTES: u64 = 64 << 20;
