//! `nextn-bench`.
fn main() {}
