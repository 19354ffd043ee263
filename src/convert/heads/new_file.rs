//! The file that surgery makes: a model on its way into a file, in the format's version of its source.
//! Owns the last step to a job; decides nothing.

use std::path::Path;

use gguf::Writer;

use crate::error::Error;
use crate::model::Model;
use crate::stream::{Control, Job, OnFailure, TensorPlan};

/// A file to be, with what the caller may want to tell about it.
#[derive(Debug)]
pub struct NewFile {
    /// Keys, tensors and what they are read from.
    pub model: Model,
    /// Of the format, as in the source.
    pub version: u32,
    /// What was found on the way that need not be wrong: one sentence each.
    pub notes: Vec<String>,
}

impl NewFile {
    /// The work that writes it.
    ///
    /// # Errors
    /// The header would not be readable.
    pub fn into_job(self) -> Result<Job, Error> {
        let mut writer = Writer::in_memory();
        writer.set_version(self.version).map_err(Error::Header)?;
        for (key, value) in &self.model.keys {
            writer.add(key, value.value()).map_err(Error::Header)?;
        }
        for t in &self.model.tensors {
            writer.tensor(&t.name, &t.ne, t.dtype).map_err(Error::Header)?;
        }
        let layout = writer.layout().map_err(Error::Header)?;
        Ok(Job { inputs: self.model.inputs, tensors: self.model.tensors, layout, options: String::new() })
    }
}

impl NewFile {
    /// Writes the file on some threads. It appears under its name whole; when that fails or is stopped nothing is left of
    /// it, and what was there before stays.
    ///
    /// # Errors
    /// `target` is one of the inputs or a folder, the disk is full, a file cannot be read or written, or
    /// [`Error::Interrupted`].
    pub fn write(self, target: &Path, n_threads: usize, control: &Control) -> Result<(), Error> {
        match self.into_job()?.run(target, n_threads, control, OnFailure::Remove) {
            // Surgery is short: it is not worth taking up.
            Err(Error::Stopped { part }) => {
                let mut journal = part.clone().into_os_string();
                journal.push(".json");
                let _ = std::fs::remove_file(&part);
                let _ = std::fs::remove_file(journal);
                Err(Error::Interrupted)
            }
            other => other,
        }
    }

    /// Bytes that are read to make it.
    pub fn source_bytes(&self) -> u64 {
        self.model.tensors.iter().map(TensorPlan::source_bytes).sum()
    }
}
