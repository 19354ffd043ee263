//! All tests of the crate in one program: most of a program's build is its linking.

mod attacks;
mod mutations;
mod roundtrip;
mod second_opinion;
mod split;
mod support;
mod write;
