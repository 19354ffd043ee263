//! `nextn-server`: answers over HTTP, for clients of OpenAI's, Anthropic's and llama.cpp's interfaces.

use std::process::ExitCode;

fn main() -> ExitCode {
    nextn::server::main().into()
}
