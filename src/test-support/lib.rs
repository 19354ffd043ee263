//! What tests share: models of the repository, engines, whole generations, proposers that know or lie, and a hub on this machine.
//! Knows the public face of the engine and of speculation only; owns no truth of its own.
#![forbid(unsafe_code)]

mod completion;
mod fake_hub;
mod grammars;
mod models;
mod proposers;
mod random;

pub use completion::{Completion, generate, generate_all, generate_tokens, submit};
pub use fake_hub::{Asked, COMMIT, FakeFile, FakeHub, sha256};
pub use grammars::{allowed_ids, may_end, takes_tokens, write};
pub use models::{
    Prompt, argmax, chat, config, drafting, engine, greedy, greedy_exactly, head, open_pocket, own_pocket, plain_loop,
    pocket, pocket_moe, question, slot_bytes, some_tokens, spawn, tiny, unpacked, user,
};
pub use proposers::{Liar, MAX_DEPTH, Script, Tally, Watched, every_draft};
pub use random::Random;
