//! Options of embeddings. Knows no vector.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use engine::Pooling;

/// How inputs become vectors where a request does not say.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Embeddings")]
pub struct EmbeddingOptions {
    /// Pooling of embeddings [default: the model file's, else mean]
    #[arg(long, value_name = "TYPE", value_parser = pooling())]
    pub pooling: Option<Pooling>,

    /// Norm of embeddings: -1 none, 0 largest number 32760, 1 taxicab, 2 Euclidean, above 2 p-norm
    #[arg(long, value_name = "N", default_value_t = EUCLIDEAN, allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(-1..))]
    pub embd_normalize: i32,
}

impl Default for EmbeddingOptions {
    fn default() -> Self {
        Self { pooling: None, embd_normalize: EUCLIDEAN }
    }
}

impl EmbeddingOptions {
    /// What was given and changes nothing where nothing is embedded, a sentence each.
    pub(super) fn without_effect(&self) -> Vec<String> {
        let given = [("--pooling", self.pooling.is_some()), ("--embd-normalize", self.embd_normalize != EUCLIDEAN)];
        let idle = given.into_iter().filter(|(_, given)| *given);
        idle.map(|(flag, _)| format!("{flag} has no effect: nothing is embedded without --embeddings")).collect()
    }
}

const EUCLIDEAN: i32 = 2;

fn pooling() -> impl TypedValueParser<Value = Pooling> {
    PossibleValuesParser::new(["none", "mean", "cls", "last", "rank"]).try_map(|word| word.parse())
}
