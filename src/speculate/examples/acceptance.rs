//! How often the head's first guess of a sampled token would be right, by rule and temperature: the figures of decision 0011.
//! `cargo run --release -p nextn-speculate --example acceptance -- model.gguf`

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use engine::EngineConfig;
use engine::sample::{Candidate, GumbelNoise, Sampler, SamplingParams, pick};
use memory::MemoryConfig;
use model::{Draft, DraftOutput, LoadOptions, Model, Pass, PassOutput, Rows, Runner};
use text::{Special, TokenId};

const REQUESTS: [&str; 10] = [
    "Tell me a short story about a dragon.",
    "Write a poem about the sea.",
    "Tell me a joke.",
    "Write an email to my boss about a holiday.",
    "Give me a recipe for soup.",
    "Compare cats and dogs.",
    "Tell me a short story about a robot.",
    "Write a Python function that reverses a string.",
    "What is 412 - 187?",
    "List five animals.",
];

/// Tokens of an answer at most.
const N_TOKENS: usize = 200;

/// Draws for one position of the rule that has no formula.
const N_NOISE: u64 = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("a model file is needed")?;
    let model = Model::open(Path::new(&path), &LoadOptions::default())?;
    println!("| temperature | positions | likeliest | noise, 1.0 | noise, 0.8 | rejection, 1.0 | rejection, 0.8 |");
    println!("|---|---|---|---|---|---|---|");
    for temperature in [0.4, 0.7, 1.0] {
        let mut sums = [0.0; 5];
        let mut n = 0;
        for (seed, request) in REQUESTS.iter().enumerate() {
            n += answer(&model, request, seed as u64, temperature, &mut sums)?;
        }
        let shares = sums.map(|sum| format!("{:.1}", 100.0 * sum / f64::from(n)));
        println!("| {temperature} | {n} | {} |", shares.join(" | "));
    }
    Ok(())
}

/// Samples an answer and adds the acceptance of each position's guess by each rule; gives the number of positions.
fn answer(
    model: &Arc<Model>,
    request: &str,
    seed: u64,
    temperature: f32,
    sums: &mut [f64; 5],
) -> Result<u32, Box<dyn Error>> {
    let text = format!("<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    let prompt = model.vocab().encode(&text, Special::Parse);
    let n_ctx = prompt.len() + N_TOKENS + 1;
    let config = EngineConfig { n_ctx: Some(n_ctx), ..EngineConfig::default() };
    let of_model = config.memory(model);
    let mut memory = model.memory(of_model)?;
    let mut head = model.head_memory_of(MemoryConfig { ..of_model }, 1)?.ok_or("the model has no NextN head")?;
    let slot = memory.acquire()?.ok_or("no slot")?;
    let head_slot = head.acquire()?.ok_or("no slot")?;
    let mut runner = Runner::new(Arc::clone(model), config.n_threads())?;
    let sizes = model.hparams();
    let params = SamplingParams { seed: Some(seed), temperature, ..SamplingParams::default() };
    let mut sampler = Sampler::new(&params, sizes.n_vocab, &|_, _| {})?;
    sampler.prime(&prompt);

    let mut output = PassOutput::default();
    let mut draft = DraftOutput::default();
    let step = memory.begin(&[(&slot, prompt.len())], 1)?;
    runner.run(step.view(), &Pass { tokens: &prompt, rows: Rows::All, hidden: true }, &mut output)?;
    step.commit(&[prompt.len()])?;
    let mut token = sampler.sample(output.logits(prompt.len() - 1));
    sampler.accept(token);
    let mut entries: Vec<TokenId> = prompt[1..].iter().copied().chain([token]).collect();
    let mut hidden = output.mtp_hidden().to_vec();
    let mut n = 0;
    while n < N_TOKENS as u32 && !model.vocab().is_eog(token) {
        let step = head.begin(&[(&head_slot, entries.len())], 1)?;
        let n_entries = [entries.len()];
        let wanted = Draft {
            tokens: &entries,
            hidden: &hidden,
            n_entries: &n_entries,
            depth: 1,
            verbose: true,
            ..Draft::default()
        };
        runner.draft(step.view(), &wanted, &mut draft)?;
        step.commit(&n_entries)?;
        let step = memory.begin(&[(&slot, 1)], 1)?;
        runner.run(step.view(), &Pass { tokens: &[token], rows: Rows::All, hidden: true }, &mut output)?;
        step.commit(&[1])?;

        let p = sampler.distribution(output.logits(0)).to_vec();
        let chances: HashMap<TokenId, f64> = p.iter().map(|c| (c.id, f64::from(c.p))).collect();
        let chance = |id| chances.get(&id).copied().unwrap_or(0.0);
        sums[0] += chance(draft.tokens[0][0]);
        for (i, factor) in [1.0, 0.8].into_iter().enumerate() {
            let q = softmax(&draft.logits[0], temperature * factor);
            // GumbelNoise of seeds that no answer uses.
            let noise = |k| Sampler::new(&SamplingParams { seed: Some(1000 + k), ..params.clone() }, 1, &|_, _| {});
            let noises: Vec<GumbelNoise> =
                (0..N_NOISE).map(|k| Ok(noise(k)?.noise(u64::from(n)))).collect::<Result<_, Box<dyn Error>>>()?;
            let same = noises.iter().filter(|&&noise| pick(&q, noise) == pick(&p, noise)).count();
            sums[1 + i] += same as f64 / N_NOISE as f64;
            sums[3 + i] += q.iter().map(|c| f64::from(c.p).min(chance(c.id))).sum::<f64>();
        }
        n += 1;
        token = sampler.sample(output.logits(0));
        sampler.accept(token);
        entries = vec![token];
        hidden = output.mtp_hidden().to_vec();
    }
    Ok(n)
}

fn softmax(logits: &[f32], temperature: f32) -> Vec<Candidate> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.iter().map(|x| ((x - max) / temperature).exp()).collect();
    let sum: f32 = weights.iter().sum();
    (0..).zip(weights).map(|(id, w)| Candidate { id: TokenId(id), p: w / sum }).collect()
}
