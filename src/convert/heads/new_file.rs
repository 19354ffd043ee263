//! The file that surgery makes: a model on its way into a file, with words about it.
//! Owns what is left behind when writing is broken off; decides nothing.

use std::path::Path;

use crate::error::Error;
use crate::gguf_model::Model;
use crate::stream::{Control, OnFailure};

/// A file to be, with what the caller may want to tell about it.
#[derive(Debug)]
pub struct NewFile {
    /// Keys, tensors and what they are read from.
    pub model: Model,
    /// What was found on the way that need not be wrong: one sentence each.
    pub notes: Vec<String>,
}

impl NewFile {
    /// Writes the file on some threads. It appears under its name whole; when that fails or is stopped nothing is left of
    /// it, and what was there before stays.
    ///
    /// # Errors
    /// `target` is one of the inputs or a folder, the disk is full, a file cannot be read or written, or
    /// [`Error::Interrupted`].
    pub fn write(self, target: &Path, n_threads: usize, control: &Control) -> Result<(), Error> {
        // Surgery is short: when it is stopped it is not worth taking up.
        self.model.into_job(String::new())?.run(target, n_threads, control, OnFailure::LeaveNothing)
    }
}
