//! Rotary positions and the short convolution against their formulas in F64.

use crate::support::{In, Rng, assert_close, run};
use ggml::Rope;

/// YaRN's formulas (Peng et al. 2023, sections 3.1 to 3.4): the angle of pair `i` and the factor on the values.
fn angle(rope: &Rope, i: usize, position: f64, factor: f64) -> (f64, f64) {
    let (n, base) = (f64::from(rope.n_dims), f64::from(rope.base));
    let plain = position * base.powf(-2.0 * i as f64 / n) / factor;
    let scale = f64::from(rope.scale);
    let mut result = (plain * scale, f64::from(rope.attn_factor));
    if rope.ext_factor != 0.0 {
        // The pair that makes `turns` turns within the original context.
        let pair = |turns: f64| {
            n * (f64::from(rope.n_ctx_orig) / (turns * 2.0 * std::f64::consts::PI)).ln() / (2.0 * base.ln())
        };
        let low = pair(f64::from(rope.beta_fast)).floor().max(0.0);
        let high = pair(f64::from(rope.beta_slow)).ceil().min(n - 1.0);
        let ramp = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
        let mix = ramp * f64::from(rope.ext_factor);
        result.0 = plain * scale * (1.0 - mix) + plain * mix;
        result.1 *= 1.0 + 0.1 * (1.0 / scale).ln();
    }
    result
}

fn rotated(x: &[f32], ne: [usize; 4], positions: &[i32], factors: Option<&[f32]>, rope: &Rope) -> Vec<f64> {
    let mut y: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    let half = rope.n_dims as usize / 2;
    for (row, head) in y.chunks_mut(ne[0]).enumerate() {
        let position = f64::from(positions[row / ne[1] % ne[2]]);
        for i in 0..half {
            let (theta, size) = angle(rope, i, position, factors.map_or(1.0, |f| f64::from(f[i])));
            let (a, b) = if rope.neox { (i, i + half) } else { (2 * i, 2 * i + 1) };
            let (p, q) = (head[a], head[b]);
            head[a] = size * (p * theta.cos() - q * theta.sin());
            head[b] = size * (p * theta.sin() + q * theta.cos());
        }
    }
    y
}

#[test]
fn pairs_turn_by_their_positions() {
    let mut rng = Rng::new(30);
    let ne = [32, 3, 5, 1];
    let positions = vec![0, 1, 2, 77, 1000];
    let plain = Rope::neox(32, 1e4);
    let yarn = Rope { ext_factor: 1.0, scale: 0.25, n_ctx_orig: 512, ..plain };
    let ropes = [
        plain,
        Rope { neox: false, ..plain },
        Rope { n_dims: 8, ..plain },
        Rope { n_dims: 8, neox: false, base: 1e6, ..plain },
        Rope { scale: 0.5, attn_factor: 1.25, ..plain },
        yarn,
        Rope { neox: false, n_dims: 16, ext_factor: 0.5, attn_factor: 0.9, ..yarn },
    ];
    for rope in ropes {
        let x = rng.tensor(ne);
        let at = In::I32([5, 1, 1, 1], positions.clone());
        // F32 angles: position 1000 has a last place of 6e-5, and the base's powers are multiplied up step by step.
        let want = rotated(&x.f32(), ne, &positions, None, &rope);
        let got = run(&[x.clone(), at.clone()], |g, t| g.rope(t[0], t[1], None, &rope));
        assert_close(&got, &want, 5e-4);
        let untouched = |v: &[f32]| v.chunks(32).flat_map(|h| h[rope.n_dims as usize..].to_vec()).collect::<Vec<_>>();
        assert_eq!(untouched(&got), untouched(&x.f32()), "elements past {} pass through", rope.n_dims);
        let factors: Vec<f32> = (0..16).map(|_| 1.5 + rng.f32()).collect();
        let want = rotated(&x.f32(), ne, &positions, Some(&factors), &rope);
        let inputs = [x, at, In::F32([16, 1, 1, 1], factors)];
        assert_close(&run(&inputs, |g, t| g.rope(t[0], t[1], Some(t[2]), &rope)), &want, 5e-4);
    }
}

/// NeoX pairs, each turned by one of four positions of its token: `which` tells a pair's.
fn rotated_by(x: &[f32], ne: [usize; 4], positions: &[i32], rope: &Rope, which: &dyn Fn(usize) -> usize) -> Vec<f64> {
    let mut y: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    let half = rope.n_dims as usize / 2;
    for (row, head) in y.chunks_mut(ne[0]).enumerate() {
        for i in 0..half {
            let position = f64::from(positions[which(i) * ne[2] + row / ne[1] % ne[2]]);
            let (theta, _) = angle(rope, i, position, 1.0);
            let (p, q) = (head[i], head[i + half]);
            head[i] = p * theta.cos() - q * theta.sin();
            head[i + half] = p * theta.sin() + q * theta.cos();
        }
    }
    y
}

/// Four positions of each of five tokens: all different.
fn four_positions() -> Vec<i32> {
    vec![0, 1, 2, 77, 300, 5, 6, 9, 80, 12, 7, 3, 31, 200, 4, 90, 15, 8, 40, 1]
}

#[test]
fn pairs_turn_by_the_position_of_their_section() {
    let mut rng = Rng::new(33);
    let at = In::I32([20, 1, 1, 1], four_positions());
    for (n_dims, sections) in [(64, [11, 11, 10, 0]), (16, [3, 3, 2, 0]), (64, [8, 8, 8, 8]), (24, [12, 0, 0, 0])] {
        let (ne, rope) = ([64, 3, 5, 1], Rope::neox(n_dims, 1e4));
        let which = |i: usize| match i % 3 {
            1 if i < 3 * sections[1] as usize => 1,
            2 if i < 3 * sections[2] as usize => 2,
            0 if i < 3 * sections[0] as usize => 0,
            _ => 3,
        };
        let x = rng.tensor(ne);
        let want = rotated_by(&x.f32(), ne, &four_positions(), &rope, &which);
        let got = run(&[x.clone(), at.clone()], |g, t| g.rope_sections(t[0], t[1], None, &rope, sections));
        assert_close(&got, &want, 5e-4);
        // With four times the same position it is the plain rotation.
        let same = In::I32([20, 1, 1, 1], [0, 1, 2, 77, 300].repeat(4));
        let plain = In::I32([5, 1, 1, 1], vec![0, 1, 2, 77, 300]);
        let by_sections = run(&[x.clone(), same], |g, t| g.rope_sections(t[0], t[1], None, &rope, sections));
        let plain = run(&[x, plain], |g, t| g.rope(t[0], t[1], None, &rope));
        assert_eq!(by_sections, plain, "{sections:?}");
    }
}

#[test]
fn towers_turn_one_half_of_the_pairs_by_rows_and_the_other_by_columns() {
    let mut rng = Rng::new(34);
    for d in [24usize, 72, 64] {
        let ne = [d, 3, 5, 1];
        let x = rng.tensor(ne);
        let positions = four_positions();
        let mut want: Vec<f64> = x.f32().iter().map(|&v| f64::from(v)).collect();
        for (row, head) in want.chunks_mut(d).enumerate() {
            for j in 0..d / 2 {
                let i = j % (d / 4);
                let position = f64::from(positions[j / (d / 4) * 5 + row / 3 % 5]);
                let (sin, cos) = (position * 1e4f64.powf(-4.0 * i as f64 / d as f64)).sin_cos();
                let (p, q) = (head[j], head[j + d / 2]);
                head[j] = p * cos - q * sin;
                head[j + d / 2] = p * sin + q * cos;
            }
        }
        let at = In::I32([20, 1, 1, 1], positions);
        let got = run(&[x, at], |g, t| g.rope_in_two(t[0], t[1], 1e4));
        assert_close(&got, &want, 5e-4);
    }
}

#[test]
fn heads_may_lie_apart() {
    let mut rng = Rng::new(31);
    // Queries beside gates, as in one projection: every other head of a wider row.
    let (ne, rope) = ([16, 4, 3, 1], Rope::neox(16, 1e4));
    let x = rng.tensor([32, 4, 3, 1]);
    let picked: Vec<f32> = x.f32().chunks(32).flat_map(|pair| pair[..16].to_vec()).collect();
    let want = rotated(&picked, ne, &[7, 8, 9], None, &rope);
    let got = run(&[x, In::I32([3, 1, 1, 1], vec![7, 8, 9])], |g, t| {
        let nb = t[0].nb();
        g.rope(g.view(t[0], [16, 4, 3, 1], [nb[1], nb[2], nb[3]], 0), t[1], None, &rope)
    });
    assert_close(&got, &want, 1e-5);
}

#[test]
fn the_convolution_looks_back() {
    let mut rng = Rng::new(32);
    for (taps, n_tokens, n_channels, n_seqs) in [(4, 1, 24, 1), (4, 9, 24, 3), (3, 5, 7, 2), (2, 300, 16, 1)] {
        let n = taps - 1 + n_tokens;
        let (x, w) = (rng.tensor([n, n_channels, n_seqs, 1]), rng.tensor([taps, n_channels, 1, 1]));
        let (xs, ws) = (x.f32(), w.f32());
        let mut want = vec![];
        for seq in 0..n_seqs {
            for t in 0..n_tokens {
                for c in 0..n_channels {
                    let at = (seq * n_channels + c) * n + t;
                    want.push((0..taps).map(|j| f64::from(xs[at + j]) * f64::from(ws[c * taps + j])).sum());
                }
            }
        }
        assert_close(&run(&[x, w], |g, t| g.ssm_conv(t[0], t[1])), &want, 1e-6);
    }
}
