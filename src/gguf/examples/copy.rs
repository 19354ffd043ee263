//! Copies a GGUF file through the reader and the writer and says whether the two are equal:
//! `cargo run -p nextn-gguf --example copy -- in.gguf out.gguf`.

use gguf::{Header, Writer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(from), Some(to)) = (args.next(), args.next()) else { return Err("two paths expected".into()) };
    let bytes = std::fs::read(&from)?;
    let header = Header::parse(&bytes)?;
    let mut writer = Writer::create(&to)?;
    writer.set_version(header.version())?;
    writer.add_all(header.metadata())?;
    for t in header.tensors() {
        writer.tensor(t.name, t.dims(), t.dtype)?;
    }
    let mut data = writer.begin()?;
    for t in header.tensors() {
        data.write_tensor(t.name, &bytes[t.range()])?;
    }
    data.finish()?;
    let copy = std::fs::read(&to)?;
    match bytes.iter().zip(&copy).position(|(a, b)| a != b) {
        Some(at) => println!("the first byte that differs is {at}: padding that is not zero, or trailing bytes"),
        None if bytes.len() == copy.len() => println!("{} equal bytes", copy.len()),
        None => println!("equal but for the length: {} bytes, now {}", bytes.len(), copy.len()),
    }
    Ok(())
}
