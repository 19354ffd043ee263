//! Scopes of the cache: what one computed, another neither takes up nor can tell.

use engine::{EngineConfig, RequestOptions, Scope, SlotError};
use text::TokenId;

use test_support::{config, engine, generate, greedy_exactly, tiny};

fn prompt(first: u32) -> Vec<TokenId> {
    (0..90).map(|i| TokenId((first + i * 7) % 200)).collect()
}

fn within(scope: u64, n: usize) -> RequestOptions {
    RequestOptions { scope: Scope(scope), ..greedy_exactly(n) }
}

#[test]
fn state_is_reused_within_its_scope_only() {
    let model = tiny();
    // One slot, so that whoever comes finds what the last one left; then several, so that it can be chosen.
    for n_sequences in [1, 3] {
        let (engine, _alone) = engine(&model, config(1024, n_sequences));
        let first = generate(&engine, &prompt(0), within(1, 8));
        let other = generate(&engine, &prompt(0), within(2, 8));
        assert_eq!(other.n_cached(), 0, "{n_sequences} slots: the prompt of another scope was told");
        assert_eq!(other.tokens, first.tokens);
        assert_eq!(generate(&engine, &prompt(0), within(2, 8)).n_cached(), 89, "{n_sequences} slots: its own");
        let again = generate(&engine, &prompt(0), within(1, 8)).n_cached();
        assert_eq!(again, if n_sequences == 1 { 0 } else { 89 }, "{n_sequences} slots");
    }
}

#[test]
fn stored_sequences_come_back_to_their_scope_only() {
    let model = tiny();
    let (engine, _alone) = engine(&model, EngineConfig { store_bytes: 64 << 20, ..config(1024, 1) });
    let first = generate(&engine, &prompt(0), within(1, 8));
    // Takes the slot: what was there is stored. So is this, which begins as that does and is longer.
    let longer: Vec<_> = prompt(0).into_iter().chain([TokenId(3); 20]).collect();
    assert_eq!(generate(&engine, &longer, within(2, 8)).n_cached(), 0);
    assert_eq!(generate(&engine, &prompt(50), within(3, 8)).n_cached(), 0);
    assert_eq!(generate(&engine, &prompt(0), within(3, 8)).n_cached(), 0, "the store told it");
    // Stores the same tokens once more.
    assert_eq!(generate(&engine, &prompt(50), within(4, 8)).n_cached(), 0);
    let again = generate(&engine, &prompt(0), within(1, 8));
    assert_eq!((again.n_cached(), &again.tokens), (89, &first.tokens), "another scope's did not take its place");
    assert_eq!(generate(&engine, &longer, within(2, 8)).n_cached(), longer.len() - 1);
}

#[test]
fn a_slot_is_saved_by_its_scope_and_belongs_to_whoever_restored_it() {
    let model = tiny();
    let (engine, _alone) = engine(&model, config(1024, 2));
    let answer = generate(&engine, &prompt(0), within(1, 8));
    let slot = answer.summary().slot;
    let refused = engine.save_slot(slot, Scope(2)).expect_err("it is not theirs");
    assert!(matches!(refused, SlotError::OtherScope { index } if index == slot), "{refused}");
    let saved = engine.save_slot(slot, Scope(1)).expect("it is theirs");
    let n = engine.load_slot(1 - slot, saved, Scope(2)).expect("a free slot");
    assert_eq!(n, 97);
    assert_eq!(generate(&engine, &prompt(0), within(2, 8)).n_cached(), 89);
    assert_eq!(generate(&engine, &prompt(0), within(3, 8)).n_cached(), 0);
}
