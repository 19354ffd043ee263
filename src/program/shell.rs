//! Completion scripts and manual pages of the programs, made from the same options that are parsed.

use std::io::{self, Write};

use clap::{Args, Command};

/// What programs with commands print instead of doing one.
#[derive(Debug, Args)]
pub struct Printed {
    /// Print a shell completion script
    #[arg(long, value_name = "SHELL")]
    completions: Option<clap_complete::Shell>,
    /// Print the manual pages (roff), one for each command, and exit
    #[arg(long)]
    man: bool,
}

impl Printed {
    /// Prints what is asked for, of `program`: the manual where nothing is.
    pub fn print(&self, program: Command) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match self.completions {
            Some(which) => completions(program, which, &mut out)?,
            None => man(program, &mut out)?,
        }
        out.flush()
    }
}

/// Writes the completion script of a program for `shell`.
pub fn completions(mut program: Command, shell: clap_complete::Shell, out: &mut impl Write) -> io::Result<()> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut script);
    out.write_all(&script)
}

/// Writes the manual page of a program and those of its commands, one after the other.
pub fn man(mut program: Command, out: &mut impl Write) -> io::Result<()> {
    program.build();
    pages(&program, out)
}

/// Built, a command is called by all names before its own.
fn pages(program: &Command, out: &mut impl Write) -> io::Result<()> {
    clap_mangen::Man::new(program.clone()).section("1").render(out)?;
    program.get_subcommands().filter(|c| c.get_name() != "help").try_for_each(|command| pages(command, out))
}
