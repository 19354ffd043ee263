//! A memory with a graph that writes to it and reads it.

use std::sync::Arc;

use ggml::{Data, Device, Dtype, Executor, Graph, Mapping, Name, WeightsBuilder};
use memory::{Kv, LayerState, Memory, MemoryConfig, Slot, StateLayout};

/// The memory, all of its slots, and what computes over it.
pub struct Rig {
    pub memory: Memory,
    pub slots: Vec<Slot>,
    layout: StateLayout,
    executor: Executor<usize>,
    n_steps: usize,
}

impl Rig {
    pub fn new(layout: StateLayout, config: MemoryConfig) -> Rig {
        let mut memory = Memory::new(Device::cpu().unwrap(), layout.clone(), config).expect("a sound layout");
        let slots = (0..config.n_slots).map(|_| memory.acquire().unwrap().expect("a free slot")).collect();
        let nothing = vec![Arc::new(Mapping::Static(&[]))];
        let weights = WeightsBuilder::new(nothing).build(Device::cpu().unwrap()).expect("no weights");
        Rig { memory, slots, layout, executor: Executor::new(weights, 1).expect("the CPU"), n_steps: 0 }
    }

    /// Writes a number for each row, as keys and values of all layers; keeps the first rows of each sequence, or drops the step.
    /// Gives what each row sees in each layer, in the order of the numbers' bits; nothing of cells that are quantized.
    pub fn step(&mut self, parts: &[(usize, Vec<f32>)], kept: Option<&[usize]>) -> Vec<Vec<u32>> {
        let types = [self.memory.config().type_k, self.memory.config().type_v];
        let reads = types.iter().all(|t| t.is_plain());
        let rows: Vec<_> = parts.iter().map(|(slot, rows)| (&self.slots[*slot], rows.len())).collect();
        let txn = self.memory.begin(&rows, 1).expect("a step that can be made");
        let view = txn.view();
        let numbers: Vec<f32> = parts.iter().flat_map(|(_, rows)| rows.iter().copied()).collect();
        let of = |n: usize| numbers.iter().flat_map(|&x| (0..n).map(move |i| x + i as f32)).collect::<Vec<f32>>();
        let kvs: Vec<(usize, Kv)> = self.layout.layers.iter().enumerate().filter_map(kv_of).collect();
        let operands: Vec<_> =
            kvs.iter().map(|(_, kv)| (of(kv.d_k * kv.n_head_kv), of(kv.d_v * kv.n_head_kv))).collect();
        let cells: Vec<(Vec<i64>, Vec<i64>)> = kvs
            .iter()
            .map(|&(il, kv)| {
                let (mut rows, mut elements) = (Vec::new(), Vec::new());
                view.kv_rows(view.window_of(il), &mut rows);
                if view.v_transposed() && !kv.latent {
                    view.v_element_rows(view.v_kind_of(il), &mut elements);
                }
                (rows, elements)
            })
            .collect();
        let mut inputs = Vec::new();
        for ((&(il, kv), (k, v)), (rows, elements)) in kvs.iter().zip(&operands).zip(&cells) {
            inputs.extend([(Name("k", il as u32), Data::F32(k)), (Name("rows", il as u32), Data::I64(rows))]);
            if !kv.latent {
                inputs.push((Name("v", il as u32), Data::F32(v)));
            }
            if !elements.is_empty() {
                inputs.push((Name("elements", il as u32), Data::I64(elements)));
            }
        }
        let n_tokens = numbers.len() as i64;
        let build = |g: &Graph<'_>| {
            for (&(il, kv), (_, elements)) in kvs.iter().zip(&cells) {
                let input = |name, dtype, n: i64, m: i64| g.input(Name(name, il as u32), dtype, [n, m, 1, 1]);
                let k = input("k", Dtype::F32, (kv.d_k * kv.n_head_kv) as i64, n_tokens);
                let rows = input("rows", Dtype::I64, n_tokens, 1);
                if kv.latent {
                    view.store_latent(g, il, k, rows);
                } else {
                    let v = input("v", Dtype::F32, (kv.d_v * kv.n_head_kv) as i64, n_tokens);
                    let n = elements.len() as i64;
                    let elements = (n > 0).then(|| input("elements", Dtype::I64, n, 1));
                    view.store_kv(g, il, (k, v), rows, elements);
                }
                for (i, s) in view.segments().iter().enumerate().filter(|_| reads) {
                    let name = |what| Name(what, (il * 100 + i) as u32);
                    let (k, v) = (view.k(g, il, s).expect("keys").rows, view.v(g, il, s).expect("values").rows);
                    g.output(name("keys"), g.cont(k)); // [d_k, n_kv, n_head_kv, n_seqs]
                    let is_turned = view.v_transposed() && !kv.latent;
                    g.output(name("values"), g.cont(if is_turned { g.transpose(v) } else { v }));
                }
            }
        };
        self.n_steps += 1;
        let mut results = self.executor.run(&self.n_steps, 512, build, &inputs).expect("a graph that can be computed");
        let mut seen = Vec::new();
        for &(il, kv) in &kvs {
            for (i, s) in view.segments().iter().enumerate().filter(|_| reads) {
                let (mut keys, mut values, mut mask) = (Vec::new(), Vec::new(), Vec::new());
                results.f32(Name("keys", (il * 100 + i) as u32), &mut keys).expect("an output");
                results.f32(Name("values", (il * 100 + i) as u32), &mut values).expect("an output");
                view.mask(view.window_of(il), s, &mut mask);
                let n_kv = view.n_kv(view.window_of(il), s);
                for (row, mask) in mask.chunks(n_kv).enumerate() {
                    let seq = row / s.n_rows;
                    let (of_k, of_v) = (kv.d_k * n_kv * kv.n_head_kv * seq, kv.d_v * n_kv * kv.n_head_kv * seq);
                    let cells = (0..n_kv).filter(|&c| mask[c] == 0);
                    let mut found: Vec<[u32; 2]> = cells
                        .map(|c| [keys[of_k + c * kv.d_k].to_bits(), values[of_v + c * kv.d_v].to_bits()])
                        .collect();
                    found.sort_unstable();
                    seen.push(found.into_flattened());
                }
            }
        }
        if let Some(kept) = kept {
            txn.commit(kept).expect("rows that can be kept");
        }
        seen
    }
}

fn kv_of((il, layer): (usize, &LayerState)) -> Option<(usize, Kv)> {
    if let LayerState::Kv(kv) = layer { Some((il, *kv)) } else { None }
}
