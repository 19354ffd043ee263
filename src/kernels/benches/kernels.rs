//! What the kernels cost in every instruction set that the processor has, on one thread, as tables:
//! `cargo bench -p nextn-kernels [-- WORD ..]`, where words choose among `products`, `quantise`, `delta`, types and
//! instruction sets: `cargo bench -p nextn-kernels -- products q8_0 avx2`.
//!
//! Every figure is the best of some rounds. The weights of a product, 64 MiB, come from memory each time; with the word
//! `cached` they are 1 MiB, which stays in a cache. With the word `wide` products are of 8 to 256 columns, for each eight of them.
//! With the word `joined` their rows are joined beforehand, where kernels read that.

use std::time::{Duration, Instant};

use kernels::slices::{Columns, OneHead, one_head, product_joined};
use kernels::{ActivationFormat, Isa, WeightType, join_rows, reads_joined};

/// Values of a weight's row.
const K: usize = 1024;
/// Bytes of the weights of a product.
const WEIGHTS: usize = 64 << 20;
/// Those that stay in a cache.
const CACHED: usize = 1 << 20;
/// Time for one figure, after which no new round begins.
const PATIENCE: Duration = Duration::from_millis(400);

const TYPES: [WeightType; 23] = [
    WeightType::Q8_0,
    WeightType::Q4_0,
    WeightType::IQ4NL,
    WeightType::Q5_0,
    WeightType::Q4_1,
    WeightType::Q5_1,
    WeightType::MXFP4,
    WeightType::Q4K,
    WeightType::Q5K,
    WeightType::Q6K,
    WeightType::Q2K,
    WeightType::Q3K,
    WeightType::IQ4XS,
    WeightType::IQ3XXS,
    WeightType::IQ3S,
    WeightType::IQ2XXS,
    WeightType::IQ2XS,
    WeightType::IQ2S,
    WeightType::IQ1S,
    WeightType::IQ1M,
    WeightType::F16,
    WeightType::BF16,
    WeightType::F32,
];

fn main() {
    // Cargo adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with('-')).collect();
    let wanted = Wanted(words);
    products(&wanted);
    quantise(&wanted);
    delta_rule(&wanted);
}

/// The words of the command line. A figure is wanted unless a word of the same group names another.
struct Wanted(Vec<String>);

impl Wanted {
    fn has(&self, name: &str, group: &[String]) -> bool {
        let is = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
        let named = self.0.iter().any(|w| group.iter().any(|g| is(w, g)));
        !named || self.0.iter().any(|w| is(w, name))
    }

    fn bench(&self, name: &str) -> bool {
        self.has(name, &["products", "quantise", "delta"].map(str::to_owned))
    }

    /// The scalar kernels are a measure of bits, not of time: only by name.
    fn isas(&self) -> Vec<Isa> {
        let all = Isa::available();
        let names: Vec<String> = all.iter().map(|isa| format!("{isa:?}")).collect();
        let named = |isa: &Isa| self.0.iter().any(|w| w.eq_ignore_ascii_case(&format!("{isa:?}")));
        let chosen = |isa: &Isa| self.has(&format!("{isa:?}"), &names) && (!isa.is_reference() || named(isa));
        all.into_iter().filter(chosen).collect()
    }
}

/// The least time of `run`, in seconds.
fn best(mut run: impl FnMut()) -> f64 {
    let begin = Instant::now();
    let mut least = f64::INFINITY;
    while least.is_infinite() || begin.elapsed() < PATIENCE {
        let start = Instant::now();
        run();
        least = least.min(start.elapsed().as_secs_f64());
    }
    least
}

fn noise(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect()
}

fn products(wanted: &Wanted) {
    if !wanted.bench("products") {
        return;
    }
    let n_bytes = if wanted.0.iter().any(|w| w == "cached") { CACHED } else { WEIGHTS };
    println!("\nproducts, {} MiB of rows of {K}\n", n_bytes >> 20);
    let wide = wanted.0.iter().any(|w| w == "wide");
    let others = if wide { "8 t(n)/n/t(1), n = 8, 16, 32, 64, 256" } else { "t(n)/t(1), n = 2 .. 8" };
    println!("| type | instructions | ms, 1 column | GB/s | {others} |\n|---|---|---|---|---|");
    let names = TYPES.map(|ty| format!("{ty:?}"));
    for ty in TYPES.into_iter().filter(|ty| wanted.has(&format!("{ty:?}"), &names)) {
        let n_rows = n_bytes / ty.row_bytes(K);
        // Small positive scales wherever they lie: no sum leaves the range of floats.
        let byte = |i: usize| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] & 0x1f;
        let n_rows = n_rows / 8 * 8;
        let w: Vec<u8> = (0..n_rows * ty.row_bytes(K)).map(byte).collect();
        let joined = (wanted.0.iter().any(|w| w == "joined") && reads_joined(ty, n_rows)).then(|| {
            let mut joined = vec![0; w.len()];
            join_rows(ty, &w, K, &mut joined);
            joined
        });
        for isa in wanted.isas() {
            let time = |n: usize| {
                let columns = Columns::new(isa, ty.format(), &noise(n * K), K, 1);
                let mut out = vec![0.0; n * n_rows];
                best(|| product_joined(isa, ty, &w, joined.as_deref(), &columns, 1, &mut out))
            };
            let one = time(1);
            let others: Vec<String> = match wide {
                true => {
                    [8, 16, 32, 64, 256].iter().map(|&n| format!("{:.2}", time(n) * 8.0 / n as f64 / one)).collect()
                }
                false => (2..=8).map(|n| format!("{:.2}", time(n) / one)).collect(),
            };
            let rate = w.len() as f64 / one / 1e9;
            println!("| {ty:?} | {isa:?} | {:.3} | {rate:.1} | {} |", one * 1e3, others.join(" "));
        }
    }
}

fn quantise(wanted: &Wanted) {
    if !wanted.bench("quantise") {
        return;
    }
    println!("\nquantise, 8 columns of 4096\n\n| for | instructions | us | GB/s read |\n|---|---|---|---|");
    let x = noise(8 * 4096);
    for format in [ActivationFormat::Q8_0, ActivationFormat::Q8K] {
        for isa in wanted.isas() {
            let mut columns = Columns::new(isa, format, &x, 4096, 1);
            let time = best(|| columns.fill(isa, &x, 1));
            println!("| {format:?} | {isa:?} | {:.1} | {:.1} |", time * 1e6, (x.len() * 4) as f64 / time / 1e9);
        }
    }
}

fn delta_rule(wanted: &Wanted) {
    const S: usize = 128;
    if !wanted.bench("delta") {
        return;
    }
    println!("\ndelta rule, one head of {S}, a snapshot for each token up to 8, of more for the last\n");
    println!("| tokens | instructions | us | us for a token |\n|---|---|---|---|");
    for n_tokens in [1, 2, 4, 8, 64, 512] {
        for isa in wanted.isas() {
            let (q, v, state) = (noise(S * n_tokens), noise(S * n_tokens), noise(S * S));
            let gates = vec![(0.9, 0.1); n_tokens];
            let x = OneHead { q: &q, k: &q, v: &v, gates: &gates, state: &state };
            let (mut out, mut snapshots) =
                (vec![0.0; S * n_tokens], vec![0.0; S * S * if n_tokens > 8 { 1 } else { n_tokens }]);
            let time = best(|| one_head(isa, S, &x, &mut out, &mut snapshots)) * 1e6;
            println!("| {n_tokens} | {isa:?} | {time:.1} | {:.1} |", time / n_tokens as f64);
        }
    }
}
