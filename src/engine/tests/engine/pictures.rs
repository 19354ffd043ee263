//! Prompts with pictures: what is taken up of earlier ones, and that nothing but the picture tells two of them apart.
//! The model's tokens have the same bits wherever a prompt is cut.

use std::sync::Arc;

use engine::{GenerateRequest, RequestError, RequestOptions};
use model::{Embedded, Model, Pictures, Placed};
use test_support::{Completion, config, engine, generate, greedy, pocket_moe, some_tokens, submit};
use text::TokenId;

/// Tokens before and behind the picture.
const TEXT: usize = 40;
const GRID: [usize; 3] = [1, 3, 4];

/// Options with a picture that is told by a number, behind the first tokens of a prompt of `n` tokens.
fn with_picture(model: &Model, number: u8, n: usize) -> RequestOptions {
    let n_embd = model.hparams().n_embd;
    let rows = (0..12 * n_embd).map(|i| ((i * 7919 + 31 * usize::from(number)) % 97) as f32 / 97.0 - 0.5).collect();
    let placed = Placed { first: TEXT, embedded: Arc::new(Embedded { rows, grid: GRID }), hash: [number; 32] };
    let pictures = Pictures::new(model.picture_kind(), n_embd, n, vec![placed]).expect("it fits");
    RequestOptions { pictures, ..greedy(8) }
}

fn prompt() -> Vec<TokenId> {
    some_tokens((2 * TEXT + 12) as u32)
}

#[test]
fn a_prompt_with_the_same_picture_is_taken_up_and_one_with_another_is_not() {
    let model = pocket_moe();
    let (engine, _lock) = engine(&model, config(256, 1));
    let n = prompt().len();
    let ask = |number: u8, cache: bool| -> Completion {
        let options = RequestOptions { cache, ..with_picture(&model, number, n) };
        generate(&engine, &prompt(), options)
    };
    let fresh = [ask(1, false), ask(2, false)];
    assert_ne!(fresh[0].tokens, fresh[1].tokens, "the picture counts");
    let first = ask(1, true);
    assert_eq!((first.n_cached(), &first.tokens), (0, &fresh[0].tokens));
    let longer = [prompt(), some_tokens(5)].concat();
    let again = generate(&engine, &[&longer[..n], &first.tokens, &some_tokens(3)].concat(), with_picture(&model, 1, n));
    assert!(again.n_cached() >= n, "{} of {n} tokens", again.n_cached());
    let other = ask(2, true);
    assert!(other.n_cached() <= TEXT, "{} tokens", other.n_cached());
    assert_eq!(other.tokens, fresh[1].tokens);
}

#[test]
fn ids_of_pictures_are_no_tokens_of_a_prompt() {
    let model = pocket_moe();
    let (engine, _lock) = engine(&model, config(256, 1));
    let id = TokenId(TokenId::FIRST_OF_PICTURES + 5);
    let refused = GenerateRequest::new(vec![TokenId(1), id], greedy(1), engine.limits());
    assert!(matches!(refused, Err(RequestError::Token { .. })), "{refused:?}");
    let outside = GenerateRequest::new(prompt()[..TEXT + 3].to_vec(), with_picture(&model, 1, 99), engine.limits());
    assert!(matches!(outside, Err(RequestError::Picture { .. })), "{outside:?}");
    let mut generation = submit(&engine, &prompt(), with_picture(&model, 1, 92));
    assert_eq!(Completion::read(&mut generation).tokens.len(), 8);
}
