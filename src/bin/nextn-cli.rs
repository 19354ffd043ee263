//! `nextn-cli`: chat with a model, or complete a text, in the terminal.

fn main() -> ! {
    program::signals::leave(cli::main())
}
