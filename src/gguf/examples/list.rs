//! Prints the metadata and the tensors of one GGUF file: `cargo run -p nextn-gguf --example list -- model.gguf`.
//! Reads the whole file into memory; a runtime would map it.

use std::time::Instant;

use gguf::{Header, SplitInfo, Value};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("one path expected")?;
    let bytes = std::fs::read(&path)?;
    let start = Instant::now();
    let header = Header::parse(&bytes)?;
    let took = start.elapsed();
    for (key, value) in header.metadata().iter() {
        match value {
            Value::Array(array) => {
                let first: Vec<_> = array.iter().take(4).map(|v| v.to_string()).collect();
                println!("{key} = {value}: {} ...", first.join(", "));
            }
            _ => println!("{key} = {value}"),
        }
    }
    for t in header.tensors() {
        println!("{:<40} {:<8} {:?} at {}, {} bytes", t.name, t.dtype, t.dims(), t.offset, t.n_bytes);
    }
    if let Some(split) = SplitInfo::of(&header)? {
        println!("shard {} of {}, {} tensors in all", split.no + 1, split.count, split.n_tensors);
    }
    println!(
        "version {}, alignment {}, {} keys, {} tensors, data from byte {}; parsed in {took:.1?}",
        header.version(),
        header.alignment(),
        header.metadata().len(),
        header.tensors().len(),
        header.data_start(),
    );
    Ok(())
}
