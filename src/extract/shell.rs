//! Completion scripts and manual pages of `extract-nextn`, made from the options that are parsed.

use std::io::{self, Write};

use clap::CommandFactory;

use super::Args;

/// Writes the completion script for a shell.
pub fn completions(shell: clap_complete::Shell, out: &mut impl Write) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "extract-nextn", &mut script);
    out.write_all(&script)
}

/// Writes the manual page of the program and those of its commands, one after the other.
pub fn man(out: &mut impl Write) -> io::Result<()> {
    let mut program = Args::command();
    program.build();
    clap_mangen::Man::new(program.clone()).render(out)?;
    for command in program.get_subcommands().filter(|c| c.get_name() != "help") {
        // Built, it is called by both names.
        clap_mangen::Man::new(command.clone()).render(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_shell_completes_the_commands() {
        for shell in clap_complete::Shell::value_variants() {
            let mut script = Vec::new();
            completions(*shell, &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            assert!(["graft", "layout", "requantize"].iter().all(|word| script.contains(word)), "{shell}");
        }
    }

    #[test]
    fn there_is_a_page_for_each_command() {
        let mut pages = Vec::new();
        man(&mut pages).unwrap();
        let pages = String::from_utf8(pages).unwrap();
        for name in ["extract\\-nextn", "extract\\-nextn\\-graft", "extract\\-nextn\\-verify", "requantize"] {
            assert!(pages.contains(name), "{name}");
        }
        assert_eq!(pages.matches(".TH ").count(), 8);
    }
}
