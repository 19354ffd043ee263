//! Makes a GGUF file of a checkpoint folder, or another type of a GGUF file:
//! `cargo run --release -p nextn-convert --example to_gguf -- FOLDER_OR_FILE OUT.gguf TYPE`.

use convert::checkpoint::{Checkpoint, Options};
use convert::quantize::Recipe;
use convert::stream::{Control, OnFailure, available_threads};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, file_type] = args.as_slice() else { return Err("a source, a target and a type expected".into()) };
    let mut model = if std::fs::metadata(from)?.is_dir() {
        Checkpoint::open(from.as_ref(), Options::default())?.model
    } else {
        convert::Source::open(from.as_ref())?.into_model()?
    };
    let recipe = Recipe { file_type: file_type.parse()?, head: None, plain: false, imatrix: None, requantize: false };
    recipe.apply(&mut model)?;
    for (dtype, n_bytes) in model.mix() {
        println!("{dtype:>8} {:10.2} MiB", n_bytes as f64 / f64::from(1 << 20));
    }
    let job = model.into_job(recipe.stamp())?;
    job.run(to.as_ref(), available_threads(), &Control::default(), OnFailure::Remove)?;
    Ok(())
}
