//! The configuration file: the options of the command line as TOML, and a table for each model.
//! Flags go before environment variables, these before the file, the file before built-in values.

use std::ffi::OsString;
use std::path::Path;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args as _, Command, FromArgMatches};
use toml::{Table, Value};

use super::args::{Args, ModelFlags, command};
use session::options::SamplingOptions;

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
    let matches = command().try_get_matches_from(&words)?;
    let typed = one_source(&matches)?;
    let Some(path) = typed.config.clone() else { return Ok(Resolved { args: typed, models: Vec::new() }) };
    let place = path.display().to_string();
    let (mut table, tables) = read(&path)?;
    if !tables.is_empty() {
        if let Some(key) = NAMING.iter().find(|key| source(&matches, key) == Some(ValueSource::CommandLine)) {
            let words = format!("--{key} names one model, and {place} has tables of models: leave one of them out");
            return Err(command().error(ErrorKind::ArgumentConflict, words).into());
        }
        if let Some(key) = NAMING.iter().find(|key| table.contains_key(**key)) {
            let words = format!("{place}: {key}: with tables of models it belongs into one of them");
            return Err(Wrong::File(words));
        }
    }
    let parse = |tables: &[&Table]| -> Result<Args, Wrong> {
        let mut all: Vec<OsString> = words.iter().take(1).cloned().collect();
        for table in tables {
            all.extend(as_words(table, &place)?);
        }
        all.extend(words.iter().skip(1).cloned());
        let told =
            |error: clap::Error| Wrong::File(format!("{place}: {}", error.to_string().trim_start_matches("error: ")));
        let matches = command().try_get_matches_from(all).map_err(told)?;
        one_source(&matches).map_err(told)
    };
    keep_unset(&mut table, &matches, false);
    let args = parse(&[&table])?;
    let mut models: Vec<(String, Model)> = Vec::new();
    for (name, mut own) in tables {
        let mut aliases = strings(own.remove("aliases"), &place, "aliases")?;
        let idle = number(own.remove("idle-timeout"), &place, "idle-timeout")?;
        let at_start = match own.remove("load") {
            None => models.is_empty(),
            Some(Value::String(when)) if when == "start" => true,
            Some(Value::String(when)) if when == "demand" => false,
            Some(_) => return Err(Wrong::File(format!("{place}: models.{name}.load: `start` or `demand` expected"))),
        };
        if let Some(key) = own.keys().find(|key| !of_one_model(key)) {
            let words = format!("{place}: models.{name}.{key}: no option of a single model is called so");
            return Err(Wrong::File(words));
        }
        keep_unset(&mut own, &matches, true);
        let args = parse(&[&table, &own])?;
        aliases.extend(args.model.names());
        models.push((name, Model { args, aliases, idle, at_start }));
    }
    Ok(Resolved { args, models })
}

/// Options that say which model it is.
const NAMING: [&str; 4] = ["model", "hf-repo", "hf-file", "alias"];

/// The arguments, with a model from one place only: what was typed goes before the environment.
fn one_source(matches: &ArgMatches) -> Result<Args, clap::Error> {
    let mut args = Args::from_arg_matches(matches)?;
    hub::one_source(matches, &mut args.model.model, &mut args.model.hub)
        .map_err(|words| command().error(ErrorKind::ArgumentConflict, words))?;
    Ok(args)
}

/// Leaves of a table of the file what was not given on the command line or in the environment. In a table of one model
/// (`own`) it stays that model, whatever the environment says of another.
fn keep_unset(table: &mut Table, matches: &ArgMatches, own: bool) {
    let is_model = |key: &str| matches!(key, "model" | "hf-repo" | "hf-file");
    let set = |key: &str| match source(matches, key) {
        Some(ValueSource::EnvVariable) => !(own && is_model(key)),
        found => found.is_some(),
    };
    let model_set = set("model") || set("hf-repo");
    table.retain(|key, _| match key {
        // Told to be out of place later.
        "config" => true,
        key if is_model(key) => !model_set,
        key => !set(key),
    });
}

/// Where an option was given, if it was.
fn source(matches: &ArgMatches, key: &str) -> Option<ValueSource> {
    let id = key.replace('-', "_");
    let source = matches.try_contains_id(&id).ok().and_then(|_| matches.value_source(&id));
    source.filter(|source| matches!(source, ValueSource::CommandLine | ValueSource::EnvVariable))
}

/// An option that may stand in the table of a model.
fn of_one_model(key: &str) -> bool {
    let options = SamplingOptions::augment_args(ModelFlags::augment_args(Command::new("model")));
    options.get_arguments().any(|arg| arg.get_long() == Some(key))
}

/// The options of the file, and its tables of models in their order.
fn read(path: &Path) -> Result<(Table, Vec<(String, Table)>), Wrong> {
    let wrong = |what: String| Wrong::File(format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let mut table: Table = text.parse().map_err(|error: toml::de::Error| wrong(error.to_string()))?;
    let models = match table.remove("models") {
        None => Vec::new(),
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

/// A table as words of a command line.
fn as_words(table: &Table, place: &str) -> Result<Vec<OsString>, Wrong> {
    let command = command();
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
    use engine::sample::Setting;

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
        let file = "port = 9000\nhost = \"0.0.0.0\"\napi-key = [\"a\", \"b\"]\nembeddings = true\nmetrics = false\ntemp = 0.5\n\
                    allowed-host = [\"a.example\", \"b.example\"]\nmax-connections-per-address = 3\n";
        let args = resolved(file, &["--port", "9001"]).unwrap().args;
        assert_eq!((args.http.port, args.http.host.as_str()), (9001, "0.0.0.0"));
        assert_eq!((args.access.api_key.len(), args.serving.embeddings), (2, true));
        assert_eq!(
            (args.serving.metrics, args.sampling.get("temperature")),
            (program::choices::OnOff::Off, Some(&Setting::Number(0.5)))
        );
        assert_eq!(args.access.allowed_host, ["a.example", "b.example"]);
        assert_eq!(args.http.max_connections_per_address, Some(3));
        let args = resolved(file, &["--api-key", "c"]).unwrap().args;
        assert_eq!(args.access.api_key, ["c"]);
        let args = resolved("hf-repo = \"a/b\"\n", &["-m", "x.gguf"]).unwrap().args;
        assert_eq!((args.model.model.as_deref(), args.model.hub.hf_repo), (Some(Path::new("x.gguf")), None));
    }

    #[test]
    fn a_model_comes_from_one_place() {
        let both = ["nextn-server", "-m", "x", "--hf-repo", "a/b"];
        assert!(matches!(resolve(both.map(OsString::from).into()), Err(Wrong::Usage(_))));
        let tables = "[models.a]\nmodel = \"a.gguf\"\n";
        for naming in ["-m", "--hf-repo", "--alias"] {
            assert!(matches!(resolved(tables, &[naming, "x"]), Err(Wrong::Usage(_))), "{naming}");
        }
    }

    #[test]
    fn models_have_options_of_their_own_in_the_order_of_the_file() {
        let file = "ctx-size = 512\n[models.z]\nmodel = \"a.gguf\"\n[models.b]\nmodel = \"b.gguf\"\nctx-size = 1024\n\
                    aliases = [\"bee\"]\nidle-timeout = 60\n";
        let models = resolved(file, &["-c", "256"]).unwrap().models;
        assert!(
            models.iter().all(|(_, model)| model.args.model.run.ctx_size == Some(256)),
            "a flag goes before all tables"
        );
        let models = resolved(file, &[]).unwrap().models;
        let [(first, a), (second, b)] = &models[..] else { panic!("{models:?}") };
        assert_eq!((first.as_str(), a.args.model.run.ctx_size, a.at_start, a.idle), ("z", Some(512), true, None));
        assert_eq!(
            (second.as_str(), b.args.model.run.ctx_size, b.at_start, b.idle),
            ("b", Some(1024), false, Some(60))
        );
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
            ("[models.a]\nport = 1", "models.a.port"),
            ("model = \"x\"\n[models.a]\n", "model"),
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
