//! Slots and steps without any graph: what is refused, and where rows, cells and masks are.

use ggml::Device;
use memory::{
    CacheType, Error, Kv, LayerState, Memory, MemoryConfig, Recurrent, SavedSequence, Segment, Slot, StateLayout,
};
use proptest::prelude::*;

const KV: LayerState = LayerState::Kv(Kv { n_head_kv: 2, d_k: 32, d_v: 32, window: None, latent: false });
/// Of another shape, behind a window.
const WINDOWED: LayerState = LayerState::Kv(Kv { n_head_kv: 1, d_k: 64, d_v: 16, window: Some(5), latent: false });
const RECURRENT: LayerState = LayerState::Recurrent(Recurrent {
    n_conv: 3,
    n_channels: 8,
    n_heads: 2,
    d_state: 4,
    d_head: 4,
    is_delta_net: false,
});
/// Rows of 48 elements, of which the first 32 are the values.
const LATENT: LayerState = LayerState::Kv(Kv { n_head_kv: 1, d_k: 48, d_v: 32, window: None, latent: true });
/// A state that is no square.
const MAMBA: LayerState = LayerState::Recurrent(Recurrent {
    n_conv: 3,
    n_channels: 8,
    n_heads: 2,
    d_state: 4,
    d_head: 8,
    is_delta_net: false,
});

fn config(n_slots: usize, n_ctx: usize) -> MemoryConfig {
    MemoryConfig {
        n_slots,
        n_ctx,
        type_k: CacheType::F32,
        type_v: CacheType::F32,
        v_transposed: false,
        n_snapshots: 4,
        transactional: false,
        max_rows: None,
        rotate: true,
    }
}

fn memory(layers: &[LayerState], config: MemoryConfig) -> Result<Memory, Error> {
    Memory::new(Device::cpu().expect("the CPU is there"), StateLayout { layers: layers.to_vec() }, config)
}

fn slots(memory: &mut Memory, n: usize) -> Vec<Slot> {
    (0..n).map(|_| memory.acquire().expect("cleared").expect("a free slot")).collect()
}

/// Adds rows without computing anything; keeps all of them.
fn advance(memory: &mut Memory, slot: &Slot, n_rows: usize) {
    memory.begin(&[(slot, n_rows)], 1).expect("a step").commit(&[n_rows]).expect("all rows");
}

#[test]
fn a_memory_that_cannot_be_is_refused() {
    let shape = |n_head_kv, d_k, d_v, latent| LayerState::Kv(Kv { n_head_kv, d_k, d_v, window: None, latent });
    let kv = |d| shape(1, d, d, false);
    let latent = |n_head_kv, d_k, d_v| shape(n_head_kv, d_k, d_v, true);
    let q8 = MemoryConfig { type_v: CacheType::Q8_0, ..config(1, 64) };
    let q8_k = MemoryConfig { type_k: CacheType::Q8_0, ..config(1, 64) };
    let windowless = LayerState::Kv(Kv { n_head_kv: 1, d_k: 32, d_v: 32, window: Some(0), latent: false });
    let many: Vec<_> = (1..=65).map(|n_head_kv| shape(n_head_kv, 4, 4, false)).collect();
    for (layers, config, says) in [
        (&[KV][..], config(0, 64), "at least one slot"),
        (&[KV], config(1, 0), "at least one slot"),
        (&[KV], MemoryConfig { n_snapshots: 0, ..config(1, 64) }, "one snapshot"),
        (&[KV], MemoryConfig { v_transposed: true, ..q8 }, "values of type q8_0 need flash attention"),
        (&[kv(48)], q8, "a value head of 48 elements cannot be kept as q8_0"),
        (&[latent(1, 48, 32)], q8_k, "a key head of 48 elements cannot be kept as q8_0"),
        (&[latent(1, 64, 48)], q8_k, "a value head of 48 elements cannot be kept as q8_0"),
        (&[latent(2, 64, 32)], config(1, 64), "latent rows of 2 heads"),
        (&[latent(1, 32, 64)], config(1, 64), "of 32 elements with values of 64"),
        (&[KV, windowless], config(1, 64), "a window of attention has no position"),
        (&many, config(1, 64), "attention layers of 65 windows or widths of values, at most 64 expected"),
    ] {
        let error = memory(layers, config).expect_err(says);
        assert!(matches!(error, Error::Layout(_)) && error.to_string().contains(says), "{error}");
    }
    let memory = memory(&[KV, RECURRENT, LayerState::None], config(1, 257)).expect("a sound layout");
    assert_eq!(memory.config().n_ctx, 512, "rounded up to a multiple of 256");
}

#[test]
fn a_step_that_cannot_be_made_is_refused_and_changes_nothing() {
    let mut memory = memory(&[KV, RECURRENT], config(3, 256)).expect("a sound layout");
    let mut all = slots(&mut memory, 3);
    assert!(memory.acquire().expect("nothing to clear").is_none());
    advance(&mut memory, &all[0], 250);
    let [a, b] = [&all[0], &all[1]];
    for (parts, n_snapshots, says) in [
        (&[][..], 1, "at least one row"),
        (&[(b, 0)], 1, "at least one row"),
        (&[(b, 1), (a, 1)], 1, "ascending order"),
        (&[(b, 1), (b, 1)], 1, "ascending order"),
        (&[(b, 1)], 0, "0 snapshots were asked for, the memory was made for 1 to 4"),
        (&[(b, 1)], 5, "5 snapshots were asked for"),
        (&[(a, 7)], 1, "250 positions and 7 more do not fit into its context of 256"),
        (&[(a, 1), (b, 257)], 1, "0 positions and 257 more do not fit"),
    ] {
        let error = memory.begin(parts, n_snapshots).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
    for slot in &all {
        assert!(memory.checkpoint(slot).is_ok(), "no sequence was lost by a refusal");
    }
    advance(&mut memory, a, 6);
    assert_eq!(memory.len(a).expect("in use"), 256);

    let stale = all.remove(1);
    let index = stale.index();
    memory.release(stale);
    let again = memory.acquire().expect("cleared").expect("the slot that was given back");
    assert_eq!(again.index(), index);
    assert!(memory.is_empty(&again).expect("in use"));
}

#[test]
fn a_slot_of_another_memory_is_refused_unless_it_is_in_use_here_too() {
    let mut small = memory(&[KV], config(1, 64)).expect("a sound layout");
    let mut large = memory(&[KV], config(2, 64)).expect("a sound layout");
    let foreign = slots(&mut large, 2).remove(1);
    for error in [
        small.begin(&[(&foreign, 1)], 1).expect_err("unknown"),
        small.len(&foreign).expect_err("unknown"),
        small.reset(&foreign).expect_err("unknown"),
        small.truncate(&foreign, 0).expect_err("unknown"),
        small.checkpoint(&foreign).expect_err("unknown"),
        small.save(&foreign).expect_err("unknown"),
    ] {
        assert_eq!(error.to_string(), "slot 1 is not in use");
    }
    // Given back under another memory's eyes: this memory's own slot stays.
    let own = slots(&mut small, 1).remove(0);
    small.release(foreign);
    assert_eq!(small.len(&own).expect("in use"), 0);
}

#[test]
fn rows_are_kept_only_where_their_state_was_written() {
    for (layers, recurrent) in [(&[KV, RECURRENT][..], true), (&[KV], false)] {
        for n_rows in 1..7 {
            for n_snapshots in 1..=4 {
                for kept in 0..=n_rows + 1 {
                    let mut memory = memory(layers, config(1, 64)).expect("a sound layout");
                    let slot = slots(&mut memory, 1).remove(0);
                    let step = memory.begin(&[(&slot, n_rows)], n_snapshots).expect("a step");
                    // With more rows than snapshots only the newest state is certain.
                    let reachable = if n_rows <= n_snapshots { n_rows } else { 1 };
                    let sound = kept <= n_rows && (!recurrent || kept > 0 && n_rows - kept < reachable);
                    assert_eq!(step.commit(&[kept]).is_ok(), sound, "{kept} of {n_rows}, {n_snapshots} snapshots");
                    let len = memory.len(&slot).expect("in use");
                    assert_eq!(len, if sound { kept } else { 0 });
                }
            }
        }
    }
    let mut memory = memory(&[KV], config(1, 64)).expect("a sound layout");
    let slot = slots(&mut memory, 1).remove(0);
    let step = memory.begin(&[(&slot, 2)], 1).expect("a step");
    assert_eq!(step.commit(&[1, 1]).expect_err("one sequence").to_string(), "2 counts for 1 sequences");
}

#[test]
fn only_attention_can_be_cut() {
    let mut plain = memory(&[KV], config(1, 64)).expect("a sound layout");
    let mut mixed = memory(&[KV, RECURRENT], config(1, 64)).expect("a sound layout");
    for (memory, cuts) in [(&mut plain, true), (&mut mixed, false)] {
        let slot = slots(memory, 1).remove(0);
        advance(memory, &slot, 9);
        assert_eq!(memory.truncate(&slot, 5).is_ok(), cuts);
        assert_eq!(memory.len(&slot).expect("in use"), if cuts { 5 } else { 9 });
        let len = memory.len(&slot).expect("in use");
        memory.truncate(&slot, len).expect("nothing to cut");
        let error = memory.truncate(&slot, 10).expect_err("more than there is").to_string();
        assert_eq!(error, format!("a sequence of {len} positions cannot be cut to 10"));
        memory.truncate(&slot, 0).expect("all can be forgotten");
        assert!(memory.is_empty(&slot).expect("in use"));
    }
}

#[test]
fn saved_state_of_another_shape_is_refused() {
    let mut from = memory(&[KV, RECURRENT], config(1, 512)).expect("a sound layout");
    let slot = slots(&mut from, 1).remove(0);
    advance(&mut from, &slot, 300);
    let (saved, checkpoint) = (from.save(&slot).expect("saved"), from.checkpoint(&slot).expect("taken"));
    let f16 = MemoryConfig { type_k: CacheType::F16, ..config(1, 512) };
    let transposed = MemoryConfig { v_transposed: true, ..config(1, 512) };
    for (layers, config, says) in [
        (&[KV, RECURRENT][..], f16, "another cache type"),
        (&[KV, RECURRENT], transposed, "another cache type"),
        (&[KV, KV], config(1, 512), "another model"),
        (&[WINDOWED, RECURRENT], config(1, 512), "another model"),
        (&[KV, RECURRENT], config(1, 256), "it has 300 positions, the context 256"),
    ] {
        let mut to = memory(layers, config).expect("a sound layout");
        let slot = slots(&mut to, 1).remove(0);
        let error = to.load(&slot, &saved).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
        assert!(to.is_empty(&slot).expect("in use"));
        let error = to.restore(&slot, &checkpoint).expect_err("the sequence is shorter").to_string();
        assert!(error.contains("it is at position 300, the sequence has 0"), "{error}");
    }
}

#[test]
fn a_copy_made_part_by_part_is_that_made_at_once_and_ends_where_its_sequence_changes() {
    for v_transposed in [false, true] {
        let config = MemoryConfig { v_transposed, ..config(2, 2048) };
        let mut memory = memory(&[KV, RECURRENT, WINDOWED, MAMBA], config).expect("a memory");
        let [one, other] = &slots(&mut memory, 2)[..] else { panic!("two slots") };
        advance(&mut memory, one, 1500);
        let mut saving = memory.begin_saving(one, None).expect("begun");
        let mut n_parts = 0;
        while !saving.is_whole() {
            memory.save_more(&mut saving).expect("it is as it was");
            n_parts += 1;
            // What others do is nothing to it.
            advance(&mut memory, other, 1);
        }
        assert!(n_parts >= 7, "{n_parts}");
        assert_eq!(memory.finish_saving(saving).expect("whole"), memory.save(one).expect("copied"));
        let mut begun = memory.begin_saving(one, None).expect("begun");
        memory.save_more(&mut begun).expect("it is as it was");
        advance(&mut memory, one, 1);
        let error = memory.save_more(&mut begun).expect_err("it has a position more");
        assert!(error.to_string().contains("changed while it was copied"), "{error}");
        assert!(memory.finish_saving(begun).is_err());
    }
}

#[test]
fn a_latent_layer_keeps_its_rows_and_nothing_else() {
    for v_transposed in [false, true] {
        // What is said of values does not concern it.
        let config = MemoryConfig { v_transposed, type_k: CacheType::F16, ..config(2, 256) };
        assert_eq!(config.layer_bytes(&LATENT).expect("a sound layer"), 2 * 256 * 48 * 2);
        let mut memory = memory(&[LATENT, LATENT], config).expect("a sound layout");
        assert_eq!(memory.n_bytes(), 2 * 2 * 256 * 48 * 2);
        let slot = slots(&mut memory, 1).remove(0);
        advance(&mut memory, &slot, 7);
        let saved = memory.save(&slot).expect("saved");
        assert_eq!(saved.n_bytes(), 2 * 7 * 48 * 2);
        let mut bytes = Vec::new();
        saved.write_to(&mut bytes);
        assert_eq!(bytes.len(), memory.shape().saved_bytes(7));
        memory.shape().check(&SavedSequence::from_bytes(&bytes).expect("whole")).expect("of the same shape");
    }
}

#[test]
fn state_of_a_latent_layer_and_of_its_keys_and_values_apart_are_told_apart() {
    let apart = LayerState::Kv(Kv { n_head_kv: 1, d_k: 48, d_v: 32, window: None, latent: false });
    for (of, other) in [(LATENT, apart), (apart, LATENT), (MAMBA, RECURRENT), (RECURRENT, MAMBA)] {
        let mut from = memory(&[of], config(1, 256)).expect("a sound layout");
        let slot = slots(&mut from, 1).remove(0);
        let saved = from.save(&slot).expect("nothing yet");
        let error = memory(&[other], config(1, 256)).expect("sound").shape().check(&saved).expect_err("another layer");
        assert!(error.to_string().contains("another model"), "{error}");
    }
}

#[test]
fn a_copy_holds_what_its_source_held_at_that_position() {
    for (layers, recurrent) in [(&[KV, RECURRENT, MAMBA][..], true), (&[KV], false), (&[LATENT; 4], false)] {
        for transposed in [false, true] {
            let config = MemoryConfig { v_transposed: transposed, ..config(3, 512) };
            let mut memory = memory(layers, config).expect("a sound layout");
            let all = slots(&mut memory, 3);
            // State of any bytes, as a step leaves it.
            advance(&mut memory, &all[0], 300);
            let mut saved = Vec::new();
            memory.save(&all[0]).expect("saved").write_to(&mut saved);
            let n = saved.len();
            saved[n - 100_000..].iter_mut().enumerate().for_each(|(i, b)| *b = if i % 4 == 3 { 0x3f } else { i as u8 });
            let saved = SavedSequence::from_bytes(&saved).expect("of the same lengths");
            memory.load(&all[0], &saved).expect("of the same shape");
            let at_end = memory.checkpoint(&all[0]).expect("taken");

            memory.copy(&all[0], &all[2], 300, None).expect("the end");
            assert_eq!(memory.save(&all[2]).expect("saved"), saved);
            assert_eq!(memory.copy(&all[0], &all[1], 200, None).is_ok(), !recurrent, "cells alone are no state");
            assert!(memory.copy(&all[0], &all[1], 200, Some(&at_end)).is_err(), "a checkpoint of another position");
            assert!(memory.copy(&all[0], &all[1], 301, None).is_err(), "more than there is");
            assert_eq!(memory.len(&all[1]).expect("in use"), if recurrent { 0 } else { 200 });
            // The source goes on, and its checkpoint still serves.
            if recurrent {
                advance(&mut memory, &all[0], 50);
                memory.copy(&all[0], &all[1], 300, Some(&at_end)).expect("a checkpoint's position");
                assert_eq!(memory.save(&all[1]).expect("saved"), saved);
            } else {
                let part = memory.save_first(&all[0], 200).expect("a part");
                assert_eq!(memory.save(&all[1]).expect("saved"), part);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Where rows go and what they see, against counting it out row by row.
    #[test]
    fn positions_cells_and_masks_are_those_of_a_plain_count(
        lengths in prop::collection::vec(0usize..400, 4),
        rows in prop::collection::vec(0usize..6, 4),
        transposed: bool,
    ) {
        prop_assume!(rows.iter().any(|&n| n > 0));
        let n_ctx = 512;
        let config = MemoryConfig { v_transposed: transposed, ..config(4, n_ctx) };
        let mut memory = memory(&[RECURRENT, KV, WINDOWED, KV], config).expect("a sound layout");
        let slots = slots(&mut memory, 4);
        for (slot, &n) in slots.iter().zip(&lengths).filter(|(_, n)| **n > 0) {
            advance(&mut memory, slot, n);
        }
        let parts: Vec<_> = slots.iter().zip(rows.iter().copied()).filter(|(_, n)| *n > 0).collect();
        let counted: Vec<(usize, usize)> = parts
            .iter()
            .flat_map(|(slot, n)| (0..*n).map(|i| (slot.index(), lengths[slot.index()] + i)))
            .collect();
        let step = memory.begin(&parts, 4).expect("a step");
        let view = step.view();
        prop_assert_eq!(view.n_tokens(), counted.len());

        let (mut positions, mut cells, mut elements) = (Vec::new(), Vec::new(), Vec::new());
        view.positions(&mut positions);
        let expected: Vec<i32> = counted.iter().map(|c| c.1 as i32).collect();
        prop_assert_eq!(&positions, &expected);
        prop_assert_eq!(view.v_elements().collect::<Vec<_>>(), if transposed { vec![64, 16] } else { vec![] });
        prop_assert_eq!(view.n_windows(), 2);
        for (il, width, window) in [(1, 64, usize::MAX), (2, 16, 5), (3, 64, usize::MAX)] {
            let number = view.window_of(il);
            view.kv_rows(number, &mut cells);
            let expected: Vec<i64> = counted.iter().map(|&(slot, p)| (slot * n_ctx + p) as i64).collect();
            prop_assert_eq!(&cells, &expected);
            if transposed {
                view.v_element_rows(view.v_kind_of(il), &mut elements);
                let expected: Vec<i64> = counted
                    .iter()
                    .flat_map(|&(slot, p)| (0..width).map(move |e| ((slot * width + e) * n_ctx + p) as i64))
                    .collect();
                prop_assert_eq!(&elements, &expected);
            }
            let mut first_row = 0;
            for s in view.segments() {
                prop_assert_eq!(s.first_row, first_row);
                let mut mask = Vec::new();
                view.mask(number, s, &mut mask);
                let n_kv = view.n_kv(number, s);
                prop_assert_eq!(mask.len(), n_kv * s.n_tokens());
                prop_assert!(n_kv.is_multiple_of(256) && n_kv <= n_ctx);
                for (row, seen) in mask.chunks(n_kv).enumerate() {
                    let (slot, position) = counted[first_row + row];
                    prop_assert_eq!(slot, s.first_slot + row / s.n_rows);
                    // 0 is seen; 0xFC00 is minus infinity.
                    let is_seen = |cell: usize| cell <= position && position - cell < window;
                    let expected: Vec<u16> = (0..n_kv).map(|cell| if is_seen(cell) { 0 } else { 0xFC00 }).collect();
                    prop_assert_eq!(seen, &expected[..]);
                }
                first_row += s.n_tokens();
            }
            prop_assert_eq!(first_row, counted.len());
        }
    }
}

#[test]
fn what_stands_behind_a_sequence_sees_its_cells_and_has_none() {
    let mut memory = memory(&[KV, WINDOWED], config(4, 256)).expect("a sound layout");
    let slots = slots(&mut memory, 4);
    let refused = memory.ends(&[&slots[0]]).expect_err("an empty sequence").to_string();
    assert!(refused.contains("slot 0: an empty sequence has no cells to read"), "{refused}");
    advance(&mut memory, &slots[0], 3);
    advance(&mut memory, &slots[1], 256);
    advance(&mut memory, &slots[3], 9);
    assert!(memory.ends(&[&slots[1], &slots[0]]).is_err(), "out of order");
    let ends = memory.ends(&[&slots[0], &slots[1], &slots[3]]).expect("three sequences");
    let view = ends.view();
    assert_eq!((view.n_tokens(), view.segments().len()), (3, 2), "neighbours share a segment");
    let mut positions = Vec::new();
    view.positions(&mut positions);
    assert_eq!(positions, [3, 256, 9], "a full context has an end, too");
    let seen = |window: usize, segment: usize| {
        let mut mask = Vec::new();
        let segment = &view.segments()[segment];
        view.mask(window, segment, &mut mask);
        let rows = mask.chunks(view.n_kv(window, segment));
        rows.map(|row| (0..row.len()).filter(|&i| row[i] == 0).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    assert_eq!(seen(0, 0), [(0..3).collect::<Vec<_>>(), (0..256).collect()]);
    // Of five positions the row's own is one, and has no cell.
    assert_eq!(seen(1, 0), [vec![0, 1, 2], vec![252, 253, 254, 255]]);
    assert_eq!(seen(1, 1), [vec![5, 6, 7, 8]]);
}

#[test]
fn steps_of_a_held_sequence_are_taken_back_and_its_recurrent_state_is_never_written_over() {
    let two = MemoryConfig { n_snapshots: 2, ..config(2, 256) };
    let mut memory = memory(&[KV, RECURRENT], two).expect("a sound layout");
    let all = slots(&mut memory, 2);
    let slot = &all[0];
    assert!(memory.take_back(slot).expect_err("it is not held").to_string().contains("not held"));
    advance(&mut memory, slot, 7);
    for round in 0..3 {
        memory.hold(slot).expect("a state to hold");
        let len = memory.len(slot).expect("in use");
        let planes = |memory: &mut Memory| {
            let step = memory.begin(&[(slot, 1)], 1).expect("a step");
            let Segment { read_plane, write_plane, .. } = step.view().segments()[0];
            step.commit(&[1]).expect("one row");
            (read_plane.expect("one sequence"), write_plane)
        };
        let (held, first) = planes(&mut memory);
        for _ in 0..4 {
            let (from, to) = planes(&mut memory);
            assert!(from == first && to == first && to != held, "round {round}: from {from} to {to}, held {held}");
        }
        // A step that is dropped loses what was added, and not what is held.
        drop(memory.begin(&[(slot, 1)], 1).expect("a step"));
        assert!(memory.begin(&[(slot, 1)], 1).is_err(), "lost");
        memory.take_back(slot).expect("it is held");
        assert_eq!((memory.len(slot).unwrap(), memory.held_at(slot).unwrap()), (len, Some(len)));
        let step = memory.begin(&[(slot, 1)], 1).expect("a step");
        assert_eq!(step.view().segments()[0].read_plane, Some(held), "round {round}");
        step.commit(&[1]).expect("one row");
        if round == 1 {
            memory.let_go(slot).expect("in use");
            assert!(memory.take_back(slot).is_err());
        }
    }
    // Several states are not kept of it, and one plane is too few.
    memory.hold(slot).expect("a state to hold");
    assert!(memory.begin(&[(slot, 2)], 2).expect_err("held").to_string().contains("held"));
    memory.reset(slot).expect("in use");
    assert_eq!(memory.held_at(slot).unwrap(), None);
    let mut one = self::memory(&[RECURRENT], MemoryConfig { n_snapshots: 1, ..config(1, 256) }).expect("a layout");
    let slot = one.acquire().expect("cleared").expect("free");
    assert!(one.hold(&slot).expect_err("one plane").to_string().contains("2 snapshots"));
}
