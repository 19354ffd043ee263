//! Log lines of the server on standard error: one for each request, as text or JSON.

use std::io;

use tracing_subscriber::EnvFilter;

use super::args::Args;

/// Starts logging; `NEXTN_LOG` goes before `-v` and `-q`.
///
/// # Errors
/// A filter that cannot be understood, in words for the user.
pub(super) fn start(args: &Args) -> Result<(), String> {
    let level = match (args.quiet, args.verbose) {
        (true, _) => "warn",
        (false, 0) => "info",
        (false, 1) => "debug",
        (false, _) => "trace",
    };
    let filter = std::env::var("NEXTN_LOG").ok().filter(|text| !text.trim().is_empty());
    let wanted = filter.as_deref().unwrap_or(level);
    let filter = EnvFilter::builder()
        .parse(wanted)
        .map_err(|error| format!("NEXTN_LOG={wanted}: {error}; an example is NEXTN_LOG=engine=debug,info"))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // Fails only where a subscriber is set already: then that one is to be used.
    let _ = match args.log_json {
        true => lines.json().flatten_event(true).with_span_list(false).try_init(),
        false => lines.with_target(false).with_ansi(false).try_init(),
    };
    Ok(())
}
