//! Replies through the engine, with and without drafts.
//! Owns the ways to draft by name; knows nothing of tables.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use engine::sample::SamplingParams;
use engine::{EngineConfig, RequestOptions, Timings};
use model::Model;
use session::dialect::ReplyEvent;
use session::options::{CalibrationPlace, DraftOptions};
use session::{Delta, LoadedModel, ModelOptions, TemplateSource};
use speculate::{Depth, DraftMode, DraftVocabSize, Mode, SpecConfig};
use text::TokenId;

use super::setup::Setup;

/// How to draft: from where, and how deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draft {
    Off,
    On(Source, Depth),
}

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The MTP layer, between forward passes.
    Head,
    /// The MTP layer, on a thread of its own.
    Async,
    Ngram,
    /// The MTP layer and prompt lookup.
    Both,
    /// A draft model.
    Model,
    /// A draft model and prompt lookup.
    ModelAndNgram,
    /// The MTP layer and a draft model, by what they gain.
    HeadAndModel,
    /// Whatever is loaded.
    Best,
}

impl Source {
    /// What stands before the depth.
    const ALL: [(&'static str, Source); 8] = [
        ("", Source::Head),
        ("async:", Source::Async),
        ("ngram:", Source::Ngram),
        ("nextn+ngram:", Source::Both),
        ("draft:", Source::Model),
        ("draft+ngram:", Source::ModelAndNgram),
        ("nextn+draft:", Source::HeadAndModel),
        ("best:", Source::Best),
    ];
}

impl Draft {
    /// As programs are told.
    fn config(self, vocab: DraftVocabSize) -> SpecConfig {
        let (mode, draft_mode, depth) = match self {
            Draft::Off => (Mode::Off, DraftMode::Fused, Depth::Fixed(0)),
            Draft::On(Source::Head, depth) => (Mode::NextN, DraftMode::Fused, depth),
            Draft::On(Source::Async, depth) => (Mode::NextN, DraftMode::Async, depth),
            Draft::On(Source::Ngram, depth) => (Mode::Ngram, DraftMode::Fused, depth),
            Draft::On(Source::Both, depth) => (Mode::NextNgram, DraftMode::Fused, depth),
            Draft::On(Source::Model, depth) => (Mode::Draft, DraftMode::Fused, depth),
            Draft::On(Source::ModelAndNgram, depth) => (Mode::DraftNgram, DraftMode::Fused, depth),
            Draft::On(Source::HeadAndModel, depth) => (Mode::NextNDraft, DraftMode::Fused, depth),
            Draft::On(Source::Best, depth) => (Mode::Auto, DraftMode::Fused, depth),
        };
        SpecConfig { mode, depth, vocab, draft_mode }
    }

    /// The same as options. How a source drafts is part of its name here, and no option.
    fn flags(self, vocab: DraftVocabSize) -> DraftOptions {
        let SpecConfig { mode, depth, vocab, draft_mode: _ } = self.config(vocab);
        DraftOptions { spec: mode, draft_max: depth, draft_vocab: vocab, ..DraftOptions::default() }
    }
}

/// What was given beside these drafts and changes none of them, a sentence each.
pub(super) fn without_effect(drafts: &[Draft], vocab: DraftVocabSize, model: &Model) -> Vec<String> {
    let drafts = if drafts.is_empty() { &[Draft::Off] } else { drafts };
    drafts
        .iter()
        .map(|draft| draft.flags(vocab))
        .map(|flags| flags.without_effect(model.nextn().is_bound(), false))
        .min_by_key(Vec::len)
        .unwrap_or_default()
}

impl FromStr for Draft {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if matches!(s, "0" | "off") {
            return Ok(Draft::Off);
        }
        let source = Source::ALL.into_iter().rev().find(|(word, _)| s.starts_with(word));
        let (word, source) = source.unwrap_or(("", Source::Head));
        match s[word.len()..].parse() {
            Ok(Depth::Fixed(0)) | Err(_) => Err(format!(
                "`{s}` is not auto or a depth from 0 to 16, or one of these after {}",
                Source::ALL[1..].iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" ")
            )),
            Ok(depth) => Ok(Draft::On(source, depth)),
        }
    }
}

impl fmt::Display for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Draft::Off => f.write_str("0"),
            Draft::On(source, depth) => {
                let word = Source::ALL.iter().find(|(_, s)| s == source).map_or("", |(word, _)| word);
                write!(f, "{word}{depth}")
            }
        }
    }
}

/// One reply.
#[derive(Clone, Debug, Default)]
pub(super) struct Generated {
    pub(super) tokens: Vec<TokenId>,
    pub(super) text: String,
    pub(super) timings: Timings,
}

/// An engine with its drafts, for replies without a conversation.
pub(super) struct Bench {
    pub(super) model: LoadedModel,
}

impl Bench {
    pub(super) fn new(
        model: &Arc<Model>,
        config: EngineConfig,
        draft: Draft,
        vocab: DraftVocabSize,
        setup: &Setup,
    ) -> anyhow::Result<Self> {
        Self::calibrated(model, config, (draft, vocab), setup, CalibrationPlace::Off)
    }

    /// As [`Bench::new`]; drafts begin with what earlier engines kept in `place`.
    pub(super) fn calibrated(
        model: &Arc<Model>,
        config: EngineConfig,
        (draft, vocab): (Draft, DraftVocabSize),
        setup: &Setup,
        place: CalibrationPlace,
    ) -> anyhow::Result<Self> {
        let drafts = draft.config(vocab);
        let draft_model = if drafts.mode.uses_draft_model() { setup.draft_model(drafts.mode)? } else { None };
        let flags = DraftOptions { calibration: place, ..draft.flags(vocab) };
        let kept = flags.calibration(model, draft_model.as_deref(), &config);
        let proposer = speculate::calibrated_proposer(model, draft_model.as_ref(), &config, drafts, kept.as_ref())?;
        // Texts only: a template that does not compile is not at fault.
        let (chat_template, adapters) = (TemplateSource::None, setup.adapters().clone());
        let options = ModelOptions { chat_template, adapters, ..ModelOptions::default() };
        Ok(Self { model: session::start_engine_with(Arc::clone(model), config, &options, proposer)? })
    }

    /// Exactly `n` tokens, each the likeliest, past the end of the model's turn.
    pub(super) fn exactly(&self, prompt: &[TokenId], n: usize) -> anyhow::Result<Generated> {
        self.generate(prompt, greedy(n, true))
    }

    pub(super) fn generate(&self, prompt: &[TokenId], options: RequestOptions) -> anyhow::Result<Generated> {
        let options = RequestOptions { adapters: self.model.adapters(), ..options };
        let mut reply = Generated::default();
        let mut take = |events: Vec<ReplyEvent>| {
            let texts = events
                .into_iter()
                .filter_map(|event| if let ReplyEvent::Text(text) = event { Some(text) } else { None });
            reply.text.extend(texts);
        };
        for delta in self.model.reply(self.model.prepare_text(prompt.to_vec(), options)?)? {
            match delta? {
                Delta::Progress(_) => {}
                Delta::Step(step) => {
                    reply.tokens.extend(step.pieces().map(|piece| piece.token));
                    take(step.events());
                }
                Delta::End(end) => {
                    take(end.events);
                    reply.timings = end.timings;
                    return Ok(reply);
                }
            }
        }
        bail!("the engine ended before the answer was complete")
    }

    pub(super) fn together(&self, prompts: &[Vec<TokenId>], n: usize) -> anyhow::Result<(Vec<Generated>, Duration)> {
        let start = Instant::now();
        let replies = std::thread::scope(|scope| {
            // Readers of their own: a reader that lags is passed over.
            let threads: Vec<_> = prompts.iter().map(|prompt| scope.spawn(|| self.exactly(prompt, n))).collect();
            threads
                .into_iter()
                .map(|t| t.join().map_err(|_| anyhow::anyhow!("a reader has ended")).and_then(|reply| reply))
                .collect::<anyhow::Result<Vec<_>>>()
        })?;
        Ok((replies, start.elapsed()))
    }
}

/// Greedy decoding of `n` tokens at most; `past_the_end` also behind the end of the reply.
pub(super) fn greedy(n: usize, past_the_end: bool) -> RequestOptions {
    RequestOptions {
        max_tokens: Some(n),
        sampling: SamplingParams::greedy(),
        ignore_eos: past_the_end,
        cache: false,
        ..RequestOptions::default()
    }
}

/// Says why a reply is no ground for a speed: one token, or a few in a circle, again and again.
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
