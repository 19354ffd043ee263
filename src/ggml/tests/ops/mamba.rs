//! The scan of Mamba-2 against a scalar recurrence in F64, and the promises that rollback rests on: which snapshot lies where,
//! and that tokens one by one have the bits of one call.

use ggml::{Graph, PastState, SsmScan, Tensor};

use crate::support::{In, Rng, assert_close, assert_same_bits, no_weights, run_over};

#[derive(Clone, Copy, Debug)]
struct Sizes {
    d_state: usize,
    d_head: usize,
    n_heads: usize,
    n_groups: usize,
    n_tokens: usize,
    n_seqs: usize,
}

impl Sizes {
    fn state(self) -> usize {
        self.d_state * self.d_head * self.n_heads * self.n_seqs
    }
}

/// `state, x, dt, a, b, c`.
fn operands(rng: &mut Rng, z: Sizes) -> [In; 6] {
    let In::F32(ne, a) = rng.tensor([1, z.n_heads, 1, 1]) else { unreachable!("floats") };
    [
        rng.tensor([z.d_state, z.d_head, z.n_heads, z.n_seqs]),
        rng.tensor([z.d_head, z.n_heads, z.n_tokens, z.n_seqs]),
        rng.tensor([z.n_heads, z.n_tokens, z.n_seqs, 1]),
        In::F32(ne, a.into_iter().map(|a| a - 1.1).collect()),
        rng.tensor([z.d_state, z.n_groups, z.n_tokens, z.n_seqs]),
        rng.tensor([z.d_state, z.n_groups, z.n_tokens, z.n_seqs]),
    ]
}

/// Outputs, and the state after every token, the oldest first.
fn recurrence(z: Sizes, inputs: &[In; 6]) -> (Vec<f64>, Vec<Vec<f64>>) {
    let [state, x, dt, a, b, c] = inputs.each_ref().map(|x| x.f32().into_iter().map(f64::from).collect::<Vec<f64>>());
    let (mut s, mut out, mut states) = (state, vec![0.0; z.d_head * z.n_heads * z.n_tokens * z.n_seqs], vec![]);
    for t in 0..z.n_tokens {
        for seq in 0..z.n_seqs {
            for (h, a) in a.iter().enumerate() {
                let row = (seq * z.n_tokens + t) * z.n_heads + h;
                let step = dt[row].exp().ln_1p();
                let decay = (step * a).exp();
                let group = ((seq * z.n_tokens + t) * z.n_groups + h / (z.n_heads / z.n_groups)) * z.d_state;
                for j in 0..z.d_head {
                    let at = ((seq * z.n_heads + h) * z.d_head + j) * z.d_state;
                    let x = x[row * z.d_head + j] * step;
                    for i in 0..z.d_state {
                        s[at + i] = s[at + i] * decay + b[group + i] * x;
                        out[row * z.d_head + j] += s[at + i] * c[group + i];
                    }
                }
            }
        }
        states.push(s.clone());
    }
    (out, states)
}

fn scan<'g>(g: &Graph<'g>, t: &[Tensor<'g>], n_snapshots: usize) -> (Tensor<'g>, Tensor<'g>) {
    let scan = SsmScan { state: PastState::Own(t[0]), x: t[1], dt: t[2], a: t[3], b: t[4], c: t[5] };
    g.ssm_scan(&scan, n_snapshots as i64)
}

/// Outputs, and the snapshots one after the other.
fn computed(inputs: &[In], n_snapshots: usize, threads: usize) -> (Vec<f32>, Vec<f32>) {
    let outputs = run_over(&no_weights(), threads, inputs, |g, t| scan(g, t, n_snapshots).0);
    (outputs, run_over(&no_weights(), threads, inputs, |g, t| scan(g, t, n_snapshots).1))
}

#[test]
fn it_is_the_recurrence_and_the_newest_snapshot_comes_first() {
    let mut rng = Rng::new(70);
    for (d_state, d_head, n_heads, n_groups) in [(16, 24, 4, 2), (128, 64, 2, 1), (20, 3, 6, 3)] {
        for (n_tokens, n_seqs, n_snapshots) in [(1, 1, 1), (5, 1, 5), (5, 3, 4), (200, 2, 1)] {
            let z = Sizes { d_state, d_head, n_heads, n_groups, n_tokens, n_seqs };
            let inputs = operands(&mut rng, z);
            let (want, states) = recurrence(z, &inputs);
            for threads in [1, 2] {
                let (out, snapshots) = computed(&inputs, n_snapshots, threads);
                assert_close(&out, &want, 1e-5);
                for (back, snapshot) in snapshots.chunks(z.state()).enumerate() {
                    assert_close(snapshot, &states[n_tokens - 1 - back], 1e-5);
                }
                assert_eq!(snapshots.len(), n_snapshots * z.state());
            }
        }
    }
}

#[test]
fn tokens_one_by_one_have_the_bits_of_one_call() {
    let mut rng = Rng::new(71);
    let z = Sizes { d_state: 32, d_head: 16, n_heads: 4, n_groups: 2, n_tokens: 6, n_seqs: 1 };
    let inputs = operands(&mut rng, z);
    let (whole, snapshots) = computed(&inputs, z.n_tokens, 1);
    let mut state = inputs[0].clone();
    for t in 0..z.n_tokens {
        let token = |x: &In, dim: usize| {
            let In::F32(ne, values) = x else { unreachable!("floats") };
            let n: usize = ne[..dim].iter().product();
            let mut one = *ne;
            one[dim] = 1;
            In::F32(one, values[t * n..(t + 1) * n].to_vec())
        };
        let [_, x, dt, a, b, c] = &inputs;
        let one = [state, token(x, 2), token(dt, 1), a.clone(), token(b, 2), token(c, 2)];
        let (out, after) = computed(&one, 1, 2);
        let n = z.d_head * z.n_heads;
        assert_same_bits(&out, &whole[t * n..(t + 1) * n], &format!("token {t}"));
        let back = z.n_tokens - 1 - t;
        assert_same_bits(&after, &snapshots[back * z.state()..][..z.state()], &format!("the state after token {t}"));
        state = In::F32([z.d_state, z.d_head, z.n_heads, 1], after);
    }
}
