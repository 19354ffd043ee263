//! What an engine adds to ggml's computation, for each step of one greedy answer.
//!
//! `cargo run --release -p nextn-engine --example overhead -- FILE.gguf N [THREADS]`; nothing else should be running.

use std::error::Error;
use std::path::Path;

use engine::sample::SamplingParams;
use engine::{Engine, EngineConfig, EngineStats, Event, GenerateRequest, RequestOptions};
use model::{LoadOptions, Model};
use text::TokenId;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(n)) = (args.next(), args.next()) else {
        return Err("usage: overhead FILE.gguf N [THREADS]".into());
    };
    let n_tokens: usize = n.parse()?;
    let threads = args.next().map(|t| t.parse()).transpose()?;
    let model = Model::open(Path::new(&file), &LoadOptions::default())?;
    let engine = Engine::spawn(model, EngineConfig { threads, ..EngineConfig::default() })?;

    // The first answer reads the weights from the disk and builds the graphs; the second is what is told.
    let mut before = EngineStats::default();
    for round in 0..2 {
        before = if round == 0 { before } else { engine.stats()? };
        let options = RequestOptions {
            max_tokens: Some(n_tokens),
            sampling: SamplingParams::greedy(),
            ignore_eos: true,
            cache: false,
            ..RequestOptions::default()
        };
        let mut generation = engine.submit(GenerateRequest::new(vec![TokenId(1)], options, engine.limits())?)?;
        while let Some(event) = generation.next() {
            if let Event::Failed(why) = event {
                return Err(why.into());
            }
        }
    }
    let after = engine.stats()?;
    let n_steps = after.n_steps - before.n_steps;
    let (step, compute) = (after.step - before.step, after.compute - before.compute);
    let mean = |d: std::time::Duration| d.as_secs_f64() * 1e3 / n_steps as f64;
    println!(
        "{n_steps} steps, {} tokens, {} graphs built",
        after.n_tokens - before.n_tokens,
        after.n_builds - before.n_builds
    );
    println!("{:.4} ms a step, of that {:.4} ms ggml's computation", mean(step), mean(compute));
    println!("{:.2} % outside of it", 100.0 * (1.0 - compute.as_secs_f64() / step.as_secs_f64()));
    Ok(())
}
