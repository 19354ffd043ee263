//! What replies must be made of, as asked for on the command line: a JSON schema or a grammar.
//! Owns reading the options and what their errors cost. Knows nothing of how grammars work.

use std::path::Path;

use anyhow::Context;
use clap::Args as ClapArgs;
use session::{Form, Kind};

use super::input;
use program::exit::{Exit, Failure, OrExit, Outcome};

/// The form of replies, as typed.
#[derive(Clone, Debug, Default, ClapArgs)]
#[command(next_help_heading = "Structured output")]
pub struct FormFlags {
    /// Constrain replies to a JSON schema; {} is any JSON (thinking stays free)
    #[arg(short = 'j', long, value_name = "SCHEMA", group = "form")]
    pub json_schema: Option<String>,

    /// Read the JSON schema from a file
    #[arg(long, alias = "jf", value_name = "FILE", group = "form")]
    pub json_schema_file: Option<std::path::PathBuf>,

    /// Constrain replies to a grammar: GBNF, or Lark if it starts with %llguidance
    #[arg(long, value_name = "GRAMMAR", group = "form", allow_hyphen_values = true)]
    pub grammar: Option<String>,

    /// Read the grammar from a file
    #[arg(long, value_name = "FILE", group = "form")]
    pub grammar_file: Option<std::path::PathBuf>,
}

impl FormFlags {
    /// The form that was asked for, if any.
    ///
    /// # Errors
    /// With [`Exit::Usage`]: a file that cannot be read, or a schema that is no JSON.
    pub fn form(&self) -> Outcome<Option<Form>> {
        let read = |path: &Path| input::read_file(path).map_err(|failure| Failure { exit: Exit::Usage, ..failure });
        let schema = |text: &str, place: &str, field| {
            let schema = serde_json::from_str(text).with_context(|| format!("{place}: JSON is expected"));
            Ok(Some(Form { kind: Kind::JsonSchema(schema.or_exit(Exit::Usage)?), field }))
        };
        let grammar = |source: String, field| {
            let kind = match source.trim_start().starts_with("%llguidance") {
                true => Kind::Lark(source),
                false => Kind::Gbnf(source),
            };
            Ok(Some(Form { kind, field }))
        };
        match (&self.json_schema, &self.json_schema_file, &self.grammar, &self.grammar_file) {
            (Some(text), ..) => schema(text, "--json-schema", "--json-schema"),
            (_, Some(path), ..) => schema(&read(path)?, &path.display().to_string(), "--json-schema-file"),
            (_, _, Some(text), _) => grammar(text.clone(), "--grammar"),
            (_, _, _, Some(path)) => grammar(read(path)?, "--grammar-file"),
            (None, None, None, None) => Ok(None),
        }
    }
}
