//! What `--json` and `--jsonl` print. Owns the field names: scripts rely on them.

use engine::{FinishReason, Timings};
use serde::{Deserialize, Serialize};

/// The one object of `--json`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Answer {
    /// The reply without the reasoning.
    pub text: String,
    /// What the model thought before it answered.
    pub reasoning: String,
    /// Tools that the model asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// All sampled tokens, reasoning and end of generation included.
    pub token_ids: Vec<u32>,
    /// Log probabilities, one per token; only with `--logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<Logprob>>,
    /// Why the reply ended.
    pub finish_reason: Finish,
    /// Where the time went.
    pub timings: Times,
}

/// A tool that the model asked for.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ToolCall {
    /// The function's name.
    pub name: String,
    /// Its arguments: a JSON object as text.
    pub arguments: String,
}

/// Log probability of one token, with the likeliest others.
#[derive(Clone, Debug, Serialize)]
pub struct Logprob {
    /// The token's id.
    pub token_id: u32,
    /// Its natural logarithm of probability.
    pub logprob: f32,
    /// The likeliest tokens at this place, likeliest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<Logprob>,
}

/// `finish_reason`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model ended its turn, a stop string appeared, or the grammar allows nothing more.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// Ended from outside.
    #[default]
    Cancelled,
}

impl From<&FinishReason> for Finish {
    fn from(reason: &FinishReason) -> Self {
        match reason {
            FinishReason::EndOfGeneration(_) | FinishReason::Stop(_) | FinishReason::Complete => Self::Stop,
            FinishReason::Length => Self::Length,
            FinishReason::Context => Self::Context,
            FinishReason::Cancelled => Self::Cancelled,
        }
    }
}

/// `timings`.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct Times {
    pub load_ms: f64,
    pub prompt_tokens: usize,
    pub prompt_ms: f64,
    pub generated_tokens: usize,
    pub generated_ms: f64,
    pub tokens_per_second: f64,
    pub cycles: usize,
    pub drafted: usize,
    pub accepted: usize,
    pub acceptance_by_depth: Vec<f64>,
    pub cycles_per_second: f64,
    pub verify_ms: f64,
    pub draft_ms: f64,
    pub host_ms: f64,
}

impl Times {
    /// The engine's timings and the time that loading took.
    pub fn new(load_ms: f64, timings: &Timings) -> Self {
        Self {
            load_ms: round(load_ms),
            prompt_tokens: timings.prompt_tokens,
            prompt_ms: round(timings.prompt_ms),
            generated_tokens: timings.generated_tokens,
            generated_ms: round(timings.generated_ms),
            tokens_per_second: round(timings.tokens_per_second()),
            cycles: timings.steps,
            drafted: timings.drafted,
            accepted: timings.accepted,
            acceptance_by_depth: timings.acceptance_by_depth().into_iter().map(round).collect(),
            cycles_per_second: round(timings.steps_per_second()),
            verify_ms: round(timings.verify_ms),
            draft_ms: round(timings.draft_ms),
            host_ms: round(timings.host_ms()),
        }
    }
}

/// One line of `--jsonl`.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Line<'a> {
    /// The model is loaded.
    Start { model: &'a str, n_ctx: usize, load_ms: f64 },
    /// So many of the prompt's tokens are in the state.
    Prompt { done: usize, cached: usize, total: usize },
    /// More of the reasoning.
    Reasoning { text: &'a str },
    /// More of the reply.
    Text { text: &'a str },
    /// Ids of the tokens of one step.
    Tokens { ids: &'a [u32] },
    /// A tool that the model asked for.
    ToolCall { name: &'a str, arguments: &'a str },
    /// The end, with everything that `--json` prints.
    End {
        #[serde(flatten)]
        answer: &'a Answer,
    },
    /// The run failed.
    Error { message: &'a str, exit_code: u8 },
}

/// Microseconds are enough; longer fractions only make lines long.
fn round(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_has_exactly_the_documented_fields() {
        let timings = Timings {
            prompt_tokens: 5,
            prompt_ms: 1.23456,
            generated_tokens: 3,
            generated_ms: 10.0,
            steps: 2,
            verify_ms: 7.5,
            draft_ms: 1.5,
            ..Timings::default()
        };
        let answer = Answer {
            text: "hi".into(),
            token_ids: vec![1, 2, 3],
            finish_reason: Finish::from(&FinishReason::EndOfGeneration(text::TokenId(3))),
            timings: Times::new(12.0, &timings),
            ..Answer::default()
        };
        assert_eq!(
            serde_json::to_string(&answer).unwrap(),
            r#"{"text":"hi","reasoning":"","token_ids":[1,2,3],"finish_reason":"stop","timings":{"load_ms":12.0,"prompt_tokens":5,"prompt_ms":1.235,"generated_tokens":3,"generated_ms":10.0,"tokens_per_second":200.0,"cycles":2,"drafted":0,"accepted":0,"acceptance_by_depth":[],"cycles_per_second":200.0,"verify_ms":7.5,"draft_ms":1.5,"host_ms":1.0}}"#
        );
    }

    #[test]
    fn every_reason_has_its_word() {
        for (reason, word) in [
            (FinishReason::EndOfGeneration(text::TokenId(0)), "stop"),
            (FinishReason::Stop("x".into()), "stop"),
            (FinishReason::Complete, "stop"),
            (FinishReason::Length, "length"),
            (FinishReason::Context, "context"),
        ] {
            assert_eq!(serde_json::to_value(Finish::from(&reason)).unwrap(), word);
        }
        assert_eq!(serde_json::to_value(Finish::Cancelled).unwrap(), "cancelled");
    }

    #[test]
    fn events_name_themselves() {
        let line = serde_json::to_string(&Line::Text { text: "a\nb" }).unwrap();
        assert_eq!(line, r#"{"event":"text","text":"a\nb"}"#);
        let end = serde_json::to_value(Line::End { answer: &Answer::default() }).unwrap();
        assert_eq!((&end["event"], &end["finish_reason"]), (&"end".into(), &"cancelled".into()));
    }
}
