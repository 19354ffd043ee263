//! Rows of pictures in passes: those that are what tokens have give what the tokens give.

use std::sync::Arc;

use crate::support::{rig, tiny};
use model::{
    BothWays, Embedded, LoadOptions, Model, Pass, PassOutput, PictureKind, Pictures, Placed, PlacedRows, Rows, Runner,
};
use rig::exact;
use text::TokenId;
use tiny::Spec;

/// Gemma 4's token that fills up: tables of each layer have its row for the tokens of a picture.
const PAD: u32 = 0;
/// Where the picture stands.
const PLACES: std::ops::Range<usize> = 3..9;

/// A tiny Gemma 4 with inputs of each token for each layer, and the embedding of one token as the first layer gets it.
fn gemma() -> (Arc<Model>, Vec<f32>) {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = Spec::of("gemma4").document().write(&dir.path().join("gemma4.gguf"));
    let model = Model::open(&path, &LoadOptions::default()).expect("a sound file");
    let bytes = std::fs::read(&path).expect("just written");
    let header = gguf::Header::parse(&bytes).expect("sound");
    let table = header.tensor("token_embd.weight").expect("every model has one");
    assert_eq!(table.dtype, gguf::TensorType::F32);
    let n_embd = model.hparams().n_embd;
    let row = &bytes[table.range()][PAD as usize * n_embd * 4..][..n_embd * 4];
    let scale = (n_embd as f32).sqrt();
    (model, row.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b) * scale).collect())
}

/// Logits of all tokens, computed in pieces of these lengths.
fn logits(model: &Arc<Model>, tokens: &[TokenId], pictures: &Pictures, lengths: &[usize]) -> Vec<f32> {
    let mut memory = model.memory(exact(1, 64)).expect("state for a tiny model");
    let slot = memory.acquire().expect("state can be cleared").expect("a free slot");
    let mut runner = Runner::new(Arc::clone(model), 1).expect("the CPU is there");
    let (mut output, mut all, mut first) = (PassOutput::default(), Vec::new(), 0);
    for &n in lengths {
        let txn = memory.begin(&[(&slot, n)], 1).expect("a step that can be made");
        let pass = Pass { tokens: &tokens[first..first + n], rows: Rows::All, hidden: false };
        let placed = [PlacedRows { rows: 0..n, first, pictures }];
        let placed = if pictures.is_empty() { &[][..] } else { &placed };
        runner.run_placed(txn.view(), &pass, placed, &mut output).expect("a pass");
        txn.commit(&[n]).expect("all tokens");
        all.extend_from_slice(&output.logits);
        first += n;
    }
    all
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_picture_of_tokens_embeddings_gives_their_logits() {
    let (model, row) = gemma();
    assert_eq!(
        model.picture_kind(),
        Some(PictureKind::Plain { both_ways: BothWays::Nowhere }),
        "positions and masks are those of text"
    );
    let n_embd = model.hparams().n_embd;
    let mut tokens: Vec<TokenId> = (0..14).map(|i| TokenId(20 + 3 * i)).collect();
    tokens[PLACES].fill(TokenId(PAD));
    let text = logits(&model, &tokens, &Pictures::default(), &[14]);
    let placed = |rows: Vec<f32>| {
        let embedded = Arc::new(Embedded { rows, grid: [1, 2, 3] });
        let placed = vec![Placed { first: PLACES.start, embedded, hash: [7; 32] }];
        let pictures = Pictures::new(model.picture_kind(), n_embd, tokens.len(), placed).expect("it fits");
        let mut ids = tokens.clone();
        pictures.write_ids(&mut ids);
        assert!(ids[PLACES].iter().all(|id| id.is_of_picture()));
        (ids, pictures)
    };
    let (ids, pictures) = placed(row.repeat(6));
    for lengths in [&[14][..], &[3, 6, 5], &[5, 9], &[1; 14]] {
        let seen = logits(&model, &ids, &pictures, lengths);
        // Pieces of other lengths sum in another order; measured 2e-6.
        let worst = difference(&seen, &text);
        assert!(worst <= if lengths.len() == 1 { 0.0 } else { 1e-4 }, "{lengths:?}: {worst}");
    }
    let mut other = row.repeat(6);
    other[5 * n_embd] += 1.0;
    let (ids, pictures) = placed(other);
    let n_vocab = model.hparams().n_vocab;
    let seen = logits(&model, &ids, &pictures, &[14]);
    assert_eq!(seen[..8 * n_vocab], text[..8 * n_vocab], "what stands before the row that is another");
    assert!(difference(&seen[8 * n_vocab..], &text[8 * n_vocab..]) > 1e-3, "the picture counts");
}

#[test]
fn tokens_of_a_picture_of_gemma_3_see_one_another_in_every_layer() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = Spec::of("gemma3").document().write(&dir.path().join("gemma3.gguf"));
    let model = Model::open(&path, &LoadOptions::default()).expect("a sound file");
    assert_eq!(model.picture_kind(), Some(PictureKind::Plain { both_ways: BothWays::Everywhere }));
    let (n_embd, n_vocab) = (model.hparams().n_embd, model.hparams().n_vocab);
    let tokens: Vec<TokenId> = (0..14).map(|i| TokenId(20 + 3 * i)).collect();
    let rows: Vec<f32> = (0..6 * n_embd).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
    let seen = |kind: Option<PictureKind>, rows: &[f32], lengths: &[usize]| {
        let embedded = Arc::new(Embedded { rows: rows.to_vec(), grid: [1, 2, 3] });
        let placed = vec![Placed { first: PLACES.start, embedded, hash: [7; 32] }];
        let pictures = Pictures::new(kind, n_embd, tokens.len(), placed).expect("it fits");
        let mut ids = tokens.clone();
        pictures.write_ids(&mut ids);
        logits(&model, &ids, &pictures, lengths)
    };
    let at = |logits: &[f32], token: usize| logits[token * n_vocab..(token + 1) * n_vocab].to_vec();
    let whole = seen(model.picture_kind(), &rows, &[14]);
    // The picture in one pass, and the text around it in others; sums in another order, as above.
    assert!(difference(&seen(model.picture_kind(), &rows, &[3, 6, 5]), &whole) < 1e-4);
    let mut other = rows.clone();
    other[5 * n_embd] += 1.0;
    let other = seen(model.picture_kind(), &other, &[14]);
    let moves = |token: usize| difference(&at(&other, token), &at(&whole, token));
    assert!((0..3).all(|token| moves(token) == 0.0), "what stands before the picture sees none of it");
    assert!((3..14).all(|token| moves(token) > 1e-4), "its last token moves all others of it, and the text behind");
    // Read like text, or in layers with a window alone, it is another picture.
    for both_ways in [BothWays::Nowhere, BothWays::InWindows] {
        let less = seen(Some(PictureKind::Plain { both_ways }), &rows, &[14]);
        assert!(difference(&at(&less, 3), &at(&whole, 3)) > 1e-4, "{both_ways:?}");
    }
}
