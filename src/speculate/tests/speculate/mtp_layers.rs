//! A NextN head of several layers drafts from what it keeps of a sequence as it would from the whole text: however many
//! draft tokens were accepted, beside other sequences, after a sequence went back to a checkpoint, and from a saved slot.
//! In all three kinds: layers that take each other's hidden states after their norm, or before it, or the target model's.

use std::sync::{Arc, Mutex};

use engine::{
    DraftRequest, EngineConfig, ObservedStep, Proposer, ProposerInfo, RequestOptions, SavedDraftError, Scope,
    SequenceChange, TargetState,
};
use memory::MemoryConfig;
use model::{Draft, DraftOutput, DraftVocab, LoadOptions, Model, RunError, Runner};
use speculate::{Depth, DraftVocabSize, NextN};
use test_support::{config, generate, generate_all, greedy_exactly, head, some_tokens, spawn};
use text::TokenId;

use crate::tiny::Spec;

const N_LAYERS: usize = 3;

fn model(arch: &'static str) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let spec = Spec { nextn: true, n_mtp: N_LAYERS, n_vocab: 512, ..Spec::of(arch) };
    let path = spec.document().write(&dir.path().join("tiny.gguf"));
    Model::open(&path, &LoadOptions::default()).expect("a sound file")
}

/// What a sequence holds: tokens and their hidden states, and the token sampled after them.
#[derive(Clone, Default)]
struct Text {
    tokens: Vec<TokenId>,
    hidden: Vec<f32>,
    next: Option<TokenId>,
}

/// The head, each draft of which is compared with the one computed from the whole text. What it hands out is right as far as
/// a plan says, so that any number of tokens is accepted.
pub(crate) struct Checked {
    head: NextN,
    memory: MemoryConfig,
    texts: Vec<Text>,
    known: Vec<Vec<TokenId>>,
    n_drafts: usize,
    /// How many drafts were compared.
    n_compared: Arc<Mutex<usize>>,
}

impl Checked {
    /// `known`: prompts with their completions.
    pub(crate) fn boxed(
        model: &Arc<Model>,
        config: &EngineConfig,
        depth: usize,
        known: Vec<Vec<TokenId>>,
    ) -> (Box<Self>, Arc<Mutex<usize>>) {
        let n_compared = Arc::<Mutex<usize>>::default();
        let head = head(model, config, Depth::Fixed(depth), DraftVocabSize::Full);
        let memory = MemoryConfig { n_slots: 1, ..config.memory(model) };
        let texts = vec![Text::default(); config.n_sequences];
        (Box::new(Self { head, memory, texts, known, n_drafts: 0, n_compared: Arc::clone(&n_compared) }), n_compared)
    }

    /// The draft after the whole text, without a cell that was kept.
    fn whole_draft(&self, model: &Arc<Model>, text: &Text) -> Result<Vec<TokenId>, RunError> {
        // Graphs of a runner are tied to one memory.
        let mut runner = Runner::new(Arc::clone(model), 1)?;
        let depth = self.head.info().max_depth;
        let mut memory = model.head_memory_of(self.memory, depth)?.expect("it has a head");
        let slot = memory.acquire()?.expect("a new memory has a free slot");
        let tokens: Vec<TokenId> = text.tokens[1..].iter().copied().chain(text.next).collect();
        let n_entries = [tokens.len()];
        let step = memory.begin(&[(&slot, tokens.len() + model.n_chain_rows(depth))], 1)?;
        let own = DraftVocab::of_head(model)?;
        let (tokens, hidden, n_entries) = (&tokens, &text.hidden, &n_entries);
        let draft = Draft { tokens, hidden, n_entries, depth, vocab: own.as_ref(), ..Draft::default() };
        let mut output = DraftOutput::default();
        runner.draft(step.view(), &draft, &mut output)?;
        Ok(output.tokens.remove(0))
    }
}

impl Proposer for Checked {
    fn info(&self) -> ProposerInfo {
        self.head.info()
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        if let SequenceChange::Begin { tokens, hidden, .. } = change {
            let text = &mut self.texts[slot];
            let n_embd = text.hidden.len() / text.tokens.len().max(1);
            assert!(text.tokens.starts_with(tokens), "nothing else is kept here");
            assert_eq!(hidden.len(), tokens.len().min(self.head.info().n_hidden) * n_embd, "hidden states are known");
            text.tokens.truncate(tokens.len());
            text.hidden.truncate(tokens.len() * n_embd);
            text.next = None;
        }
        self.head.change(slot, change)
    }

    fn observe(&mut self, runner: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        for s in step.sequences {
            let text = &mut self.texts[s.slot];
            text.tokens.extend_from_slice(s.tokens);
            text.hidden.extend_from_slice(s.hidden);
            text.next = s.next;
        }
        self.head.observe(runner, step)
    }

    fn propose(
        &mut self,
        runner: &mut Runner,
        target: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let mut drafts = self.head.propose(runner, target, requests)?;
        for (request, draft) in requests.iter().zip(&mut drafts) {
            let text = self.texts[request.slot].clone();
            let whole = self.whole_draft(runner.model(), &text)?;
            assert_eq!(draft[..], whole[..draft.len()], "after {} tokens", text.tokens.len());
            assert_eq!(draft.len(), whole.len().min(request.max));
            *self.n_compared.lock().expect("nobody panics with it") += 1;
            let said: Vec<TokenId> = text.tokens.iter().copied().chain(text.next).collect();
            let rest = self.known.iter().find_map(|known| known.strip_prefix(&said[..])).unwrap_or_default();
            let n_right = self.n_drafts % (draft.len() + 1);
            draft.iter_mut().zip(rest).take(n_right).for_each(|(token, right)| *token = *right);
            self.n_drafts += 1;
        }
        Ok(drafts)
    }

    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        self.head.save(slot, n_tokens)
    }
}

pub(crate) fn pieces(n_sequences: usize) -> EngineConfig {
    EngineConfig { checkpoint_every: Some(32), n_batch: 32, n_batch_shared: 32, ..config(512, n_sequences) }
}

/// They begin with different tokens.
pub(crate) fn prompts() -> [Vec<TokenId>; 3] {
    [some_tokens(60)[59..].to_vec(), some_tokens(40)[37..].to_vec(), some_tokens(70)]
}

pub(crate) fn compared(n: &Mutex<usize>) -> usize {
    std::mem::take(&mut *n.lock().expect("nobody panics with it"))
}

#[test]
fn what_is_kept_drafts_as_the_whole_text_whatever_was_accepted() {
    for (arch, depth) in [("qwen35", 3), ("qwen35moe", 2), ("mimo2", 3), ("step35", 3), ("step35", 1), ("qwen35", 5)] {
        let model = &model(arch);
        let prompts = prompts();
        let plain =
            generate_all(&spawn(model, pieces(1), None), prompts.clone().map(|p| (p, greedy_exactly(40))).into());
        let known: Vec<_> = prompts.iter().zip(&plain).map(|(prompt, c)| [&prompt[..], &c.tokens].concat()).collect();
        for n_sequences in [1, 3] {
            let config = pieces(n_sequences);
            let (checked, n_compared) = Checked::boxed(model, &config, depth, known.clone());
            assert_eq!(checked.info().max_depth, depth.min(N_LAYERS), "a layer drafts one token");
            let engine = spawn(model, config, Some(checked));
            let options = |p: &[TokenId]| RequestOptions {
                checkpoint_boundaries: if p.len() > 64 { vec![64] } else { Vec::new() },
                ..greedy_exactly(40)
            };
            let requests: Vec<_> = prompts.iter().map(|p| (p.clone(), options(p))).collect();
            for (found, plain) in generate_all(&engine, requests).iter().zip(&plain) {
                assert_eq!(found.tokens, plain.tokens, "{arch}, depth {depth}");
                assert!(found.timings().accepted > 5, "{:?}", found.timings());
            }
            assert!(compared(&n_compared) > 30);
            // Back at a checkpoint, the text goes on otherwise.
            let other = [&prompts[2][..64], &some_tokens(5)].concat();
            let found = generate(&engine, &other, greedy_exactly(20));
            assert_eq!(found.tokens, generate(&spawn(model, pieces(1), None), &other, greedy_exactly(20)).tokens);
            let n_cached = found.timings().cached_tokens;
            assert!(n_cached >= 32, "{arch}, depth {depth}, {n_sequences} sequences: {n_cached} tokens were kept");
            assert!(compared(&n_compared) > 10);
        }
    }
}

#[test]
fn a_saved_slot_drafts_on_as_one_that_was_kept() {
    for arch in ["qwen35", "mimo2", "step35"] {
        a_saved_slot_drafts_on(&model(arch), arch);
    }
}

fn a_saved_slot_drafts_on(model: &Arc<Model>, arch: &str) {
    let prompt = some_tokens(70);
    let drafting = |depth| {
        let config = pieces(1);
        let head = head(model, &config, Depth::Fixed(depth), DraftVocabSize::Full);
        spawn(model, config, Some(Box::new(head)))
    };
    let engine = drafting(3);
    let first = generate(&engine, &prompt, greedy_exactly(9));
    let saved = engine.save_slot(0, Scope::default()).expect("a free slot").to_bytes().expect("the file is there");
    let more = [&prompt[..], &first.tokens, &some_tokens(2)].concat();
    let kept = generate(&engine, &more, greedy_exactly(20));
    for depth in [3, 2] {
        let other = drafting(depth);
        let slot = other.read_slot(&saved).expect("it was saved by the same model");
        other.load_slot(0, slot, Scope::default()).expect("a free slot");
        let found = generate(&other, &more, greedy_exactly(20));
        assert_eq!((&found.tokens, found.timings().cached_tokens), (&kept.tokens, more.len() - 3));
        if depth == 3 {
            assert_eq!(found.drafts, kept.drafts, "{arch}");
        }
    }
}
