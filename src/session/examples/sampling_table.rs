//! Prints the table of sampling parameters that docs/SERVER.md holds.

fn main() {
    print!("{}", session::options::markdown_table());
}
