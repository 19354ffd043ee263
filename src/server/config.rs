//! The configuration file: the options of the command line as TOML, and a table for each model.
//! Flags go before environment variables, these before the file, the file before built-in values.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use toml::{Table, Value};

use super::args::Args;

/// What all sources together say.
#[derive(Debug)]
pub(super) struct Resolved {
    /// Everything but the models' own settings.
    pub(super) args: Args,
    /// A server's models by name, in the order of the file; empty without `[models]`.
    pub(super) models: Vec<(String, Model)>,
}

/// One model of the file.
#[derive(Debug)]
pub(super) struct Model {
    /// The options that hold for it.
    pub(super) args: Args,
    /// Other names.
    pub(super) aliases: Vec<String>,
    /// Seconds without a request after which it is unloaded.
    pub(super) idle: Option<u64>,
    /// Loaded when the server starts.
    pub(super) at_start: bool,
}

/// Why the options cannot be used.
#[derive(Debug)]
pub(super) enum Wrong {
    /// The command line; clap has its own way of telling.
    Usage(clap::Error),
    /// The file, in words.
    File(String),
}

impl From<clap::Error> for Wrong {
    fn from(error: clap::Error) -> Self {
        Self::Usage(error)
    }
}

/// Reads the command line and the file that it names.
///
/// # Errors
/// Options that clap does not take; a file that cannot be read, is no TOML, or names no option.
pub(super) fn resolve(words: Vec<OsString>) -> Result<Resolved, Wrong> {
    let command = || Args::command().args_override_self(true);
    let matches = command().try_get_matches_from(&words)?;
    let typed = Args::from_arg_matches(&matches)?;
    let Some(path) = typed.config.clone() else { return Ok(Resolved { args: typed, models: Vec::new() }) };
    let (mut table, tables) = read(&path)?;
    table.retain(|key, _| key == "config" || !is_set(&matches, key));
    let place = path.display().to_string();
    let parse = |tables: &[&Table], after: &[&Table]| -> Result<Args, Wrong> {
        let mut all: Vec<OsString> = words.iter().take(1).cloned().collect();
        for table in tables {
            all.extend(as_words(&command(), table, &place)?);
        }
        all.extend(words.iter().skip(1).cloned());
        for table in after {
            all.extend(as_words(&command(), table, &place)?);
        }
        let told =
            |error: clap::Error| Wrong::File(format!("{place}: {}", error.to_string().trim_start_matches("error: ")));
        let matches = command().try_get_matches_from(all).map_err(told)?;
        Ok(Args::from_arg_matches(&matches)?)
    };
    let args = parse(&[&table], &[])?;
    let mut models = Vec::new();
    for (name, mut own) in tables {
        let aliases = strings(own.remove("aliases"), &place, "aliases")?;
        let idle = number(own.remove("idle-timeout"), &place, "idle-timeout")?;
        let at_start = match own.remove("load") {
            None => models.is_empty(),
            Some(Value::String(when)) if when == "start" => true,
            Some(Value::String(when)) if when == "demand" => false,
            Some(_) => return Err(Wrong::File(format!("{place}: models.{name}.load: `start` or `demand` expected"))),
        };
        models.push((name, Model { args: parse(&[&table], &[&own])?, aliases, idle, at_start }));
    }
    Ok(Resolved { args, models })
}

/// The options of the file, and its tables of models.
fn read(path: &Path) -> Result<(Table, BTreeMap<String, Table>), Wrong> {
    let wrong = |what: String| Wrong::File(format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let mut table: Table = text.parse().map_err(|error: toml::de::Error| wrong(error.to_string()))?;
    let models = match table.remove("models") {
        None => BTreeMap::new(),
        Some(Value::Table(models)) => {
            let one = |(name, value): (String, Value)| match value {
                Value::Table(own) => Ok((name, own)),
                _ => Err(wrong(format!("models.{name}: a table of options expected"))),
            };
            models.into_iter().map(one).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong("models: tables such as [models.small] expected".into())),
    };
    Ok((table, models))
}

/// The option was given on the command line or in the environment.
fn is_set(matches: &ArgMatches, key: &str) -> bool {
    let id = key.replace('-', "_");
    let source = matches.try_contains_id(&id).ok().and_then(|_| matches.value_source(&id));
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

/// A table as words of a command line.
fn as_words(command: &Command, table: &Table, place: &str) -> Result<Vec<OsString>, Wrong> {
    let mut words = Vec::new();
    for (key, value) in table {
        let option = command.get_arguments().find(|arg| arg.get_long() == Some(key) && key != "config");
        let Some(option) = option else {
            return Err(Wrong::File(format!("{place}: no option is called `{key}`: nextn-server --help lists them")));
        };
        match value {
            Value::Array(items) => {
                for item in items {
                    words.extend(word(option, key, item, place)?);
                }
            }
            value => words.extend(word(option, key, value, place)?),
        }
    }
    Ok(words)
}

fn word(option: &Arg, key: &str, value: &Value, place: &str) -> Result<Option<OsString>, Wrong> {
    let is_flag = matches!(option.get_action(), ArgAction::SetTrue);
    let text = match value {
        Value::Boolean(on) if is_flag => return Ok(on.then(|| format!("--{key}").into())),
        Value::Boolean(on) => if *on { "on" } else { "off" }.to_owned(),
        Value::String(text) => text.clone(),
        Value::Integer(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        _ => return Err(Wrong::File(format!("{place}: {key}: a text, a number, true or false expected"))),
    };
    if is_flag {
        return Err(Wrong::File(format!("{place}: {key}: true or false expected")));
    }
    Ok(Some(format!("--{key}={text}").into()))
}

fn strings(value: Option<Value>, place: &str, key: &str) -> Result<Vec<String>, Wrong> {
    let wrong = || Wrong::File(format!("{place}: {key}: a list of texts expected"));
    match value {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
        }
        Some(_) => Err(wrong()),
    }
}

fn number(value: Option<Value>, place: &str, key: &str) -> Result<Option<u64>, Wrong> {
    match value {
        None => Ok(None),
        Some(Value::Integer(n)) if n > 0 => Ok(Some(n as u64)),
        Some(_) => Err(Wrong::File(format!("{place}: {key}: a number of seconds expected"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(file: &str, words: &[&str]) -> Result<Resolved, Wrong> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server.toml");
        std::fs::write(&path, file).unwrap();
        let all = ["nextn-server", "--config", path.to_str().unwrap()].into_iter().chain(words.iter().copied());
        resolve(all.map(OsString::from).collect())
    }

    #[test]
    fn the_command_line_goes_before_the_file() {
        let file = "port = 9000\nhost = \"0.0.0.0\"\napi-key = [\"a\", \"b\"]\nembeddings = true\nmetrics = false\ntemp = 0.5\n";
        let args = resolved(file, &["--port", "9001"]).unwrap().args;
        assert_eq!((args.http.port, args.http.host.as_str()), (9001, "0.0.0.0"));
        assert_eq!((args.access.api_key.len(), args.serving.embeddings), (2, true));
        assert_eq!((args.serving.metrics, args.sampling.temp), (crate::cli::choices::OnOff::Off, Some(0.5)));
        let args = resolved(file, &["--api-key", "c"]).unwrap().args;
        assert_eq!(args.access.api_key, ["c"]);
    }

    #[test]
    fn models_have_options_of_their_own() {
        let file = "ctx-size = 512\n[models.a]\nmodel = \"a.gguf\"\n[models.b]\nmodel = \"b.gguf\"\nctx-size = 1024\n\
                    aliases = [\"bee\"]\nidle-timeout = 60\n";
        let models = resolved(file, &[]).unwrap().models;
        let [(first, a), (second, b)] = &models[..] else { panic!("{models:?}") };
        assert_eq!((first.as_str(), a.args.model.ctx_size, a.at_start, a.idle), ("a", Some(512), true, None));
        assert_eq!((second.as_str(), b.args.model.ctx_size, b.at_start, b.idle), ("b", Some(1024), false, Some(60)));
        assert_eq!(b.aliases, ["bee"]);
        assert_eq!(b.args.model.model.as_deref(), Some(Path::new("b.gguf")));
    }

    #[test]
    fn what_the_file_says_wrong_is_told() {
        for (file, word) in [
            ("prot = 1", "prot"),
            ("port = [", "TOML"),
            ("port = \"x\"", "port"),
            ("embeddings = 3", "embeddings"),
            ("models = 3", "models"),
            ("[models.a]\nload = \"later\"", "start"),
            ("[models.a]\nidle-timeout = -1", "idle-timeout"),
            ("config = \"x\"", "config"),
        ] {
            match resolved(file, &[]) {
                Err(Wrong::File(words)) => {
                    assert!(words.contains(word) && words.contains("server.toml"), "{file}: {words}")
                }
                other => panic!("{file}: {other:?}"),
            }
        }
    }
}
