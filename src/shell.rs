//! Completion scripts and manual pages of the programs, made from the same options that are parsed.

use std::io::{self, Write};

use clap::Command;

/// Writes the completion script of a program for `shell`.
pub(crate) fn completions(mut program: Command, shell: clap_complete::Shell, out: &mut impl Write) -> io::Result<()> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut script);
    out.write_all(&script)
}

/// Writes the manual page of a program and those of its commands, one after the other.
pub(crate) fn man(mut program: Command, out: &mut impl Write) -> io::Result<()> {
    program.build();
    clap_mangen::Man::new(program.clone()).section("1").render(out)?;
    for command in program.get_subcommands().filter(|c| c.get_name() != "help") {
        // Built, it is called by both names.
        clap_mangen::Man::new(command.clone()).section("1").render(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, ValueEnum};

    use super::*;

    fn programs() -> [(Command, &'static [&'static str]); 3] {
        [
            (crate::cli::args::Args::command(), &["nextn-cli", "flash-attn"]),
            (crate::server::args::command(), &["nextn-server", "draft-min"]),
            (crate::extract::Args::command(), &["extract-nextn", "graft", "layout", "requantize"]),
        ]
    }

    #[test]
    fn every_shell_completes_options_and_commands() {
        for (program, words) in programs() {
            for shell in clap_complete::Shell::value_variants() {
                let mut script = Vec::new();
                completions(program.clone(), *shell, &mut script).unwrap();
                let script = String::from_utf8(script).unwrap();
                assert!(words.iter().all(|word| script.contains(word)), "{shell}");
            }
        }
    }

    #[test]
    fn there_is_a_page_for_each_program_and_command() {
        for (program, words) in programs() {
            let n_commands = program.get_subcommands().count();
            let mut pages = Vec::new();
            man(program, &mut pages).unwrap();
            let pages = String::from_utf8(pages).unwrap();
            for word in words {
                assert!(pages.contains(&word.replace('-', "\\-")), "{word}");
            }
            assert_eq!(pages.matches(".TH ").count(), 1 + n_commands);
        }
    }
}
