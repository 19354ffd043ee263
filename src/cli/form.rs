//! What answers must be made of, as asked for on the command line: a JSON schema or a grammar.
//! Owns reading the options and what their errors cost. Knows nothing of how grammars work.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::Args as ClapArgs;
use constrain::{Compiler, Error, Kind, Limits, Spec, Thinking};
use engine::Grammar;
use model::Model;

use super::exit::{Exit, Failure, OrExit, Outcome};
use super::input;
use super::prompt::Encoded;

/// The form of answers, as typed.
#[derive(Clone, Debug, Default, ClapArgs)]
#[command(next_help_heading = "Form of the answer")]
pub struct FormFlags {
    /// Answer in JSON that is valid by this schema; {} is any JSON. Thinking before it stays free
    #[arg(short = 'j', long, value_name = "SCHEMA", group = "form")]
    pub json_schema: Option<String>,

    /// The same, with the schema in a file
    #[arg(long, alias = "jf", value_name = "FILE", group = "form")]
    pub json_schema_file: Option<std::path::PathBuf>,

    /// Answer in this grammar (GBNF; one that starts with %llguidance is in llguidance's Lark)
    #[arg(long, value_name = "GRAMMAR", group = "form", allow_hyphen_values = true)]
    pub grammar: Option<String>,

    /// The same, with the grammar in a file
    #[arg(long, value_name = "FILE", group = "form")]
    pub grammar_file: Option<std::path::PathBuf>,
}

/// A form that answers of one model have.
#[derive(Debug)]
pub struct Form {
    compiler: Compiler,
    kind: Kind,
}

impl FormFlags {
    /// What was asked for; `None` is any text.
    ///
    /// # Errors
    /// With [`Exit::Usage`]: a file that cannot be read, a schema that is not JSON.
    pub fn kind(&self) -> Outcome<Option<Kind>> {
        let read = |path: &Path| input::read_file(path).map_err(|failure| Failure { exit: Exit::Usage, ..failure });
        let schema = match (&self.json_schema, &self.json_schema_file) {
            (Some(text), _) => Some((text.clone(), "--json-schema".to_owned())),
            (None, Some(path)) => Some((read(path)?, path.display().to_string())),
            (None, None) => None,
        };
        if let Some((text, place)) = schema {
            let schema = serde_json::from_str(&text).with_context(|| format!("{place}: JSON is expected"));
            return Ok(Some(Kind::JsonSchema(schema.or_exit(Exit::Usage)?)));
        }
        let grammar = match (&self.grammar, &self.grammar_file) {
            (Some(text), _) => Some(text.clone()),
            (None, Some(path)) => Some(read(path)?),
            (None, None) => None,
        };
        Ok(grammar.map(|source| match source.trim_start().starts_with("%llguidance") {
            true => Kind::Lark(source),
            false => Kind::Gbnf(source),
        }))
    }
}

impl Form {
    /// Answers of `model` in the form of `kind`.
    ///
    /// # Errors
    /// With [`Exit::Usage`] when the schema or grammar cannot be used.
    pub fn new(kind: Kind, model: &Model) -> Outcome<Self> {
        let compiler = Compiler::new(model.shared_vocab(), Limits::default());
        let form = Self { compiler, kind };
        // Now, so that a mistake is told before the first question.
        form.grammar_after(Thinking::Done)?;
        Ok(form)
    }

    /// The grammar of the answer to `prompt`; with `parse` the model may think before it.
    ///
    /// # Errors
    /// As [`Form::new`].
    pub fn grammar(&self, prompt: &Encoded, model: &Model, parse: bool) -> Outcome<Arc<dyn Grammar>> {
        self.grammar_after(match (parse, prompt.starts_in_reasoning) {
            (false, _) => Thinking::Done,
            (true, true) => Thinking::Open,
            (true, false) => Thinking::after(&prompt.tokens, model.vocab()),
        })
    }

    fn grammar_after(&self, thinking: Thinking) -> Outcome<Arc<dyn Grammar>> {
        let spec = Spec::new(self.kind.clone()).with_thinking(thinking);
        self.compiler.compile(&spec).map_err(|error| match error {
            Error::Busy | Error::Broken(_) => Failure::new(Exit::Runtime, error),
            error => Failure::new(Exit::Usage, anyhow!(error)),
        })
    }
}
