//! One layer of a transformer's feed-forward: norm, gate and up, down, residual, over weights that lie in memory as they
//! would in a mapped file. Run it with `cargo run -p nextn-ggml --example one_layer`.
//! Before: `one_op.rs`. Next: the model crate's blocks, which are made of the same calls.

use std::sync::Arc;

use ggml::{Data, Device, Dtype, Error, Executor, Graph, Mapping, Name, WeightsBuilder};

const N_EMBD: usize = 4;
const N_FF: usize = 8;
const N_TOKENS: usize = 2;

/// A model file holds tensors one after the other; here it is a few numbers in the program.
fn file() -> &'static [u8] {
    let n = N_EMBD + 3 * N_EMBD * N_FF;
    let values = (0..n).map(|i| if i < N_EMBD { 1.0 } else { (i as f32 * 0.37).sin() / 2.0 });
    // A real file is mapped by `Mapping::open`. Data of the program stays for ever, so leaking it is honest.
    Vec::leak(values.flat_map(f32::to_le_bytes).collect())
}

fn main() -> Result<(), Error> {
    // Weights are ranges of a map. Nothing is copied unless a device needs it, or a range is not aligned to 32 bytes.
    let map = Arc::new(Mapping::Static(file()));
    let mut builder = WeightsBuilder::new(vec![map]);
    let mut at = 0;
    let mut add = |name: &str, ne: [usize; 2]| {
        let range = at..at + ne[0] * ne[1] * 4;
        at = range.end;
        builder.add(name, Dtype::F32, [ne[0] as i64, ne[1] as i64, 1, 1], 0, range)
    };
    let norm = add("ffn_norm.weight", [N_EMBD, 1])?;
    let gate = add("ffn_gate.weight", [N_EMBD, N_FF])?; // [n_in, n_out]
    let up = add("ffn_up.weight", [N_EMBD, N_FF])?;
    let down = add("ffn_down.weight", [N_FF, N_EMBD])?;
    let weights = builder.build(Device::cpu()?)?;

    let mut executor = Executor::new(weights, 1)?;
    let layer = |g: &Graph<'_>| {
        g.layer(0); // errors from here on begin with `layer 0: `
        let x = g.input("x", Dtype::F32, [N_EMBD as i64, N_TOKENS as i64, 1, 1]);
        let h = g.mul(g.rms_norm(x, 1e-6), g.weight(norm)); // [n_embd, n_tokens]
        let h = g.swiglu(g.mul_mat(g.weight(gate), h), g.mul_mat(g.weight(up), h)); // [n_ff, n_tokens]
        g.output("y", g.add(x, g.mul_mat(g.weight(down), h))); // [n_embd, n_tokens]
    };

    // The graph is built on the first run and kept; a run brings all inputs, since it uses their memory up.
    let mut y = Vec::new();
    for step in 0..3 {
        let x: Vec<f32> = (0..N_EMBD * N_TOKENS).map(|i| (i + step) as f32 / 4.0).collect();
        executor.run(&N_TOKENS, 32, layer, &[(Name("x", 0), Data::F32(&x))])?.f32("y", &mut y)?;
        println!("step {step}: {y:.4?}");
    }
    let stats = executor.stats();
    println!("{} runs of {} graph", stats.n_runs, stats.n_builds);
    assert_eq!((stats.n_runs, stats.n_builds), (3, 1));
    Ok(())
}
