//! Greedy text without an engine: one sequence, one token a pass.
//!
//! `cargo run --release -p nextn-model --example greedy -- FILE.gguf 1,2,3 [N]`

use std::error::Error;
use std::path::Path;

use memory::{CacheType, MemoryConfig};
use model::{LoadOptions, Model, Pass, PassOutput, Rows, Runner};
use text::TokenId;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(file), Some(ids)) = (args.next(), args.next()) else {
        return Err("usage: greedy FILE.gguf ID,ID,... [N]".into());
    };
    let n = args.next().map_or(Ok(16), |n| n.parse::<usize>())?;
    let mut tokens = ids.split(',').map(|id| id.parse().map(TokenId)).collect::<Result<Vec<_>, _>>()?;

    let model = Model::open(Path::new(&file), &LoadOptions::default())?;
    println!("{}", model.describe());
    let mut memory = model.memory(MemoryConfig {
        n_slots: 1,
        n_ctx: tokens.len() + n,
        type_k: CacheType::F16,
        type_v: CacheType::F16,
        v_transposed: false,
        n_snapshots: 1,
        transactional: false,
        max_rows: None,
        rotate: true,
    })?;
    let slot = memory.acquire()?.ok_or("a new memory has a free slot")?;
    let mut runner = Runner::new(model, 2)?;
    let mut output = PassOutput::default();
    for _ in 0..n {
        let step = memory.begin(&[(&slot, tokens.len())], 1)?;
        let pass = Pass { tokens: &tokens, rows: Rows::Some(&[tokens.len() - 1]), hidden: false };
        runner.run(step.view(), &pass, &mut output)?;
        step.commit(&[tokens.len()])?;
        let best = (0..output.logits.len()).max_by(|&a, &b| output.logits[a].total_cmp(&output.logits[b]));
        tokens = vec![TokenId(best.ok_or("the model has no tokens")? as u32)];
        print!("{} ", tokens[0].0);
    }
    println!();
    Ok(())
}
