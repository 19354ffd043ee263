//! Greedy tokens are the same with every kind of drafts: 2,000 in all over prompts of every sort with each test run, 20,000 of
//! each model by hand. Also by hand: memory and acceptance stay as they are over long answers.
//!
//! By hand: `cargo test --release --test drafting identity -- --ignored --nocapture --test-threads 1`; the models of the
//! repository, or the file in NEXTN_IDENTITY_MODEL.

use std::path::Path;
use std::sync::Arc;

use engine::{EngineConfig, Exact, Proposer};
use model::{LoadOptions, Model};
use speculate::{AsyncProposer, CombinedProposer, Depth, DraftVocabSize, Ngram};
use test_support::{Completion, config, generate, generate_all, greedy_exactly, head, open_pocket, question, spawn};

const REQUESTS: [&str; 40] = [
    "Who are you?",
    "Hi, my name is Clara.",
    "What is 412 - 187?",
    "What is 17 + 25?",
    "What is 7 times 8?",
    "Double 35.",
    "Count from 3 to 15.",
    "Spell the word garden.",
    "Reverse the word planet.",
    "Sort these words: pear, apple, plum, fig.",
    "How many minutes are 3 hours?",
    "Today is Monday. What day is it in 10 days?",
    "What is the capital of France?",
    "What is the capital of Japan?",
    "Tell me about the element iron.",
    "List three planets.",
    "What does a fox eat?",
    "What is the opposite of hot?",
    "List five animals.",
    "What is a bridge?",
    "Tell me a joke.",
    "Tell me another joke.",
    "Tell me a short story about a dragon.",
    "Tell me a short story about a robot.",
    "Tell me a long story about a fox and a lighthouse.",
    "Write a poem about the sea.",
    "Write a poem about winter.",
    "Write an email to my boss about a holiday.",
    "Give me a recipe for soup.",
    "Give me a recipe for pancakes.",
    "Compare cats and dogs.",
    "Write a dialogue between a baker and a customer.",
    "Summarise: The ship left the harbour at dawn. A storm came. The crew was brave and reached the island.",
    "How do you say good morning in French?",
    "How do you say thank you in Spanish?",
    "Write a Python function that reverses a string.",
    "Write a Rust function that adds two numbers.",
    "Write a Python function that checks whether a number is prime.",
    "Extract the fields name, age, city as JSON from this text: Mia Brown is 34 years old and lives in Oslo.",
    "Explain quantum computing.",
];

/// What is asked, and how many tokens each answer has; past its end the model goes on, and often repeats itself.
struct Extent {
    requests: Vec<&'static str>,
    n_tokens: usize,
}

fn models() -> Vec<(String, Arc<Model>)> {
    if let Some(path) = std::env::var_os("NEXTN_IDENTITY_MODEL") {
        let model = Model::open(Path::new(&path), &LoadOptions::default()).expect("a model file");
        return vec![(path.to_string_lossy().into_owned(), model)];
    }
    ["pocket-moe-q8_0.gguf", "pocket-q4_k_m.gguf"].map(|name| (name.to_owned(), open_pocket(name))).to_vec()
}

fn mtp(model: &Arc<Model>, config: &EngineConfig, depth: Depth, vocab: DraftVocabSize) -> Box<dyn Proposer> {
    Box::new(head(model, config, depth, vocab))
}

/// The MTP layer on a thread of its own, which drafts on while the main model verifies.
fn beside(model: &Arc<Model>, config: &EngineConfig, depth: Depth) -> Box<dyn Proposer> {
    let head = head(model, config, depth, DraftVocabSize::default());
    Box::new(AsyncProposer::new(head, model, 1, true).expect("a thread"))
}

fn combined(model: &Arc<Model>, config: &EngineConfig, depth: Depth) -> Box<dyn Proposer> {
    let head = mtp(model, config, depth, DraftVocabSize::default());
    Box::new(CombinedProposer::new(head, Ngram::new(model, config, depth)))
}

fn sum(answers: &[Completion], of: fn(&Completion) -> usize) -> usize {
    answers.iter().map(of).sum()
}

/// A source of drafts, and how many sequences it drafts for at a time.
struct Kind {
    what: String,
    n_sequences: usize,
    proposer: Box<dyn Proposer>,
}

/// Every kind of drafts, for engines made with `of` so many sequences.
fn kinds(model: &Arc<Model>, of: &dyn Fn(usize) -> EngineConfig) -> Vec<Kind> {
    let mut kinds = Vec::new();
    let mut add = |what: String, n_sequences, proposer| kinds.push(Kind { what, n_sequences, proposer });
    let (one, four) = (of(1), of(4));
    for depth in 1..=8 {
        let head = mtp(model, &one, Depth::Fixed(depth), DraftVocabSize::Full);
        add(format!("head, depth {depth}"), 1, head);
    }
    for n in [500, 2000] {
        let head = mtp(model, &one, Depth::Fixed(3), DraftVocabSize::First(n));
        add(format!("head, depth 3, first {n} words"), 1, head);
    }
    add("head, auto".into(), 1, mtp(model, &one, Depth::Auto, DraftVocabSize::Auto));
    for depth in [Depth::Fixed(3), Depth::Fixed(6), Depth::Auto] {
        add(format!("n-gram, {depth:?}"), 1, Box::new(CombinedProposer::alone(Ngram::new(model, &one, depth))));
        add(format!("head and n-gram, {depth:?}"), 1, combined(model, &one, depth));
    }
    for depth in [Depth::Fixed(1), Depth::Fixed(3), Depth::Auto] {
        add(format!("head on a thread, {depth:?}"), 1, beside(model, &one, depth));
        add(format!("head, {depth:?}, four sequences"), 4, mtp(model, &four, depth, DraftVocabSize::Full));
    }
    add("head and n-gram, Auto, four sequences".into(), 4, combined(model, &four, Depth::Auto));
    kinds
}

/// Prints what every kind of drafts did; the error says which answers of which kinds are not those without drafts.
fn compare(name: &str, model: &Arc<Model>, extent: &Extent) -> Result<(), String> {
    let of = |n_sequences| {
        // Where several sequences share passes, only exact mode promises bits (docs/NUMERICS.md).
        let exact = if n_sequences > 1 { Exact::On } else { Exact::Off };
        EngineConfig { max_queue: 64, exact, ..config(extent.n_tokens + 100, n_sequences) }
    };
    let run = |n_sequences, proposer| {
        let engine = spawn(model, of(n_sequences), proposer);
        let requests = extent.requests.iter().map(|text| (question(model, text), greedy_exactly(extent.n_tokens)));
        generate_all(&engine, requests.collect())
    };
    let plain = run(1, None);
    let n_tokens = sum(&plain, |a| a.tokens.len());
    println!("{name}: {n_tokens} tokens\n| drafts | same | accepted / drafted | tokens a step |\n|---|---|---|---|");
    let (mut wrong, mut n_accepted) = (Vec::new(), 0);
    for Kind { what, n_sequences, proposer } in kinds(model, &of) {
        let drafted = run(n_sequences, Some(proposer));
        let differ: Vec<usize> = (0..plain.len()).filter(|&i| plain[i].tokens != drafted[i].tokens).collect();
        let (accepted, all) = (sum(&drafted, |a| a.timings().accepted), sum(&drafted, |a| a.timings().drafted));
        let per_step = (n_tokens - plain.len()) as f64 / sum(&drafted, |a| a.timings().steps) as f64;
        let same = plain.len() - differ.len();
        println!("| {what} | {same} of {} | {accepted} / {all} | {per_step:.2} |", plain.len());
        n_accepted += accepted;
        if let Some(&i) = differ.first() {
            let at = plain[i].tokens.iter().zip(&drafted[i].tokens).take_while(|(a, b)| a == b).count();
            let n = differ.len();
            wrong.push(format!("{name}, {what}: `{}` from token {at} on, {n} in all", extent.requests[i]));
        }
    }
    assert!(n_accepted > n_tokens, "{name}: {n_accepted} drafts were right: drafting was not on");
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

#[test]
fn two_thousand_tokens_are_the_same_with_all_drafts() {
    let extent = Extent { requests: REQUESTS.into_iter().skip(2).step_by(4).collect(), n_tokens: 100 };
    for (name, model) in models() {
        assert_eq!(compare(&name, &model, &extent), Ok(()));
    }
}

#[test]
#[ignore = "minutes; see above"]
fn twenty_thousand_tokens_are_the_same_with_all_drafts() {
    let extent = Extent { requests: REQUESTS.to_vec(), n_tokens: 500 };
    for (name, model) in models() {
        assert_eq!(compare(&name, &model, &extent), Ok(()));
    }
}

/// Resident memory in KiB but for pages of files, where the system tells: which pages of a mapped model have been read is
/// no leak.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?.trim().strip_suffix(" kB")?.parse().ok()
}

#[test]
#[ignore = "minutes; see above"]
fn long_answers_leave_memory_and_acceptance_as_they_were() {
    for (name, model) in models() {
        let config = config(2048, 1);
        let engine = spawn(&model, config.clone(), Some(combined(&model, &config, Depth::Fixed(3))));
        let (mut shares, mut memory) = (Vec::new(), Vec::new());
        for i in 0..20 {
            let request = REQUESTS[20 + i % 10];
            let answer = generate(&engine, &question(&model, request), greedy_exactly(2000));
            let stats = engine.stats().expect("it runs");
            let share = answer.timings().accepted as f64 / answer.timings().drafted as f64;
            let resident = resident();
            println!(
                "{name}, answer {i}: {} tokens, {share:.3} accepted, {resident:?} KiB resident, {} KiB of buffers, {} graphs",
                answer.tokens.len(),
                (stats.state_bytes + stats.compute_bytes) / 1024,
                stats.n_builds
            );
            assert_eq!(answer.tokens.len(), 2000);
            shares.push(share);
            memory.push(resident);
        }
        // The same request again at the end: its drafts are as good as at the beginning, whatever came between.
        let again = generate(&engine, &question(&model, REQUESTS[20]), greedy_exactly(2000));
        let share = again.timings().accepted as f64 / again.timings().drafted as f64;
        println!("{name}: the first answer again: {:.3}, then {share:.3} accepted", shares[0]);
        assert!((share - shares[0]).abs() < 0.02, "acceptance drifts: {} at first, then {share}", shares[0]);
        // The first ten touch what they will ever need of the buffers; the same ten again need no more.
        if let (Some(early), Some(late)) = (memory[9], memory[19]) {
            assert!(late < early + 4096, "{early} KiB resident after ten answers, {late} after the same ten again");
        }
    }
}
