//! `nextn-cli`: chat with a model, or complete a text, in the terminal.

fn main() -> ! {
    nextn::cli::signals::leave(nextn::cli::main())
}
