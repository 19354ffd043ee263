//! Views, copies and look-ups against plain Rust: nothing is computed, so values are exact unless a type rounds them.

use crate::support::{In, Rng, alone, executor, from_f16, matrix, run, run_over, to_f16, weights};
use ggml::{Data, Device, Dtype, Graph, Name, StateBuffer, StateSpec};

fn index(at: [usize; 4], ne: [usize; 4]) -> usize {
    (0..4).rev().fold(0, |sum, d| sum * ne[d] + at[d])
}

fn positions(ne: [usize; 4]) -> impl Iterator<Item = [usize; 4]> {
    (0..ne.iter().product())
        .map(move |i: usize| [i % ne[0], i / ne[0] % ne[1], i / (ne[0] * ne[1]) % ne[2], i / (ne[0] * ne[1] * ne[2])])
}

#[test]
fn halves_round_as_ggml_rounds_them() {
    let mut rng = Rng::new(10);
    let mut values = rng.list(4000);
    values.iter_mut().enumerate().for_each(|(i, v)| *v *= 2f32.powi(i as i32 % 48 - 30));
    let got = run(&[In::F32([4000, 1, 1, 1], values.clone())], |g, t| g.cast(t[0], Dtype::F16));
    let want: Vec<f32> = values.iter().map(|&v| from_f16(to_f16(v))).collect();
    assert_eq!(got, want);
}

#[test]
fn permuted_transposed_and_copied_elements_keep_their_values() {
    let mut rng = Rng::new(11);
    let ne = [5, 4, 3, 2];
    let a = rng.tensor(ne);
    let x = a.f32();
    for axes in [[0, 2, 1, 3], [1, 0, 2, 3], [2, 0, 1, 3], [3, 2, 1, 0], [0, 1, 3, 2], [1, 2, 3, 0]] {
        let mut turned = [0; 4];
        (0..4).for_each(|d| turned[axes[d]] = ne[d]);
        let source = |at: [usize; 4]| x[index([at[axes[0]], at[axes[1]], at[axes[2]], at[axes[3]]], ne)];
        let want: Vec<f32> = positions(turned).map(source).collect();
        let got = run(std::slice::from_ref(&a), |g, t| g.cont(g.permute(t[0], axes.map(|d| d as i32))));
        assert_eq!(got, want, "axes {axes:?}");
        // Through F16 and back, in the permuted layout.
        let got = run(std::slice::from_ref(&a), |g, t| g.cast(g.permute(t[0], axes.map(|d| d as i32)), Dtype::F16));
        let want: Vec<f32> = want.iter().map(|&v| from_f16(to_f16(v))).collect();
        assert_eq!(got, want, "axes {axes:?} in halves");
    }
    let want: Vec<f32> = positions([4, 5, 3, 2]).map(|[i, j, k, l]| x[index([j, i, k, l], ne)]).collect();
    assert_eq!(run(&[a], |g, t| g.transpose(t[0])), want);
}

#[test]
fn a_view_is_a_window() {
    let mut rng = Rng::new(12);
    let ne = [8, 6, 4, 1];
    let a = rng.tensor(ne);
    let x = a.f32();
    let window = [3, 2, 2, 1];
    let want: Vec<f32> = positions(window).map(|[i, j, k, l]| x[index([i + 4, j * 2 + 1, k + 1, l], ne)]).collect();
    let got = run(std::slice::from_ref(&a), |g, t| {
        let nb = t[0].nb();
        g.view(t[0], [3, 2, 2, 1], [2 * nb[1], nb[2], nb[3]], 4 * nb[0] + nb[1] + nb[2])
    });
    assert_eq!(got, want);
    // The last element is inside; one further is not (see `ops_errors.rs`). A window of a window adds the offsets.
    let got = run(&[a], |g, t| {
        let nb = t[0].nb();
        let rows = g.view(t[0], [8, 6, 1, 1], [nb[1], nb[2], nb[2]], 3 * nb[2]);
        g.view(rows, [1, 1, 1, 1], [4, 4, 4], 5 * nb[1] + 7 * nb[0])
    });
    assert_eq!(got, x[x.len() - 1..]);
}

#[test]
fn tensors_are_joined_and_repeated() {
    let mut rng = Rng::new(13);
    for dim in 0..4 {
        let na = [4, 3, 2, 2];
        let mut nb = na;
        nb[dim] = 5;
        let (a, b) = (rng.tensor(na), rng.tensor(nb));
        let (x, y) = (a.f32(), b.f32());
        let mut ne = na;
        ne[dim] += 5;
        let source = |mut at: [usize; 4]| {
            if at[dim] < na[dim] {
                return x[index(at, na)];
            }
            at[dim] -= na[dim];
            y[index(at, nb)]
        };
        let want: Vec<f32> = positions(ne).map(source).collect();
        assert_eq!(run(&[a.clone(), b.clone()], |g, t| g.concat(t[0], t[1], dim)), want, "dimension {dim}");
        let turned = run(&[a, b], |g, t| g.concat(t[0], g.transpose(g.cont(g.transpose(t[1]))), dim));
        assert_eq!(turned, want, "dimension {dim}, transposed");
    }
    let (a, like) = (rng.tensor([2, 1, 3, 1]), rng.tensor([6, 4, 3, 2]));
    let x = a.f32();
    let want: Vec<f32> = positions([6, 4, 3, 2]).map(|[i, _, k, _]| x[index([i % 2, 0, k, 0], [2, 1, 3, 1])]).collect();
    assert_eq!(run(&[a, like], |g, t| g.repeat(t[0], t[1])), want);
}

#[test]
fn rows_are_looked_up_in_every_type() {
    let mut rng = Rng::new(14);
    let ids = In::I32([5, 1, 1, 1], vec![6, 0, 3, 3, 1]);
    let (n, n_rows) = (256, 7);
    let types = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::Q8_0, Dtype::Q4_0, Dtype::Q4_K, Dtype::Q6_K];
    for dtype in types {
        let (bytes, values) = matrix(&mut rng, dtype, n, n_rows);
        let (weights, w) = weights(&[(dtype, [n as i64, n_rows as i64, 1, 1], bytes)]);
        let got = run_over(&weights, 1, std::slice::from_ref(&ids), |g, t| g.get_rows(g.weight(w[0]), t[0]));
        let want: Vec<f32> = [6, 0, 3, 3, 1].iter().flat_map(|&i| values[i * n..][..n].to_vec()).collect();
        assert_eq!(got, want, "{dtype}");
    }
    // Integers stay integers: a table from one vocabulary to another.
    let table = In::I32([1, 4, 1, 1], vec![40, 30, 20, 10]);
    let got = run(&[table, In::I32([2, 1, 1, 1], vec![3, 1])], |g, t| {
        let rows = g.get_rows(t[0], t[1]);
        assert_eq!(rows.dtype(), Dtype::I32);
        rows
    });
    assert_eq!(got, [10.0, 30.0]);
}

#[test]
fn rows_are_written_where_their_ids_say() {
    let _alone = alone();
    let mut rng = Rng::new(15);
    let (n, n_rows) = (64usize, 6usize);
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::Q8_0] {
        let mut executor = executor();
        let spec =
            StateSpec { name: "s".into(), dtype, ne: [n as i64, n_rows as i64, 1, 1], device: Device::cpu().unwrap() };
        let (state, ids) = StateBuffer::new(&[spec]).unwrap();
        let rows = rng.list(n * 2);
        let build = |g: &Graph<'_>| {
            let s = g.state(&state, ids[0]);
            let from = g.input("rows", Dtype::F32, [n as i64, 2, 1, 1]);
            let at = g.input("at", Dtype::I64, [2, 1, 1, 1]);
            let all = g.input("all", Dtype::I32, [n_rows as i64, 1, 1, 1]);
            g.keep(g.set_rows(s, from, at));
            // Reads after the write: order of `keep` is order of the graph.
            g.output("y", g.get_rows(s, all));
        };
        let (name, all) = (|word| Name(word, 0), [0, 1, 2, 3, 4, 5]);
        let inputs =
            [(name("rows"), Data::F32(&rows)), (name("at"), Data::I64(&[4, 1])), (name("all"), Data::I32(&all))];
        let mut y = Vec::new();
        executor.run(&0, 32, build, &inputs).unwrap().f32("y", &mut y).unwrap();
        for (i, row) in y.chunks(n).enumerate() {
            let source = match i {
                4 => rows[..n].to_vec(),
                1 => rows[n..].to_vec(),
                _ => vec![0.0; n],
            };
            // Half a step of each type, of values up to 1.
            let step = [(Dtype::F32, 0.0), (Dtype::F16, 2.5e-4), (Dtype::BF16, 2e-3), (Dtype::Q8_0, 4.2e-3)];
            let step = step.iter().find(|(d, _)| *d == dtype).unwrap().1;
            for (got, want) in row.iter().zip(source) {
                assert!((got - want).abs() <= step, "{dtype} row {i}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn copies_convert_between_types() {
    let mut rng = Rng::new(16);
    let a = rng.tensor([64, 3, 2, 1]);
    let x = a.f32();
    let halves: Vec<f32> = x.iter().map(|&v| from_f16(to_f16(v))).collect();
    let cut: Vec<f32> = x.iter().map(|&v| v.trunc()).collect();
    for (dtype, step) in [(Dtype::BF16, 2e-3), (Dtype::Q8_0, 4.2e-3), (Dtype::Q4_0, 0.13)] {
        let got = run(std::slice::from_ref(&a), |g, t| g.cast(t[0], dtype));
        for (got, want) in got.iter().zip(&x) {
            assert!((got - want).abs() <= step, "{dtype}: {got}, not {want}"); // half a step of values up to 1
        }
    }
    assert_eq!(run(std::slice::from_ref(&a), |g, t| g.cast(t[0], Dtype::F16)), halves);
    assert_eq!(run(std::slice::from_ref(&a), |g, t| g.cast(t[0], Dtype::I32)), cut);
    // Over a tensor of another shape, in memory order, from a layout that is not: only the number of elements counts.
    let want: Vec<f32> = positions([3, 64, 2, 1]).map(|[i, j, k, _]| x[index([j, i, k, 0], [64, 3, 2, 1])]).collect();
    let got = run(&[a, In::F32([96, 4, 1, 1], vec![0.0; 384])], |g, t| {
        g.keep(g.cpy(g.transpose(t[0]), t[1]));
        t[1]
    });
    assert_eq!(got, want);
}
