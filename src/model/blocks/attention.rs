//! Attention over the KV cells of each sequence.
//! Source: Vaswani et al. 2017, with grouped heads (Ainslie et al. 2023): query head `j` reads key head `j / group`.

use ggml::{Graph, Scores, Tensor};
use memory::Segment;

use super::linear::join;
use crate::step::AttentionInputs;

/// `x: [d * n_head, n_tokens]` as `[d, n_head, n_tokens]`.
pub(crate) fn split_heads<'g>(g: &Graph<'g>, x: Tensor<'g>, d: usize) -> Tensor<'g> {
    let [n, n_tokens, ..] = x.ne();
    g.reshape(x, [d as i64, n / d as i64, n_tokens]) // was [d * n_head, n_tokens]
}

/// Stores `k` and `v` in layer `il`'s KV cache and attends causally, within the layer's window. `q: [d_k, n_head,
/// n_tokens]`, `k: [d_k, n_head_kv, n_tokens]`, `v: [d_v, n_head_kv, n_tokens]`, contiguous; gives
/// `[d_v * n_head, n_tokens]`.
pub(crate) fn attend<'g>(
    g: &Graph<'g>,
    inputs: &AttentionInputs<'_, 'g>,
    il: usize,
    (q, k, v): (Tensor<'g>, Tensor<'g>, Tensor<'g>),
    scores: &Scores<'g>,
) -> Tensor<'g> {
    store(g, inputs, il, (k, v));
    attend_to(g, inputs, il, q, scores)
}

/// Stores keys and values of the step's rows as [`attend`] does.
pub(crate) fn store<'g>(g: &Graph<'g>, inputs: &AttentionInputs<'_, 'g>, il: usize, (k, v): (Tensor<'g>, Tensor<'g>)) {
    let n_tokens = k.ne()[2];
    let flat = |x: Tensor<'g>| g.reshape(x, [x.ne()[0] * x.ne()[1], n_tokens]); // was [d, n_head_kv, n_tokens]
    let Some(window) = inputs.window(il) else { return };
    let (k, v) = (inputs.view.rotate_k(g, il, k), inputs.view.rotate_v(g, il, v));
    inputs.view.store_kv(g, il, (flat(k), flat(v)), window.kv_rows, inputs.v_elements(il));
}

/// As [`attend`] where the values are the first elements of the keys, for all heads the same: stores `rows: [d_k, n_tokens]`
/// in layer `il`; gives `[d_v * n_head, n_tokens]`.
pub(crate) fn attend_latent<'g>(
    g: &Graph<'g>,
    inputs: &AttentionInputs<'_, 'g>,
    il: usize,
    (q, rows): (Tensor<'g>, Tensor<'g>),
    scores: &Scores<'g>,
) -> Tensor<'g> {
    let Some(window) = inputs.window(il) else { return q };
    inputs.view.store_latent(g, il, inputs.view.rotate_k(g, il, rows), window.kv_rows);
    over_cells(g, inputs, il, q, scores, |v, weights| g.weighted_rows(v, weights))
}

/// As [`attend`], with what is in layer `il`'s KV cache already, which may be another layer's than the queries'.
pub(crate) fn attend_to<'g>(
    g: &Graph<'g>,
    inputs: &AttentionInputs<'_, 'g>,
    il: usize,
    q: Tensor<'g>,
    scores: &Scores<'g>,
) -> Tensor<'g> {
    over_cells(g, inputs, il, q, scores, |v, weights| g.mul_mat(v, weights))
}

/// Attention of `q: [d_k, n_head, n_tokens]` over the cells of layer `il`. `weigh` gives the folded form's sums of values by
/// `weights: [n_kv, n_folded, n_head_kv, n_seqs]`, `[d_v, n_folded, n_head_kv, n_seqs]`.
fn over_cells<'g>(
    g: &Graph<'g>,
    inputs: &AttentionInputs<'_, 'g>,
    il: usize,
    q: Tensor<'g>,
    scores: &Scores<'g>,
    weigh: impl Fn(Tensor<'g>, Tensor<'g>) -> Tensor<'g>,
) -> Tensor<'g> {
    let Some(window) = inputs.window(il) else { return q };
    let q = inputs.view.rotate_k(g, il, q);
    let segments = inputs.view.segments().iter().zip(&window.masks).zip(&inputs.numbers);
    let parts = segments.map(|((s, &mask), numbers)| {
        let [d_k, n_head, ..] = q.ne();
        let nb = q.nb();
        let ne = [d_k, n_head, s.n_rows as i64, s.n_seqs as i64];
        let q = g.view(q, ne, [nb[1], nb[2], nb[2] * s.n_rows], nb[2] * s.first_row);
        let q = g.permute(q, [0, 2, 1, 3]); // now [d_k, n_rows, n_head, n_seqs]
        let (Some(k), Some(v)) = (inputs.view.k(g, il, s), inputs.view.v(g, il, s)) else { return q };
        if let Some(slots) = numbers.slots {
            let slots = (slots, inputs.view.n_slots());
            return in_rows(g, s, g.flash_attn_among((q, k, v), mask, scores, slots));
        }
        match inputs.view.v_transposed() {
            true => gqa_folded(g, s, (q, k.rows), mask, scores, |weights| weigh(v.rows, weights)),
            false if g.attends_itself(k, v) => in_rows(g, s, g.attend_cells((q, k, v), mask, scores, None)),
            false => in_rows(g, s, g.flash_attn_of((q, k.rows, v.rows), mask, scores)),
        }
    });
    inputs.view.rotate_v(g, il, join(g, parts).unwrap_or(q))
}

/// What one op made of all of a segment, `[d_v, n_head, n_rows, n_seqs]`, as `[d_v * n_head, n_tokens]`.
fn in_rows<'g>(g: &Graph<'g>, s: &Segment, o: Tensor<'g>) -> Tensor<'g> {
    let [d_v, n_head, ..] = o.ne();
    g.reshape(o, [d_v * n_head, s.n_tokens() as i64])
}

/// Two products and a softmax, with the query heads that share a key head folded into rows: each cell is read once for
/// all of them. `weigh` gives the sums of values. A single folded row, one query head over its own key head, is computed twice:
/// ggml's products of one row have other bits than those of several.
fn gqa_folded<'g>(
    g: &Graph<'g>,
    s: &Segment,
    (q, k): (Tensor<'g>, Tensor<'g>),
    mask: Tensor<'g>,
    scores: &Scores<'g>,
    weigh: impl Fn(Tensor<'g>) -> Tensor<'g>,
) -> Tensor<'g> {
    let [_, n_kv, n_head_kv, _] = k.ne();
    let is_single = q.ne()[1] == 1 && q.ne()[2] == n_head_kv;
    let twice = |x: Tensor<'g>| if is_single { g.concat(x, x, 1) } else { x };
    let (q, mask) = (twice(g.cont(q)), twice(mask));
    let [d_k, n_rows, n_head, n_seqs] = q.ne();
    let n_folded = n_rows * n_head / n_head_kv;
    let q = g.reshape(q, [d_k, n_folded, n_head_kv, n_seqs]); // was [d_k, n_rows, n_head, n_seqs]
    let products = g.mul_mat(k, q); // [n_kv, n_folded, n_head_kv, n_seqs]
    let products = g.reshape(products, [n_kv, n_rows, n_head, n_seqs]);
    let weights = g.soft_max_of(products, Some(mask), scores);
    let weights = g.reshape(weights, [n_kv, n_folded, n_head_kv, n_seqs]);
    let o = weigh(weights); // [d_v, n_folded, n_head_kv, n_seqs]
    let d_v = o.ne()[0];
    let o = g.reshape(o, [d_v, n_rows, n_head, n_seqs]);
    let nb = o.nb();
    let o = g.view(o, [d_v, s.n_rows as i64, n_head, n_seqs], [nb[1], nb[2], nb[3]], 0);
    let o = g.cont(g.permute(o, [0, 2, 1, 3])); // now [d_v, n_head, n_rows, n_seqs]
    g.reshape(o, [d_v * n_head, s.n_tokens() as i64])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ggml::{Data, Device, Dtype, Executor, Mapping, Name, WeightsBuilder};
    use memory::{CacheType, Kv, LayerState, Memory, MemoryConfig, Slot, StateLayout};

    use super::*;
    use crate::attention_data::AttentionData;

    /// A layer, and what it makes of scores.
    #[derive(Clone, Copy)]
    struct Layer {
        kv: Kv,
        n_head: usize,
        scale: f32,
        softcap: Option<f32>,
        sinks: bool,
    }

    /// Every two differ in something that must not be mixed up: window, heads, sizes, caps, sinks.
    fn layers() -> Vec<Layer> {
        let kv = |n_head_kv, d_k, d_v, window| Kv { n_head_kv, d_k, d_v, window, latent: false };
        let layer = |kv, n_head, scale| Layer { kv, n_head, scale, softcap: None, sinks: false };
        vec![
            layer(kv(2, 8, 8, None), 4, 0.4),
            Layer { sinks: true, ..layer(kv(1, 16, 4, Some(5)), 3, 0.25) },
            Layer { softcap: Some(1.5), ..layer(kv(2, 8, 8, Some(5)), 2, 1.0) },
            Layer { softcap: Some(0.7), sinks: true, ..layer(kv(4, 12, 8, Some(70)), 4, 0.3) },
            layer(kv(1, 4, 2, Some(1)), 2, 1.0),
            Layer { sinks: true, ..layer(kv(2, 8, 8, None), 4, 0.4) },
        ]
    }

    /// Numbers of about standard size that depend on all of `of` and nothing else.
    fn numbers(of: [usize; 4], n: usize) -> Vec<f32> {
        let mut x =
            of.iter().fold(0x9e37_79b9_7f4a_7c15u64, |x, &n| (x ^ n as u64).wrapping_mul(0x2545_f491_4f6c_dd1d));
        let mut next = || {
            x ^= x >> 12;
            x ^= x << 25;
            x ^= x >> 27;
            (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1 << 22) as f32 - 2.0
        };
        (0..n).map(|_| next()).collect()
    }

    /// Queries, keys or values (`what`) of one position of a sequence in a layer.
    fn row(what: usize, slot: usize, il: usize, position: usize, n: usize) -> Vec<f32> {
        numbers([what, slot, il, position], n)
    }

    fn sinks_of(il: usize, l: Layer) -> Vec<f32> {
        numbers([9, 9, il, 9], l.n_head)
    }

    /// What a position's attention must be, counted out in F64.
    fn plain(l: Layer, slot: usize, il: usize, position: usize) -> Vec<f64> {
        let Kv { n_head_kv, d_k, d_v, window, .. } = l.kv;
        let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
        let q = wide(row(0, slot, il, position, d_k * l.n_head));
        let first = (position + 1).saturating_sub(window.unwrap_or(usize::MAX));
        let seen: Vec<_> = (first..=position)
            .map(|p| (wide(row(1, slot, il, p, d_k * n_head_kv)), wide(row(2, slot, il, p, d_v * n_head_kv))))
            .collect();
        let sinks = sinks_of(il, l);
        (0..l.n_head)
            .flat_map(|h| {
                let of = h / (l.n_head / n_head_kv);
                let score = |k: &[f64]| {
                    let s: f64 = (0..d_k).map(|i| q[h * d_k + i] * k[of * d_k + i]).sum::<f64>() * f64::from(l.scale);
                    l.softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh()).exp()
                };
                let weights: Vec<f64> = seen.iter().map(|(k, _)| score(k)).collect();
                let sink = if l.sinks { f64::from(sinks[h]).exp() } else { 0.0 };
                let sum = weights.iter().sum::<f64>() + sink;
                let seen = &seen;
                let value =
                    move |i: usize| weights.iter().zip(seen).map(|(w, (_, v))| w * v[of * d_v + i]).sum::<f64>() / sum;
                (0..d_v).map(value).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Attends to so many more rows of some sequences in all layers; gives each layer's result.
    fn step(
        executor: &mut Executor<(usize, usize)>,
        memory: &mut Memory,
        layers: &[Layer],
        parts: &[(&Slot, usize)],
        key: (usize, usize),
    ) -> Vec<Vec<f32>> {
        let starts: Vec<usize> = parts.iter().map(|(slot, _)| memory.len(slot).expect("in use")).collect();
        let txn = memory.begin(parts, 1).expect("a step that can be made");
        let view = txn.view();
        let mut data = AttentionData::default();
        data.fill(view);
        let rows = |what, il, n| {
            let of = |((slot, n_rows), start): (&(&Slot, usize), &usize)| {
                let slot = slot.index();
                (*start..start + n_rows).flat_map(move |p| row(what, slot, il, p, n)).collect::<Vec<_>>()
            };
            parts.iter().zip(&starts).flat_map(of).collect::<Vec<f32>>()
        };
        let sizes = |l: Layer| [l.kv.d_k * l.n_head, l.kv.d_k * l.kv.n_head_kv, l.kv.d_v * l.kv.n_head_kv];
        let operands: Vec<_> =
            layers.iter().copied().enumerate().map(|(il, l)| [0, 1, 2].map(|i| rows(i, il, sizes(l)[i]))).collect();
        let all_sinks: Vec<_> = layers.iter().copied().enumerate().map(|(il, l)| sinks_of(il, l)).collect();
        let mut inputs = Vec::new();
        data.inputs(0, &mut inputs);
        for (il, (of, l)) in operands.iter().zip(layers.iter().copied()).enumerate() {
            inputs.extend(["q", "k", "v"].into_iter().zip(of).map(|(name, x)| (Name(name, il as u32), Data::F32(x))));
            inputs.extend(l.sinks.then(|| (Name("sinks", il as u32), Data::F32(&all_sinks[il]))));
        }
        let build = |g: &Graph<'_>| {
            let at = AttentionInputs::declare(g, view, 0);
            for (il, l) in layers.iter().copied().enumerate() {
                let heads = |name, d: usize, n: usize| {
                    g.input(Name(name, il as u32), Dtype::F32, [d as i64, n as i64, view.n_tokens() as i64, 1])
                };
                let Kv { n_head_kv, d_k, d_v, .. } = l.kv;
                let qkv = (heads("q", d_k, l.n_head), heads("k", d_k, n_head_kv), heads("v", d_v, n_head_kv));
                let sinks = || g.input(Name("sinks", il as u32), Dtype::F32, [l.n_head as i64, 1, 1, 1]);
                let scores = Scores { scale: l.scale, softcap: l.softcap, sinks: l.sinks.then(sinks) };
                g.output(Name("o", il as u32), attend(g, &at, il, qkv, &scores));
            }
        };
        let mut results = executor.run(&key, 2048, build, &inputs).expect("a graph that can be computed");
        let outputs = (0..layers.len()).map(|il| {
            let mut o = Vec::new();
            results.f32(Name("o", il as u32), &mut o).expect("an output");
            o
        });
        let outputs = outputs.collect();
        txn.commit(&parts.iter().map(|(_, n)| *n).collect::<Vec<_>>()).expect("all rows");
        outputs
    }

    /// State of two sequences, and what computes over it.
    struct Two {
        executor: Executor<(usize, usize)>,
        memory: Memory,
        slots: Vec<Slot>,
        layers: Vec<Layer>,
    }

    impl Two {
        fn new(layers: Vec<Layer>, cache: CacheType, v_transposed: bool, rotate: bool) -> Self {
            let nothing = vec![Arc::new(Mapping::Static(&[]))];
            let weights = WeightsBuilder::new(nothing).build(Device::cpu().unwrap()).expect("no weights");
            let executor = Executor::new(weights, 1).expect("the CPU");
            let config = MemoryConfig {
                n_slots: 2,
                n_ctx: 512,
                type_k: cache,
                type_v: cache,
                v_transposed,
                n_snapshots: 1,
                transactional: false,
                max_rows: None,
                rotate,
            };
            let layout = StateLayout { layers: layers.iter().map(|l| LayerState::Kv(l.kv)).collect() };
            let mut memory = Memory::new(Device::cpu().unwrap(), layout.clone(), config).expect("a sound layout");
            assert_eq!(memory.n_bytes(), config.n_bytes(&layout).expect("a sound layout"));
            let slots = (0..2).map(|_| memory.acquire().unwrap().expect("a free slot")).collect();
            Self { executor, memory, slots, layers }
        }

        /// The largest difference from what is counted out, of each layer, over steps of so many rows of both sequences.
        fn worst(&mut self, steps: &[[usize; 2]]) -> Vec<f64> {
            let mut lens = [0, 0];
            let mut worst = vec![0.0f64; self.layers.len()];
            for (i, &rows) in steps.iter().enumerate() {
                let parts: Vec<_> = self.slots.iter().zip(rows).filter(|(_, n)| *n > 0).collect();
                let outputs = step(&mut self.executor, &mut self.memory, &self.layers, &parts, (i, 0));
                for (il, (l, found)) in self.layers.iter().copied().zip(outputs).enumerate() {
                    let of_slot =
                        |slot: usize| (lens[slot]..lens[slot] + rows[slot]).flat_map(move |p| plain(l, slot, il, p));
                    let expected: Vec<f64> = (0..2).flat_map(of_slot).collect();
                    assert_eq!(found.len(), expected.len());
                    let difference = found.iter().zip(&expected).map(|(a, b)| (f64::from(*a) - b).abs());
                    worst[il] = difference.fold(worst[il], f64::max);
                }
                lens = [lens[0] + rows[0], lens[1] + rows[1]];
            }
            worst
        }
    }

    #[test]
    fn layers_of_any_shapes_and_windows_attend_as_counted_out() {
        let steps = [[7, 7], [1, 1], [1, 0], [90, 3], [0, 200], [200, 1], [1, 1], [3, 80]];
        for v_transposed in [true, false] {
            let worst = Two::new(layers(), CacheType::F32, v_transposed, true).worst(&steps);
            // Sums of up to 300 numbers in F32.
            assert!(worst.iter().all(|d| *d < 1e-5), "transposed {v_transposed}: {worst:?}");
        }
    }

    #[test]
    fn rotated_cells_of_every_type_and_head_attend_as_counted_out_but_for_the_rounding() {
        let kv = |n_head_kv, d_k, d_v| Kv { n_head_kv, d_k, d_v, window: None, latent: false };
        let layer = |kv, n_head| Layer { kv, n_head, scale: 0.1, softcap: None, sinks: false };
        // Keys in runs of 64, 128, 256 and 64; 96 is not rotated.
        let heads = vec![
            layer(kv(2, 64, 64), 4),
            layer(kv(1, 128, 128), 3),
            layer(kv(2, 256, 128), 2),
            layer(kv(1, 192, 64), 2),
            layer(kv(1, 96, 96), 2),
        ];
        let steps = [[7, 7], [1, 1], [90, 3], [1, 0]];
        for cache in CacheType::ALL.into_iter().filter(|t| !t.is_plain() && !t.is_turbo()) {
            let worst = Two::new(heads.clone(), cache, false, true).worst(&steps);
            let plain = Two::new(heads.clone(), cache, false, false).worst(&steps);
            // Numbers without outliers: rotation spreads them wider, and the steps are as much larger.
            let bounded = worst.iter().zip(&plain).all(|(rotated, plain)| *rotated < 2.0 * plain);
            assert!(bounded, "{cache}: {worst:?}, without rotation {plain:?}");
            assert_ne!(worst[..4], plain[..4], "{cache}: they are rotated");
            assert_eq!(worst[4], plain[4], "{cache}: a head of 96 is not");
        }
    }

    #[test]
    fn cells_in_types_of_our_own_attend_as_counted_out_but_for_the_rounding() {
        let kv = |n_head_kv, d_k, d_v, window| Kv { n_head_kv, d_k, d_v, window, latent: false };
        let layer = |kv, n_head| Layer { kv, n_head, scale: 0.1, softcap: None, sinks: false };
        // Keys in groups of 64, 128, 128 and 64, values in groups of 64, 128, 128 and 64.
        let heads = vec![
            layer(kv(2, 64, 64, None), 4),
            Layer { softcap: Some(1.5), ..layer(kv(1, 128, 128, Some(1)), 3) },
            Layer { sinks: true, ..layer(kv(2, 256, 128, None), 2) },
            layer(kv(1, 192, 64, Some(70)), 2),
        ];
        let steps = [[7, 7], [1, 1], [90, 3], [1, 0], [3, 60]];
        let of = |cache, rotate| Two::new(heads.clone(), cache, false, rotate).worst(&steps);
        // The worst of some thousand results, of values from -2 to 2 that keep 4.1 and 3.1 bits.
        for (cache, most) in [(CacheType::Turbo4, 1.0), (CacheType::Turbo3, 1.8)] {
            let worst = of(cache, true);
            assert!(worst.iter().all(|d| (1e-3..most).contains(d)), "{cache}: {worst:?}");
            assert_eq!(of(cache, false), worst, "{cache} rotates by itself");
        }
    }

    #[test]
    fn heads_without_whole_groups_and_transposed_values_are_refused_with_what_to_use() {
        let kv = |d_k, d_v| Kv { n_head_kv: 2, d_k, d_v, window: None, latent: false };
        let refused = |kv: Kv, (type_k, type_v), v_transposed| {
            let config = MemoryConfig {
                n_slots: 1,
                n_ctx: 256,
                type_k,
                type_v,
                v_transposed,
                n_snapshots: 1,
                transactional: false,
                max_rows: None,
                rotate: true,
            };
            let layout = StateLayout { layers: vec![LayerState::Kv(kv)] };
            Memory::new(Device::cpu().unwrap(), layout, config).expect_err("a refusal").to_string()
        };
        let (turbo3, f16) = (CacheType::Turbo3, CacheType::F16);
        for (kv, types, transposed, says) in [
            (
                kv(96, 64),
                (turbo3, f16),
                false,
                "a key head of 96 elements cannot be kept as turbo3, which takes multiples of 64: use --cache-type-k q4_0",
            ),
            (
                kv(64, 80),
                (f16, CacheType::Turbo4),
                false,
                "a value head of 80 elements cannot be kept as turbo4, which takes multiples of 64: use --cache-type-v f16",
            ),
            (kv(64, 64), (turbo3, f16), true, "keys of type turbo3 need flash attention"),
            (kv(64, 64), (f16, turbo3), true, "values of type turbo3 need flash attention"),
        ] {
            let found = refused(kv, types, transposed);
            assert!(found.contains(says), "{found}");
        }
    }
}
