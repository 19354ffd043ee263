//! Generated text; the unit tests of the crate include this file too.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

/// The same cases every time, unless PROPTEST_RNG_SEED says otherwise; the seed is printed with a failure.
pub fn config(cases: u32) -> Config {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_121);
    println!("PROPTEST_RNG_SEED={seed}");
    Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() }
}

/// Text that meets every branch of the split rules, with and without special tokens.
pub fn any_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        6 => "[a-zA-Z]{1,9}",
        3 => "'(s|t|re|ve|m|ll|d|S|T|RE|Ve|M|lL|D|\u{17f}|r|l|x|'|)",
        3 => "[0-9]{1,8}",
        2 => "[\u{660}-\u{669}\u{966}-\u{96f}\u{2160}-\u{2169}\u{bc}-\u{be}\u{b2}\u{b3}]{1,5}",
        4 => " {1,6}",
        1 => " {30,90}",
        4 => "[\r\n]{1,4}",
        4 => "[ \t\r\n\u{b}\u{c}\u{85}\u{a0}\u{2003}\u{2028}\u{3000}]{1,6}",
        4 => "[!-/:-@\\[-`{-~]{1,5}",
        3 => "[\u{300}-\u{323}\u{591}-\u{5a1}\u{93c}-\u{94d}\u{e31}-\u{e3a}\u{20d0}-\u{20d5}]{1,4}",
        3 => "[\u{e0}-\u{ff}\u{430}-\u{44f}\u{3b1}-\u{3c9}\u{17f}\u{212a}\u{130}]{1,6}",
        2 => "[\u{4e00}-\u{4e20}\u{3041}-\u{3060}\u{30a1}-\u{30c0}\u{ac00}-\u{ac20}\u{1100}-\u{1112}]{1,5}",
        2 => "[\u{5d0}-\u{5ea}\u{627}-\u{64a}\u{915}-\u{939}\u{e01}-\u{e2e}]{1,5}",
        2 => "[\u{1f600}-\u{1f64f}\u{1f3fb}-\u{1f3ff}\u{200d}\u{fe0f}\u{1f1e6}-\u{1f1ff}]{1,5}",
        2 => "[\u{0}-\u{1f}\u{7f}-\u{9f}\u{200b}\u{feff}\u{ad}\u{2060}]{1,3}",
        1 => "[\u{e000}-\u{e010}\u{10fffd}-\u{10ffff}\u{378}\u{379}\u{530}\u{e0fff}\u{2ffff}]{1,3}",
        2 => "[\u{2010}-\u{2027}\u{2200}-\u{2220}\u{20a0}-\u{20b0}]{1,3}",
        2 => prop::collection::vec(any::<char>(), 1..4).prop_map(|chars| chars.into_iter().collect::<String>()),
        3 => prop::sample::select(MARKUP).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

/// Special tokens, whole and cut, and words that are tokens.
const MARKUP: &[&str] = &[
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_response>",
    "<tts_text_bos",
    "<tts_text_bos_single>",
    "<|im_",
    "<|fim_prefix|",
    "|>",
    "<",
    "</",
    " the",
    " return",
    "function",
    "[PAD4039]",
];
