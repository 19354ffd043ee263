//! Completion scripts and the manual page, made from the same options that are parsed.

use std::io::{self, Write};

use clap::CommandFactory;

use super::args::Args;

/// Writes the completion script for `shell`.
///
/// # Errors
/// Those of `out`.
pub fn completions(shell: clap_complete::Shell, out: &mut impl Write) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "nextn-cli", &mut script);
    out.write_all(&script)
}

/// Writes the manual page in roff.
///
/// # Errors
/// Those of `out`.
pub fn man(out: &mut impl Write) -> io::Result<()> {
    clap_mangen::Man::new(Args::command()).section("1").render(out)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_completes_the_options() {
        for shell in clap_complete::Shell::value_variants() {
            let mut script = Vec::new();
            completions(*shell, &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("flash-attn") && script.contains("nextn-cli"), "{shell}");
        }
    }

    #[test]
    fn the_manual_page_names_options_and_exit_codes() {
        let mut page = Vec::new();
        man(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.starts_with(".ie") || page.contains(".TH nextn-cli 1"), "{}", &page[..80]);
        assert!(page.contains("cache\\-type\\-k") && page.contains("ended by Ctrl"), "{page}");
    }
}
