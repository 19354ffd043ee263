//! Generations under a constraint: what it allows, where it ends, with drafts and without, and when it breaks.

use std::sync::Arc;

use engine::sample::SamplingParams;
use engine::{
    Allowed, Constraint, DraftRequest, Engine, EngineConfig, EngineHandle, FinishReason, FlashAttention, Grammar,
    Proposer, ProposerInfo, RequestOptions, TargetState,
};
use model::{Model, RunError, Runner};
use test_support::*;
use text::{Special, TokenId};

/// Exactly one of these texts; where two go on alike, the generation may end after the shorter one.
#[derive(Debug)]
struct OneOf {
    model: Arc<Model>,
    texts: Vec<&'static str>,
    /// What is certain is said letter by letter.
    letters: bool,
    /// And told ahead.
    jumps: bool,
    /// After so many tokens it breaks.
    breaks_after: usize,
}

struct Said {
    of: Arc<OneOf>,
    said: Vec<u8>,
    n_tokens: usize,
    bits: Vec<u32>,
}

#[derive(Debug, Clone)]
struct Choice(Arc<OneOf>);

impl Grammar for Choice {
    fn start(&self) -> Box<dyn Constraint> {
        let bits = vec![0; self.0.model.vocab().len().div_ceil(32)];
        Box::new(Said { of: Arc::clone(&self.0), said: Vec::new(), n_tokens: 0, bits })
    }
}

impl Said {
    fn fits(&self, said: &[u8], token: TokenId) -> bool {
        let vocab = self.of.model.vocab();
        let texts = &self.of.texts;
        if vocab.is_eog(token) {
            return texts.iter().any(|text| text.as_bytes() == said);
        }
        let bytes = vocab.bytes(token).unwrap_or_default();
        let whole = [said, bytes].concat();
        !bytes.is_empty() && texts.iter().any(|text| text.as_bytes().starts_with(&whole))
    }
}

impl Said {
    /// What all texts that are left go on with, if it is to be said letter by letter.
    fn certain(&self) -> Vec<TokenId> {
        let left = self.of.texts.iter().filter_map(|text| text.as_bytes().strip_prefix(&self.said[..]));
        let common = |a: &'static [u8], b: &'static [u8]| &a[..a.iter().zip(b).take_while(|(x, y)| x == y).count()];
        let certain = left.reduce(common).filter(|_| self.of.letters).unwrap_or_default();
        let letter = |byte: &u8| self.of.model.vocab().encode(&char::from(*byte).to_string(), Special::Plain);
        certain.iter().flat_map(letter).collect()
    }
}

impl Constraint for Said {
    fn allowed(&mut self) -> Result<Allowed<'_>, String> {
        if self.n_tokens == self.of.breaks_after {
            return Err("this grammar breaks here".into());
        }
        self.bits.fill(0);
        if let Some(only) = self.certain().first() {
            self.bits[only.0 as usize / 32] |= 1 << (only.0 % 32);
            return Ok(Allowed::Only(&self.bits));
        }
        for id in 0..self.of.model.vocab().len() as u32 {
            if self.fits(&self.said, TokenId(id)) {
                self.bits[id as usize / 32] |= 1 << (id % 32);
            }
        }
        Ok(Allowed::Only(&self.bits))
    }

    fn accept(&mut self, token: TokenId) -> Result<(), String> {
        assert!(self.fits(&self.said, token), "{token:?} was not allowed after {:?}", self.said);
        self.said.extend_from_slice(self.of.model.vocab().bytes(token).unwrap_or_default());
        self.n_tokens += 1;
        Ok(())
    }

    fn n_fitting(&mut self, tokens: &[TokenId]) -> usize {
        let mut said = self.said.clone();
        let fits = |token: &&TokenId| {
            let fits = self.fits(&said, **token);
            said.extend_from_slice(self.of.model.vocab().bytes(**token).unwrap_or_default());
            fits
        };
        tokens.iter().take_while(fits).count()
    }

    fn forced(&mut self) -> Vec<TokenId> {
        if self.of.jumps { self.certain() } else { Vec::new() }
    }

    fn is_complete(&self) -> bool {
        let more = |text: &&'static str| text.len() > self.said.len() && text.as_bytes().starts_with(&self.said);
        !self.of.texts.iter().any(more)
    }
}

/// Proposes these tokens again and again, right or wrong.
struct Parrot(Vec<TokenId>);

impl Proposer for Parrot {
    fn info(&self) -> ProposerInfo {
        ProposerInfo { max_depth: self.0.len(), ..ProposerInfo::default() }
    }

    fn propose(
        &mut self,
        _: &mut Runner,
        _: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        Ok(requests.iter().map(|ask| self.0[..ask.max.min(self.0.len())].to_vec()).collect())
    }
}

const TEXTS: [&str; 4] = ["yes, it is so", "no, it is not", "no, it is not so at all", "perhaps tomorrow"];

fn one_of(model: &Arc<Model>, texts: &[&'static str], options: RequestOptions) -> RequestOptions {
    let of = OneOf {
        model: Arc::clone(model),
        texts: texts.to_vec(),
        letters: false,
        jumps: false,
        breaks_after: usize::MAX,
    };
    RequestOptions { grammar: Some(Arc::new(Choice(Arc::new(of)))), ..options }
}

#[test]
fn an_answer_is_one_of_those_allowed_greedy_and_sampled() {
    let model = pocket();
    let (engine, _alone) = engine(&model, config(1024, 2));
    let prompt = question(&model, "What is 412 - 187?");
    let greedy_answer = generate(&engine, &prompt, one_of(&model, &TEXTS, greedy(40)));
    assert!(TEXTS.contains(&greedy_answer.text().as_str()), "{}", greedy_answer.text());
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..12 {
        let sampling = SamplingParams { seed: Some(seed), temperature: 3.0, ..SamplingParams::default() };
        let options = RequestOptions { sampling, ignore_eos: true, ..greedy(40) };
        let answer = generate(&engine, &prompt, one_of(&model, &TEXTS, options));
        assert!(TEXTS.contains(&answer.text().as_str()), "seed {seed}: {}", answer.text());
        // Only this text may go on, so only it may end by the model's own wish.
        let by_itself = matches!(answer.reason(), FinishReason::EndOfGeneration(_));
        assert_eq!(by_itself, answer.text() == TEXTS[1], "seed {seed}: {:?}", answer.reason());
        assert!(by_itself || *answer.reason() == FinishReason::Complete);
        seen.insert(answer.text());
    }
    assert!(seen.len() > 1, "twelve seeds say the same: {seen:?}");
    // A neighbour without a constraint is not touched by one that has it.
    let alone = generate(&engine, &prompt, greedy(30)).text();
    let mut constrained = submit(&engine, &prompt, one_of(&model, &TEXTS, greedy(40)));
    assert_eq!(generate(&engine, &prompt, greedy(30)).text(), alone);
    assert_eq!(Completion::read(&mut constrained).text(), greedy_answer.text());
}

fn with_drafts(model: &Arc<Model>, drafts: Vec<TokenId>) -> EngineHandle {
    Engine::spawn_with(Arc::clone(model), config(1024, 1), Some(Box::new(Parrot(drafts)))).expect("an engine")
}

#[test]
fn drafts_right_and_wrong_leave_the_answer_as_it_is() {
    let model = pocket();
    let prompt = question(&model, "What is 412 - 187?");
    let sampling = SamplingParams { seed: Some(5), temperature: 2.0, ..SamplingParams::default() };
    let random = RequestOptions { sampling, ..greedy(40) };
    for options in [greedy(40), random] {
        let expected = {
            let (engine, _alone) = engine(&model, config(1024, 1));
            generate(&engine, &prompt, one_of(&model, &TEXTS, options.clone()))
        };
        let n = expected.tokens.len();
        assert!(n > 4, "{:?}", expected.text());
        let never = model.vocab().id("Z").expect("a letter is a token");
        let [second, third, fourth] = [1, 2, 3].map(|i| expected.tokens[i]);
        // The middle of the generation, a draft that leaves the grammar after two tokens, and one that it never allows.
        let counts = [[second, third, fourth], [second, third, never], [never, second, third]].map(|drafts| {
            let drafted = with_drafts(&model, drafts.to_vec());
            let answer = generate(&drafted, &prompt, one_of(&model, &TEXTS, options.clone()));
            assert_eq!(answer.tokens, expected.tokens);
            assert_eq!(answer.reason(), expected.reason());
            let timings = answer.timings();
            (timings.drafted, timings.accepted)
        });
        assert!(counts[0].1 >= 3 && counts[1].1 >= 2, "right drafts are kept: {counts:?}");
        assert_eq!(counts[2].0, 0, "what cannot follow is not even computed");
    }
}

#[test]
fn a_grammar_that_breaks_ends_its_answer_and_no_other() {
    let model = pocket();
    let (engine, _alone) = engine(&model, config(1024, 2));
    let prompt = question(&model, "Who are you?");
    let alone = generate(&engine, &prompt, greedy(20)).text();
    for breaks_after in [0, 2] {
        let of = OneOf { model: Arc::clone(&model), texts: TEXTS.to_vec(), letters: false, jumps: false, breaks_after };
        let options = RequestOptions { grammar: Some(Arc::new(Choice(Arc::new(of)))), ..greedy(20) };
        let mut broken = submit(&engine, &prompt, options);
        assert_eq!(generate(&engine, &prompt, greedy(20)).text(), alone);
        let answer = Completion::read(&mut broken);
        assert_eq!(answer.end.expect_err("it breaks"), "this grammar breaks here");
        assert_eq!(answer.tokens.len(), breaks_after);
    }
    assert_eq!(generate(&engine, &prompt, greedy(20)).text(), alone, "the engine goes on");
}

const CERTAIN: [&str; 4] = [
    "Between 10 and 20 there lies 15, which is certain.",
    "Between 10 and 20 there lies 12, which is certain.",
    "Between 30 and 40 there lies 37, which is certain, too.",
    "Between 30 and 40 there lies 31, which is certain, too.",
];

fn certain(model: &Arc<Model>, jumps: bool, options: RequestOptions) -> RequestOptions {
    let of =
        OneOf { model: Arc::clone(model), texts: CERTAIN.to_vec(), letters: true, jumps, breaks_after: usize::MAX };
    RequestOptions { grammar: Some(Arc::new(Choice(Arc::new(of)))), cache: false, ..options }
}

#[test]
fn what_is_certain_is_said_in_few_passes_and_is_the_same() {
    let model = pocket();
    let prompt = question(&model, "What is 412 - 187?");
    let (engine, _alone) = engine(&model, EngineConfig { flash_attention: FlashAttention::On, ..config(1024, 1) });
    let random = SamplingParams { seed: Some(3), temperature: 2.0, ..SamplingParams::default() };
    let never = model.vocab().id("Z").expect("a letter is a token");
    for options in [greedy(80), RequestOptions { sampling: random, ..greedy(80) }] {
        let steps = || engine.stats().expect("it runs").n_steps;
        let start = steps();
        let without = generate(&engine, &prompt, certain(&model, false, options.clone()));
        let n_without = steps() - start;
        let with = generate(&engine, &prompt, certain(&model, true, options.clone()));
        let n_with = steps() - start - n_without;
        assert!(CERTAIN.contains(&without.text().as_str()), "{}", without.text());
        assert_eq!(with.tokens, without.tokens);
        assert_eq!(with.reason(), &FinishReason::Complete);
        assert!(4 * n_with < n_without, "{n_with} steps, {n_without} without");
        // Rows of forced tokens and drafts in the same answer.
        let drafted =
            generate(&with_drafts(&model, vec![without.tokens[1], never]), &prompt, certain(&model, true, options));
        assert_eq!(drafted.text(), with.text());
    }
}

#[test]
fn what_is_certain_is_cut_like_anything_else() {
    let model = pocket();
    let prompt = question(&model, "What is 412 - 187?");
    let (engine, _alone) = engine(&model, config(1024, 1));
    let short = generate(&engine, &prompt, certain(&model, true, greedy(5)));
    assert_eq!((short.text().as_str(), short.reason()), ("Betwe", &FinishReason::Length));
    let stops = RequestOptions { stops: vec![" and".into()], ..greedy(80) };
    let stopped = generate(&engine, &prompt, certain(&model, true, stops));
    assert!(stopped.text().starts_with("Between ") && stopped.text().len() == 10, "{}", stopped.text());
    // With log probabilities every token is asked for.
    let told = generate(&engine, &prompt, certain(&model, true, RequestOptions { logprobs: Some(1), ..greedy(80) }));
    assert!(told.logprobs.iter().all(Option::is_some) && told.logprobs.len() > 40);
}

/// Exactly these tokens, told ahead or not.
#[derive(Debug, Clone)]
struct Script {
    tokens: Vec<TokenId>,
    jumps: bool,
}

struct Reading {
    script: Script,
    at: usize,
    bits: Vec<u32>,
}

impl Grammar for Script {
    fn start(&self) -> Box<dyn Constraint> {
        let n_words = self.tokens.iter().map(|id| id.0 / 32 + 1).max().unwrap_or(0);
        Box::new(Reading { script: self.clone(), at: 0, bits: vec![0; n_words as usize] })
    }
}

impl Constraint for Reading {
    fn allowed(&mut self) -> Result<Allowed<'_>, String> {
        self.bits.fill(0);
        let next = self.script.tokens[self.at].0;
        self.bits[next as usize / 32] |= 1 << (next % 32);
        Ok(Allowed::Only(&self.bits))
    }

    fn accept(&mut self, token: TokenId) -> Result<(), String> {
        if self.script.tokens.get(self.at) != Some(&token) {
            return Err(format!("{token:?} cannot come at {}", self.at));
        }
        self.at += 1;
        Ok(())
    }

    fn n_fitting(&mut self, tokens: &[TokenId]) -> usize {
        tokens.iter().zip(&self.script.tokens[self.at..]).take_while(|(a, b)| a == b).count()
    }

    fn forced(&mut self) -> Vec<TokenId> {
        if self.script.jumps { self.script.tokens[self.at..].to_vec() } else { Vec::new() }
    }

    fn is_complete(&self) -> bool {
        self.at == self.script.tokens.len()
    }
}

#[test]
fn a_limit_on_thinking_is_not_for_the_tags_that_a_grammar_has_as_text() {
    let model = pocket();
    let vocab = model.vocab();
    let [start, end] = ["<think>", "</think>"].map(|tag| vocab.id(tag).expect("a token of pocket"));
    let text = "{\"tag\": \"<think> what is said here is data, not thinking\"}";
    let tokens = vocab.encode(text, Special::Parse);
    assert!(tokens.contains(&start));
    let prompt = question(&model, "Who are you?");
    let (engine, _alone) = engine(&model, config(1024, 1));
    for (jumps, open) in [(false, false), (true, false), (false, true), (true, true)] {
        let limit = engine::Thinking {
            max_tokens: 2,
            open,
            start,
            end,
            forced: vocab.encode("\n</think>\n\n", Special::Parse),
        };
        let grammar: Arc<dyn Grammar> = Arc::new(Script { tokens: tokens.clone(), jumps });
        let options = RequestOptions { grammar: Some(grammar), thinking: Some(limit), cache: false, ..greedy(80) };
        let answer = generate(&engine, &prompt, options);
        assert_eq!(answer.tokens, tokens, "jumps: {jumps}, open: {open}: {:?}", answer.end);
    }
}
