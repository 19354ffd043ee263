//! Reuse of cached state: how much is saved, and that the generation is the one of an engine that saves nothing.
//!
//! Where a prompt is cut decides the bits of K-quants (see `greedy.rs`), so texts are compared on certain answers.

use engine::{EngineConfig, EngineHandle, RequestOptions};
use model::Model;
use serde_json::{Value, json};
use test_support::*;
use text::TokenId;

use crate::{n_computed, uncached};

fn with_boundaries(prompt: &Prompt, options: RequestOptions) -> RequestOptions {
    RequestOptions { checkpoint_boundaries: prompt.boundaries.clone(), ..options }
}

fn common(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// A chat with thinking whose template strips the thinking of earlier turns.
struct Talk<'m> {
    model: &'m Model,
    messages: Vec<Value>,
    last: Option<Prompt>,
}

impl<'m> Talk<'m> {
    fn new(model: &'m Model, system: &str) -> Self {
        Self { model, messages: vec![json!({ "role": "system", "content": system })], last: None }
    }

    /// Asks with what was said so far; gives the generation, and how many tokens a checkpoint of the last turn could save.
    fn turn(&mut self, engine: &EngineHandle, question: &str) -> (Completion, usize) {
        self.messages.push(user(question));
        let prompt = chat(self.model, self.messages.clone(), true);
        let answer = generate(engine, &prompt.tokens, with_boundaries(&prompt, greedy(250)));
        let text = answer.text();
        let (thought, said) = text.split_once("</think>").expect("thinking ends");
        let message = json!({ "role": "assistant", "reasoning_content": thought, "content": said.trim() });
        self.messages.push(message);
        let saved = self.last.as_ref().map_or(0, |last| {
            let same = common(&last.tokens, &prompt.tokens);
            assert!(same < last.tokens.len(), "the thinking was stripped: the prompts part before the last one's end");
            last.boundaries.iter().copied().filter(|&b| b <= same).max().expect("a boundary of the last prompt")
        });
        self.last = Some(prompt);
        (answer, saved)
    }
}

const TURNS: [&str; 3] = ["What is 20 + 15?", "Double it.", "What is 412 - 187?"];

#[test]
fn a_turn_of_a_conversation_computes_its_own_tokens_only() {
    for (model, has_k_quants) in [(pocket(), true), (pocket_moe(), false)] {
        let with = |checkpoint_bytes| {
            let (engine, _alone) = engine(&model, EngineConfig { checkpoint_bytes, ..config(1024, 1) });
            let mut talk = Talk::new(&model, "You are a helpful assistant.");
            TURNS.map(|question| {
                let before = n_computed(&engine);
                let (answer, saved) = talk.turn(&engine, question);
                let n = n_computed(&engine) - before;
                let n_prompt = answer.timings().prompt_tokens;
                let expected = n_prompt - answer.n_cached() + answer.tokens.len() - 1;
                assert_eq!(n as usize, expected, "what is not cached is computed, once");
                assert_eq!(answer.progress.last().map(|p| p.cached), Some(answer.n_cached()));
                (answer, saved)
            })
        };
        let cached = with(1 << 30);
        for (turn, (answer, saved)) in cached.iter().enumerate() {
            assert_eq!(answer.n_cached(), *saved, "{model:?}, turn {turn}");
            assert!(turn == 0 || *saved > 20, "{model:?}, turn {turn}: {saved} tokens");
        }
        // Without room for checkpoints every turn is computed whole.
        let whole = with(0);
        for (turn, ((cached, _), (whole, _))) in cached.iter().zip(&whole).enumerate() {
            assert_eq!(whole.n_cached(), 0, "{model:?}, turn {turn}");
            // Where a prompt is cut decides the bits of K-quants.
            assert!(has_k_quants || cached.text() == whole.text(), "{model:?}, turn {turn}");
        }
        assert!(cached[0].0.text().contains("35") && cached[2].0.text().contains("225"));
    }
}

#[test]
fn a_raw_prompt_is_taken_up_shortly_before_its_end() {
    let model = pocket_moe();
    let (engine, _alone) = engine(&model, EngineConfig { checkpoint_every: Some(2048), ..config(2048, 1) });
    let prompt = some_tokens(900);
    let alone = generate(&engine, &prompt, greedy_exactly(20));
    assert_eq!(alone.n_cached(), 0);
    let again = generate(&engine, &prompt, greedy_exactly(20));
    assert_eq!((again.n_cached(), &again.tokens), (900 - 4, &alone.tokens));
    // Another question after the same document.
    let other = [&prompt[..860], &some_tokens(30)].concat();
    assert_eq!(generate(&engine, &other, greedy_exactly(4)).n_cached(), 900 - 4 - 512);
    // Too short for a cut of its own.
    let (short, longer) = (some_tokens(60), some_tokens(70));
    generate(&engine, &short, greedy_exactly(4));
    assert_eq!(generate(&engine, &short, greedy_exactly(4)).n_cached(), 0);
    generate(&engine, &longer, greedy_exactly(4));
    assert_eq!(generate(&engine, &longer, greedy_exactly(4)).n_cached(), 66);
}

#[test]
fn conversations_find_their_state_whatever_slot_it_is_in() {
    let model = pocket();
    let (engine, _alone) = engine(&model, config(1024, 3));
    let mut talks = [
        Talk::new(&model, "You are a helpful assistant."),
        Talk::new(&model, "You answer in few words."),
        // The first one's beginning, and a slot is free: the first keeps its state.
        Talk::new(&model, "You are a helpful assistant."),
    ];
    talks[0].messages.push(user("What is the capital of France?"));
    talks[0].messages.push(json!({ "role": "assistant", "content": "The capital of France is Paris." }));
    for (i, talk) in talks.iter_mut().enumerate() {
        assert_eq!(talk.turn(&engine, TURNS[0]).0.n_cached(), 0, "conversation {i}");
    }
    for i in [1, 2, 0, 2, 1, 0] {
        let (answer, saved) = talks[i].turn(&engine, TURNS[2]);
        assert_eq!((answer.n_cached(), saved > 20), (saved, true), "conversation {i}");
    }
}

#[test]
fn attention_state_is_cut_anywhere() {
    let model = tiny();
    let (engine, _alone) = engine(&model, config(1024, 1));
    let prompt: Vec<_> = (0..90).map(|i| TokenId(i * 7 % 200)).collect();
    let first = generate(&engine, &prompt, greedy_exactly(20));
    assert_eq!(first.n_cached(), 0);
    // Of an equal prompt the last token is computed again: its logits are needed.
    let again = generate(&engine, &prompt, greedy_exactly(20));
    assert_eq!((again.n_cached(), &again.tokens), (89, &first.tokens));
    // A beginning, then another end.
    let shorter = generate(&engine, &prompt[..50], greedy_exactly(20));
    assert_eq!(shorter.n_cached(), 49);
    let mut other = prompt[..40].to_vec();
    other.extend([TokenId(199), TokenId(198)]);
    let other_answer = generate(&engine, &other, greedy_exactly(20));
    assert_eq!(other_answer.n_cached(), 40);
    assert_eq!(generate(&engine, &other, uncached(greedy_exactly(20))).tokens, other_answer.tokens);
}

#[test]
fn recurrent_state_goes_on_at_its_end_or_at_a_boundary() {
    let model = pocket_moe();
    let (engine, _alone) = engine(&model, config(1024, 1));
    let prompt = question(&model, "What is 412 - 187?");
    let n = prompt.len();
    let first = generate(&engine, &prompt, greedy(60));
    assert_eq!(first.n_cached(), 0);
    // Prompt and answer said back, without any checkpoint: all but the token sampled last is in the state.
    let mut more = prompt.clone();
    more.extend(&first.tokens);
    more.push(TokenId(198));
    assert_eq!(generate(&engine, &more, greedy(1)).n_cached(), n + first.tokens.len() - 1);
    // An equal prompt needs a state before its last token; there is none.
    assert_eq!(generate(&engine, &prompt, greedy(60)).n_cached(), 0);
    let boundary = RequestOptions { checkpoint_boundaries: vec![5, n - 1], ..greedy(60) };
    assert_eq!(generate(&engine, &prompt, boundary).n_cached(), 0);
    let again = generate(&engine, &prompt, greedy(60));
    assert_eq!((again.n_cached(), again.text()), (n - 1, first.text()));
    // The boundary at the very end serves a prompt that goes on otherwise than the generation did.
    let at_end = RequestOptions { checkpoint_boundaries: vec![n], ..greedy(60) };
    assert_eq!(generate(&engine, &prompt, at_end).n_cached(), n - 1);
    let mut otherwise = prompt.clone();
    otherwise.extend([TokenId(100), TokenId(101)]);
    assert_eq!(generate(&engine, &otherwise, greedy(1)).n_cached(), n);
    // The early boundary is still there.
    let mut parted = prompt[..7].to_vec();
    parted.push(TokenId(100));
    assert_eq!(generate(&engine, &parted, greedy(1)).n_cached(), 5);
}

#[test]
fn a_request_without_cache_takes_none_and_leaves_none() {
    let model = tiny();
    let (engine, _alone) = engine(&model, config(1024, 1));
    let prompt: Vec<_> = (0..60).map(|i| TokenId(i * 3 % 200)).collect();
    generate(&engine, &prompt, greedy(4));
    assert_eq!(generate(&engine, &prompt, uncached(greedy(4))).n_cached(), 0);
    assert_eq!(generate(&engine, &prompt, greedy(4)).n_cached(), 0);
    assert_eq!(generate(&engine, &prompt, greedy(4)).n_cached(), 59);
}

#[test]
fn a_cancelled_prompt_leaves_what_it_computed() {
    let model = tiny();
    let (engine, _alone) = engine(&model, EngineConfig { n_batch: 8, ..config(1024, 1) });
    let prompt: Vec<_> = (0..800).map(|i| TokenId(i * 3 % 200)).collect();
    let mut generation = submit(&engine, &prompt, greedy(4));
    assert!(matches!(generation.next(), Some(engine::Event::Prompt(p)) if p.done == 8));
    drop(generation);
    let answer = generate(&engine, &prompt, greedy(4));
    assert!((8..800).contains(&answer.n_cached()), "{} tokens", answer.n_cached());
    assert_eq!(generate(&engine, &prompt, uncached(greedy(4))).tokens, answer.tokens);
}
