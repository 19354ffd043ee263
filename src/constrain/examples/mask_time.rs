//! How long masks take on a model's vocabulary: `mask_time FILE.gguf`. Texts are written by drawing allowed tokens at
//! random from a fixed seed, so every form is measured along several hundred tokens.

use std::path::Path;
use std::time::{Duration, Instant};

use constrain::{Compiler, Kind, Limits, Spec};
use engine::Allowed;
use model::{LoadOptions, Model};
use serde_json::json;
use text::TokenId;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("usage: mask_time FILE.gguf")?;
    let model = Model::open(Path::new(&file), &LoadOptions::default())?;
    let vocab = model.shared_vocab();
    let start = Instant::now();
    let compiler = Compiler::new(vocab.clone(), Limits::default());
    compiler.compile(&Spec::new(Kind::Choice(vec!["a".into()])))?;
    println!("{} tokens, trie and first grammar {:.0} ms", vocab.len(), ms(start.elapsed()));
    let person = json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "tags", "address"],
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 4},
            "address": {"type": "object", "properties": {"street": {"type": "string", "maxLength": 60},
                "city": {"type": "string", "pattern": "^[A-Z][a-z]+$"}}, "required": ["street", "city"],
                "additionalProperties": false}}});
    for (name, kind) in [
        ("json object", Kind::JsonObject),
        ("json schema", Kind::JsonSchema(person)),
        ("regex date", Kind::Regex(r"\d{4}-\d{2}-\d{2}( \w+){3,40}".into())),
        ("any text", Kind::Regex(r"(?s:.)*".into())),
    ] {
        let spec = Spec::new(kind);
        let start = Instant::now();
        let grammar = compiler.compile(&spec)?;
        let built = start.elapsed();
        let mut random = 88172645463325252_u64;
        let (mut masks, mut starts, mut fits) = (Vec::new(), Duration::ZERO, Duration::ZERO);
        for _ in 0..20 {
            let start = Instant::now();
            let mut walk = grammar.start();
            starts += start.elapsed();
            for _ in 0..100 {
                let start = Instant::now();
                let allowed = walk.allowed()?;
                masks.push(start.elapsed());
                let token = draw(&allowed, vocab.len(), &mut random);
                if vocab.is_eog(token) {
                    break;
                }
                let start = Instant::now();
                walk.n_fitting(&[token]);
                fits += start.elapsed();
                walk.accept(token)?;
                if walk.is_complete() {
                    break;
                }
            }
        }
        masks.sort_unstable();
        let n = masks.len();
        let mean = masks.iter().sum::<Duration>() / n as u32;
        println!(
            "{name:12} built in {:7.2} ms, start {:6.1} us; {n:5} masks: mean {:7.1} us, median {:7.1}, 99 % {:8.1}, most {:8.1}; one token tried {:.1} us",
            ms(built),
            us(starts / 20),
            us(mean),
            us(masks[n / 2]),
            us(masks[n * 99 / 100]),
            us(masks[n - 1]),
            us(fits / n as u32)
        );
    }
    Ok(())
}

/// One of the allowed tokens.
fn draw(allowed: &Allowed<'_>, n_vocab: usize, random: &mut u64) -> TokenId {
    let mut next = || {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *random
    };
    let start = next() as usize % n_vocab;
    let ids = (0..n_vocab).map(|i| TokenId(((start + i) % n_vocab) as u32));
    ids.into_iter().find(|&id| allowed.has(id)).expect("a mask is never empty")
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

fn us(d: Duration) -> f64 {
    d.as_secs_f64() * 1e6
}
