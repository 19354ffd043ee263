//! A prompt in, text out, as it comes: the whole of an engine's use.
//!
//! `cargo run --release -p nextn-engine --example complete -- models/pocket-q4_k_m.gguf "Once upon a time"`

use std::error::Error;
use std::io::Write;
use std::path::Path;

use engine::{Engine, EngineConfig, Event, GenerateRequest, RequestOptions};
use model::{LoadOptions, Model};
use text::{Decoder, Special};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(prompt)) = (args.next(), args.next()) else {
        return Err("usage: complete FILE.gguf PROMPT".into());
    };

    // The file is mapped, and nothing of it is copied; the engine's thread computes, this one only waits for text.
    let model = Model::open(Path::new(&file), &LoadOptions::default())?;
    let engine = Engine::spawn(model, EngineConfig::default())?;

    // A request is checked when it is made: whatever the engine takes, it can serve.
    let tokens = engine.model().vocab().encode(&prompt, Special::Plain);
    let options = RequestOptions { max_tokens: Some(100), ..RequestOptions::default() };
    let mut generation = engine.submit(GenerateRequest::new(tokens, options, engine.limits())?)?;

    // A token may be a part of a character: the decoder holds back what is not complete.
    let mut decoder = Decoder::new();
    print!("{prompt}");
    while let Some(event) = generation.next() {
        match event {
            Event::Prompt(_) => {}
            Event::Tokens(pieces) => pieces.iter().for_each(|p| print!("{}", decoder.push(&p.bytes))),
            Event::Finished(end) => {
                println!("{}{}", decoder.push(&end.rest), decoder.finish());
                eprintln!("{:?}, {:.0} tokens a second", end.reason, end.timings.tokens_per_second());
            }
            Event::Failed(why) => return Err(why.into()),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}
