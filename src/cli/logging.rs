//! Log lines on standard error. Owns which are shown: `-v`, or `NEXTN_LOG` where it is set.

use std::io;

use tracing_subscriber::EnvFilter;

/// Starts logging; `filter` (from `NEXTN_LOG`) goes before `verbose`.
///
/// # Errors
/// A filter that cannot be understood, in words for the user.
pub fn start(verbose: u8, filter: Option<&str>, colours: bool) -> Result<(), String> {
    let filter = self::filter(verbose, filter)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(colours)
        .with_target(verbose > 1);
    // Fails only where a subscriber is set already: then that one is to be used.
    let _ = if verbose > 1 { lines.try_init() } else { lines.without_time().try_init() };
    Ok(())
}

fn filter(verbose: u8, filter: Option<&str>) -> Result<EnvFilter, String> {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let wanted = filter.filter(|text| !text.trim().is_empty()).unwrap_or(level);
    EnvFilter::builder()
        .parse(wanted)
        .map_err(|error| format!("NEXTN_LOG={wanted}: {error}; an example is NEXTN_LOG=engine=debug,warn"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_goes_before_the_flag_and_is_checked() {
        assert_eq!(filter(0, None).unwrap().to_string(), "warn");
        assert_eq!(filter(1, Some(" ")).unwrap().to_string(), "info");
        assert_eq!(filter(3, Some("engine=debug")).unwrap().to_string(), "engine=debug");
        assert!(filter(0, Some("engine=loud")).unwrap_err().contains("engine=loud"));
    }
}
