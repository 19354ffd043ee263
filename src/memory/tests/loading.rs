//! Saved sequences that are put into slots a part at a time: what is there in the end is what one step would have put there, and
//! before that nothing.

use ggml::Device;
use memory::{CacheType, Kv, LayerState, Loading, Memory, MemoryConfig, Recurrent, SavedSequence, Slot, StateLayout};

const KV: LayerState = LayerState::Kv(Kv { n_head_kv: 2, d_k: 64, d_v: 32, window: None, latent: false });
const WINDOWED: LayerState = LayerState::Kv(Kv { n_head_kv: 1, d_k: 64, d_v: 16, window: Some(5), latent: false });
const LATENT: LayerState = LayerState::Kv(Kv { n_head_kv: 1, d_k: 48, d_v: 32, window: None, latent: true });
const RECURRENT: LayerState = LayerState::Recurrent(Recurrent {
    n_conv: 3,
    n_channels: 256,
    n_heads: 4,
    d_state: 64,
    d_head: 64,
    is_delta_net: false,
});

fn memory(layers: &[LayerState], v_transposed: bool, max_rows: Option<usize>) -> (Memory, Vec<Slot>) {
    let config = MemoryConfig {
        n_slots: 3,
        n_ctx: 2048,
        type_k: CacheType::F32,
        type_v: CacheType::F32,
        v_transposed,
        n_snapshots: 2,
        transactional: false,
        max_rows,
        rotate: true,
    };
    let layout = StateLayout { layers: layers.to_vec() };
    let mut memory = Memory::new(Device::cpu().expect("the CPU is there"), layout, config).expect("a sound layout");
    let slots = (0..3).map(|_| memory.acquire().expect("cleared").expect("a free slot")).collect();
    (memory, slots)
}

/// All that a memory can be like.
fn memories() -> impl Iterator<Item = (Memory, Vec<Slot>, String)> {
    let layers = [&[KV, RECURRENT, WINDOWED][..], &[KV, WINDOWED], &[LATENT, KV]];
    let all = layers.into_iter().flat_map(|layers| [(layers, None), (layers, Some(200))]);
    all.flat_map(|(layers, max_rows)| [false, true].map(|v_transposed| (layers, v_transposed, max_rows))).map(
        |(layers, v_transposed, max_rows)| {
            let (memory, slots) = memory(layers, v_transposed, max_rows);
            (memory, slots, format!("{layers:?}, transposed {v_transposed}, {max_rows:?} rows"))
        },
    )
}

/// Adds rows without computing anything: their cells hold what was there.
fn advance(memory: &mut Memory, slot: &Slot, mut n_rows: usize) {
    while n_rows > 0 {
        let n = n_rows.min(200);
        memory.begin(&[(slot, n)], 1).expect("a step").commit(&[n]).expect("all rows");
        n_rows -= n;
    }
}

/// A sequence of so many positions that holds this byte.
fn sequence(memory: &mut Memory, slot: &Slot, len: usize, byte: u8) -> SavedSequence {
    memory.reset(slot).expect("cleared");
    advance(memory, slot, len);
    let mut bytes = Vec::new();
    memory.save(slot).expect("copied").write_to(&mut bytes);
    let n_numbers = memory.shape().saved_bytes(0) - memory.shape().recurrent_bytes();
    bytes[n_numbers..].fill(byte);
    memory.reset(slot).expect("cleared");
    SavedSequence::from_bytes(&bytes).expect("the same lengths")
}

/// Bytes after the numbers that are not zero.
fn n_not_zero(memory: &Memory, slot: &Slot) -> usize {
    let mut bytes = Vec::new();
    memory.save(slot).expect("copied").write_to(&mut bytes);
    let n_numbers = memory.shape().saved_bytes(0) - memory.shape().recurrent_bytes();
    bytes[n_numbers..].iter().filter(|&&b| b != 0).count()
}

/// Goes on to the end; gives how many parts that took.
fn go_on(memory: &mut Memory, loading: &mut Loading<&SavedSequence>, mut between: impl FnMut(&mut Memory)) -> usize {
    let mut n_parts = 0;
    while !loading.is_whole() {
        memory.load_more(loading).expect("nobody has touched it");
        between(memory);
        n_parts += 1;
    }
    n_parts
}

#[test]
fn a_sequence_that_comes_part_by_part_is_what_it_was_and_what_was_there_before_is_gone() {
    for (mut memory, slots, case) in memories() {
        let [one, other, _] = &slots[..] else { panic!("three slots") };
        let (short, long) = (sequence(&mut memory, one, 700, 0x3f), sequence(&mut memory, one, 1500, 0xff));
        for before in [None, Some(&long), Some(&short)] {
            for saved in [&short, &long] {
                memory.reset(one).expect("cleared");
                if let Some(before) = before {
                    memory.load(one, before).expect("it fits");
                }
                let mut loading = memory.begin_loading(one, saved, None).expect("it fits");
                memory.reset(other).expect("cleared");
                let n_parts = go_on(&mut memory, &mut loading, |memory| advance(memory, other, 1));
                assert!(n_parts > 3, "{case}: {n_parts} parts");
                assert_eq!(memory.finish_loading(loading).expect("whole"), saved, "{case}");
                assert!(memory.save(one).expect("copied") == *saved, "{case}");
                // Cells behind it, which masks hide, hold finite numbers.
                let n_cells = n_not_zero(&memory, one);
                memory.truncate(one, saved.len()).expect("as it is");
                advance(&mut memory, one, 100);
                assert!(n_not_zero(&memory, one) <= n_cells, "{case}: something of the one before is left");
            }
        }
    }
}

#[test]
fn one_that_does_not_come_to_an_end_leaves_nothing() {
    for (mut memory, slots, case) in memories() {
        let [one, other, _] = &slots[..] else { panic!("three slots") };
        let nothing = memory.taken_bytes();
        let saved = sequence(&mut memory, one, 1200, 0xff);
        for n_parts in 0..6 {
            for gives_back in [false, true] {
                memory.load(one, &saved).expect("it fits");
                let mut loading = memory.begin_loading(one, &saved, None).expect("it fits");
                for _ in 0..n_parts {
                    memory.load_more(&mut loading).expect("nobody has touched it");
                }
                assert!(memory.taken_by(one).expect("in use") >= memory.footprint().n_bytes(1200) / 4, "{case}");
                drop(loading);
                assert!(memory.is_empty(one).expect("in use"), "{case}");
                let refused = memory.begin(&[(one, 1)], 1).expect_err("there is no state").to_string();
                assert!(refused.contains("is not all loaded and its state is lost"), "{case}: {refused}");
                assert!(memory.save(one).is_err() && memory.checkpoint(one).is_err() && memory.hold(one).is_err());
                if gives_back { memory.discard(one) } else { memory.reset(one) }.expect("cleared");
                advance(&mut memory, one, 1300);
                assert_eq!(n_not_zero(&memory, one), 0, "{case}: {n_parts} parts, given back: {gives_back}");
            }
        }
        slots.iter().for_each(|slot| memory.discard(slot).expect("given back"));
        assert_eq!(memory.taken_bytes(), nothing, "{case}");
        advance(&mut memory, other, 3);
    }
}

#[test]
fn a_slot_that_is_given_something_else_meanwhile_keeps_that() {
    for (mut memory, slots, case) in memories() {
        let [one, other, _] = &slots[..] else { panic!("three slots") };
        let saved = sequence(&mut memory, one, 900, 1);
        let another = sequence(&mut memory, one, 800, 2);
        memory.load(other, &another).expect("it fits");
        for change in 0..4 {
            let mut loading = memory.begin_loading(one, &saved, None).expect("it fits");
            memory.load_more(&mut loading).expect("nobody has touched it");
            let mut newer = None;
            match change {
                0 => memory.reset(one).expect("cleared"),
                1 => memory.load(one, &another).expect("it fits"),
                2 => memory.copy(other, one, 800, None).expect("all of it"),
                _ => newer = Some(memory.begin_loading(one, &another, None).expect("it fits")),
            }
            let refused = memory.load_more(&mut loading).expect_err("it is another's").to_string();
            assert!(refused.contains("slot 0 changed while a sequence was loaded into it"), "{case}: {refused}");
            assert!(memory.finish_loading(loading).is_err(), "{case}");
            if let Some(newer) = newer {
                memory.finish_loading(newer).expect("nobody has touched it");
            }
            match change {
                0 => assert!(memory.is_empty(one).expect("in use"), "{case}"),
                _ => assert!(memory.save(one).expect("copied") == another, "{case}: {change}"),
            }
        }
    }
}

#[test]
fn cells_that_a_sequence_shares_stay_while_it_comes_and_the_other_one_goes_elsewhere() {
    for v_transposed in [false, true] {
        let (mut memory, slots) = memory(&[KV, WINDOWED, KV], v_transposed, None);
        let [one, other, third] = &slots[..] else { panic!("three slots") };
        let saved = sequence(&mut memory, one, 1800, 7);
        let another = sequence(&mut memory, one, 1900, 9);
        for n_before in 0..4 {
            memory.load(other, &saved).expect("it fits");
            let mut loading = memory.begin_loading(one, &saved, Some((other, 1500))).expect("it fits");
            assert_eq!(
                memory.shown_by(one).expect("in use") > 0,
                cfg!(target_os = "linux") && memory.shareable_bytes(1500) > 0
            );
            for _ in 0..n_before {
                memory.load_more(&mut loading).expect("nobody has touched it");
            }
            // All that can happen to the other one.
            memory.truncate(other, 40).expect("attention alone");
            advance(&mut memory, other, 700);
            memory.copy(other, third, 500, None).expect("there are as many");
            memory.load(other, &another).expect("it fits");
            memory.discard(other).expect("given back");
            memory.finish_loading(loading).expect("nobody has touched it");
            assert!(memory.save(one).expect("copied") == saved, "transposed {v_transposed}, after {n_before} parts");
            memory.discard(one).expect("given back");
            memory.discard(third).expect("given back");
            assert_eq!(memory.shared_bytes(None), 0);
        }
    }
}
