//! `nextn-server`: answers over HTTP, for clients of OpenAI's, Anthropic's and llama.cpp's interfaces.

fn main() -> ! {
    program::signals::leave(server::main())
}
