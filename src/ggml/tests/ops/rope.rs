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
