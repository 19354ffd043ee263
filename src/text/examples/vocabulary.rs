//! Answers about the vocabulary of a model file, a JSON line for a JSON line: `vocabulary MODEL.gguf < requests`.
//! `{"encode": TEXT, "special": BOOL}` gives ids and whether their bytes are TEXT again, `{"time": TEXT, "rounds": N}` the
//! seconds of the fastest encoding, `{"roles": true}` the tokens with a role. `vocabulary --rules` lists the split rules.
//! `scripts/published/vocabularies.py` asks; owns nothing.

use std::io::{BufRead, Write};
use std::time::Instant;

use serde_json::{Value, json};
use text::{Special, TokenId, Vocab, split_rules};

fn main() {
    if let Err(error) = answers() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn answers() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [path] = args.as_slice() else { return Err("usage: vocabulary MODEL.gguf < requests".into()) };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if path == "--rules" {
        for (name, patterns, whole_words) in split_rules() {
            writeln!(out, "{}", json!({"name": name, "patterns": patterns, "whole_words": whole_words}))?;
        }
        return Ok(out.flush()?);
    }
    let file = std::fs::read(path)?;
    let vocab = Vocab::from_metadata(gguf::Header::parse(&file)?.metadata())?;
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        writeln!(out, "{}", answer(&vocab, &request))?;
        out.flush()?;
    }
    Ok(())
}

fn answer(vocab: &Vocab, request: &Value) -> Value {
    if let Some(text) = request["encode"].as_str() {
        let special = if request["special"] == true { Special::Parse } else { Special::Plain };
        let ids = vocab.encode(text, special);
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| vocab.bytes(id).unwrap_or_default()).copied().collect();
        return json!({"ids": numbers(&ids), "back": bytes == text.as_bytes(), "text": String::from_utf8_lossy(&bytes)});
    }
    if let Some(text) = request["time"].as_str() {
        let rounds = request["rounds"].as_u64().unwrap_or(1);
        let once = |_| {
            let start = Instant::now();
            std::hint::black_box(vocab.encode(text, Special::Plain));
            start.elapsed().as_secs_f64()
        };
        return json!({"seconds": (0..rounds).map(once).fold(f64::INFINITY, f64::min)});
    }
    let id = |id: Option<TokenId>| id.map(|id| id.0);
    json!({
        "n_tokens": vocab.len(), "bos": id(vocab.bos()), "eos": id(vocab.eos()), "eot": id(vocab.eot()), "pad": id(vocab.pad()),
        "sep": id(vocab.sep()), "unknown": id(vocab.unknown()), "eog": numbers(vocab.eog()), "add_bos": vocab.add_bos(),
        "add_eos": vocab.add_eos(), "fim": vocab.fim().map(|fim| [fim.prefix.0, fim.suffix.0, fim.middle.0]),
    })
}

fn numbers(ids: &[TokenId]) -> Vec<u32> {
    ids.iter().map(|id| id.0).collect()
}
