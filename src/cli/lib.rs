//! The command line: options, chat, rendering, exit codes. Wires engine and terminal together.
//! Knows no tensors and no HTTP. Doc-hidden in the library: only the binaries use it.

pub mod args;
pub mod chat;
pub mod choices;
pub mod clipboard;
pub mod code;
pub mod command;
pub mod download;
pub mod editor;
pub mod form;
mod inline;
pub mod input;
pub mod loaded;
pub mod markdown;
mod models;
mod obey;
pub mod once;
pub mod pictures;
mod progress;
pub mod report;
pub mod screen;
pub mod settings;
pub mod sink;
pub mod stats;
pub mod style;
pub mod transcript;
pub mod turn;
pub mod wrap;

use std::ffi::OsString;
use std::io::{self, Write};
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use engine::RequestOptions;
use engine::stop::StopMatcher;

use args::{Args, Command};
use chat::Chat;
use editor::{LineEditor, history_path};
use input::{Announced, Sources, Stdin};
use loaded::Loaded;
use program::exit::{Exit, Failure, OrExit, Outcome};
use program::signals::Signals;
use progress::Waiting;
use report::Line;
use screen::{Plan, Wishes};
use settings::TurnSettings;
use sink::Lines;
use style::{Colours, Terminals};

use program::{logging, shell};

/// Runs `nextn-cli` with the arguments of this process, and gives its exit code.
pub fn main() -> Exit {
    let args = match parse(program::short_names::spelled_out(std::env::args_os())) {
        Ok(args) => args,
        Err(error) => {
            // `--help` and `--version` come here too, with code 0. A closed output has nobody to tell.
            let _ = error.print();
            return if error.exit_code() == 0 { Exit::Success } else { Exit::Usage };
        }
    };
    let failure = match run(&args) {
        Ok(()) => return Exit::Success,
        Err(failure) => failure,
    };
    let exit = failure.report(&mut io::stderr());
    if let (true, Some(error)) = (args.output.jsonl, &failure.error) {
        // The output may be what failed.
        let _ = Lines::new(io::stdout()).line(&Line::Error { message: &format!("{error:#}"), exit_code: exit as u8 });
    }
    // The engine may be deep in a long prompt: it is not waited for.
    program::signals::leave(exit)
}

/// The arguments, with a model from one place only.
fn parse(words: impl Iterator<Item = OsString>) -> Result<Args, clap::Error> {
    let words: Vec<OsString> = words.collect();
    let command = if words.iter().any(|word| word == "-h") { args::with_short_help() } else { Args::command() };
    let matches = command.try_get_matches_from(words)?;
    let mut args = Args::from_arg_matches(&matches)?;
    let wrong = |words: &str| Args::command().error(ErrorKind::ArgumentConflict, words);
    if args.command.is_some()
        && let Some(option) = typed_options(&matches).find(|option| option != "verbose")
    {
        return Err(wrong(&format!("--{option} is for a chat, and does not go with `models`")));
    }
    hub::one_source(&matches, &mut args.model, &mut args.hub).map_err(wrong)?;
    Ok(args)
}

/// The long names of what stands before a command.
fn typed_options(matches: &ArgMatches) -> impl Iterator<Item = String> {
    let command = Args::command();
    let typed = |arg: &&clap::Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let names: Vec<String> =
        command.get_arguments().filter(typed).filter_map(|arg| Some(arg.get_long()?.to_owned())).collect();
    names.into_iter()
}

fn run(args: &Args) -> Outcome<()> {
    if let Some(shell) = args.completions {
        return Ok(shell::completions(Args::command(), shell, &mut io::stdout())?);
    }
    if args.man {
        return Ok(shell::man(Args::command(), &mut io::stdout())?);
    }
    if args.version {
        return Ok(io::stdout().write_all(program::version::text("nextn-cli").as_bytes())?);
    }
    let env = |name: &str| std::env::var(name).ok();
    let terminals = Terminals::detect();
    let colours = Colours::choose(args.output.color, terminals, env);
    let (level, detailed) = match args.output.verbose {
        0 => ("warn", false),
        1 => ("info", false),
        2 => ("debug", true),
        _ => ("trace", true),
    };
    logging::start(level, logging::Lines::Person { colours: colours.err, detailed })
        .map_err(|words| Failure::message(Exit::Usage, words))?;
    let signals = Signals::install().or_exit(Exit::Runtime)?;
    if let Some(Command::Models(command)) = &args.command {
        return models::run(command, &signals, terminals);
    }

    // All that needs no model is checked before it is loaded.
    check_turn(args)?;
    let form = args.form.form()?;
    let text = prompt_text(args)?;
    let system = system_text(args)?;
    if text.is_none() && args.machine() {
        return Err(Failure::message(
            Exit::Usage,
            "--json and --jsonl need a prompt: -p, -f, or text on standard input",
        ));
    }
    let wishes = Wishes {
        chat: text.is_none(),
        raw: args.prompt.raw,
        fold: args.output.hide_thinking,
        no_wrap: args.output.no_wrap,
        markdown: args.output.markdown,
        color: args.output.color,
    };
    let plan = Plan::new(wishes, terminals, colours);

    let files = download::model_files(args.model.clone(), args.hub.clone(), &signals, terminals.stderr)?;
    if let Some(path) = files.model.as_ref().filter(|path| !path.exists()) {
        return Err(Failure::message(Exit::ModelFile, loaded::no_file(path)));
    }
    for note in files.notes() {
        tracing::info!("{note}");
    }
    let sign = Waiting::load(files.model.as_deref(), terminals.stderr);
    let loaded = Loaded::open(args, &files, form, sign.progress())?;
    drop(sign);
    let named = [("--image", &args.prompt.image), ("--video", &args.prompt.video)];
    if let Some((flag, _)) = named.into_iter().find(|(_, files)| !files.is_empty() && loaded.model.sight().is_none()) {
        return Err(Failure::message(Exit::Prompt, format!("{flag}: {}", session::BLIND)));
    }
    if terminals.stderr && !args.machine() {
        // A terminal that is gone is noticed when the reply is written.
        let _ = writeln!(io::stderr(), "{}", plan.aside(&loaded.line()));
    }

    let done = match text {
        Some(text) => once::run(args, &loaded, &signals, system, &text, plan, terminals),
        None => {
            let history = if args.output.no_history { None } else { history_path(env) };
            let mut editor = LineEditor::new(colours.out, terminals.stdout, history).or_exit(Exit::Runtime)?;
            signals.ask_twice();
            Chat::new(args, &loaded, &signals, system, plan, terminals)?.run(&mut editor)
        }
    };
    loaded.model.close();
    done
}

/// Ranges that clap does not know; those that need the vocabulary are checked with the request.
fn check_turn(args: &Args) -> Outcome<()> {
    let options = TurnSettings::new(args.turn.clone(), RequestOptions::default()).options(0);
    let sampling = engine::sample::SamplingParams { logit_bias: Vec::new(), ..options.sampling };
    sampling.validate(1).or_exit(Exit::Usage)?;
    StopMatcher::new(&options.stops).or_exit(Exit::Usage)?;
    Ok(())
}

fn prompt_text(args: &Args) -> Outcome<Option<String>> {
    let sources = Sources {
        prompt: args.prompt.prompt.as_deref(),
        file: args.prompt.file.as_deref(),
        joint: if args.prompt.raw { "\n" } else { "\n\n" },
    };
    let stdin = Stdin::detect();
    let asked = sources.prompt.is_some() || sources.file.is_some();
    if stdin == Stdin::Data && asked {
        return input::gather(sources, stdin, &mut Announced::new(io::stdin(), Duration::from_secs(3)));
    }
    input::gather(sources, stdin, &mut io::stdin())
}

fn system_text(args: &Args) -> Outcome<Option<String>> {
    match (&args.prompt.system, &args.prompt.system_file) {
        (Some(text), _) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        (None, Some(path)) => input::read_file(path).map(Some),
        (None, None) => Ok(None),
    }
}
