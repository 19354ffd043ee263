//! What holds of every tokenizer table: it is refused in words, or texts come back from their tokens.

use text::{Decoder, Special, SpecialIds, TokenId, Vocab, VocabSource};

use crate::alphabet::letters;

/// Reads an input: a line of settings (the split rule and ids), then lines of tokens behind their types, lines of merges and
/// a text, with an empty line between these. Tokens for all bytes come first.
pub fn check(bytes: &[u8]) {
    let whole = String::from_utf8_lossy(bytes);
    let mut parts = whole.splitn(4, "\n\n");
    let mut part = || parts.next().unwrap_or_default();
    let (settings, added, merges, text) = (part(), part(), part(), part());
    let mut settings = settings.split_whitespace();
    let pre = settings.next().unwrap_or("qwen35");
    let mut id = || settings.next().and_then(|number| number.parse().ok());
    let special = SpecialIds { bos: id(), eos: id(), eot: id(), pad: id(), fim_prefix: id(), ..SpecialIds::default() };
    let mut tokens = letters();
    let mut types = vec![1; tokens.len()];
    for line in added.lines() {
        let digit = line.chars().next().and_then(|c| c.to_digit(10));
        types.push(digit.map_or(1, |digit| digit as i32));
        tokens.push(if digit.is_some() { &line[1..] } else { line }.to_owned());
    }
    let source = VocabSource {
        model: "gpt2",
        pre,
        tokens: tokens.iter().map(String::as_str).collect(),
        types: Some(types),
        merges: merges.lines().collect(),
        special,
        ..VocabSource::default()
    };
    match Vocab::new(&source) {
        Ok(vocab) => [text, &whole].into_iter().for_each(|text| comes_back(&vocab, text)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn comes_back(vocab: &Vocab, text: &str) {
    for special in [Special::Plain, Special::Parse] {
        let ids = vocab.encode(text, special);
        let mut decoder = Decoder::new();
        let mut decoded: String = ids.iter().map(|&id| decoder.push(vocab.bytes(id).expect("a token"))).collect();
        decoded += &decoder.finish();
        assert_eq!(decoded, text, "{special:?}");
    }
    let cuts: Vec<usize> = (0..=text.len()).filter(|&at| text.is_char_boundary(at)).step_by(3).collect();
    let (ids, borders) = vocab.encode_with_cuts(text, &cuts);
    assert!(borders.iter().all(|&border| border <= ids.len()));
    for id in (0..vocab.len() as u32 + 1).map(TokenId) {
        let known = (vocab.bytes(id).is_some(), vocab.kind(id).is_some());
        assert_eq!(known.0, known.1);
    }
}
