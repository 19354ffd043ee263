//! Exactness: the logits of a row have the same bits in a pass of its own and beside others, over short and long contexts, in
//! both forms of attention, with one thread and with two.

use std::path::Path;
use std::sync::Arc;

use crate::support::{rig, tiny};
use memory::{CacheType, MemoryConfig};
use model::{LoadOptions, Model, Pass, PassOutput, Rows, Runner};
use rig::exact;
use text::TokenId;
use tiny::{Rng, Spec};

/// Rows that are computed together, or one after the other.
const N_ROWS: usize = 5;

/// Logits of rows after `past`, in passes of `width` rows.
fn logits(model: &Arc<Model>, config: MemoryConfig, n_threads: usize, past: &[TokenId], width: usize) -> Vec<Vec<f32>> {
    let mut memory = model.memory(config).expect("room for the state");
    let slot = memory.acquire().expect("cleared").expect("a free slot");
    let mut runner = Runner::new(Arc::clone(model), n_threads).expect("the CPU is there");
    let mut output = PassOutput::default();
    let mut rng = Rng::new(7);
    let next: Vec<TokenId> = (0..N_ROWS).map(|_| TokenId(rng.below(256) as u32)).collect();
    let mut all = Vec::new();
    for (i, tokens) in std::iter::once(past).chain(next.chunks(width)).enumerate() {
        let step = memory.begin(&[(&slot, tokens.len())], 1).expect("a step that can be made");
        let rows = if i == 0 { Rows::None } else { Rows::All };
        runner.run(step.view(), &Pass { tokens, rows, hidden: false }, &mut output).expect("a pass");
        step.commit(&[tokens.len()]).expect("all rows");
        all.extend((0..if i == 0 { 0 } else { tokens.len() }).map(|row| output.logits(row).to_vec()));
    }
    all
}

fn rows_that_differ(model: &Arc<Model>, config: MemoryConfig, n_threads: usize, n_past: usize) -> usize {
    let mut rng = Rng::new(11);
    let past: Vec<TokenId> = (0..n_past).map(|_| TokenId(rng.below(256) as u32)).collect();
    let alone = logits(model, config, n_threads, &past, 1);
    let together = logits(model, config, n_threads, &past, N_ROWS);
    alone.iter().zip(&together).filter(|(a, b)| a.iter().zip(*b).any(|(a, b)| a.to_bits() != b.to_bits())).count()
}

/// A decoder with these numbers of query and key heads, which are wide enough for the kernels of large matrices.
fn llama(n_head: usize, n_head_kv: usize) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let spec = Spec { n_head, n_head_kv, ..Spec::of("llama") };
    Model::open(&spec.document().write(&dir.path().join("tiny.gguf")), &LoadOptions::default()).expect("a sound file")
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_company_in_both_forms_of_attention() {
    for (n_head, n_head_kv) in [(4, 2), (4, 1), (4, 4)] {
        let model = llama(n_head, n_head_kv);
        for cache in [CacheType::F16, CacheType::F32] {
            for v_transposed in [false, true] {
                // Beyond 512 cells ggml's flash attention parts the cells of a single row among its threads.
                for (n_threads, n_past) in [(1, 100), (1, 600), (2, 600)] {
                    let config = MemoryConfig { type_k: cache, type_v: cache, v_transposed, ..exact(1, 768) };
                    let n = rows_that_differ(&model, config, n_threads, n_past);
                    let form = if v_transposed { "folded" } else { "fused" };
                    let heads = (n_head, n_head_kv);
                    assert_eq!(n, 0, "{form}, {cache}, heads {heads:?}, {n_threads} threads, {n_past} cells");
                }
            }
        }
    }
}

#[test]
fn a_row_of_a_quantised_model_has_the_same_bits_over_a_long_context_with_two_threads() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pocket-q4_k_m.gguf");
    let model = Model::open(&path, &LoadOptions::default()).expect("a model of the repository");
    let config = MemoryConfig { type_k: CacheType::F16, type_v: CacheType::F16, v_transposed: false, ..exact(1, 768) };
    assert_eq!(rows_that_differ(&model, config, 2, 600), 0);
}
