//! `nextn-chat`: `nextn-cli` by itself, so that `cargo run` builds no server, no bench and no file tools first.

fn main() -> ! {
    program::signals::leave(cli::main())
}
