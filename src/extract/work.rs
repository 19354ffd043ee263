//! Long work: a bar on the terminal, an end by Ctrl-C, the same last line for every file that was written.
//! Owns the thread that watches; knows no command.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::ensure;
use convert::heads::NewFile;
use convert::stream::{Control, available_threads};
use indicatif::{ProgressBar, ProgressStyle};

use super::show;
use program::sanitize;
use program::signals::Hearing;
use program::terminal::tell;

/// Runs `work` with a bar on standard error, if that is a terminal. Ctrl-C asks it to stop; a second one ends the process.
pub fn watched<T>(what: &'static str, work: impl FnOnce(&Control) -> T) -> anyhow::Result<T> {
    let control = Arc::new(Control::default());
    // A limit on the size of files is an error of writing like a full disk, and no end of the process.
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default())?;
    let told = Arc::clone(&control);
    let hearing = Hearing::start(move |_| {
        if told.stop.swap(true, Ordering::Relaxed) {
            std::process::exit(super::INTERRUPTED.into());
        }
    })?;
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let style = "{msg} {wide_bar} {bytes}/{total_bytes}  {binary_bytes_per_sec}  {eta} left";
    bar.set_style(ProgressStyle::with_template(style).expect("the template is sound").progress_chars("##-"));
    bar.set_message(what);
    let result = std::thread::scope(|scope| {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (bar, shown) = (&bar, &control);
        scope.spawn(move || {
            // Until the sender is dropped.
            while ended.recv_timeout(Duration::from_millis(100)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                bar.set_length(shown.total.load(Ordering::Relaxed));
                bar.set_position(shown.done.load(Ordering::Relaxed));
            }
        });
        let result = work(&control);
        drop(end);
        result
    });
    bar.finish_and_clear();
    drop(hearing);
    Ok(result)
}

/// # Errors
/// `out` is there, and is not to be overwritten.
pub fn check_output(out: &Path, force: bool) -> anyhow::Result<()> {
    ensure!(force || !out.is_file(), "{}: the file is there; --force overwrites it", out.display());
    Ok(())
}

/// Says on standard error what can be done with a file that was written; its name goes where `words` have braces.
pub fn say_next(out: &Path, words: &str) {
    let name = sanitize::clean_line(&out.display().to_string());
    let name = if name.contains(' ') { format!("'{name}'") } else { name };
    tell(&format!("next: {}", words.replace("{}", &name)));
}

/// Writes a file with all that belongs to it: notes, a bar, a last line, and what to do `next`.
pub fn write(new: NewFile, out: &Path, json: bool, next: &str) -> anyhow::Result<()> {
    let n_tensors = new.model.tensors.len();
    for note in &new.notes {
        tell(&format!("note: {}", sanitize::clean(note)));
    }
    watched("writing", |control| new.write(out, available_threads(), control))??;
    let n_bytes = std::fs::metadata(out)?.len();
    let mut stdout = std::io::stdout().lock();
    if json {
        let line = serde_json::json!({ "path": out, "n_bytes": n_bytes, "n_tensors": n_tensors });
        writeln!(stdout, "{line}")?;
    } else {
        let path = sanitize::clean_line(&out.display().to_string());
        writeln!(stdout, "{path}: {n_tensors} tensors, {}", show::bytes(n_bytes))?;
        drop(stdout);
        say_next(out, next);
    }
    Ok(())
}
