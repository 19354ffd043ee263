//! What these tests share with those of the whole house.
#![allow(dead_code, reason = "every test file uses its own part")]

#[path = "../../../tests/support/adapters.rs"]
pub mod adapters;
#[path = "../../../tests/support/feature_heads.rs"]
pub mod heads;
#[path = "../../../tests/support/projector.rs"]
pub mod projector;
#[path = "../../../tests/support/rig.rs"]
pub mod rig;
#[path = "../../../tests/support/tiny.rs"]
pub mod tiny;
#[path = "../../../tests/support/words.rs"]
pub mod words;

/// A golden that is packed by zlib.
pub fn unpacked(path: &std::path::Path) -> Vec<u8> {
    let packed = std::fs::read(path).expect("the golden is in the repository");
    miniz_oxide::inflate::decompress_to_vec_zlib(&packed).expect("zlib data")
}
