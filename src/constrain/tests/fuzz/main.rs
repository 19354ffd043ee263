//! What the fuzz targets of `src/constrain/fuzz` hold to be true, on their seeds and on the inputs that once found a fault. A
//! file that a target writes because of one is put into `found/TARGET`.

mod forms;

use std::path::Path;

fn replay(target: &str, check: fn(&[u8])) {
    let mut n = 0;
    for folder in ["fuzz/seeds", "tests/fuzz/found"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
        for file in std::fs::read_dir(folder).into_iter().flatten() {
            let path = file.expect("a folder that can be read").path();
            println!("{}", path.display());
            check(&std::fs::read(&path).expect("a file that can be read"));
            n += 1;
        }
    }
    assert!(n > 0, "{target}: no inputs are found");
}

#[test]
fn schemas_are_refused_or_can_be_walked() {
    replay("schema", forms::schema);
}

#[test]
fn gbnf_grammars_are_refused_or_can_be_walked() {
    replay("gbnf", forms::gbnf);
}
