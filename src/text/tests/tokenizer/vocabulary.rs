//! Ids, bytes, kinds and roles of the test vocabulary, and of variants of it.

use text::{Fim, Special, SpecialIds, TokenId, TokenKind, Vocab};

use crate::support::{numbers, tok_a};

#[test]
fn tokens_are_known_by_text_and_by_bytes() {
    let vocab = tok_a().vocab("qwen35");
    assert_eq!(vocab.len(), 4040);
    assert_eq!(vocab.id("\n"), Some(TokenId(198)));
    assert_eq!(vocab.bytes(TokenId(198)), Some(&b"\n"[..]));
    assert_eq!(vocab.bytes(TokenId(220)), Some(&b" "[..]));
    assert_eq!(vocab.id("<|im_end|>"), Some(TokenId(4002)));
    assert_eq!(vocab.bytes(TokenId(4002)), Some(&b"<|im_end|>"[..]));
    assert_eq!(vocab.id("no such token"), None);
    assert_eq!(vocab.id(""), None);
    assert_eq!(vocab.kind(TokenId(198)), Some(TokenKind::Normal));
    assert_eq!(vocab.kind(TokenId(4002)), Some(TokenKind::Control));
    assert_eq!(vocab.kind(TokenId(4024)), Some(TokenKind::UserDefined));
    assert_eq!(vocab.kind(TokenId(4040)), None);
    assert_eq!(vocab.bytes(TokenId(4040)), None);
    assert_eq!(vocab.bytes(TokenId(u32::MAX)), None);
}

#[test]
fn unused_rows_have_an_id_but_stand_for_nothing() {
    let vocab = tok_a().vocab("qwen35");
    assert_eq!(vocab.kind(TokenId(4039)), Some(TokenKind::Unused));
    assert_eq!(vocab.bytes(TokenId(4039)), Some(&[][..]));
    assert_eq!(vocab.id("[PAD4039]"), Some(TokenId(4039)));
    assert!(vocab.encode("[PAD4039]", Special::Parse).len() > 1);
}

#[test]
fn both_qwen_tokens_end_generation_though_the_file_names_one() {
    let vocab = tok_a().vocab("qwen35");
    assert_eq!(vocab.eos(), Some(TokenId(4002)));
    assert_eq!(vocab.eot(), Some(TokenId(4002)));
    assert!(vocab.is_eog(TokenId(4000)) && vocab.is_eog(TokenId(4002)));
    // Also what only stands between the files of a fill-in-the-middle prompt: fim_pad, repo_name, file_sep.
    assert_eq!(numbers(vocab.eog()), [4000, 4002, 4019, 4020, 4021]);
    for other in [4001, 4024, 4025, 0, 4040] {
        assert!(!vocab.is_eog(TokenId(other)), "{other}");
    }
}

#[test]
fn the_file_can_name_more_ends_and_other_fim_tokens() {
    let lists = tok_a();
    let mut source = lists.source("qwen35");
    source.special = SpecialIds { eot: Some(4005), eom: Some(4006), fim_prefix: Some(4003), ..source.special };
    let vocab = Vocab::new(&source).unwrap();
    assert_eq!(vocab.eot(), Some(TokenId(4005)));
    assert_eq!(numbers(vocab.eog()), [4000, 4002, 4005, 4006, 4019, 4020, 4021]);
    let fim = Fim { prefix: TokenId(4003), middle: TokenId(4017), suffix: TokenId(4018) };
    assert_eq!(vocab.fim(), Some(fim));
}

#[test]
fn roles_that_are_not_there_are_absent() {
    let mut lists = tok_a();
    for name in ["<|fim_middle|>", "<|im_end|>", "<|endoftext|>"] {
        let id = lists.tokens.iter().position(|token| token == name).unwrap();
        lists.tokens[id] = format!("[was {id}]");
    }
    let mut source = lists.source("qwen35");
    source.special = SpecialIds::default();
    let vocab = Vocab::new(&source).unwrap();
    assert_eq!((vocab.bos(), vocab.eos(), vocab.eot(), vocab.pad(), vocab.fim()), (None, None, None, None, None));
    assert!(!vocab.add_bos());
}

#[test]
fn bos_is_added_when_the_file_says_so_or_the_family_does() {
    let lists = tok_a();
    let vocab = |pre, bos, add_bos| {
        let mut source = lists.source(pre);
        source.special.bos = bos;
        source.add_bos = add_bos;
        Vocab::new(&source).unwrap()
    };
    assert!(!vocab("qwen35", Some(4000), None).add_bos());
    assert!(!vocab("qwen35", Some(4000), Some(false)).add_bos());
    assert!(vocab("qwen35", Some(4000), Some(true)).add_bos());
    assert!(vocab("llama-bpe", Some(4000), None).add_bos());
    assert!(!vocab("llama-bpe", Some(4000), Some(false)).add_bos());
    assert!(!vocab("llama-bpe", None, None).add_bos());
    // Adding it is the caller's work.
    assert_eq!(numbers(&vocab("qwen35", Some(4000), Some(true)).encode("\n", Special::Parse)), [198]);
}

#[test]
fn plain_text_never_becomes_a_control_token() {
    let vocab = tok_a().vocab("qwen35");
    let text = "<|im_end|>\n<|im_start|>system<|endoftext|>";
    let ids = vocab.encode(text, Special::Plain);
    assert!(ids.iter().all(|&id| vocab.kind(id) == Some(TokenKind::Normal)), "{ids:?}");
    assert_eq!(vocab.encode(text, Special::Parse).len(), 5);
}

#[test]
fn special_tokens_are_listed_with_their_text() {
    let vocab = tok_a().vocab("qwen35");
    let list: Vec<_> = vocab.special_tokens().collect();
    assert_eq!(list.len(), 33);
    assert_eq!(list[0], (TokenId(4000), "<|endoftext|>"));
    assert_eq!(list[25], (TokenId(4025), "</think>"));
}

#[test]
fn a_rendered_turn_has_the_shape_that_qwen_files_give_it() {
    // Qwen3.5's own ids for this prompt: 248045 846 198 9419 248046 198 248045 74455 198 248068 271 248069 271.
    // In this vocabulary "assistant" is several tokens and the special ones start at 4000.
    let vocab = tok_a().vocab("qwen35");
    let prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let ids = numbers(&vocab.encode(prompt, Special::Parse));
    let special: Vec<_> = ids.iter().copied().filter(|&id| id >= 4000).collect();
    assert_eq!(special, [4001, 4002, 4001, 4024, 4025]);
    assert_eq!(ids[ids.len() - 5..], [198, 4024, 270, 4025, 270]);
}

#[test]
fn a_vocabulary_is_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    let vocab = tok_a().vocab("qwen2");
    shared(&vocab);
    let ids = vocab.encode("shared words", Special::Plain);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| vocab.encode("shared words", Special::Plain));
        assert_eq!(other.join().unwrap(), ids);
    });
}
