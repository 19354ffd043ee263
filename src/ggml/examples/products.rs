//! What products of 1 to 8 rows cost, by type of weight: `cargo run --release -p nextn-ggml --example products [TYPE ..]`.
//! The weights of a pass (256 MB) come from memory each time. Set `NEXTN_KERNELS=off` to see ggml's own.

use std::sync::Arc;
use std::time::Instant;

use ggml::{Data, Device, Dtype, Error, Executor, Mapping, Name, WeightsBuilder};

const K: i64 = 1024;
const M: i64 = 3584;
const N_BYTES: usize = 256 << 20;
const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    println!(
        "weights [{K}, {M}], 2 threads, best of {ROUNDS}\n\n| type | ms, 1 row | GB/s | t(n)/t(1), n = 2 .. 8, 64 |\n|---|---|---|---|"
    );
    let all = [Dtype::Q8_0, Dtype::Q4_0, Dtype::Q4_K, Dtype::Q5_K, Dtype::Q6_K, Dtype::F16, Dtype::BF16, Dtype::F32];
    for dtype in all.into_iter().filter(|d| wanted.is_empty() || wanted.iter().any(|w| w == d.name())) {
        measure(dtype)?;
    }
    Ok(())
}

fn measure(dtype: Dtype) -> Result<(), Error> {
    let size = dtype.row_bytes(K)? * M as usize;
    let n_weights = N_BYTES / size;
    // Small positive scales wherever they lie: no sum leaves the range of floats.
    let mut bytes = vec![0u8; n_weights * size];
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] & 0x1f;
    }
    let mut builder = WeightsBuilder::new(vec![Arc::new(Mapping::Static(Vec::leak(bytes)))]);
    let mut weights = Vec::new();
    for i in 0..n_weights {
        weights.push(builder.add(&format!("w{i}"), dtype, [K, M, 1, 1], 0, i * size..(i + 1) * size)?);
    }
    let mut executor: Executor<i64> = Executor::new(builder.build(Device::cpu()?)?, 2)?;
    let mut best = |n: i64| -> Result<f64, Error> {
        let x: Vec<f32> = (0..n * K).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
        let inputs = [(Name("x", 0), Data::F32(&x))];
        let build = |g: &ggml::Graph<'_>| {
            let x = g.input("x", Dtype::F32, [K, n, 1, 1]);
            for (i, w) in weights.iter().enumerate() {
                g.output(Name("y", i as u32), g.mul_mat(g.weight(*w), x));
            }
        };
        let mut least = f64::INFINITY;
        for _ in 0..=ROUNDS {
            let start = Instant::now();
            executor.run(&n, 4 * n_weights + 16, build, &inputs)?;
            least = least.min(start.elapsed().as_secs_f64());
        }
        Ok(least)
    };
    let one = best(1)?;
    let others: Vec<f64> = [2, 3, 4, 5, 6, 7, 8, 64].into_iter().map(&mut best).collect::<Result<_, _>>()?;
    let others: Vec<String> = others.iter().map(|t| format!("{:.2}", t / one)).collect();
    let rate = (n_weights * size) as f64 / one / 1e9;
    println!("| {dtype} | {:.2} | {rate:.1} | {} |", one * 1e3, others.join(" "));
    Ok(())
}
