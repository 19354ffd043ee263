//! Heads that read the streams of the target's layers give the logits of a plain reference, and read the layers that they name.

use std::sync::Arc;

use crate::support::{heads, rig, tiny};
use ggml::Device;
use heads::FeatureHead;
use model::{Draft, DraftOutput, DraftVocab, LoadOptions, Model, Pass, PassOutput, Placement, Rows, Runner, Split};
use rig::exact;
use text::TokenId;
use tiny::{Document, Meta, Rng, Spec};

/// Orders of sums; measured at most: 4e-6.
const CLOSE: f32 = 1e-4;
const SEED: u64 = 9;
const DEPTH: usize = 3;
const EPS: f32 = 1e-5;

fn open(spec: &Spec, head: &Document) -> Arc<Model> {
    open_on(spec, head, Placement::default())
}

fn open_on(spec: &Spec, head: &Document, placement: Placement) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = spec.document().write(&dir.path().join("tiny.gguf"));
    let head = head.write(&dir.path().join("head.gguf"));
    let options = LoadOptions { head: Some(head), placement, ..LoadOptions::default() };
    Model::open(&path, &options).expect("a head that fits")
}

fn floats(document: &Document, name: &str) -> Vec<f32> {
    let t = document.tensors.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("{name} is not there"));
    t.data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

fn normed(x: &[f32], weight: &[f32]) -> Vec<f32> {
    let mean = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    x.iter().zip(weight).map(|(x, w)| x / (mean + EPS).sqrt() * w).collect()
}

/// `w: [x.len(), n_out]` times `x`.
fn times(w: &[f32], x: &[f32]) -> Vec<f32> {
    w.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// The rotation of each head of `x`: neighbours turn together, or elements half a head apart.
fn rotated(x: &[f32], d: usize, position: usize, neox: bool) -> Vec<f32> {
    let mut y = x.to_vec();
    for head in y.chunks_exact_mut(d) {
        for i in 0..d / 2 {
            let (sin, cos) = (position as f32 * 5e3f32.powf(-2.0 * i as f32 / d as f32)).sin_cos();
            let (a, b) = if neox { (i, i + d / 2) } else { (2 * i, 2 * i + 1) };
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }
    y
}

/// A head in plain numbers.
struct Plain {
    head: FeatureHead,
    document: Document,
    embed: Vec<f32>,
    output: Vec<f32>,
    words: Vec<u32>,
}

impl Plain {
    fn new(target: &Spec, head: &FeatureHead) -> Self {
        let document = head.document(target);
        let tables = if head.words.is_some() { document.clone() } else { target.document() };
        let (embed, output) = (floats(&tables, "token_embd.weight"), floats(&tables, "output.weight"));
        let words = head.words.clone().unwrap_or((0..target.n_vocab as u32).collect());
        Self { head: head.clone(), document, embed, output, words }
    }

    fn weight(&self, il: usize, name: &str) -> Vec<f32> {
        floats(&self.document, &format!("blk.{il}.{name}.weight"))
    }

    fn embedded(&self, token: u32) -> Vec<f32> {
        self.embed[token as usize * self.head.n_embd..][..self.head.n_embd].to_vec()
    }

    /// Queries, key and value of a row.
    fn qkv(&self, il: usize, x: &[f32], position: usize) -> [Vec<f32>; 3] {
        let (d, neox) = (self.head.d_head, self.head.arch == "dflash");
        let turned = |name: &str| {
            let y = times(&self.weight(il, &format!("attn_{name}")), x);
            let y = match neox {
                true => {
                    let norm = self.weight(il, &format!("attn_{name}_norm"));
                    y.chunks_exact(d).flat_map(|head| normed(head, &norm)).collect()
                }
                false => y,
            };
            rotated(&y, d, position, neox)
        };
        [turned("q"), turned("k"), times(&self.weight(il, "attn_v"), x)]
    }

    /// Attention of queries to these keys and values, through the output matrix.
    fn attend(&self, il: usize, q: &[f32], cells: &[[Vec<f32>; 2]]) -> Vec<f32> {
        let (d, group) = (self.head.d_head, self.head.n_head / self.head.n_head_kv);
        let heads = q.chunks_exact(d).enumerate().flat_map(|(head, q)| {
            let of = |x: &[f32]| x[head / group * d..][..d].to_vec();
            let score = |k: &[f32]| times(&of(k), q)[0] / (d as f32).sqrt();
            let weights: Vec<f32> = cells.iter().map(|[k, _]| score(k).exp()).collect();
            let sum: f32 = weights.iter().sum();
            let mut out = vec![0.0; d];
            for (w, [_, v]) in weights.iter().zip(cells) {
                out.iter_mut().zip(of(v)).for_each(|(o, v)| *o += w / sum * v);
            }
            out
        });
        times(&self.weight(il, "attn_output"), &heads.collect::<Vec<_>>())
    }

    fn feed_forward(&self, il: usize, x: &[f32]) -> Vec<f32> {
        let x = normed(x, &self.weight(il, "ffn_norm"));
        let gate = times(&self.weight(il, "ffn_gate"), &x).into_iter().map(|g| g / (1.0 + (-g).exp()));
        let up = times(&self.weight(il, "ffn_up"), &x);
        times(&self.weight(il, "ffn_down"), &gate.zip(up).map(|(g, u)| g * u).collect::<Vec<_>>())
    }

    fn logits(&self, x: &[f32]) -> Vec<f32> {
        times(&self.output, &normed(x, &floats(&self.document, "output_norm.weight")))
    }

    fn likeliest(&self, logits: &[f32]) -> u32 {
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("words");
        self.words[best]
    }

    /// Logits of a chain of EAGLE-3 after entries of tokens and hidden states.
    fn chain(&self, tokens: &[u32], hidden: &[f32]) -> Vec<Vec<f32>> {
        let mut cells = Vec::new();
        let mut entry = |token: u32, hidden: &[f32]| {
            let h = normed(hidden, &self.weight(0, "attn_norm_2"));
            let e = normed(&self.embedded(token), &self.weight(0, "attn_norm"));
            let [q, k, v] = self.qkv(0, &[&e[..], &h].concat(), cells.len());
            cells.push([k, v]);
            let x = add(&self.attend(0, &q, &cells), if self.head.norms { &h } else { hidden });
            add(&x, &self.feed_forward(0, &x))
        };
        let rows = tokens.iter().zip(hidden.chunks_exact(self.head.n_embd));
        let mut x = rows.map(|(&token, hidden)| entry(token, hidden)).last().expect("an entry");
        let mut all = Vec::new();
        for _ in 0..DEPTH {
            let logits = self.logits(&x);
            x = entry(self.likeliest(&logits), &x);
            all.push(logits);
        }
        all
    }

    /// Logits of a block of DFlash.
    fn block(&self, last: u32, hidden: &[f32]) -> Vec<Vec<f32>> {
        let (n_embd, n) = (self.head.n_embd, hidden.len() / self.head.n_embd);
        let tokens = [&[last][..], &[11; DEPTH]].concat();
        let mut rows: Vec<Vec<f32>> = tokens.iter().map(|&token| self.embedded(token)).collect();
        for il in 0..self.head.n_block {
            let mut cells = Vec::new();
            for (position, x) in hidden.chunks_exact(n_embd).enumerate() {
                let [_, k, v] = self.qkv(il, x, position);
                cells.push([k, v]);
            }
            let norm = self.weight(il, "attn_norm");
            let own: Vec<_> = rows.iter().zip(n..).map(|(x, at)| self.qkv(il, &normed(x, &norm), at)).collect();
            cells.extend(own.iter().map(|[_, k, v]| [k.clone(), v.clone()]));
            let window = self.head.window.filter(|_| il == 0).map_or(usize::MAX, |window| window as usize);
            for (i, [q, ..]) in own.iter().enumerate() {
                let first = (n + i + 1).saturating_sub(window);
                let mixed = self.attend(il, q, &cells[first..]);
                let x = add(&rows[i], &normed(&mixed, &self.weight(il, "post_attention_norm")));
                rows[i] = add(&x, &normed(&self.feed_forward(il, &x), &self.weight(il, "post_ffw_norm")));
            }
        }
        rows[1..].iter().map(|x| self.logits(x)).collect()
    }
}

/// Logits of a draft for each of two sequences, after these entries.
fn drafted(model: &Arc<Model>, sequences: &[(Vec<u32>, Vec<f32>)]) -> DraftOutput {
    let mut memory = model.head_memory(exact(2, 64)).expect("state").expect("a head");
    let slots = [(); 2].map(|()| memory.acquire().expect("state").expect("a free slot"));
    let n_entries: Vec<usize> = sequences.iter().map(|(tokens, _)| tokens.len()).collect();
    let most = n_entries.iter().max().expect("sequences") + model.n_chain_rows(DEPTH);
    let parts: Vec<_> = slots.iter().map(|slot| (slot, most)).collect();
    let step = memory.begin(&parts, 1).expect("a step that can be made");
    let tokens: Vec<TokenId> = sequences.iter().flat_map(|(tokens, _)| tokens.iter().map(|&id| TokenId(id))).collect();
    let hidden: Vec<f32> = sequences.iter().flat_map(|(_, hidden)| hidden.iter().copied()).collect();
    let own = DraftVocab::of_head(model).expect("room");
    let (tokens, hidden, n_entries) = (&tokens, &hidden, &n_entries);
    let draft =
        Draft { tokens, hidden, n_entries, depth: DEPTH, vocab: own.as_ref(), verbose: true, ..Draft::default() };
    let mut output = DraftOutput::default();
    let mut runner = Runner::new(Arc::clone(model), 1).expect("the CPU is there");
    runner.draft(step.view(), &draft, &mut output).expect("a draft that can be computed");
    output
}

#[test]
fn draft_logits_are_those_of_a_plain_reference() {
    println!("seed {SEED}");
    let target = Spec::of("llama");
    let mut furthest = 0.0f32;
    for head in [FeatureHead::eagle3(&target), FeatureHead::eagle3_own(&target), FeatureHead::dflash(&target)] {
        let plain = Plain::new(&target, &head);
        let mut rng = Rng::new(SEED);
        // The shorter one is filled up beside the longer.
        let sequences = [9, 7].map(|n| {
            let tokens: Vec<u32> = (0..n).map(|_| rng.below(256) as u32).collect();
            (tokens, (0..n * head.n_embd).map(|_| rng.normal()).collect::<Vec<f32>>())
        });
        // Alone, and in two shares.
        for n_shares in [0, 2] {
            let gpus = vec![Device::cpu().expect("there is one"); n_shares];
            let split = if n_shares == 0 { Split::default() } else { Split::Tensor };
            let model = open_on(&target, &plain.document, Placement { gpus, split, ..Placement::default() });
            assert_eq!(model.n_ranks(), n_shares.max(1));
            let found = drafted(&model, &sequences);
            for (s, (tokens, hidden)) in sequences.iter().enumerate() {
                let expected = match head.arch {
                    "eagle3" => plain.chain(tokens, hidden),
                    _ => plain.block(*tokens.last().expect("entries"), hidden),
                };
                for (i, expected) in expected.iter().enumerate() {
                    let found_logits = &found.logits[i][s * plain.words.len()..][..plain.words.len()];
                    let difference = found_logits.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    furthest = furthest.max(difference);
                    assert!(difference < CLOSE, "{} sequence {s} draft token {i}: {difference}", head.arch);
                    assert_eq!(found.tokens[s][i].0, plain.likeliest(expected), "{} sequence {s} token {i}", head.arch);
                }
            }
        }
    }
    println!("furthest: {furthest:e}");
}

/// The stream before layer `n` of a model is the stream after the last of one that is cut there, whose final norm is known.
#[test]
fn the_streams_are_those_before_the_layers_named() {
    let tokens: Vec<u32> = (0..20).map(|i| (i * 37 + 5) % 250).collect();
    for arch in ["llama", "qwen3moe", "qwen35", "gpt-oss", "gemma4", "deepseek2"] {
        let spec = Spec::of(arch);
        let d = spec.n_embd;
        for part in 0..3 {
            let head = FeatureHead { layers: vec![4, 1, 3], ..FeatureHead::eagle3(&spec) };
            let mut document = head.document(&spec);
            // The projection hands on one of the three.
            let fc = document.tensors.iter_mut().find(|t| t.name == "fc.weight").expect("a projection");
            fc.data = (0..d * 3 * d)
                .flat_map(|i| f32::from(u8::from(i % (3 * d) == part * d + i / (3 * d))).to_le_bytes())
                .collect();
            let found = hidden(&open(&spec, &document), &tokens, true);
            let n_layer = head.layers[part] as usize;
            let cut = cut(&spec, n_layer);
            let expected = hidden(&cut.0, &tokens, false);
            let norm = floats(&cut.1, "output_norm.weight");
            for (i, (found, expected)) in found.chunks_exact(d).zip(expected.chunks_exact(d)).enumerate() {
                let mean = found.iter().map(|x| x * x).sum::<f32>() / d as f32;
                let normed = found.iter().zip(&norm).map(|(x, w)| x / (mean + 1e-6).sqrt() * w);
                let difference = normed.zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(difference < CLOSE, "{arch} layer {n_layer} token {i}: {difference}");
            }
        }
    }
}

/// The model with its first layers only.
fn cut(spec: &Spec, n_layer: usize) -> (Arc<Model>, Document) {
    let mut document = spec.document();
    document.set(&format!("{}.block_count", spec.arch), Meta::U32(n_layer as u32));
    for (_, value) in document.keys.iter_mut().filter(|(key, _)| key.starts_with(spec.arch)) {
        match value {
            Meta::Bools(list) => list.truncate(n_layer),
            Meta::U32s(list) => list.truncate(n_layer),
            _ => {}
        }
    }
    if spec.arch == "gemma4" && n_layer < spec.n_layer {
        document.set("gemma4.attention.shared_kv_layers", Meta::U32(0));
        // Inputs of each token for each layer stand beside each other.
        for name in ["per_layer_token_embd.weight", "per_layer_model_proj.weight"] {
            let t = document.tensors.iter_mut().find(|t| t.name == name).expect("inputs for each layer");
            let dim = usize::from(name.contains("proj"));
            let (whole, kept) = (t.ne[dim], t.ne[dim] / spec.n_layer as u64 * n_layer as u64);
            if dim == 0 {
                let row = 4 * whole as usize;
                t.data = t.data.chunks_exact(row).flat_map(|r| r[..4 * kept as usize].to_vec()).collect();
            } else {
                t.data.truncate(4 * (t.ne[0] * kept) as usize);
            }
            t.ne[dim] = kept;
        }
    }
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = document.write(&dir.path().join("cut.gguf"));
    (Model::open(&path, &LoadOptions::default()).expect("a sound file"), document)
}

/// Hidden states of a text: those that the head takes, or those after the final norm.
fn hidden(model: &Arc<Model>, tokens: &[u32], of_head: bool) -> Vec<f32> {
    let mut memory = model.memory(exact(1, 64)).expect("state");
    let slot = memory.acquire().expect("state").expect("a free slot");
    let step = memory.begin(&[(&slot, tokens.len())], 1).expect("a step");
    let tokens: Vec<TokenId> = tokens.iter().map(|&id| TokenId(id)).collect();
    let (mut runner, mut output) =
        (Runner::new(Arc::clone(model), 1).expect("the CPU is there"), PassOutput::default());
    let last = [tokens.len() - 1];
    runner
        .run(step.view(), &Pass { tokens: &tokens, rows: Rows::Some(&last), hidden: true }, &mut output)
        .expect("a pass");
    if of_head { output.mtp_hidden().to_vec() } else { output.hidden.clone() }
}
