//! Tiny models that see give what transformers gives (`scripts/pictures_golden.py`): rows of the projector, logits and greedy text
//! behind a picture of Gemma 3 and behind a video of Qwen3.5.
//! `NEXTN_WRITE_TINY=FOLDER cargo test -p nextn-model --test all seen` writes the files that the script reads.

use std::path::Path;
use std::sync::Arc;

use crate::support::{projector, rig, tiny, unpacked};
use model::{
    Embedded, LoadOptions, Model, Pass, PassOutput, Pictures, Placed, PlacedRows, Projector, ProjectorOptions, Rows,
    Runner,
};
use projector::TinyProjector;
use rig::exact;
use serde::Deserialize;
use text::TokenId;
use tiny::{Meta, Spec};
use vision::{ImageLimits, Picture};

/// What the reference computes of a prompt.
#[derive(Deserialize)]
struct Sequence {
    name: String,
    /// Width and height of the pictures, or of the frames.
    size: [usize; 2],
    /// Frames of a video in pairs; `None`: pictures.
    pairs: Option<usize>,
    ids: Vec<u32>,
    /// Where the rows of each picture begin.
    firsts: Vec<usize>,
    /// Of the projector, of all pictures.
    rows: Vec<f32>,
    /// Of every token, in time, in height and in width; absent: they count tokens.
    positions: Option<[Vec<i32>; 3]>,
    /// Of the last token.
    logits: Vec<f32>,
    greedy: Vec<u32>,
}

/// Orders of sums; measured at most: see the test's output.
const CLOSE: f32 = 1e-3;

/// As the script has the `i`th.
fn picture([width, height]: [usize; 2], i: usize) -> Picture {
    let bytes = (0..width * height * 3).map(|at| (at * at % 251 + (i + 1) * at % (5 + i)) as u8).collect();
    Picture::new(width, height, bytes).expect("as many bytes")
}

fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().all(|x| x.is_finite()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn specs() -> [(&'static str, Spec, TinyProjector); 2] {
    let (mut gemma3, mut qwen) = (Spec::of("gemma3"), Spec::of("qwen35"));
    // Their heads turn whole.
    gemma3.n_rot = gemma3.d_head;
    qwen.more.push(("rope.dimension_sections", Meta::U32s(vec![3, 3, 2, 0])));
    let n = gemma3.n_embd as u64;
    [("gemma3", gemma3, TinyProjector::gemma3(n)), ("qwen35", qwen, TinyProjector::qwen(n))]
}

#[test]
fn rows_logits_and_text_are_those_of_transformers() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let out = std::env::var_os("NEXTN_WRITE_TINY");
    let folder = out.as_deref().map_or(dir.path(), Path::new);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pictures/pictures.json.z");
    for (name, spec, tiny) in specs() {
        let path = spec.document().write(&folder.join(format!("{name}.gguf")));
        let mmproj = tiny.write(&folder.join(format!("{name}.mmproj.gguf")));
        if out.is_some() {
            continue;
        }
        let golden = unpacked(&golden);
        let golden: Vec<Sequence> = serde_json::from_slice(&golden).expect("JSON of the script");
        let model = Model::open(&path, &LoadOptions::default()).expect("a sound file");
        let options = ProjectorOptions { n_threads: 1, ..ProjectorOptions::default() };
        let projector = Projector::open(&mmproj, &options).expect("a sound file");
        projector.fits(&model).expect("of its width");
        let mut n = 0;
        for sequence in golden.iter().filter(|sequence| sequence.name.starts_with(name)) {
            compare(&model, &projector, sequence);
            n += 1;
        }
        assert!(n > 0, "{name} is in the golden");
    }
}

fn compare(model: &Arc<Model>, projector: &Projector, sequence: &Sequence) {
    let Sequence { name, size, .. } = sequence;
    // The published limit of pixels is too much for patches of this size.
    let max_pixels = sequence.pairs.map(|_| 1 << 20);
    let processor = projector.processor(&ImageLimits { max_pixels, ..ImageLimits::default() }).expect("sound limits");
    let embedded: Vec<Embedded> = match sequence.pairs {
        None => (0..sequence.firsts.len())
            .map(|i| processor.patches(&picture(*size, i)).expect("a sound shape"))
            .map(|patches| projector.embed(&patches).expect("a pass"))
            .collect(),
        Some(n) => {
            let frames = processor.frame_size(2 * n, size[0], size[1]).expect("a size");
            assert_eq!(frames, (size[0], size[1]), "of a tiny projector's frames none is scaled");
            let pair = |i: usize| {
                let second = picture(*size, 2 * i + 1);
                projector
                    .embed(&processor.frame_patches(&picture(*size, 2 * i), Some(&second), frames))
                    .expect("a pass")
            };
            (0..n).map(pair).collect()
        }
    };
    let rows: Vec<f32> = embedded.iter().flat_map(|one| one.rows.iter().copied()).collect();
    let of_rows = difference(&rows, &sequence.rows);
    let mut ids: Vec<TokenId> = sequence.ids.iter().map(|&id| TokenId(id)).collect();
    let placed = embedded.into_iter().zip(&sequence.firsts).enumerate();
    let placed =
        placed.map(|(i, (embedded, &first))| Placed { first, embedded: Arc::new(embedded), hash: [i as u8; 32] });
    let sizes = model.hparams();
    let pictures = Pictures::new(model.picture_kind(), sizes.n_embd, ids.len(), placed.collect()).expect("they fit");
    let found = [0, 1, 2].map(|axis| (0..ids.len()).map(|token| pictures.position(token)[axis]).collect::<Vec<i32>>());
    let counted = [(); 3].map(|()| (0..ids.len() as i32).collect());
    assert_eq!(&found, sequence.positions.as_ref().unwrap_or(&counted), "{name}");
    pictures.write_ids(&mut ids);

    let mut memory = model.memory(exact(1, 256)).expect("state for a tiny model");
    let slot = memory.acquire().expect("state can be cleared").expect("a free slot");
    let mut runner = Runner::new(Arc::clone(model), 1).expect("the CPU is there");
    let (mut output, mut greedy, mut first, mut of_logits) = (PassOutput::default(), Vec::new(), 0, 0.0);
    for step in 0..sequence.greedy.len() {
        let tokens = &ids[first..];
        let txn = memory.begin(&[(&slot, tokens.len())], 1).expect("a step that can be made");
        let pass = Pass { tokens, rows: Rows::All, hidden: false };
        let placed = [PlacedRows { rows: 0..tokens.len(), first, pictures: &pictures }];
        runner.run_placed(txn.view(), &pass, &placed, &mut output).expect("a pass");
        let n = tokens.len();
        txn.commit(&[n]).expect("all tokens");
        first += n;
        let logits = &output.logits[output.logits.len() - sizes.n_vocab..];
        if step == 0 {
            of_logits = difference(logits, &sequence.logits);
        }
        let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
        greedy.push(best as u32);
        ids.push(TokenId(best as u32));
    }
    println!("{name}: rows {of_rows}, logits {of_logits}");
    assert!(of_rows <= CLOSE, "{name}: a row differs by {of_rows}");
    assert!(of_logits <= CLOSE, "{name}: a logit differs by {of_logits}");
    assert_eq!(greedy, sequence.greedy, "{name}");
}
