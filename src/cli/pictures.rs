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

/// What a message holds: its images, then its text.
pub fn content(text: &str, n_images: usize) -> Value {
    if n_images == 0 {
        return text.into();
    }
    let images = std::iter::repeat_n(json!({ "type": "image" }), n_images);
    images.chain([json!({ "type": "text", "text": text })]).collect()
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
