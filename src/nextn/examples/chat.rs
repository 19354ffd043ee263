//! Asks a model file one question: `cargo run --release -p nextn --example chat -- model.gguf "What is 6 times 7?"`

use std::io::Write;

use nextn::{Conversation, Delta, ModelOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(question)) = (args.next(), args.next()) else {
        return Err("a GGUF file and a question".into());
    };
    let model = nextn::open(file, &ModelOptions::default())?;
    for delta in model.ask(&Conversation::of(&question))? {
        if let Delta::Step(step) = delta? {
            print!("{}", step.text());
            std::io::stdout().flush()?;
        }
    }
    println!();
    Ok(())
}
