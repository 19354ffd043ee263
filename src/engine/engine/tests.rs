//! The engine driven by hand: steps that fail in the middle, and a thread that panics.

mod arriving;

use std::path::Path;

use model::{LoadOptions, Model};
use text::TokenId;

use super::*;
use crate::event::{Event, FinishReason};
use crate::handle::{Generation, SubmitError};
use crate::proposer::{DraftRequest, ObservedStep, ProposerInfo, SequenceChange, TargetState};
use crate::request::{GenerateRequest, RequestOptions, Scope};
use crate::sample::SamplingParams;
use crate::slot_info::SlotError;

fn engine(n_sequences: usize) -> (Engine, EngineHandle) {
    engine_with(n_sequences, None)
}

fn engine_with(n_sequences: usize, proposer: Option<Box<dyn Proposer>>) -> (Engine, EngineHandle) {
    engine_of(EngineConfig { n_sequences, ..Default::default() }, proposer)
}

fn engine_of(config: EngineConfig, proposer: Option<Box<dyn Proposer>>) -> (Engine, EngineHandle) {
    // Recurrent, so that a dropped step loses state.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pocket-moe-q8_0.gguf");
    let model = Model::open(&path, &LoadOptions::default()).expect("a model of the repository");
    let config = EngineConfig { threads: Some(1), n_ctx: Some(256), max_queue: 4, ..config };
    Engine::new(model, config, proposer).expect("an engine")
}

fn submit(handle: &EngineHandle, n_prompt: u32) -> Generation {
    submit_from(handle, 100, n_prompt, 6)
}

/// A prompt of so many tokens from `first` on.
fn submit_from(handle: &EngineHandle, first: u32, n_prompt: u32, max_tokens: usize) -> Generation {
    let options = RequestOptions {
        max_tokens: Some(max_tokens),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        ..Default::default()
    };
    let prompt = (0..n_prompt).map(|i| TokenId(first + i)).collect();
    let request = GenerateRequest::new(prompt, options, handle.limits()).expect("within the limits");
    handle.submit(request).expect("room in the queue")
}

/// Takes what is in the channel and goes on until nobody is owed anything; with an empty channel it would wait.
fn serve(engine: &mut Engine) {
    engine.step();
    while !engine.is_idle() {
        engine.step();
    }
}

/// Reads to the end: the tokens, and the summary or why it failed.
fn read(generation: &mut Generation) -> (Vec<TokenId>, Result<crate::event::Summary, String>) {
    let mut tokens = Vec::new();
    loop {
        match generation.next().expect("an end before the channel closes") {
            Event::Prompt(_) => {}
            Event::Tokens(pieces) => tokens.extend(pieces.iter().map(|p| p.token)),
            Event::Finished(summary) => return (tokens, Ok(*summary)),
            Event::Failed(why) => return (tokens, Err(why)),
        }
    }
}

#[test]
fn a_failed_step_ends_its_requests_and_leaves_nothing_to_reuse() {
    let (mut engine, handle) = engine(2);
    let mut whole = submit(&handle, 20);
    serve(&mut engine);
    let (expected, end) = read(&mut whole);
    assert_eq!(end.expect("complete").reason, FinishReason::Length);

    let (mut one, mut two, mut three) = (submit(&handle, 20), submit(&handle, 30), submit(&handle, 20));
    (0..3).for_each(|_| engine.step());
    assert_eq!((engine.sequences.len(), engine.waiting.len()), (2, 1));
    // A step of the first one is begun and dropped: its recurrent state is lost, and the next step finds out.
    let slot = &engine.cache.get(engine.sequences[0].slot).slot;
    drop(engine.state.memory.begin(&[(slot, 1)], 1).expect("room"));
    engine.step();
    assert!(engine.sequences.is_empty(), "both took part in the step");
    for generation in [&mut one, &mut two] {
        let (tokens, end) = read(generation);
        assert!(tokens.len() < 6 && end.as_ref().is_err_and(|why| why.contains("lost")), "{end:?}");
    }
    // The one that waited is served, from nothing, and gets what it should.
    while !engine.is_idle() {
        engine.step();
    }
    let (tokens, end) = read(&mut three);
    assert_eq!((tokens, end.expect("complete").timings.cached_tokens), (expected, 0));
    assert_eq!(handle.n_waiting.load(std::sync::atomic::Ordering::Relaxed), 0);
}

/// An engine of two slots with a store: a sequence of 120 tokens and more rests in one, a generation runs in the other, and a
/// request waits for the first.
fn with_a_sequence_that_must_leave() -> (Engine, EngineHandle, [Generation; 2]) {
    let config = EngineConfig { n_sequences: 2, store_bytes: 64 << 20, ..Default::default() };
    let (mut engine, handle) = engine_of(config, None);
    let mut first = submit(&handle, 120);
    serve(&mut engine);
    read(&mut first).1.expect("complete");
    let running = submit_from(&handle, 400, 20, 200);
    (0..2).for_each(|_| engine.step());
    let other = submit_from(&handle, 700, 8, 6);
    (engine, handle, [running, other])
}

/// A step in which one part of a sequence is stored.
fn step_with_one_part(engine: &mut Engine) {
    (engine.least_part, engine.step_took) = (Duration::ZERO, Duration::ZERO);
    engine.step();
}

#[test]
fn a_sequence_that_leaves_its_slot_is_stored_between_the_steps_of_those_that_run() {
    let (mut engine, handle, [mut running, mut other]) = with_a_sequence_that_must_leave();
    let n_before = engine.stats.n_tokens;
    let mut n_waited = 0;
    loop {
        step_with_one_part(&mut engine);
        if engine.waiting.is_empty() {
            break;
        }
        n_waited += 1;
        assert!(engine.cache.is_leaving());
    }
    assert!(n_waited > 8, "it waited for {n_waited} steps");
    assert!(engine.stats.n_tokens - n_before >= n_waited, "the one that ran went on meanwhile");
    assert!(!engine.cache.is_leaving());
    // What it needs for the first one's next turn is there, and gives what an engine gives that never had anything else.
    let mut next = submit(&handle, 130);
    serve(&mut engine);
    [&mut running, &mut other].into_iter().for_each(|g| drop(read(g).1.expect("complete")));
    let (tokens, end) = read(&mut next);
    assert!(end.expect("complete").timings.cached_tokens >= 100);
    let (mut fresh, handle) = self::engine(2);
    let mut alone = submit(&handle, 130);
    serve(&mut fresh);
    assert_eq!(tokens, read(&mut alone).0);
}

#[test]
fn a_copy_that_nobody_waits_for_any_more_is_dropped() {
    let (mut engine, _handle, [_running, other]) = with_a_sequence_that_must_leave();
    step_with_one_part(&mut engine);
    assert!(engine.cache.is_leaving());
    drop(other);
    engine.step();
    assert!(engine.waiting.is_empty() && !engine.cache.is_leaving());
}

/// Proposes nothing, wants hidden states, and tells what it was told.
struct Told(std::sync::mpsc::Sender<String>);

impl Proposer for Told {
    fn info(&self) -> ProposerInfo {
        ProposerInfo { max_depth: 1, wants_hidden: true, ..ProposerInfo::default() }
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), crate::SavedDraftError> {
        let _ = self.0.send(match change {
            SequenceChange::Begin { tokens, hidden, .. } => {
                let known = if hidden.is_empty() { "unknown" } else { "known" };
                format!("slot {slot} begins with {} tokens, hidden state {known}", tokens.len())
            }
            SequenceChange::Forget => format!("slot {slot} is forgotten"),
            SequenceChange::Load { .. } => format!("slot {slot} is loaded"),
            SequenceChange::Copy { from, n_tokens } => format!("slot {slot} is given {n_tokens} of slot {from}"),
        });
        Ok(())
    }

    fn observe(&mut self, _: &mut Runner, step: &ObservedStep<'_>) -> Result<(), model::RunError> {
        assert!(step.sequences.iter().all(|s| !s.hidden.is_empty()));
        Ok(())
    }

    fn propose(
        &mut self,
        _: &mut Runner,
        _: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, model::RunError> {
        Ok(vec![Vec::new(); requests.len()])
    }
}

#[test]
fn a_failed_step_leaves_no_hidden_state_on_the_slot_that_it_emptied() {
    let (sender, told) = std::sync::mpsc::channel();
    let (mut engine, handle) = engine_with(1, Some(Box::new(Told(sender))));
    let mut failing = submit(&handle, 20);
    (0..2).for_each(|_| engine.step());
    assert!(!engine.cache.get(0).hidden.is_empty());
    let slot = &engine.cache.get(0).slot;
    drop(engine.state.memory.begin(&[(slot, 1)], 1).expect("room"));
    engine.step();
    assert!(read(&mut failing).1.is_err_and(|why| why.contains("lost")));
    assert!(engine.cache.get(0).tokens.is_empty() && engine.cache.get(0).hidden.is_empty());
    let _next = submit(&handle, 20);
    engine.step();
    let begins = "slot 0 begins with 0 tokens, hidden state unknown";
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [begins, "slot 0 is forgotten", begins]);
}

#[test]
fn a_panic_ends_every_generation_and_the_engine() {
    let (mut engine, handle) = engine(1);
    let mut running = submit(&handle, 20);
    (0..3).for_each(|_| engine.step());
    let mut waiting = submit(&handle, 20);
    engine.step();
    let mut in_the_channel: Vec<_> = (0..3).map(|_| submit(&handle, 20)).collect();
    // No such slot: the next step of this sequence looks outside the list.
    engine.sequences[0].slot = 7;
    let thread = std::thread::spawn(move || engine.run());

    let stopped = SubmitError::Stopped.to_string();
    let (tokens, end) = read(&mut running);
    assert_eq!((tokens.len(), end.as_ref().err()), (4, Some(&stopped)), "what was sampled is read, then the end");
    assert!(running.next().is_none() && running.try_next().is_none());
    // The queue was full; its permits came back, so the generation is not that it is full.
    let options = RequestOptions::default();
    let request = GenerateRequest::new(vec![TokenId(1)], options, handle.limits()).expect("within the limits");
    assert!(thread.join().is_err());
    assert!(matches!(handle.submit(request), Err(SubmitError::Stopped)));
    assert!(matches!(handle.stats(), Err(SubmitError::Stopped)));
    for generation in in_the_channel.iter_mut().chain([&mut waiting]) {
        assert!(matches!(generation.try_next(), Some(Event::Failed(why)) if why == stopped));
        assert!(generation.next().is_none());
    }
    assert_eq!(handle.n_waiting.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn prompts_take_turns_and_none_is_passed_over() {
    let (mut engine, handle) = engine(3);
    (engine.config.n_batch, engine.config.n_batch_shared) = (4, 4);
    let _waiting: Vec<_> = (0..3).map(|_| submit(&handle, 40)).collect();
    (0..6).for_each(|_| engine.step());
    let done: Vec<_> = engine.sequences.iter().map(|s| s.n_prompt_done).collect();
    assert_eq!(done, [8, 8, 8], "six chunks of four tokens");
    // One leaves: the others still take turns.
    let _reader = engine.sequences.remove(1);
    (0..4).for_each(|_| engine.step());
    let done: Vec<_> = engine.sequences.iter().map(|s| s.n_prompt_done).collect();
    assert_eq!(done, [16, 16]);
}
