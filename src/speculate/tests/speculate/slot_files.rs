//! Saved slots of an engine that drafts: what the NextN head takes up was checked before.

use engine::Scope;
use test_support::*;

#[test]
fn a_short_hidden_state_is_refused_and_the_engine_goes_on() {
    let model = pocket();
    let engine = drafting(&model, config(512, 1));
    let answer = generate(&engine, &some_tokens(60), greedy_exactly(8));
    let tokens = [&some_tokens(60)[..], &answer.tokens[..7]].concat();
    let saved = slot_bytes(&engine);
    let n_embd = model.hparams().n_embd;
    let hidden = 48 + 4 * tokens.len();
    assert_eq!(saved[hidden..hidden + 8], (n_embd as u64).to_le_bytes());
    let mut short = saved.clone();
    short.drain(hidden + 8 + 4..hidden + 8 + 4 * n_embd);
    short[hidden..hidden + 8].copy_from_slice(&1u64.to_le_bytes());
    let why = engine.read_slot(&short).map(|s| s.n_tokens()).expect_err("one value is no hidden state").to_string();
    assert_eq!(
        why,
        format!("this saved slot cannot be loaded: hidden states have 1 values, {n_embd} each and at most 16 expected")
    );
    let mut not_finite = saved.clone();
    not_finite[hidden + 8..hidden + 12].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let why = engine.read_slot(&not_finite).map(|s| s.n_tokens()).expect_err("infinite").to_string();
    assert!(why.contains("value 0 of the last token's hidden state is inf"), "{why}");
    // The slot holds what it held, and drafts go on.
    assert_eq!(slot_bytes(&engine), saved);
    let more = generate(&engine, &[&tokens[..], &some_tokens(2)].concat(), greedy_exactly(8));
    assert_eq!(more.timings().cached_tokens, tokens.len());
    assert!(more.timings().drafted > 0);
}

#[test]
fn a_changed_part_for_drafts_is_refused_or_changes_no_answer() {
    let model = pocket();
    let engine = drafting(&model, config(512, 1));
    let answer = generate(&engine, &some_tokens(60), greedy_exactly(20));
    let file = slot_bytes(&engine);
    let longer = [&some_tokens(60)[..], &answer.tokens, &some_tokens(3)].concat();
    let expected = generate(&engine, &longer, greedy_exactly(6)).tokens;
    let at = file.windows(8).position(|w| w == b"NEXTN  1").expect("the head's part");
    let n_drafts = u64::from_le_bytes(file[at - 8..at].try_into().expect("8 bytes")) as usize;
    let (mut n_refused, mut n_taken) = (0, 0);
    for seed in 1..=300 {
        let mut rng = Random::new(seed);
        let mut changed = file.clone();
        for _ in 0..=rng.below(2) {
            // Mostly where lengths stand: kind, fingerprint and entries in front, then those of the cells.
            let place = if rng.below(3) > 0 { rng.below(96) } else { rng.below(n_drafts) };
            let new = match rng.below(4) {
                0 => rng.below(300) as u64,
                1 => u64::MAX >> rng.below(64),
                2 => 1 << rng.below(64),
                _ => u64::MAX,
            };
            let n = (1 + rng.below(8)).min(n_drafts - place);
            changed[at + place..at + place + n].copy_from_slice(&new.to_le_bytes()[..n]);
        }
        engine.load_slot(0, engine.read_slot(&file).expect("sound"), Scope::default()).expect("free");
        match engine.read_slot(&changed).and_then(|saved| engine.load_slot(0, saved, Scope::default())) {
            Err(why) => {
                n_refused += 1;
                assert!(!why.to_string().is_empty());
                assert_eq!(slot_bytes(&engine), file, "seed {seed}: {why}");
            }
            Ok(_) => {
                n_taken += 1;
                assert_eq!(generate(&engine, &longer, greedy_exactly(6)).tokens, expected, "seed {seed}");
            }
        }
    }
    assert!(n_refused > 50 && n_taken > 20, "{n_refused} refused, {n_taken} taken");
}
