//! `nextn-cli`.
fn main() {}
