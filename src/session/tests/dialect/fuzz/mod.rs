//! What the fuzz targets of `src/session/fuzz` hold to be true, on their seeds and on the inputs that once found a fault. A file
//! that a target writes because of one is put into `tests/fuzz/found/TARGET`.

mod calls;
#[path = "../../../../test-support/replay.rs"]
mod replay;
pub mod reply;

use replay::replay;

#[test]
fn the_cuts_of_a_reply_do_not_change_what_comes_out() {
    replay("reply", reply::check);
}

#[test]
fn tools_are_refused_or_their_calls_can_be_walked() {
    replay("calls", calls::check);
}
