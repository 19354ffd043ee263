//! Log lines on standard error. Owns which are shown: those of a program's level, or of `NEXTN_LOG` where it is set.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt};

/// What log lines look like.
#[derive(Clone, Copy, Debug)]
pub enum Lines {
    /// For a person in front of a terminal.
    Person {
        /// With colours.
        colours: bool,
        /// With the time, and the part of the program that they come from.
        detailed: bool,
    },
    /// One line for each event, with the time.
    Service,
    /// One JSON object for each event.
    Json,
}

/// Starts logging; `NEXTN_LOG` goes before `level`.
///
/// # Errors
/// A filter that cannot be understood, in words for the user.
pub fn start(level: &str, lines: Lines) -> Result<(), String> {
    start_to(level, lines, None)
}

/// As [`start`], with the lines at the end of a file as well.
///
/// # Errors
/// As [`start`]; a file that cannot be written.
pub fn start_to(level: &str, lines: Lines, file: Option<&Path>) -> Result<(), String> {
    #[cfg(windows)]
    crate::terminal::take_marks();
    let filter = filter(level, std::env::var("NEXTN_LOG").ok().as_deref())?;
    let writer = match file {
        None => BoxMakeWriter::new(io::stderr),
        Some(path) => {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            let file = opened.map_err(|error| format!("--log-file {}: {error}", path.display()))?;
            BoxMakeWriter::new(io::stderr.and(Arc::new(file)))
        }
    };
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    // A line that cannot be written would be told of on standard error, which ends the thread where that cannot be written.
    let subscriber = subscriber.log_internal_errors(false);
    // Fails only where a subscriber is set already: then that one is to be used.
    let _ = match lines {
        Lines::Person { colours, detailed: true } => subscriber.with_ansi(colours).try_init(),
        Lines::Person { colours, detailed: false } => {
            subscriber.with_ansi(colours).with_target(false).without_time().try_init()
        }
        Lines::Service => subscriber.with_target(false).with_ansi(false).try_init(),
        Lines::Json => subscriber.json().flatten_event(true).with_span_list(false).try_init(),
    };
    Ok(())
}

fn filter(level: &str, filter: Option<&str>) -> Result<EnvFilter, String> {
    let wanted = filter.filter(|text| !text.trim().is_empty()).unwrap_or(level);
    EnvFilter::builder()
        .parse(wanted)
        .map_err(|error| format!("NEXTN_LOG={wanted}: {error}; an example is NEXTN_LOG=engine=debug,warn"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_goes_before_the_level_and_is_checked() {
        assert_eq!(filter("warn", None).unwrap().to_string(), "warn");
        assert_eq!(filter("info", Some(" ")).unwrap().to_string(), "info");
        assert_eq!(filter("trace", Some("engine=debug")).unwrap().to_string(), "engine=debug");
        assert!(filter("warn", Some("engine=loud")).unwrap_err().contains("engine=loud"));
    }
}
