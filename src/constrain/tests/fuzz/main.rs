//! What the fuzz targets of `src/constrain/fuzz` hold to be true, on their seeds and on the inputs that once found a fault. A
//! file that a target writes because of one is put into `found/TARGET`.

mod forms;
#[path = "../../../test-support/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn schemas_are_refused_or_can_be_walked() {
    replay("schema", forms::schema);
}

#[test]
fn gbnf_grammars_are_refused_or_can_be_walked() {
    replay("gbnf", forms::gbnf);
}
