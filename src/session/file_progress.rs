//! How far the files of a model are while it is opened.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ggml::LoadProgress;

/// Takes a file, the bytes of it that are done, and all of them.
type Tell = dyn Fn(&Path, u64, u64) + Send + Sync;

/// Where opening a model tells how far its files are; nobody listens by default. A file that is mapped and neither locked nor
/// copied to a device is not told of: its pages are read by the first passes.
#[derive(Clone, Default)]
pub struct FileProgress(Option<Arc<Tell>>);

impl FileProgress {
    /// `tell` gets a file, the bytes of it that are done, and all of them, on the thread that opens the model.
    pub fn new(tell: impl Fn(&Path, u64, u64) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    /// Tells.
    pub fn tell(&self, file: &Path, done: u64, total: u64) {
        if let Some(tell) = &self.0 {
            tell(file, done, total);
        }
    }

    /// That of one file.
    pub(crate) fn of(&self, file: &Path) -> LoadProgress {
        let Some(tell) = self.0.clone() else { return LoadProgress::default() };
        let file = file.to_owned();
        LoadProgress::new(move |done, total| tell(&file, done, total))
    }
}

impl fmt::Debug for FileProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileProgress").field(&self.0.is_some()).finish()
    }
}
