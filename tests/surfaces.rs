//! What scripts and clients rely on, held to a list: flags with their aliases and variables, endpoints, JSON fields, exit
//! codes, headers of file formats. A change of the list belongs into the CHANGELOG with its reason;
//! `NEXTN_WRITE_LISTS=1 cargo test --test surfaces` writes the list anew.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use clap::CommandFactory;
use clap_complete::Shell;
use program::exit::Exit;
use serde_json::Value;

fn programs() -> [(clap::Command, &'static [&'static str]); 5] {
    [
        (cli::args::Args::command(), &["nextn-cli", "flash-attn"]),
        (server::command(), &["nextn-server", "draft-min", "connect"]),
        (bench::Args::command(), &["nextn-bench", "perplexity"]),
        (extract::Args::command(), &["extract-nextn", "graft", "layout", "requantize"]),
        (tune::Args::command(), &["nextn-tune", "head", "patience"]),
    ]
}

#[test]
fn the_surfaces_are_those_of_the_list() {
    let mut lines = BTreeSet::new();
    for (mut program, _) in programs() {
        program.build();
        flags(&program, program.get_name().to_owned().as_str(), &mut lines);
    }
    endpoints(&mut lines);
    fields_of_the_command_line(&mut lines);
    for exit in
        [Exit::Success, Exit::Runtime, Exit::Usage, Exit::ModelFile, Exit::Prompt, Exit::Interrupted, Exit::Terminated]
    {
        lines.insert(format!("exit code {} {exit:?}", exit as u8));
    }
    let found = lines.into_iter().map(|line| line + "\n").collect::<String>();
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/surfaces.txt");
    if std::env::var_os("NEXTN_WRITE_LISTS").is_some() {
        std::fs::write(&list, &found).expect("the list can be written");
    }
    let expected = std::fs::read_to_string(&list).expect("the list is part of the repository");
    let only = |here: &str, there: &str| {
        let there: BTreeSet<&str> = there.lines().collect();
        here.lines().filter(|line| !there.contains(line)).map(str::to_owned).collect::<Vec<_>>()
    };
    let (new, gone) = (only(&found, &expected), only(&expected, &found));
    assert!(new.is_empty() && gone.is_empty(), "new: {new:#?}\ngone: {gone:#?}");
}

fn flags(command: &clap::Command, name: &str, lines: &mut BTreeSet<String>) {
    for arg in command.get_arguments() {
        let mut line = format!("{name} ");
        match (arg.get_long(), arg.get_short()) {
            (Some(long), Some(short)) => line += &format!("--{long} -{short}"),
            (Some(long), None) => line += &format!("--{long}"),
            (None, _) => line += &format!("<{}>", arg.get_id()),
        }
        for alias in arg.get_all_aliases().unwrap_or_default() {
            line += &format!(" --{alias}");
        }
        if let Some(variable) = arg.get_env() {
            line += &format!(" ${}", variable.to_string_lossy());
        }
        lines.insert(line);
    }
    for sub in command.get_subcommands() {
        flags(sub, &format!("{name} {}", sub.get_name()), lines);
    }
}

fn endpoints(lines: &mut BTreeSet<String>) {
    let document = api::document();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            lines.insert(format!("http {method} {path}"));
        }
    }
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        for part in std::iter::once(schema).chain(schema["allOf"].as_array().into_iter().flatten()) {
            for field in part["properties"].as_object().into_iter().flat_map(|fields| fields.keys()) {
                lines.insert(format!("json {name}.{field}"));
            }
        }
    }
}

fn fields_of_the_command_line(lines: &mut BTreeSet<String>) {
    for form in ["--json", "--jsonl"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nextn-cli"));
        command.args([form, "-p", "What is 2 plus 2?", "--temp", "0", "-n", "8", "-t", "1", "--logprobs", "1"]);
        let output = command.output().expect("the binary runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for line in String::from_utf8(output.stdout).expect("JSON is UTF-8").lines() {
            let value: Value = serde_json::from_str(line).expect("a line is an object");
            let name = value["event"].as_str().map_or(form.to_owned(), |event| format!("{form} {event}"));
            fields(&value, &name, lines);
        }
    }
}

fn fields(value: &Value, name: &str, lines: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                lines.insert(format!("nextn-cli {name}.{key}"));
                fields(value, &format!("{name}.{key}"), lines);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, &format!("{name}[]"), lines)),
        _ => {}
    }
}

#[test]
fn every_shell_completes_options_and_commands() {
    for (program, words) in programs() {
        for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
            let mut script = Vec::new();
            program::shell::completions(program.clone(), shell, &mut script).expect("a script");
            let script = String::from_utf8(script).expect("text");
            assert!(words.iter().all(|word| script.contains(word)), "{shell}");
        }
    }
}

/// Commands, and commands of commands.
fn n_commands(program: &clap::Command) -> usize {
    program.get_subcommands().map(|command| 1 + n_commands(command)).sum()
}

#[test]
fn there_is_a_page_for_each_program_and_command() {
    for (program, words) in programs() {
        let n_commands = n_commands(&program);
        let mut pages = Vec::new();
        program::shell::man(program, &mut pages).expect("pages");
        let pages = String::from_utf8(pages).expect("text");
        for word in words {
            assert!(pages.contains(&word.replace('-', "\\-")), "{word}");
        }
        assert_eq!(pages.matches(".TH ").count(), 1 + n_commands);
    }
}
