//! The gated delta rule against a scalar recurrence in F64, and the promises that rollback rests on: which snapshot lies
//! where, and that pieces, snapshots and the place of the state do not change a bit.

use crate::support::{In, Rng, alone, assert_close, assert_same_bits, no_weights, run_over};
use ggml::{
    Data, DeltaRule, Device, Dtype, Executor, Graph, LoggedStep, Logs, Name, PastState, Snapshots, StateBuffer,
    StateId, StateSpec, Tensor,
};

#[derive(Clone, Copy, Debug)]
struct Sizes {
    s: usize,
    n_k: usize,
    n_v: usize,
    n_tokens: usize,
    n_seqs: usize,
}

impl Sizes {
    fn state(self) -> usize {
        self.s * self.s * self.n_v * self.n_seqs
    }

    fn outputs(self) -> usize {
        self.s * self.n_v * self.n_tokens * self.n_seqs
    }
}

/// `q, k, v, decay, beta, state`: queries and keys of length 1, decays in (-1, 0], betas in (0, 1).
fn operands(rng: &mut Rng, z: Sizes) -> [In; 6] {
    let unit = |rng: &mut Rng| {
        let mut x = rng.list(z.s * z.n_k * z.n_tokens * z.n_seqs);
        for head in x.chunks_mut(z.s) {
            let norm = head.iter().map(|v| v * v).sum::<f32>().sqrt();
            head.iter_mut().for_each(|v| *v /= norm);
        }
        In::F32([z.s, z.n_k, z.n_tokens, z.n_seqs], x)
    };
    let gate = [1, z.n_v, z.n_tokens, z.n_seqs];
    let n = gate.iter().product();
    let decay = rng.list(n).into_iter().map(|v| (v - 1.0) / 2.0).collect();
    let beta = rng.list(n).into_iter().map(|v| (v + 1.0) / 2.0).collect();
    let (q, k) = (unit(rng), unit(rng));
    let v = rng.tensor([z.s, z.n_v, z.n_tokens, z.n_seqs]);
    [q, k, v, In::F32(gate, decay), In::F32(gate, beta), rng.tensor([z.s, z.s, z.n_v, z.n_seqs])]
}

/// Outputs `[s, n_v, n_tokens, n_seqs]`, and the state after every token, newest last. A state's element (value `j`,
/// key `i`) lies at `j * s + i`.
fn recurrence(z: Sizes, inputs: &[In; 6]) -> (Vec<f64>, Vec<Vec<f64>>) {
    let [q, k, v, decay, beta, state] =
        [0, 1, 2, 3, 4, 5].map(|i| inputs[i].f32().into_iter().map(f64::from).collect::<Vec<f64>>());
    let (mut m, mut out, mut states) = (state, vec![0.0; z.outputs()], vec![]);
    for t in 0..z.n_tokens {
        for seq in 0..z.n_seqs {
            for h in 0..z.n_v {
                let m = &mut m[(seq * z.n_v + h) * z.s * z.s..][..z.s * z.s];
                let of_k = ((seq * z.n_tokens + t) * z.n_k + h % z.n_k) * z.s;
                let of_v = (seq * z.n_tokens + t) * z.n_v + h;
                let (q, k, v) = (&q[of_k..][..z.s], &k[of_k..][..z.s], &v[of_v * z.s..][..z.s]);
                let decay = decay[of_v].exp();
                for (j, row) in m.chunks_mut(z.s).enumerate() {
                    row.iter_mut().for_each(|x| *x *= decay);
                    let read: f64 = row.iter().zip(k).map(|(x, k)| x * k).sum();
                    let u = beta[of_v] * (v[j] - read);
                    row.iter_mut().zip(k).for_each(|(x, k)| *x += k * u);
                    let o: f64 = row.iter().zip(q).map(|(x, q)| x * q).sum();
                    out[of_v * z.s + j] = o / (z.s as f64).sqrt();
                }
            }
        }
        states.push(m.clone());
    }
    (out, states)
}

fn net<'g>(g: &Graph<'g>, t: &[Tensor<'g>], n_snapshots: usize) -> Tensor<'g> {
    let rule = DeltaRule { q: t[0], k: t[1], v: t[2], g: t[3], beta: t[4], state: PastState::Own(t[5]) };
    g.gated_delta_net(&rule, n_snapshots as i64)
}

/// The whole result: outputs, then snapshots.
fn computed(inputs: &[In], n_snapshots: usize, threads: usize) -> Vec<f32> {
    run_over(&no_weights(), threads, inputs, |g, t| net(g, t, n_snapshots))
}

#[test]
fn it_is_the_recurrence() {
    let mut rng = Rng::new(60);
    for s in [32, 64, 128] {
        for (n_k, n_v) in [(2, 2), (2, 6), (1, 4)] {
            for n_tokens in [1, 4, 64, 300] {
                let z = Sizes { s, n_k, n_v, n_tokens, n_seqs: 1 };
                let inputs = operands(&mut rng, z);
                let (out, states) = recurrence(z, &inputs);
                for n_snapshots in [1, 4] {
                    for threads in [1, 2] {
                        let got = computed(&inputs, n_snapshots, threads);
                        assert_eq!(got.len(), z.outputs() + n_snapshots * z.state());
                        // F32 sums of `s` products, fed back token by token; the decay forgets most of it.
                        assert_close(&got[..z.outputs()], &out, 1e-5);
                        assert_close(&got[z.outputs()..][..z.state()], &states[n_tokens - 1], 1e-5);
                    }
                }
            }
        }
    }
}

#[test]
fn the_newest_snapshot_comes_first() {
    let mut rng = Rng::new(61);
    for (n_tokens, n_snapshots) in [(1, 1), (1, 4), (3, 4), (4, 4), (2, 8)] {
        for n_seqs in [1, 3] {
            let z = Sizes { s: 32, n_k: 2, n_v: 4, n_tokens, n_seqs };
            let inputs = operands(&mut rng, z);
            let (out, states) = recurrence(z, &inputs);
            let got = computed(&inputs, n_snapshots, 1);
            assert_close(&got[..z.outputs()], &out, 1e-5);
            // Slots past the tokens are not looked at: nobody writes them. With more tokens than snapshots only slot 0
            // is certain, so the engine never asks for that.
            for back in 0..n_snapshots.min(n_tokens) {
                let slot = &got[z.outputs() + back * z.state()..][..z.state()];
                assert_close(slot, &states[n_tokens - 1 - back], 1e-5);
            }
        }
    }
}

/// Tokens `[from, to)` of one sequence, with another state.
fn part(z: Sizes, inputs: &[In; 6], from: usize, to: usize, state: &[f32]) -> Vec<In> {
    assert_eq!(z.n_seqs, 1);
    let cut = |x: &In| {
        let In::F32(ne, x) = x else { unreachable!("as made by `operands`") };
        let row = ne[0] * ne[1];
        In::F32([ne[0], ne[1], to - from, 1], x[from * row..to * row].to_vec())
    };
    let mut parts: Vec<In> = inputs[..5].iter().map(cut).collect();
    parts.push(In::F32([z.s, z.s, z.n_v, 1], state.to_vec()));
    parts
}

#[test]
fn single_tokens_give_the_bits_of_one_call() {
    let mut rng = Rng::new(62);
    for (s, n_tokens) in [(32, 9), (64, 4), (128, 5)] {
        for threads in [1, 2] {
            let z = Sizes { s, n_k: 2, n_v: 4, n_tokens, n_seqs: 1 };
            let inputs = operands(&mut rng, z);
            let whole = computed(&inputs, n_tokens, threads);
            let plain = computed(&inputs, 1, threads);
            let (outputs, state) = (z.outputs(), z.state());
            assert_same_bits(&whole[..outputs + state], &plain, "with and without older snapshots");
            let (mut m, row) = (inputs[5].f32(), s * z.n_v);
            for t in 0..n_tokens {
                let one = computed(&part(z, &inputs, t, t + 1, &m), 1, threads);
                assert_same_bits(&one[..row], &whole[t * row..][..row], &format!("output {t} of {n_tokens}"));
                m = one[row..].to_vec();
                let slot = n_tokens - 1 - t;
                assert_same_bits(&m, &whole[outputs + slot * state..][..state], &format!("snapshot {slot}"));
            }
            // Two pieces of several tokens.
            let first = computed(&part(z, &inputs, 0, 3, &inputs[5].f32()), 1, threads);
            let rest = computed(&part(z, &inputs, 3, n_tokens, &first[3 * row..]), 1, threads);
            assert_same_bits(&rest[(n_tokens - 3) * row..], &plain[outputs..], "the state after two pieces");
        }
    }
}

#[test]
fn a_sequence_has_the_same_bits_in_any_company() {
    let mut rng = Rng::new(63);
    let z = Sizes { s: 64, n_k: 2, n_v: 4, n_tokens: 5, n_seqs: 3 };
    let inputs = operands(&mut rng, z);
    let one = Sizes { n_seqs: 1, ..z };
    for threads in [1, 2] {
        let all = computed(&inputs, 2, threads);
        for seq in 0..z.n_seqs {
            let cut = |x: &In| {
                let In::F32(ne, x) = x else { unreachable!("as made by `operands`") };
                let n = x.len() / z.n_seqs;
                In::F32([ne[0], ne[1], ne[2], 1], x[seq * n..][..n].to_vec())
            };
            let alone = computed(&inputs.each_ref().map(cut), 2, threads);
            let (out, state) = (one.outputs(), one.state());
            assert_same_bits(&all[seq * out..][..out], &alone[..out], "outputs");
            for slot in 0..2 {
                let in_all = z.outputs() + slot * z.state() + seq * state;
                assert_same_bits(&all[in_all..][..state], &alone[out + slot * state..][..state], "snapshots");
            }
        }
    }
}

/// State rows `[s * s * n_v, n_slots * n_planes]`, as the memory keeps them.
fn rows(z: Sizes, n_slots: usize, n_planes: usize) -> (StateBuffer, StateId) {
    let ne = [(z.s * z.s * z.n_v) as i64, (n_slots * n_planes) as i64, 1, 1];
    let spec = StateSpec { name: "delta".into(), dtype: Dtype::F32, ne, device: Device::cpu().unwrap() };
    let (state, ids) = StateBuffer::new(&[spec]).unwrap();
    (state, ids[0])
}

fn read(state: &StateBuffer, id: StateId, row: usize, n: usize) -> Vec<f32> {
    let mut bytes = vec![0; n * 4];
    state.read(id, row * n * 4, &mut bytes).unwrap();
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Where the sequences of a state lie before, and where their snapshots are to lie.
#[derive(Clone, Copy)]
struct Places {
    n_slots: usize,
    n_planes: usize,
    first_slot: usize,
    read_plane: usize,
    write_plane: usize,
    n_snapshots: usize,
}

impl Places {
    /// The sequence and the snapshot, newest first, that a row of the state holds afterwards.
    fn written(self, z: Sizes, row: usize) -> Option<(usize, usize)> {
        let (plane, slot) = (row / self.n_slots, row % self.n_slots);
        let (seq, back) = (slot.checked_sub(self.first_slot)?, plane.checked_sub(self.write_plane)?);
        (seq < z.n_seqs && back < self.n_snapshots).then_some((seq, back))
    }
}

/// Runs `rule` over a state in place; gives its output, and the rows of the state before and afterwards. It gets the
/// operands and the window for the snapshots. `named`: where the sequences stand is an input.
fn in_place(
    z: Sizes,
    inputs: &[In; 6],
    places: Places,
    (threads, named): (usize, bool),
    rule: impl for<'g> Fn(&Graph<'g>, &DeltaRule<'g>, Tensor<'g>) -> Tensor<'g>,
) -> (Vec<f32>, [Vec<Vec<f32>>; 2]) {
    let Places { n_slots, n_planes, first_slot, read_plane, write_plane, n_snapshots } = places;
    let (mut state, id) = rows(z, n_slots, n_planes);
    let row = z.s * z.s * z.n_v;
    let bytes = |x: &[f32]| -> Vec<u8> { x.iter().flat_map(|v| v.to_le_bytes()).collect() };
    state.write(id, 0, &bytes(&Rng::new(67).list(row * n_slots * n_planes))).unwrap();
    state.write(id, (read_plane * n_slots + first_slot) * row * 4, &bytes(&inputs[5].f32())).unwrap();
    let all_rows = |state: &StateBuffer| (0..n_slots * n_planes).map(|r| read(state, id, r, row)).collect();
    let before = all_rows(&state);
    let build = |g: &Graph<'_>| {
        let [q, k, v, decay, beta] = [0, 1, 2, 3, 4].map(|i| {
            let In::F32(ne, _) = &inputs[i] else { unreachable!("as made by `operands`") };
            g.input(Name("in", i as u32), Dtype::F32, ne.map(|n| n as i64))
        });
        let all = g.state(&state, id);
        let nb = all.nb()[1];
        let planes = |plane: usize, n: usize| {
            let ne = [row as i64, z.n_seqs as i64, n as i64, 1];
            g.view(all, ne, [nb, n_slots * nb, n_slots * nb], (plane * n_slots + first_slot) * nb)
        };
        let d = z.s as i64;
        let states = |t, n: usize| g.reshape(t, [d, d, z.n_v as i64, n as i64]);
        let state = if named {
            PastState::Among(states(all, n_slots * n_planes), g.input("which", Dtype::I32, [z.n_seqs as i64, 1, 1, 1]))
        } else {
            PastState::Own(states(planes(read_plane, 1), z.n_seqs))
        };
        let x = DeltaRule { q, k, v, g: decay, beta, state };
        g.output("out", rule(g, &x, planes(write_plane, n_snapshots)));
    };
    let _alone = alone();
    let mut executor: Executor<u32> = Executor::new(no_weights(), threads).unwrap();
    let values: Vec<_> = inputs[..5].iter().map(In::f32).collect();
    let mut data: Vec<_> = (0..5).map(|i| (Name("in", i as u32), Data::F32(&values[i]))).collect();
    let first = (read_plane * n_slots + first_slot) as i32;
    let which: Vec<i32> = (first..).take(z.n_seqs).collect();
    data.extend(named.then_some((Name("which", 0), Data::I32(&which))));
    let mut out = Vec::new();
    executor.run(&0, 64, build, &data).unwrap().f32("out", &mut out).unwrap();
    (out, [before, all_rows(&state)])
}

#[test]
fn a_state_used_in_place_gives_the_bits_of_a_gathered_one() {
    let mut rng = Rng::new(64);
    for threads in [1, 2] {
        // In place: planes 0.. are read and written by one graph, as when a sequence stays on its plane.
        for (read_plane, write_plane, n_snapshots) in [(0, 0, 1), (0, 0, 4), (2, 1, 3)] {
            let z = Sizes { s: 32, n_k: 2, n_v: 4, n_tokens: 4, n_seqs: 2 };
            let inputs = operands(&mut rng, z);
            let want = computed(&inputs, n_snapshots, threads);
            let places = Places { n_slots: 4, n_planes: 4, first_slot: 1, read_plane, write_plane, n_snapshots };
            let row = z.s * z.s * z.n_v;
            for named in [false, true] {
                let (got, [before, now]) = in_place(z, &inputs, places, (threads, named), |g, x, into| {
                    let out = g.gated_delta_net(x, n_snapshots as i64);
                    let size = row * 4;
                    let strides = [size, size * z.n_seqs, size * z.n_seqs * n_snapshots];
                    g.keep(g.cpy(g.view(out, into.ne(), strides, z.outputs() * 4), into));
                    out
                });
                assert_same_bits(&got, &want, "results");
                for (r, (old, now)) in before.iter().zip(&now).enumerate() {
                    let Some((seq, back)) = places.written(z, r) else {
                        assert_same_bits(now, old, &format!("row {r}, which is another's"));
                        continue;
                    };
                    let at = z.outputs() + (back * z.n_seqs + seq) * row;
                    assert_same_bits(now, &want[at..][..row], &format!("row {r}"));
                }
            }
        }
    }
}

/// As [`in_place`] with [`Graph::delta_rule`], from `read_plane` to `write_plane` and on.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn ruled(
    z: Sizes,
    inputs: &[In; 6],
    (read_plane, write_plane, n_snapshots): (usize, usize, usize),
    (threads, named): (usize, bool),
) -> (Vec<f32>, Places, [Vec<Vec<f32>>; 2]) {
    let (n_slots, n_planes) = (z.n_seqs + 1, write_plane + n_snapshots + 1);
    let places = Places { n_slots, n_planes, first_slot: 1, read_plane, write_plane, n_snapshots };
    let (out, rows) = in_place(z, inputs, places, (threads, named), |g, x, into| {
        g.delta_rule(x, Snapshots::Window(into)).expect("a kernel for these operands")
    });
    (out, places, rows)
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn the_kernel_is_the_recurrence_and_writes_snapshots_where_they_belong() {
    let mut rng = Rng::new(65);
    for (s, n_k, n_v, n_tokens, n_seqs) in
        [(16, 1, 3, 4, 1), (32, 2, 4, 3, 2), (64, 2, 2, 9, 1), (128, 2, 6, 5, 3), (128, 1, 2, 300, 1)]
    {
        let z = Sizes { s, n_k, n_v, n_tokens, n_seqs };
        let inputs = operands(&mut rng, z);
        let (want, states) = recurrence(z, &inputs);
        let all = [(0, 0, 1), (0, 0, 3), (2, 1, 3), (0, 1, 2)];
        for (planes, named) in all.into_iter().flat_map(|planes| [(planes, false), (planes, true)]) {
            let (out, places, [before, now]) = ruled(z, &inputs, planes, (2, named));
            assert_close(&out, &want, 1e-5);
            let n = s * s * n_v;
            for (r, (old, now)) in before.iter().zip(&now).enumerate() {
                match places.written(z, r) {
                    Some((seq, back)) => assert_close(now, &states[n_tokens - 1 - back][seq * n..][..n], 1e-5),
                    None => assert_same_bits(now, old, &format!("row {r}, which is another's")),
                }
            }
        }
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn the_kernel_gives_a_token_its_bits_alone_and_in_company() {
    let mut rng = Rng::new(66);
    let z = Sizes { s: 128, n_k: 2, n_v: 4, n_tokens: 6, n_seqs: 1 };
    let inputs = operands(&mut rng, z);
    let (out, _, [_, rows]) = ruled(z, &inputs, (0, 1, 6), (2, false));
    assert_same_bits(&ruled(z, &inputs, (0, 1, 6), (1, false)).0, &out, "one thread");
    let mut state = inputs[5].f32();
    for t in 0..z.n_tokens {
        let one = Sizes { n_tokens: 1, ..z };
        let inputs: [In; 6] = part(z, &inputs, t, t + 1, &state).try_into().unwrap_or_else(|_| panic!("six"));
        let (alone, _, [_, planes]) = ruled(one, &inputs, (0, 1, 1), (2, true));
        assert_same_bits(&alone, &out[t * alone.len()..][..alone.len()], "an output");
        state = planes[3].clone();
        // Plane 1 has the newest; slot 1 of two.
        assert_same_bits(&state, &rows[(z.n_tokens - t) * 2 + 1], "a snapshot");
    }
}

/// A step of [`Graph::delta_rule_logged`] over state rows of two slots on three planes, of which the last has the logs. What each
/// sequence begins with: the entry of its first logged token and how many there are.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn logged(
    z: Sizes,
    inputs: &[In],
    (state, id): (&StateBuffer, StateId),
    (entries, step, capacity): ([[usize; 2]; 2], LoggedStep, usize),
) -> Vec<f32> {
    let build = |g: &Graph<'_>| {
        let [q, k, v, decay, beta] = [0, 1, 2, 3, 4].map(|i| {
            let In::F32(ne, _) = &inputs[i] else { unreachable!("as made by `operands`") };
            g.input(Name("in", i as u32), Dtype::F32, ne.map(|n| n as i64))
        });
        let d = z.s as i64;
        let all = g.reshape(g.state(state, id), [d, d, z.n_v as i64, 6]);
        let [read, places, steps] =
            [1, 2, 3].map(|n| g.input(Name("numbers", n), Dtype::I32, [2 * i64::from(n), 1, 1, 1]));
        let x = DeltaRule { q, k, v, g: decay, beta, state: PastState::Among(all, read) };
        g.output("out", g.delta_rule_logged(&x, Logs { places, steps, capacity }));
    };
    let _alone = alone();
    let mut executor: Executor<u32> = Executor::new(no_weights(), 2).unwrap();
    let values: Vec<_> = inputs[..5].iter().map(In::f32).collect();
    let mut data: Vec<_> = (0..5).map(|i| (Name("in", i as u32), Data::F32(&values[i]))).collect();
    let steps: Vec<i32> = entries.iter().flat_map(|[first, n]| [*first as i32, *n as i32, step.number()]).collect();
    let numbers: [&[i32]; 3] = [&[0, 1], &[0, 4, 1, 5], &steps];
    data.extend((1..4).zip(numbers).map(|(n, numbers)| (Name("numbers", n), Data::I32(numbers))));
    let mut out = Vec::new();
    executor.run(&0, 64, build, &data).unwrap().f32("out", &mut out).unwrap();
    out
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[test]
fn logged_tokens_go_into_the_bits_of_later_steps() {
    let mut rng = Rng::new(68);
    let (z, capacity) = (Sizes { s: 64, n_k: 2, n_v: 4, n_tokens: 3, n_seqs: 2 }, 7);
    let (mut state, id) = rows(z, 2, 3);
    let inputs = operands(&mut rng, z);
    let bytes: Vec<u8> = inputs[5].f32().iter().flat_map(|v| v.to_le_bytes()).collect();
    state.write(id, 0, &bytes).unwrap();
    // The reference keeps the states after two tokens of the first sequence and one of the second.
    let (out, _, [_, planes]) = ruled(z, &inputs, (0, 1, 3), (2, true));
    assert_same_bits(&logged(z, &inputs, (&state, id), ([[5, 0], [0, 0]], LoggedStep::Log, capacity)), &out, "a step");
    let n = z.s * z.s * z.n_v;
    assert_same_bits(&read(&state, id, 0, n), &inputs[5].f32()[..n], "nothing but the log is written");
    // Three slots: the newest states of planes 1 to 3, back from the last token.
    let kept: Vec<f32> = [&planes[2 * 3 + 1][..], &planes[3 * 3 + 2][..]].concat();
    let next = operands(&mut rng, z);
    let mut of_next: Vec<In> = next.to_vec();
    of_next[5] = In::F32([z.s, z.s, z.n_v, 2], kept.clone());
    let of_next: [In; 6] = of_next.try_into().unwrap_or_else(|_| panic!("six"));
    let (out, _, [_, planes]) = ruled(z, &of_next, (0, 1, 1), (2, true));
    let entries = [[5, 2], [0, 1]];
    let found = logged(z, &next, (&state, id), (entries, LoggedStep::WriteAndLog, capacity));
    assert_same_bits(&found, &out, "a step after logged tokens");
    assert_same_bits(&[read(&state, id, 0, n), read(&state, id, 1, n)].concat(), &kept, "what was logged is written");
    let entries = [[0, 3], [1, 3]];
    let mut whole = [read(&state, id, 0, n), read(&state, id, 1, n)];
    for ((whole, row), [first, n_logged]) in whole.iter_mut().zip([4, 5]).zip(entries) {
        let (logs, n_head) = (read(&state, id, row, n), z.s * z.s);
        let n_log = capacity * ggml::log_entry_bytes(z.s) / 4;
        for (head, log) in whole.chunks_mut(n_head).zip(logs.chunks(n_head)) {
            ggml::replay(z.s, head, &log[..n_log], (first, n_logged));
        }
    }
    assert_same_bits(&whole.concat(), &[&planes[3 + 1][..], &planes[3 + 2][..]].concat(), "states by replay");
    // The whole state is written, and the log is what it was.
    let last = operands(&mut rng, z);
    let log = read(&state, id, 4, n);
    logged(z, &last, (&state, id), (entries, LoggedStep::Write, capacity));
    let mut of_last: Vec<In> = last.to_vec();
    of_last[5] = In::F32([z.s, z.s, z.n_v, 2], whole.concat());
    let of_last: [In; 6] = of_last.try_into().unwrap_or_else(|_| panic!("six"));
    let (_, _, [_, planes]) = ruled(z, &of_last, (0, 1, 1), (2, true));
    let written = [read(&state, id, 0, n), read(&state, id, 1, n)].concat();
    assert_same_bits(&written, &[&planes[3 + 1][..], &planes[3 + 2][..]].concat(), "the state after all tokens");
    assert_same_bits(&read(&state, id, 4, n), &log, "a log");
}
