//! What the tests of the whole house share: golden files, tiny random models, runs without an engine.
//! Owns no truth of its own: each test says what it holds to be true.
#![allow(dead_code, reason = "every test file uses its own part")]

pub mod golden;
pub mod rig;
pub mod tiny;
pub mod words;
