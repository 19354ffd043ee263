//! Long runs, by hand: 20,000 greedy tokens over 40 prompts are the same with every kind of drafts, and memory and acceptance
//! stay as they are over long answers.
//!
//! `cargo test --release --test identity -- --ignored --nocapture --test-threads 1`; the models of the repository, or the file
//! in NEXTN_IDENTITY_MODEL.

mod support;

use std::path::Path;
use std::sync::Arc;

use engine::{EngineConfig, Proposer};
use model::{LoadOptions, Model};
use speculate::{Aside, Depth, DraftVocabSize, NextN, NextNConfig, NextNgram, Ngram};
use support::answers::{Answer, answer, answers, chat, config, greedy, head, pocket, spawn};

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

/// Tokens of each answer; past its end the model goes on, and often repeats itself.
const N_TOKENS: usize = 500;

fn models() -> Vec<(String, Arc<Model>)> {
    if let Some(path) = std::env::var_os("NEXTN_IDENTITY_MODEL") {
        let model = Model::open(Path::new(&path), &LoadOptions::default()).expect("a model file");
        return vec![(path.to_string_lossy().into_owned(), model)];
    }
    ["pocket-moe-q8_0.gguf", "pocket-q4_k_m.gguf"].map(|name| (name.to_owned(), pocket(name))).to_vec()
}

/// The head on a thread of its own, which guesses on while the model judges.
fn aside(model: &Arc<Model>, config: &EngineConfig, depth: Depth) -> Box<dyn Proposer> {
    let of_head = NextNConfig { depth, ..NextNConfig::default() };
    let head = NextN::new(model, config, of_head).expect("room for the head's cells").expect("a head");
    Box::new(Aside::new(head, model, 1, true).expect("a thread"))
}

fn both(model: &Arc<Model>, config: &EngineConfig, depth: Depth) -> Box<dyn Proposer> {
    let of_head = NextNConfig { depth, ..NextNConfig::default() };
    let head = NextN::new(model, config, of_head).expect("room for the head's cells").expect("a head");
    Box::new(NextNgram::new(head, Ngram::new(model, config, depth)))
}

fn sum(answers: &[Answer], of: fn(&Answer) -> usize) -> usize {
    answers.iter().map(of).sum()
}

#[test]
#[ignore = "minutes; see above"]
fn twenty_thousand_tokens_are_the_same_with_all_drafts() {
    for (name, model) in models() {
        let of = |n_sequences| EngineConfig { max_queue: 64, ..config(N_TOKENS + 100, n_sequences) };
        let run = |n_sequences, proposer| {
            let engine = spawn(&model, of(n_sequences), proposer);
            answers(&engine, REQUESTS.iter().map(|text| (chat(&model, text), greedy(N_TOKENS))).collect())
        };
        let plain = run(1, None);
        let n_tokens: usize = plain.iter().map(|a| a.tokens.len()).sum();
        println!(
            "{name}: {n_tokens} tokens\n| drafts | same | accepted / drafted | tokens a cycle |\n|---|---|---|---|"
        );
        let mut kinds: Vec<(String, usize, Box<dyn Proposer>)> = Vec::new();
        for depth in 1..=8 {
            let head = head(&model, &of(1), Depth::Fixed(depth), DraftVocabSize::Full);
            kinds.push((format!("head, depth {depth}"), 1, head));
        }
        for n in [500, 2000] {
            let head = head(&model, &of(1), Depth::Fixed(3), DraftVocabSize::First(n));
            kinds.push((format!("head, depth 3, first {n} words"), 1, head));
        }
        kinds.push(("head, auto".into(), 1, head(&model, &of(1), Depth::Auto, DraftVocabSize::Auto)));
        for depth in [Depth::Fixed(3), Depth::Fixed(6), Depth::Auto] {
            kinds.push((format!("n-gram, {depth:?}"), 1, Box::new(Ngram::new(&model, &of(1), depth))));
            kinds.push((format!("head and n-gram, {depth:?}"), 1, both(&model, &of(1), depth)));
        }
        for depth in [Depth::Fixed(1), Depth::Fixed(3), Depth::Auto] {
            kinds.push((format!("head on a thread, {depth:?}"), 1, aside(&model, &of(1), depth)));
            let four = head(&model, &of(4), depth, DraftVocabSize::Full);
            kinds.push((format!("head, {depth:?}, four sequences"), 4, four));
        }
        kinds.push(("head and n-gram, Auto, four sequences".into(), 4, both(&model, &of(4), Depth::Auto)));
        let mut wrong = Vec::new();
        for (what, n_sequences, proposer) in kinds {
            let drafted = run(n_sequences, Some(proposer));
            let differ: Vec<usize> = (0..plain.len()).filter(|&i| plain[i].tokens != drafted[i].tokens).collect();
            let (accepted, all) = (sum(&drafted, |a| a.timings.accepted), sum(&drafted, |a| a.timings.drafted));
            let per_cycle = (n_tokens - plain.len()) as f64 / sum(&drafted, |a| a.timings.cycles) as f64;
            let same = plain.len() - differ.len();
            println!("| {what} | {same} of {} | {accepted} / {all} | {per_cycle:.2} |", plain.len());
            if let Some(&i) = differ.first() {
                let at = plain[i].tokens.iter().zip(&drafted[i].tokens).take_while(|(a, b)| a == b).count();
                wrong.push(format!("{name}, {what}: `{}` from token {at} on, {} in all", REQUESTS[i], differ.len()));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

/// Resident memory in KiB but for pages of files, where the system tells: which pages of a mapped model have been read is no leak.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?.trim().strip_suffix(" kB")?.parse().ok()
}

#[test]
#[ignore = "minutes; see above"]
fn long_answers_leave_memory_and_acceptance_as_they_were() {
    for (name, model) in models() {
        let config = config(2048, 1);
        let engine = spawn(&model, config.clone(), Some(both(&model, &config, Depth::Fixed(3))));
        let (mut shares, mut memory) = (Vec::new(), Vec::new());
        for i in 0..20 {
            let request = REQUESTS[20 + i % 10];
            let answer = answer(&engine, &chat(&model, request), &greedy(2000));
            let stats = engine.stats().expect("it runs");
            let share = answer.timings.accepted as f64 / answer.timings.drafted as f64;
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
        let again = answer(&engine, &chat(&model, REQUESTS[20]), &greedy(2000));
        let share = again.timings.accepted as f64 / again.timings.drafted as f64;
        println!("{name}: the first answer again: {:.3}, then {share:.3} accepted", shares[0]);
        assert!((share - shares[0]).abs() < 0.02, "acceptance drifts: {} at first, then {share}", shares[0]);
        // The first ten touch what they will ever need of the buffers; the same ten again need no more.
        if let (Some(early), Some(late)) = (memory[9], memory[19]) {
            assert!(late < early + 4096, "{early} KiB resident after ten answers, {late} after the same ten again");
        }
    }
}
