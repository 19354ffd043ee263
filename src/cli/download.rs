//! Fetching a model with progress on standard error. Ctrl-C ends it; what came is kept.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use hub::{Cancel, HubError, HubOptions, ModelFiles, Watch};
use program::download::DownloadProgress;
use program::exit::{Exit, Failure, OrExit, Outcome};
use program::signals::Signals;

/// What the thread that fetches and the one that hears signals say.
enum News {
    Done(Result<ModelFiles, HubError>),
    Signal(Exit),
}

/// The files of a model, fetched where they have to be.
///
/// # Errors
/// With the code of the options, of the model or of the machine; of the signal, where one ended it.
pub fn model_files(
    model: Option<PathBuf>,
    options: HubOptions,
    signals: &Signals,
    on_terminal: bool,
) -> Outcome<ModelFiles> {
    if options.name().map_err(failure)?.is_none() {
        let watch = Watch { tell: &|_| {}, cancel: &Cancel::default() };
        return ModelFiles::find(model.as_deref(), &options, &watch).map_err(failure);
    }
    let progress = Arc::new(DownloadProgress::new(on_terminal, |line| eprintln!("{line}")));
    let cancel = Cancel::default();
    let (sender, news) = mpsc::channel();
    let _listening = signals.listen(sender.clone(), News::Signal);
    let (own, stop) = (Arc::clone(&progress), cancel.clone());
    let fetch = move || {
        let watch = Watch { tell: &|event| own.tell(event), cancel: &stop };
        // Nobody hears it when a signal has ended the wait.
        let _ = sender.send(News::Done(ModelFiles::find(model.as_deref(), &options, &watch)));
    };
    std::thread::Builder::new().name("download".to_owned()).spawn(fetch).or_exit(Exit::Runtime)?;
    let first = news.recv();
    let found = match first {
        Ok(News::Done(found)) => found.map_err(failure),
        Ok(News::Signal(exit)) => {
            cancel.cancel();
            // It ends after its next bytes. A hub that sends none is not waited for: what came is on the disk.
            let _ = news.recv_timeout(LAST_BYTES);
            Err(Failure::new(exit, HubError::Cancelled))
        }
        Err(_) => Err(Failure::message(Exit::Runtime, "the download ended without a result (a bug)")),
    };
    progress.finish();
    found
}

/// A hub's error with the code of what was at fault.
pub fn failure(error: HubError) -> Failure {
    let exit = match &error {
        HubError::Name { .. } => Exit::Usage,
        HubError::Cache { .. } | HubError::NoRoom { .. } | HubError::Locked { .. } | HubError::Outside { .. } => {
            Exit::Runtime
        }
        HubError::Cancelled => Exit::Interrupted,
        _ => Exit::ModelFile,
    };
    Failure::new(exit, error)
}

const LAST_BYTES: Duration = Duration::from_secs(2);
