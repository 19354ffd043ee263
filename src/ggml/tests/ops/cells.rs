//! Rows that a graph stores in types of our own and attends to, against plain attention in F64 over the values that they stand
//! for; and what is refused.

use crate::support::{Rng, alone, assert_close, no_weights, to_f16};
use ggml::{Cells, Data, Device, Dtype, Executor, Graph, Name, Scores, StateBuffer, StateSpec, Tensor, Turbo};
use kernels::slices::{pack_turbo, unpack_turbo};

const N_CELLS: usize = 96;
const N_SLOTS: usize = 2;
const N_HEAD: usize = 4;
const N_HEAD_KV: usize = 2;
const SCALE: f32 = 0.1;

/// Keys or values of all cells of two sequences, in state.
struct Kept {
    turbo: Turbo,
    d: usize,
    buffer: StateBuffer,
    id: ggml::StateId,
}

impl Kept {
    fn new(bits: usize, d: usize) -> Self {
        let turbo = Turbo::of(bits, d).unwrap();
        let row = (N_HEAD_KV * turbo.n_bytes(d).unwrap()) as i64;
        let ne = [row, (N_CELLS * N_SLOTS) as i64, 1, 1];
        let spec = StateSpec { name: "cells".into(), dtype: Dtype::I8, ne, device: Device::cpu().unwrap() };
        let (buffer, ids) = StateBuffer::new(&[spec]).unwrap();
        Self { turbo, d, buffer, id: ids[0] }
    }

    fn state<'g>(&self, g: &Graph<'g>) -> Tensor<'g> {
        g.state(&self.buffer, self.id)
    }

    /// `[bytes, N_CELLS, N_HEAD_KV, N_SLOTS]`
    fn cells<'g>(&self, g: &Graph<'g>) -> Cells<'g> {
        let state = self.state(g);
        let (row, head) = (state.nb()[1], state.nb()[1] / N_HEAD_KV);
        let ne = [head, N_CELLS, N_HEAD_KV, N_SLOTS].map(|n| n as i64);
        Cells { rows: g.view(state, ne, [row, head, row * N_CELLS], 0), turbo: Some(self.turbo) }
    }
}

#[test]
fn rows_that_a_graph_stores_are_attended_to_as_the_values_that_they_stand_for() {
    let mut rng = Rng::new(60);
    for (bits, [d_k, d_v]) in [([3, 3], [64, 64]), ([4, 4], [128, 256]), ([4, 3], [192, 128])] {
        let (k, v) = (Kept::new(bits[0], d_k), Kept::new(bits[1], d_v));
        let n_stored = 40; // rows of each sequence, in no order; their last cells are stored later
        let (n_rows, n_all) = (3, n_stored * N_SLOTS);
        let q = rng.list(d_k * N_HEAD * n_rows * N_SLOTS);
        let rows = [d_k, d_v].map(|d| rng.list(d * N_HEAD_KV * n_all));
        let ids: Vec<i64> =
            (0..n_all).map(|i| ((i % N_SLOTS) * N_CELLS + (i / N_SLOTS * 7) % n_stored) as i64).collect();
        let seen = |row: usize| n_stored - n_rows + row + 1;
        let mut mask = vec![to_f16(f32::NEG_INFINITY); N_CELLS * n_rows * N_SLOTS];
        mask.chunks_exact_mut(N_CELLS).enumerate().for_each(|(i, mask)| mask[..seen(i % n_rows)].fill(0));
        let sinks = rng.list(N_HEAD);
        let found = |threads: usize| {
            let _alone = alone();
            let mut executor: Executor<u32> = Executor::new(no_weights(), threads).unwrap();
            let graph = |g: &Graph<'_>| {
                let input = |name, dtype, ne: [usize; 4]| g.input(name, dtype, ne.map(|n| n as i64));
                let ids = input("ids", Dtype::I64, [n_all, 1, 1, 1]);
                for (kept, name) in [(&k, "k"), (&v, "v")] {
                    let rows = input(name, Dtype::F32, [kept.d * N_HEAD_KV, n_all, 1, 1]);
                    g.keep(g.store_turbo(kept.state(g), rows, ids, kept.turbo));
                }
                let q = g.permute(input("q", Dtype::F32, [d_k, N_HEAD, n_rows, N_SLOTS]), [0, 2, 1, 3]);
                let mask = input("mask", Dtype::F16, [N_CELLS, n_rows, 1, N_SLOTS]);
                let sinks = input("sinks", Dtype::F32, [N_HEAD, 1, 1, 1]);
                let scores = Scores { softcap: Some(3.0), sinks: Some(sinks), ..Scores::scaled(SCALE) };
                g.output("out", g.attend_cells((q, k.cells(g), v.cells(g)), mask, &scores, None));
            };
            let inputs = [
                ("ids", Data::I64(&ids)),
                ("k", Data::F32(&rows[0])),
                ("v", Data::F32(&rows[1])),
                ("q", Data::F32(&q)),
                ("mask", Data::F16(&mask)),
                ("sinks", Data::F32(&sinks)),
            ];
            let inputs = inputs.map(|(name, data)| (Name(name, 0), data));
            let mut out = Vec::new();
            executor.run(&0, 512, graph, &inputs).unwrap().f32("out", &mut out).unwrap();
            out
        };
        let plain = [&k, &v].map(|kept| {
            let rows = if std::ptr::eq(kept, &k) { &rows[0] } else { &rows[1] };
            unpack_turbo(kept.turbo, &pack_turbo(kept.turbo, rows))
        });
        let mut want = Vec::new();
        for (i, q) in q.chunks_exact(d_k).enumerate() {
            let (head, row, slot) = (i % N_HEAD, i / N_HEAD % n_rows, i / N_HEAD / n_rows);
            let at = |cell: usize| {
                let stored = ids.iter().position(|&id| id as usize == slot * N_CELLS + cell).expect("a stored cell");
                stored * N_HEAD_KV + head / (N_HEAD / N_HEAD_KV)
            };
            let power = |cell: usize| {
                let k = &plain[0][at(cell) * d_k..][..d_k];
                let score = q.iter().zip(k).map(|(q, k)| f64::from(q * k)).sum::<f64>() * f64::from(SCALE);
                (3.0 * (score / 3.0).tanh()).exp()
            };
            let powers: Vec<f64> = (0..seen(row)).map(power).collect();
            let sum = powers.iter().sum::<f64>() + f64::from(sinks[head]).exp();
            let value = |e: usize| {
                let value = |(cell, power): (usize, &f64)| power * f64::from(plain[1][at(cell) * d_v + e]);
                powers.iter().enumerate().map(value).sum::<f64>() / sum
            };
            want.extend((0..d_v).map(value));
        }
        let first = found(1);
        assert_close(&first, &want, 2e-5);
        assert_eq!(found(3), first, "three threads");
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let kept = Kept::new(3, 128);
    let error = |build: &dyn for<'g> Fn(&Graph<'g>) -> Tensor<'g>| {
        let mut executor: Executor<u32> = Executor::new(no_weights(), 1).unwrap();
        let graph = |g: &Graph<'_>| g.output("out", build(g));
        executor.run(&0, 64, graph, &[]).err().expect("a refusal").to_string()
    };
    let stored = error(&|g| {
        let rows = g.input("rows", Dtype::F32, [192, 2, 1, 1]);
        g.store_turbo(kept.state(g), rows, g.input("ids", Dtype::I64, [2, 1, 1, 1]), kept.turbo)
    });
    assert!(stored.contains("do not fit `into`"), "{stored}");
    let elsewhere = error(&|g| {
        let rows = g.input("rows", Dtype::F32, [256, 2, 1, 1]);
        let into = g.input("into", Dtype::I8, [100, 4, 1, 1]);
        g.store_turbo(into, rows, g.input("ids", Dtype::I64, [2, 1, 1, 1]), kept.turbo)
    });
    assert!(elsewhere.contains("does not lie where rows are rounded so"), "{elsewhere}");
    let attended = |d: i64, n_cells: i64| {
        error(&|g| {
            let q = g.input("q", Dtype::F32, [d, 1, N_HEAD as i64, N_SLOTS as i64]);
            let mask = g.input("mask", Dtype::F16, [n_cells, 1, 1, N_SLOTS as i64]);
            g.attend_cells((q, kept.cells(g), kept.cells(g)), mask, &Scores::scaled(1.0), None)
        })
    };
    for (d, n_cells) in [(64, N_CELLS), (128, N_CELLS - 1)] {
        let refused = attended(d, n_cells as i64);
        assert!(refused.contains("do not fit"), "{refused}");
    }
}
