//! What the fuzz targets of `src/text/fuzz` hold to be true, on their seeds and on the inputs that once found a fault. A file
//! that a target writes because of one is put into `found/TARGET`.

mod alphabet;
#[path = "../../../test-support/replay.rs"]
mod replay;
mod template;
mod vocab;

use replay::replay;

#[test]
fn tokenizer_tables_are_refused_or_give_texts_back() {
    replay("vocab", vocab::check);
}

#[test]
fn templates_are_refused_or_make_sound_prompts() {
    replay("template", template::check);
}
