//! `nextn-bench`: measures a model and shows what it computes.

use program::exit::Exit;
use program::signals::leave;

fn main() -> ! {
    let exit = match bench::run(program::version::parse::<bench::Args>(program::short_names::spelled_out(
        std::env::args_os(),
    ))) {
        Ok(()) => Exit::Success,
        // The reader had enough, as `head` does.
        Err(error) if is_broken_pipe(&error) => Exit::Success,
        Err(error) => {
            eprintln!("error: {error:#}");
            Exit::Runtime
        }
    };
    leave(exit)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
