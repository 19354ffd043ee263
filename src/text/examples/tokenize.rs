//! Tokens of a text, with the vocabulary of a model file: `tokenize MODEL.gguf [--plain] < text`.
//! One line a token: id, kind, bytes. Shows the way from a file to a [`text::Vocab`]; owns nothing.

use std::io::{Read, Write};
use std::time::Instant;

use text::{Special, Vocab};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let (path, special) = match args.as_slice() {
        [path] => (path, Special::Parse),
        [path, flag] if flag == "--plain" => (path, Special::Plain),
        _ => return Err("usage: tokenize MODEL.gguf [--plain] < text".into()),
    };
    let file = std::fs::read(path)?;
    let start = Instant::now();
    let header = gguf::Header::parse(&file)?;
    let parsed = start.elapsed();
    let vocab = Vocab::from_metadata(header.metadata())?;
    let loaded = start.elapsed() - parsed;

    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let start = Instant::now();
    let ids = vocab.encode(&text, special);
    let encoded = start.elapsed();

    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for &id in &ids {
        let (Some(kind), Some(bytes)) = (vocab.kind(id), vocab.bytes(id)) else { continue };
        writeln!(out, "{:>7}  {kind:?}  \"{}\"", id.0, bytes.escape_ascii())?;
    }
    out.flush()?;
    let mb = text.len() as f64 / 1e6;
    eprintln!(
        "header {parsed:.1?}, vocabulary of {} {loaded:.1?}; {mb:.3} MB into {} tokens in {encoded:.1?} ({:.1} MB/s)",
        vocab.len(),
        ids.len(),
        mb / encoded.as_secs_f64()
    );
    Ok(())
}
