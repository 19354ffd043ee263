//! Saved slots of an engine that drafts: what the NextN head takes up was checked before.

mod support;

use support::*;

#[test]
fn a_short_hidden_row_is_refused_and_the_engine_goes_on() {
    let model = pocket();
    let engine = drafting(&model, config(1));
    let answer = ask(&engine, &words(60), 8);
    let tokens = [&words(60)[..], &answer.tokens[..7]].concat();
    let saved = bytes(&engine);
    let n_embd = model.hparams().n_embd;
    let hidden = 48 + 4 * tokens.len();
    assert_eq!(saved[hidden..hidden + 8], (n_embd as u64).to_le_bytes());
    let mut short = saved.clone();
    short.drain(hidden + 8 + 4..hidden + 8 + 4 * n_embd);
    short[hidden..hidden + 8].copy_from_slice(&1u64.to_le_bytes());
    let why = engine.read_slot(&short).map(|s| s.n_tokens()).expect_err("one value is no row").to_string();
    assert_eq!(why, format!("this saved slot cannot be loaded: a hidden row has 1 values, {n_embd} or none expected"));
    let mut not_finite = saved.clone();
    not_finite[hidden + 8..hidden + 12].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let why = engine.read_slot(&not_finite).map(|s| s.n_tokens()).expect_err("infinite").to_string();
    assert!(why.contains("value 0 of the last token's hidden row is inf"), "{why}");
    // The slot holds what it held, and drafts go on.
    assert_eq!(bytes(&engine), saved);
    let more = ask(&engine, &[&tokens[..], &words(2)].concat(), 8);
    assert_eq!(more.timings.cached_tokens, tokens.len());
    assert!(more.timings.drafted > 0);
}
