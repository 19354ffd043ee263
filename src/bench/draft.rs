//! Answers through the engine, with and without drafts, and where the time of a cycle goes.
//! Owns the ways to draft by name; knows nothing of tables.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use engine::sample::SamplingParams;
use engine::{
    Ask, Engine, EngineConfig, EngineHandle, Event, GenerateRequest, Observed, Proposer, RequestOptions, Timings,
};
use model::{Model, RunError, Runner};
use serde_json::json;
use speculate::{Depth, DraftVocabSize, NextN, NextNConfig};
use text::template::{Chat, ChatTemplate};
use text::{Special, TokenId};

/// How to draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draft {
    Off,
    Nextn(Depth),
}

impl FromStr for Draft {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "0" | "off" => Ok(Draft::Off),
            "auto" => Ok(Draft::Nextn(Depth::Auto)),
            n => match n.parse() {
                Ok(n) if n <= 16 => Ok(Draft::Nextn(Depth::Fixed(n))),
                _ => Err(format!("`{s}` is not auto or a depth from 0 to 16")),
            },
        }
    }
}

impl fmt::Display for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Draft::Off => f.write_str("0"),
            Draft::Nextn(Depth::Auto) => f.write_str("auto"),
            Draft::Nextn(Depth::Fixed(n)) => write!(f, "{n}"),
        }
    }
}

/// Where the time of an answer went, the prompt left out.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    /// Passes of the model.
    pub(super) pass: Duration,
    /// The draft head: its cells and its guesses.
    pub(super) draft: Duration,
    /// Drafts by depth.
    pub(super) judged: Vec<Judged>,
}

/// Drafts at one depth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Judged {
    /// Those before them were right.
    pub(super) reached: usize,
    /// They were right, too.
    pub(super) right: usize,
}

impl Judged {
    pub(super) fn share(self) -> f64 {
        self.right as f64 / self.reached.max(1) as f64
    }
}

impl Parts {
    /// A step judged `n_drafted` drafts and kept the first `n_right`.
    fn judge(&mut self, n_drafted: usize, n_right: usize) {
        let n_reached = n_drafted.min(n_right + 1);
        if self.judged.len() < n_reached {
            self.judged.resize(n_reached, Judged::default());
        }
        for (depth, judged) in self.judged[..n_reached].iter_mut().enumerate() {
            judged.reached += 1;
            judged.right += usize::from(depth < n_right);
        }
    }
}

/// One answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) tokens: Vec<TokenId>,
    pub(super) text: String,
    pub(super) timings: Timings,
}

/// An engine that measures itself.
pub(super) struct Bench {
    pub(super) engine: EngineHandle,
    parts: Arc<Mutex<Parts>>,
}

/// A proposer with a clock.
struct Timed {
    inner: NextN,
    parts: Arc<Mutex<Parts>>,
}

impl Timed {
    fn clock<T>(&mut self, work: impl FnOnce(&mut NextN) -> T) -> T {
        let start = Instant::now();
        let done = work(&mut self.inner);
        lock(&self.parts).draft += start.elapsed();
        done
    }
}

fn lock(parts: &Mutex<Parts>) -> std::sync::MutexGuard<'_, Parts> {
    parts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proposer for Timed {
    fn max_depth(&self) -> usize {
        self.inner.max_depth()
    }

    fn wants_hidden(&self) -> bool {
        self.inner.wants_hidden()
    }

    fn begin(&mut self, slot: usize, tokens: &[TokenId], hidden: Option<&[f32]>) -> Result<(), RunError> {
        self.inner.begin(slot, tokens, hidden)
    }

    fn hidden(&self, slot: usize) -> Option<&[f32]> {
        self.inner.hidden(slot)
    }

    fn observe(
        &mut self,
        runner: &mut Runner,
        observed: &[Observed<'_>],
        took: Option<Duration>,
    ) -> Result<(), RunError> {
        for o in observed {
            lock(&self.parts).judge(o.n_drafted, o.n_accepted);
        }
        // A step of the prompt is not part of a cycle.
        if observed.iter().all(|o| o.tokens.len() == 1 + o.n_accepted) {
            self.clock(|inner| inner.observe(runner, observed, took))
        } else {
            self.inner.observe(runner, observed, took)
        }
    }

    fn propose(&mut self, runner: &mut Runner, asks: &[Ask]) -> Result<Vec<Vec<TokenId>>, RunError> {
        self.clock(|inner| inner.propose(runner, asks))
    }
}

impl Bench {
    /// An engine for `config` that drafts as told.
    ///
    /// # Errors
    /// The model has no head, or there is no room.
    pub(super) fn new(
        model: &Arc<Model>,
        config: EngineConfig,
        draft: Draft,
        vocab: DraftVocabSize,
    ) -> anyhow::Result<Self> {
        let parts = Arc::new(Mutex::new(Parts::default()));
        let proposer = match draft {
            Draft::Off => None,
            Draft::Nextn(depth) => {
                let head = NextN::new(model, &config, NextNConfig { depth, vocab })?;
                let inner = head.context("the model has no NextN head")?;
                Some(Box::new(Timed { inner, parts: Arc::clone(&parts) }) as Box<dyn Proposer>)
            }
        };
        Ok(Self { engine: Engine::spawn_with(Arc::clone(model), config, proposer)?, parts })
    }

    /// Where the time went since the engine was made.
    pub(super) fn parts(&self) -> Parts {
        lock(&self.parts).clone()
    }

    /// A greedy answer of exactly `n` tokens.
    ///
    /// # Errors
    /// The engine's.
    pub(super) fn exactly(&self, prompt: &[TokenId], n: usize) -> anyhow::Result<Answer> {
        self.answer(prompt, greedy(n, true))
    }

    /// One answer.
    ///
    /// # Errors
    /// The engine's.
    pub(super) fn answer(&self, prompt: &[TokenId], options: RequestOptions) -> anyhow::Result<Answer> {
        let engine = &self.engine;
        let mut generation = engine.submit(GenerateRequest::new(prompt.to_vec(), options, engine.limits())?)?;
        let mut answer = Answer::default();
        let mut bytes = Vec::new();
        while let Some(event) = generation.next() {
            match event {
                Event::Prompt(_) => {}
                Event::Tokens(pieces) => {
                    for piece in pieces {
                        answer.tokens.push(piece.token);
                        bytes.extend(piece.bytes);
                    }
                }
                Event::Failed(why) => bail!(why),
                Event::Finished(summary) => {
                    bytes.extend(summary.rest);
                    answer.text = String::from_utf8_lossy(&bytes).into_owned();
                    answer.timings = summary.timings;
                    return Ok(answer);
                }
            }
        }
        bail!("the engine ended before the answer was complete")
    }

    /// Several answers at the same time, each with a prompt of its own; gives them and the time from the first token of
    /// the last to start until the last token of all.
    ///
    /// # Errors
    /// The first of the engine's.
    pub(super) fn together(&self, prompts: &[Vec<TokenId>], n: usize) -> anyhow::Result<(Vec<Answer>, Duration)> {
        let start = Instant::now();
        let answers = std::thread::scope(|scope| {
            // Readers of their own: a reader that lags is passed over.
            let threads: Vec<_> = prompts.iter().map(|prompt| scope.spawn(|| self.exactly(prompt, n))).collect();
            threads
                .into_iter()
                .map(|t| t.join().map_err(|_| anyhow::anyhow!("a reader has ended")).and_then(|answer| answer))
                .collect::<anyhow::Result<Vec<_>>>()
        })?;
        Ok((answers, start.elapsed()))
    }
}

/// Greedy decoding of `n` tokens at most; `past_the_end` also behind the end of the answer.
pub(super) fn greedy(n: usize, past_the_end: bool) -> RequestOptions {
    RequestOptions {
        max_tokens: Some(n),
        sampling: SamplingParams::greedy(),
        ignore_eos: past_the_end,
        cache: false,
        ..RequestOptions::default()
    }
}

/// The tokens of a prompt: a chat with one message when the model has a template, else the text.
pub(super) fn prompt(model: &Model, text: &str) -> anyhow::Result<Vec<TokenId>> {
    let Some(source) = model.chat_template() else { return Ok(model.vocab().encode(text, Special::Parse)) };
    let chat = Chat {
        messages: vec![json!({ "role": "user", "content": text })],
        tools: Vec::new(),
        add_generation_prompt: true,
        enable_thinking: Some(false),
        kwargs: serde_json::Map::new(),
    };
    Ok(model.vocab().encode(&ChatTemplate::new(source)?.render(&chat)?.text, Special::Parse))
}

/// Says why an answer is no ground for a speed: one token, or a few in a circle, again and again.
pub(super) fn degenerate(tokens: &[TokenId]) -> Option<String> {
    const ENOUGH: usize = 24;
    let end = &tokens[tokens.len().saturating_sub(48)..];
    if end.len() < ENOUGH {
        return None;
    }
    let period = (1..=end.len() / 4).find(|&p| end.iter().zip(&end[p..]).all(|(a, b)| a == b))?;
    let what = if period == 1 { "one token".to_owned() } else { format!("the same {period} tokens") };
    Some(format!("the answer ends in {what} again and again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_degenerate_and_a_story_is_not() {
        let of = |f: fn(u32) -> u32| (0..64).map(|i| TokenId(f(i))).collect::<Vec<_>>();
        assert!(degenerate(&of(|_| 7)).is_some_and(|why| why.contains("one token")));
        assert!(degenerate(&of(|i| i % 5)).is_some_and(|why| why.contains("5 tokens")));
        assert_eq!(degenerate(&of(|i| i * i % 61)), None);
        assert_eq!(degenerate(&of(|_| 7)[..10]), None, "too short to say");
    }
}
