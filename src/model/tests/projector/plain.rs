//! All kinds of tower in f64, written out as their published references read: nothing fused, nothing reordered but patches.

use std::f64::consts::PI;

use vision::Patches;

use crate::support::projector::{N_EMBD, N_HEAD, N_LAYER, N_PLACES, PATCH, SIDE, SQUARE, Tensor, TinyProjector};

/// Rows of numbers.
type Rows = Vec<Vec<f64>>;

pub fn rows(tiny: &TinyProjector, patches: &Patches) -> Vec<f64> {
    let of = Plain { tiny, places: patches.places().collect(), grid: patches.grid };
    let n_pixels = (3 * PATCH * PATCH) as usize;
    let frame = |pixels: &[f32]| pixels.chunks(n_pixels).map(|p| p.iter().map(|&x| f64::from(x)).collect()).collect();
    let pixels: Rows = frame(&patches.pixels);
    let rows = match tiny.kind {
        "gemma4v" => of.gemma(pixels),
        "gemma3" => of.gemma3(pixels),
        _ => {
            // A picture is two frames that are the same.
            let later = if patches.later.is_empty() { pixels.clone() } else { frame(&patches.later) };
            of.qwen([pixels, later])
        }
    };
    rows.concat()
}

struct Plain<'t> {
    tiny: &'t TinyProjector,
    places: Vec<(usize, usize)>,
    grid: [usize; 3],
}

impl Plain<'_> {
    fn tensor(&self, name: &str) -> &Tensor {
        &self.tiny.tensors[name]
    }

    fn vector(&self, name: &str) -> Vec<f64> {
        self.tensor(name).1.iter().map(|&x| f64::from(x)).collect()
    }

    fn limit(&self, name: &str) -> Option<f64> {
        self.tiny.tensors.get(name).map(|(_, v)| f64::from(v[0]))
    }

    /// A matrix over every row, with bias and limits where there are any.
    fn linear(&self, name: &str, x: &Rows) -> Rows {
        let weight = self.vector(&format!("{name}.weight"));
        let bias =
            self.tiny.tensors.contains_key(&format!("{name}.bias")).then(|| self.vector(&format!("{name}.bias")));
        let [low, high, least, most] =
            ["input_min", "input_max", "output_min", "output_max"].map(|part| self.limit(&format!("{name}.{part}")));
        let clip = |x: f64, low: Option<f64>, high: Option<f64>| match (low, high) {
            (Some(low), Some(high)) => x.max(low).min(high),
            _ => x,
        };
        let row = |x: &Vec<f64>| {
            let x: Vec<f64> = x.iter().map(|&x| clip(x, low, high)).collect();
            let outs = weight.chunks(x.len()).map(|w| w.iter().zip(&x).map(|(w, x)| w * x).sum::<f64>());
            let outs = outs.enumerate().map(|(i, y)| y + bias.as_ref().map_or(0.0, |bias| bias[i]));
            outs.map(|y| clip(y, least, most)).collect()
        };
        x.iter().map(row).collect()
    }

    fn layer_norm(&self, name: &str, x: &Rows) -> Rows {
        let (weight, bias) = (self.vector(&format!("{name}.weight")), self.vector(&format!("{name}.bias")));
        let row = |x: &Vec<f64>| {
            let n = x.len() as f64;
            let mean = x.iter().sum::<f64>() / n;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let norm = |(i, x): (usize, &f64)| (x - mean) / (variance + 1e-6).sqrt() * weight[i] + bias[i];
            x.iter().enumerate().map(norm).collect()
        };
        x.iter().map(row).collect()
    }

    fn rms_norm(&self, name: &str, x: &Rows) -> Rows {
        let weight = self.vector(&format!("{name}.weight"));
        x.iter().map(|x| rms(x).iter().zip(&weight).map(|(x, w)| x * w).collect()).collect()
    }

    /// `q`, `k` and `v`: heads side by side in every row.
    fn attention(&self, [q, k, v]: [&Rows; 3], scale: f64) -> Rows {
        let d = (N_EMBD / N_HEAD) as usize;
        let row = |q: &Vec<f64>| {
            let mut out = Vec::new();
            for head in (0..q.len()).step_by(d) {
                let of = |x: &Vec<f64>| x[head..head + d].to_vec();
                let dot = |k: &Vec<f64>| of(q).iter().zip(of(k)).map(|(q, k)| q * k).sum::<f64>() * scale;
                let scores: Vec<f64> = k.iter().map(|k| dot(k).exp()).collect();
                let sum: f64 = scores.iter().sum();
                for i in head..head + d {
                    out.push(scores.iter().zip(v).map(|(s, v)| s / sum * v[i]).sum());
                }
            }
            out
        };
        q.iter().map(row).collect()
    }

    fn qwen(&self, frames: [Rows; 2]) -> Rows {
        let mut x: Rows = Vec::new();
        let table = self.vector("v.position_embd.weight");
        let [_, height, width] = self.grid;
        let weights = [self.vector("v.patch_embd.weight"), self.vector("v.patch_embd.weight.1")];
        let bias = self.vector("v.patch_embd.bias");
        for (patch, &(row, column)) in self.places.iter().enumerate() {
            let at = |i: usize, n: usize| i as f64 * (SIDE - 1) as f64 / (n - 1) as f64;
            let (y, x_at) = (at(row, height), at(column, width));
            let entry = |y: usize, x: usize, c: usize| {
                let [y, x] = [y, x].map(|i| i.min(SIDE as usize - 1));
                table[(y * SIDE as usize + x) * N_EMBD as usize + c]
            };
            let position = |c: usize| {
                let (y0, x0, fy, fx) = (y as usize, x_at as usize, y.fract(), x_at.fract());
                (entry(y0, x0, c) * (1.0 - fx) + entry(y0, x0 + 1, c) * fx) * (1.0 - fy)
                    + (entry(y0 + 1, x0, c) * (1.0 - fx) + entry(y0 + 1, x0 + 1, c) * fx) * fy
            };
            let embed = |c: usize| {
                let dot = |(w, frame): (&Vec<f64>, &Rows)| {
                    let pixels = &frame[patch];
                    w[c * pixels.len()..].iter().zip(pixels).map(|(w, p)| w * p).sum::<f64>()
                };
                weights.iter().zip(&frames).map(dot).sum::<f64>() + bias[c] + position(c)
            };
            x.push((0..N_EMBD as usize).map(embed).collect());
        }
        let d = (N_EMBD / N_HEAD) as usize;
        for il in 0..N_LAYER {
            let name = |part: &str| format!("v.blk.{il}.{part}");
            let qkv = self.linear(&name("attn_qkv"), &self.layer_norm(&name("ln1"), &x));
            let part = |i: usize| -> Rows {
                qkv.iter().map(|row| row[i * N_EMBD as usize..(i + 1) * N_EMBD as usize].to_vec()).collect()
            };
            let turned = |mut x: Rows| {
                for (x, &(row, column)) in x.iter_mut().zip(&self.places) {
                    for head in x.chunks_mut(d) {
                        for j in 0..d / 2 {
                            let (at, i) = if j < d / 4 { (row, j) } else { (column, j - d / 4) };
                            let angle = at as f64 * 10_000f64.powf(-2.0 * i as f64 / (d / 2) as f64);
                            turn(head, j, j + d / 2, angle);
                        }
                    }
                }
                x
            };
            let (q, k, v) = (turned(part(0)), turned(part(1)), part(2));
            let o = self.attention([&q, &k, &v], 1.0 / (d as f64).sqrt());
            x = sum(&x, &self.linear(&name("attn_out"), &o));
            let inner = self.linear(&name("ffn_up"), &self.layer_norm(&name("ln2"), &x));
            x = sum(&x, &self.linear(&name("ffn_down"), &map(&inner, gelu_tanh)));
        }
        let blocks: Rows = self.layer_norm("v.post_ln", &x).chunks(4).map(|four| four.concat()).collect();
        self.linear("mm.2", &map(&self.linear("mm.0", &blocks), gelu_erf))
    }

    fn gemma3(&self, pixels: Rows) -> Rows {
        let n = N_EMBD as usize;
        let table = self.vector("v.position_embd.weight");
        let mut x = self.linear("v.patch_embd", &pixels);
        for (x, &(row, column)) in x.iter_mut().zip(&self.places) {
            let at = (row * SQUARE as usize + column) * n;
            x.iter_mut().zip(&table[at..]).for_each(|(x, p)| *x += p);
        }
        for il in 0..N_LAYER {
            let name = |part: &str| format!("v.blk.{il}.{part}");
            let y = self.layer_norm(&name("ln1"), &x);
            let [q, k, v] = ["attn_q", "attn_k", "attn_v"].map(|part| self.linear(&name(part), &y));
            let o = self.attention([&q, &k, &v], 1.0 / ((N_EMBD / N_HEAD) as f64).sqrt());
            x = sum(&x, &self.linear(&name("attn_out"), &o));
            let inner = self.linear(&name("ffn_up"), &self.layer_norm(&name("ln2"), &x));
            x = sum(&x, &self.linear(&name("ffn_down"), &map(&inner, gelu_tanh)));
        }
        let x = self.layer_norm("v.post_ln", &x);
        let mean = |nine: &[Vec<f64>]| (0..n).map(|c| nine.iter().map(|x| x[c]).sum::<f64>() / 9.0).collect();
        let x = self.rms_norm("mm.soft_emb_norm", &x.chunks(9).map(mean).collect());
        // The matrix lies the other way round than others.
        let (ne, weight) = self.tensor("mm.input_projection.weight");
        let n_out = ne[0] as usize;
        let out =
            |x: &Vec<f64>, j: usize| x.iter().enumerate().map(|(i, x)| x * f64::from(weight[i * n_out + j])).sum();
        x.iter().map(|x| (0..n_out).map(|j| out(x, j)).collect()).collect()
    }

    fn gemma(&self, pixels: Rows) -> Rows {
        let n = N_EMBD as usize;
        let (table, n_rows) = (self.vector("v.position_embd.weight"), N_PLACES as usize);
        let weight = self.vector("v.patch_embd.weight");
        let mut x: Rows = Vec::new();
        for (pixels, &(row, column)) in pixels.iter().zip(&self.places) {
            let embed = |c: usize| {
                let dot: f64 = weight[c * pixels.len()..].iter().zip(pixels).map(|(w, p)| w * (2.0 * p - 1.0)).sum();
                dot + table[column * n + c] + table[(n_rows + row) * n + c]
            };
            x.push((0..n).map(embed).collect());
        }
        let d = (N_EMBD / N_HEAD) as usize;
        let by_head = |x: &Rows, f: &dyn Fn(&[f64]) -> Vec<f64>| -> Rows {
            x.iter().map(|row| row.chunks(d).flat_map(f).collect()).collect()
        };
        for il in 0..N_LAYER {
            let name = |part: &str| format!("v.blk.{il}.{part}");
            let y = self.rms_norm(&name("ln1"), &x);
            let turned = |part: &str| {
                let weight = self.vector(&name(&format!("attn_{part}_norm.weight")));
                let norm = |head: &[f64]| rms(head).iter().zip(&weight).map(|(x, w)| x * w).collect();
                let mut x = by_head(&self.linear(&name(&format!("attn_{part}")), &y), &norm);
                for (x, &(row, column)) in x.iter_mut().zip(&self.places) {
                    for head in x.chunks_mut(d) {
                        for j in 0..d / 4 {
                            let by = 100f64.powf(-2.0 * j as f64 / (d / 2) as f64);
                            turn(head, j, j + d / 4, column as f64 * by);
                            turn(head, d / 2 + j, d / 2 + j + d / 4, row as f64 * by);
                        }
                    }
                }
                x
            };
            let v = by_head(&self.linear(&name("attn_v"), &y), &|head| rms(head));
            let o = self.linear(&name("attn_out"), &self.attention([&turned("q"), &turned("k"), &v], 1.0));
            x = sum(&x, &self.rms_norm(&name("attn_post_norm"), &o));
            let y = self.rms_norm(&name("ln2"), &x);
            let (gate, up) = (self.linear(&name("ffn_gate"), &y), self.linear(&name("ffn_up"), &y));
            let of = |(gate, up): (&Vec<f64>, &Vec<f64>)| gate.iter().zip(up).map(|(&g, u)| gelu_tanh(g) * u).collect();
            let inner: Rows = gate.iter().zip(&up).map(of).collect();
            x = sum(&x, &self.rms_norm(&name("ffn_post_norm"), &self.linear(&name("ffn_down"), &inner)));
        }
        let pooled = |nine: &[Vec<f64>]| {
            let mean = |c: usize| nine.iter().map(|x| x[c]).sum::<f64>() / 9.0 * (n as f64).sqrt();
            let mut row: Vec<f64> = (0..n).map(mean).collect();
            if self.tiny.tensors.contains_key("v.std_bias") {
                let (bias, scale) = (self.vector("v.std_bias"), self.vector("v.std_scale"));
                row.iter_mut().enumerate().for_each(|(c, x)| *x = (*x - bias[c]) * scale[c]);
            }
            rms(&row)
        };
        self.linear("mm.input_projection", &x.chunks(9).map(pooled).collect())
    }
}

fn rms(x: &[f64]) -> Vec<f64> {
    let by = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-6).sqrt();
    x.iter().map(|x| x / by).collect()
}

fn turn(x: &mut [f64], a: usize, b: usize, angle: f64) {
    let (sin, cos) = angle.sin_cos();
    (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
}

fn sum(a: &Rows, b: &Rows) -> Rows {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect()).collect()
}

fn map(x: &Rows, f: impl Fn(f64) -> f64) -> Rows {
    x.iter().map(|row| row.iter().map(|&x| f(x)).collect()).collect()
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

fn gelu_erf(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x / 2f64.sqrt()))
}

/// The error function by its power series, whose terms are small where it is used.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    if x.abs() > 5.0 { x.signum() } else { 2.0 / PI.sqrt() * sum }
}
