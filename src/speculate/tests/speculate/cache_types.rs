//! Drafts over KV cells in types of our own: whatever the type of the target's cells and the head's, drafts change no text, not
//! beside other sequences, and not behind a slot that was saved and taken up.

use engine::{EngineConfig, Scope};
use memory::CacheType;
use test_support::*;
use text::TokenId;

const TYPES: [(CacheType, CacheType); 3] =
    [(CacheType::Turbo3, CacheType::Turbo3), (CacheType::Turbo4, CacheType::Q8_0), (CacheType::F16, CacheType::Turbo4)];

fn of_types((cache_type_k, cache_type_v): (CacheType, CacheType), n_sequences: usize) -> EngineConfig {
    EngineConfig { cache_type_k, cache_type_v, ..config(512, n_sequences) }
}

#[test]
fn drafts_change_no_text_alone_or_beside_others() {
    for model in [pocket(), pocket_moe()] {
        let questions = ["What is 17 + 25?", "Tell me a story about a fox.", "Which planet is the largest?"];
        let prompts = questions.map(|text| question(&model, text));
        for types in TYPES {
            let plain = spawn(&model, of_types(types, 1), None);
            let expected = prompts.each_ref().map(|prompt| generate(&plain, prompt, greedy_exactly(60)).tokens);
            let engine = drafting(&model, of_types(types, 3));
            let alone = generate(&engine, &prompts[1], greedy_exactly(60));
            assert_eq!(alone.tokens, expected[1], "{types:?}");
            let (drafted, accepted) = (alone.timings().drafted, alone.timings().accepted);
            // Most drafts are right, and some are taken back.
            assert!(accepted * 2 > drafted && accepted < drafted, "{types:?}: {accepted} of {drafted}");
            let requests = prompts.iter().map(|prompt| (prompt.clone(), greedy_exactly(60)));
            for (found, expected) in generate_all(&engine, requests.collect()).iter().zip(&expected) {
                assert_eq!(&found.tokens, expected, "{types:?}");
            }
        }
    }
}

#[test]
fn a_saved_slot_goes_on_where_its_types_are_those_of_the_engine_and_nowhere_else() {
    let model = pocket();
    for types in TYPES {
        let engine = drafting(&model, of_types(types, 1));
        let answer = generate(&engine, &some_tokens(60), greedy_exactly(20));
        let tokens: Vec<TokenId> = [&some_tokens(60)[..], &answer.tokens[..19], &some_tokens(3)].concat();
        let saved = slot_bytes(&engine);
        let expected = generate(&engine, &tokens, greedy_exactly(20));

        let other = drafting(&model, of_types(types, 2));
        other.load_slot(0, other.read_slot(&saved).expect("sound"), Scope::default()).expect("it fits");
        let found = generate(&other, &tokens, greedy_exactly(20));
        assert_eq!(found.timings().cached_tokens, 79, "{types:?}");
        assert_eq!((found.tokens, found.drafts), (expected.tokens, expected.drafts), "{types:?}");
        for others in TYPES.into_iter().filter(|others| *others != types) {
            let other = drafting(&model, of_types(others, 1));
            let why = other.read_slot(&saved).map(|s| s.n_tokens()).expect_err("cells of other types").to_string();
            assert!(why.contains("another cache type"), "{types:?} in {others:?}: {why}");
        }
    }
}

#[test]
fn factors_of_groups_are_checked() {
    let engine = drafting(&pocket(), of_types(TYPES[0], 1));
    generate(&engine, &some_tokens(60), greedy_exactly(8));
    let saved = slot_bytes(&engine);
    // The head's cells come last: a group's codes, then its factor.
    let with = |at: usize, half: u16| {
        let mut bytes = saved.clone();
        bytes[at..at + 2].copy_from_slice(&half.to_le_bytes());
        engine.read_slot(&bytes).map(|s| s.n_tokens())
    };
    let why = with(saved.len() - 2, 0x7E00).expect_err("a factor that is no number").to_string();
    assert!(why.contains("not finite"), "{why}");
    assert!(with(saved.len() - 4, 0x7E00).is_ok(), "codes are any bytes");
}
