//! Sequences that share the cells of their beginning: whatever happens to them, each holds what it would hold alone, and what is
//! shared is there once, as the memory counts it and as the system does.
#![cfg(target_os = "linux")]

use std::sync::{Arc, Mutex, PoisonError};

use ggml::Device;
use memory::{CacheType, Kv, LayerState, Loading, Memory, MemoryConfig, SavedSequence, Slot, StateLayout};
use proptest::prelude::*;

mod support;

use support::Rig;

/// Tests take turns: each would change what the other one counts.
static ALONE: Mutex<()> = Mutex::new(());

const N_CTX: usize = 1024;
const N_SLOTS: usize = 4;
/// More than a test takes.
const N_GRANULES: usize = 1 << 16;

/// Rows of 512, 256 and 768 bytes, so pages begin at different cells; the last tensor does not begin at a page.
fn layout() -> StateLayout {
    let kv = |n_head_kv, d_k, d_v, latent| LayerState::Kv(Kv { n_head_kv, d_k, d_v, window: None, latent });
    let window = LayerState::Kv(Kv { n_head_kv: 1, d_k: 64, d_v: 64, window: Some(8), latent: false });
    StateLayout { layers: vec![kv(2, 64, 32, false), LayerState::None, kv(1, 192, 64, true), window] }
}

fn config(type_k: CacheType, n_slots: usize, v_transposed: bool) -> MemoryConfig {
    MemoryConfig {
        n_slots,
        n_ctx: N_CTX,
        type_k,
        type_v: if v_transposed { CacheType::F32 } else { type_k },
        v_transposed,
        n_snapshots: 1,
        transactional: false,
        max_rows: Some(N_CTX),
        rotate: false,
    }
}

fn saved(rig: &Rig, slot: usize) -> SavedSequence {
    rig.memory.save(&rig.slots[slot]).expect("copied")
}

/// What all slots show of each other's, and what is behind it.
fn shown(rig: &Rig) -> (usize, usize) {
    let shown = rig.slots.iter().map(|slot| rig.memory.shown_by(slot).unwrap()).sum();
    (shown, rig.memory.shared_bytes(None))
}

fn numbers(seed: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| (seed * 1000 + i) as f32 / 64.0).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Append(usize, usize),
    /// Appends rows of which only the first are kept, or none.
    Drop(usize, usize, Option<usize>),
    Copy(usize, usize, usize),
    Cut(usize, usize),
    /// Beside a third that may begin alike; so many parts at once, the others as others go on.
    Load(usize, usize, usize, usize),
    /// Another part.
    More,
    Discard(usize),
    Reset(usize),
    TakeBack(usize, usize),
    Spoil(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let slot = || 0..N_SLOTS;
    prop_oneof![
        4 => (slot(), 1..300usize).prop_map(|(s, n)| Op::Append(s, n)),
        1 => (slot(), 1..20usize, proptest::option::of(0..20usize)).prop_map(|(s, n, k)| Op::Drop(s, n, k.map(|k| k.min(n)))),
        6 => (slot(), slot(), 0..=100usize).prop_map(|(a, b, share)| Op::Copy(a, b, share)),
        3 => (slot(), 0..=100usize).prop_map(|(s, share)| Op::Cut(s, share)),
        2 => (slot(), slot(), slot(), 0..9usize).prop_map(|(a, b, c, n)| Op::Load(a, b, c, n)),
        3 => Just(Op::More),
        1 => slot().prop_map(Op::Discard),
        1 => slot().prop_map(Op::Reset),
        1 => (slot(), 1..40usize).prop_map(|(s, n)| Op::TakeBack(s, n)),
        1 => slot().prop_map(Op::Spoil),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn sequences_that_share_cells_hold_what_they_hold_alone(
        ops in proptest::collection::vec(op(), 1..60),
        q8 in any::<bool>(),
        v_transposed in any::<bool>(),
        granule in prop::sample::select(vec![0, 4 << 10, 12 << 10, 64 << 10]),
    ) {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // As on a GPU: what is written without memory, or while others show it, ends the test.
        ggml::pretend_granules(granule, N_GRANULES);
        let config = |n_slots| config(if q8 { CacheType::Q8_0 } else { CacheType::F32 }, n_slots, v_transposed);
        let mut rig = Rig::new(layout(), config(N_SLOTS));
        let mut known: Vec<Vec<f32>> = vec![Vec::new(); N_SLOTS];
        // A slot, what comes there, and what it will hold.
        let mut coming: Option<(usize, Loading<Arc<SavedSequence>>, Vec<f32>)> = None;
        let nothing = rig.memory.taken_bytes();
        for (seed, op) in ops.iter().enumerate() {
            let waits = |s: usize| coming.as_ref().is_some_and(|(slot, ..)| *slot == s);
            match *op {
                Op::Append(s, _) | Op::Drop(s, ..) | Op::Copy(s, ..) | Op::Load(s, ..) | Op::TakeBack(s, _) if waits(s) => {
                    prop_assert!(rig.memory.begin(&[(&rig.slots[s], 1)], 1).is_err() && rig.memory.save(&rig.slots[s]).is_err());
                }
                Op::More => {
                    if let Some((s, mut loading, numbers)) = coming.take() {
                        rig.memory.load_more(&mut loading).expect("nobody has touched it");
                        if loading.is_whole() {
                            rig.memory.finish_loading(loading).expect("as it was");
                            known[s] = numbers;
                        } else {
                            coming = Some((s, loading, numbers));
                        }
                    }
                }
                Op::Append(s, n) => {
                    let new = numbers(seed, n.min(N_CTX - known[s].len()));
                    if !new.is_empty() {
                        rig.step(&[(s, new.clone())], Some(&[new.len()]));
                        known[s].extend(new);
                    }
                }
                Op::Drop(s, n, kept) => {
                    let new = numbers(seed, n);
                    if known[s].len() + n <= N_CTX {
                        rig.step(&[(s, new.clone())], kept.as_ref().map(std::slice::from_ref));
                        known[s].extend(&new[..kept.unwrap_or(0)]);
                    }
                }
                Op::Copy(a, b, share) if a != b => {
                    // Behind its window a copy cannot go back far.
                    let earliest = rig.memory.rewinds_to(&rig.slots[a]).unwrap();
                    let len = (known[a].len() * share / 100).max(earliest);
                    rig.memory.copy(&rig.slots[a], &rig.slots[b], len, None).expect("there are as many");
                    known[b] = known[a][..len].to_vec();
                }
                Op::Cut(s, share) => {
                    let earliest = rig.memory.rewinds_to(&rig.slots[s]).unwrap();
                    let len = (known[s].len() * share / 100).max(earliest);
                    rig.memory.truncate(&rig.slots[s], len).expect("its window is there");
                    known[s].truncate(len);
                }
                Op::Load(a, b, c, n) if a != b => {
                    let saved = Arc::new(saved(&rig, a));
                    let common = known[a].iter().zip(&known[c]).take_while(|(x, y)| x == y).count();
                    let beside = (c != b && !waits(c)).then(|| (&rig.slots[c], common));
                    let mut loading = rig.memory.begin_loading(&rig.slots[b], saved, beside).expect("of the same shape");
                    for _ in 0..n {
                        rig.memory.load_more(&mut loading).expect("nobody has touched it");
                    }
                    if let Some((other, ..)) = coming.take_if(|(other, ..)| *other != b) {
                        rig.memory.reset(&rig.slots[other]).expect("cleared");
                    }
                    known[b].clear();
                    coming = Some((b, loading, known[a].clone()));
                }
                Op::Discard(s) => {
                    rig.memory.discard(&rig.slots[s]).expect("given back");
                    known[s].clear();
                    prop_assert_eq!(rig.memory.taken_by(&rig.slots[s]).unwrap(), 0);
                }
                Op::Reset(s) => {
                    rig.memory.reset(&rig.slots[s]).expect("cleared");
                    known[s].clear();
                }
                Op::TakeBack(s, n) => {
                    rig.memory.hold(&rig.slots[s]).unwrap();
                    if known[s].len() + n <= N_CTX {
                        rig.step(&[(s, numbers(seed, n))], Some(&[n]));
                    }
                    rig.memory.take_back(&rig.slots[s]).unwrap();
                    rig.memory.let_go(&rig.slots[s]).unwrap();
                }
                Op::Spoil(s) => rig.memory.spoil(&rig.slots[s]).unwrap(),
                Op::Copy(..) | Op::Load(..) => {}
            }
            if let Some((s, loading, _)) = &mut coming
                && rig.memory.save(&rig.slots[*s]).is_ok()
            {
                prop_assert!(rig.memory.load_more(loading).is_err(), "slot {} was given something else", s);
                coming = None;
            }
            if granule > 0 && !v_transposed {
                let (counted, found) = (rig.memory.taken_bytes() - nothing, granules_taken() * granule);
                // Keys and values behind a window: a slot's may begin and end within granules that others have too.
                prop_assert!((found..=found + 4 * N_SLOTS * granule).contains(&counted), "{} bytes, {} counted", found, counted);
            }
            let waits = |s: usize| coming.as_ref().is_some_and(|(slot, ..)| *slot == s);
            for (s, known) in known.iter().enumerate().filter(|(s, _)| !waits(*s)) {
                let mut alone = Rig::new(layout(), config(1));
                if !known.is_empty() {
                    alone.step(&[(0, known.clone())], Some(&[known.len()]));
                }
                prop_assert!(saved(&rig, s) == saved(&alone, 0), "slot {} after {:?}", s, &ops[..=seed]);
            }
            let (shown, shared) = shown(&rig);
            prop_assert!(shared <= shown, "{} bytes shown of {}", shown, shared);
        }
        for s in 0..N_SLOTS {
            rig.memory.discard(&rig.slots[s]).expect("given back");
        }
        prop_assert_eq!((rig.memory.taken_bytes(), shown(&rig)), (nothing, (0, 0)));
        prop_assert_eq!(ggml::pretended_granules_left(), N_GRANULES);
        ggml::pretend_granules(0, 0);
    }
}

/// Pretended granules with memory; what several show counts once.
fn granules_taken() -> usize {
    N_GRANULES - ggml::pretended_granules_left()
}

/// Eight slots of `n_ctx` positions, and a sequence of `len` in the first, with bytes that tell where they are.
fn eight_slots(layout: StateLayout, config: MemoryConfig, len: usize) -> (Memory, Vec<Slot>, SavedSequence) {
    let mut memory = Memory::new(Device::cpu().unwrap(), layout, MemoryConfig { n_slots: 8, ..config }).expect("sound");
    let slots: Vec<Slot> = (0..8).map(|_| memory.acquire().unwrap().expect("a free slot")).collect();
    memory.begin(&[(&slots[0], len)], 1).expect("a step").commit(&[len]).expect("all rows");
    let (mut bytes, before) = (Vec::new(), memory.shape().saved_bytes(0));
    memory.save(&slots[0]).expect("copied").write_to(&mut bytes);
    bytes[before..].iter_mut().enumerate().for_each(|(i, b)| *b = (i % 59) as u8);
    let saved = SavedSequence::from_bytes(&bytes).expect("the same lengths");
    memory.load(&slots[0], &saved).expect("it fits");
    (memory, slots, saved)
}

#[test]
fn granules_that_are_shared_take_memory_once() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // As K of a layer of 1 KiB a position with granules of 2 MiB, a hundredth of it.
    let (granule, beginning, more) = (16 << 10, 6100, 20);
    ggml::pretend_granules(granule, N_GRANULES);
    let kv = LayerState::Kv(Kv { n_head_kv: 4, d_k: 64, d_v: 64, window: None, latent: false });
    let config = MemoryConfig { n_ctx: 8192, ..config(CacheType::F16, 8, false) };
    let (mut memory, slots, saved) = eight_slots(StateLayout { layers: vec![kv; 2] }, config, beginning);
    let append = |memory: &mut Memory, slot: &Slot, n: usize| {
        memory.begin(&[(slot, n)], 1).expect("a step").commit(&[n]).expect("all rows");
    };
    for slot in &slots[1..] {
        let before = granules_taken();
        let shareable = memory.shareable_bytes(beginning);
        memory.copy(&slots[0], slot, beginning, None).expect("a copy");
        let of_one = memory.taken_by(slot).unwrap();
        assert_eq!((granules_taken() - before) * granule, of_one - shareable, "what is shared takes nothing");
        assert_eq!(
            (memory.shown_by(slot).unwrap(), memory.common_bytes(slot, beginning).unwrap()),
            (shareable, shareable)
        );
    }
    slots.iter().for_each(|slot| append(&mut memory, slot, more));
    let (one, all) = (memory.footprint().n_bytes(beginning + more), granules_taken() * granule);
    assert!(all * 100 <= one * 115, "eight take {all} bytes, one {one}");
    assert_eq!(memory.taken_bytes(), all);
    slots.iter().for_each(|slot| assert!(memory.save_first(slot, beginning).expect("copied") == saved));
    // Whoever writes over the beginning takes what it writes, and gives back what it no longer has.
    memory.truncate(&slots[0], 100).expect("attention alone");
    append(&mut memory, &slots[0], 50);
    assert_eq!(
        (memory.taken_bytes(), memory.shown_by(&slots[0]).unwrap()),
        (granules_taken() * granule, 4 * 3 * granule)
    );
    assert!(memory.save_first(&slots[7], beginning).expect("copied") == saved);
    // One that comes back from elsewhere shares what another slot has.
    memory.discard(&slots[6]).expect("given back");
    let before = granules_taken();
    let loading = memory.begin_loading(&slots[6], &saved, Some((&slots[7], beginning))).expect("it fits");
    memory.finish_loading(loading).expect("whole");
    assert!(memory.save(&slots[6]).expect("copied") == saved);
    assert!((granules_taken() - before) * granule <= one / 20, "{} granules more", granules_taken() - before);
    // With the last of them the memory goes back.
    for slot in &slots[1..] {
        memory.discard(slot).expect("given back");
    }
    assert_eq!(memory.taken_bytes(), granules_taken() * granule);
    memory.discard(&slots[0]).expect("given back");
    assert_eq!((granules_taken(), memory.taken_bytes(), memory.shared_bytes(None)), (0, 0, 0));
    ggml::pretend_granules(0, 0);
}

#[test]
fn slots_of_any_row_begin_with_a_granule_and_what_is_between_them_is_not_counted() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let granule = 16 << 10;
    // 136 and 408 bytes of a position in one memory, so slots are 2,048 cells apart.
    let kv = |n_head_kv| LayerState::Kv(Kv { n_head_kv, d_k: 64, d_v: 64, window: None, latent: false });
    let layout = StateLayout { layers: vec![kv(2), kv(6)] };
    let config = MemoryConfig { n_ctx: 768, ..config(CacheType::Q8_0, 8, false) };
    let len = 700;
    ggml::pretend_granules(granule, N_GRANULES);
    let (mut memory, slots, saved) = eight_slots(layout.clone(), config, len);
    assert_eq!(memory.n_bytes(), config.n_bytes(&layout).expect("a sound layout"));
    assert_eq!(memory.growing_bytes().iter().map(|(_, n)| n).sum::<usize>(), memory.n_bytes());
    memory.copy(&slots[0], &slots[5], len, None).expect("a copy");
    assert!(memory.save(&slots[5]).expect("copied") == saved);
    let whole: usize = [136, 136, 408, 408].iter().map(|row| len * row / granule * granule).sum();
    assert_eq!(memory.shown_by(&slots[5]).unwrap(), whole);
    assert_eq!(memory.taken_bytes(), granules_taken() * granule);
    ggml::pretend_granules(0, 0);
}

#[test]
fn what_finds_no_room_for_a_copy_of_a_granule_leaves_both_as_they_were() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (granule, len) = (16 << 10, 300);
    let kv = LayerState::Kv(Kv { n_head_kv: 4, d_k: 64, d_v: 64, window: None, latent: false });
    let config = MemoryConfig { n_ctx: 512, ..config(CacheType::F16, 8, false) };
    // Sixteen of each tensor for a sequence of 300 positions, with what is taken ahead, and seven for a copy.
    ggml::pretend_granules(granule, 2 * (16 + 7));
    let (mut memory, slots, saved) = eight_slots(StateLayout { layers: vec![kv] }, config, len);
    memory.copy(&slots[0], &slots[1], len, None).expect("a copy");
    assert_eq!(ggml::pretended_granules_left(), 0);
    assert!(memory.copy(&slots[0], &slots[2], len, None).is_err(), "what is not shared finds no room");
    assert_eq!((memory.shown_by(&slots[2]).unwrap(), ggml::pretended_granules_left()), (0, 0));
    // In the middle of a granule that both show: cells behind it are zeroed, since they were loaded.
    assert!(memory.truncate(&slots[1], 50).is_err());
    slots[..2].iter().for_each(|slot| assert!(memory.save(slot).expect("copied") == saved));
    memory.discard(&slots[0]).expect("given back");
    memory.truncate(&slots[1], 50).expect("it is there alone");
    memory.discard(&slots[1]).expect("given back");
    // Of what steps wrote a step needs the copy.
    memory.begin(&[(&slots[0], len)], 1).expect("a step").commit(&[len]).expect("all rows");
    memory.copy(&slots[0], &slots[1], len, None).expect("a copy");
    memory.truncate(&slots[1], 50).expect("nothing is written");
    assert!(memory.begin(&[(&slots[1], 1)], 1).is_err());
    assert_eq!((memory.len(&slots[1]).unwrap(), memory.len(&slots[0]).unwrap()), (50, len));
    memory.discard(&slots[0]).expect("given back");
    memory.begin(&[(&slots[1], 1)], 1).expect("there is room now").commit(&[1]).expect("all rows");
    ggml::pretend_granules(0, 0);
}

/// Bytes of memory behind this process, pages that it shows several times counted once.
fn proportional() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux tells");
    let line = text.lines().find(|line| line.starts_with("Pss:")).expect("a sum of pages");
    let kib: usize = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    kib << 10
}

#[test]
fn what_is_shared_takes_memory_once() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    ggml::pretend_granules(0, 0);
    let kv = LayerState::Kv(Kv { n_head_kv: 8, d_k: 128, d_v: 128, window: None, latent: false });
    let n_slots = 8;
    let memory_config = MemoryConfig { n_ctx: 8192, ..config(CacheType::F16, n_slots, false) };
    let layout = StateLayout { layers: vec![kv; 4] };
    let mut memory = Memory::new(Device::cpu().unwrap(), layout, memory_config).expect("a sound layout");
    let slots: Vec<Slot> = (0..n_slots).map(|_| memory.acquire().unwrap().expect("a free slot")).collect();
    let len = 4001;
    let one = memory.footprint().n_bytes(len);
    memory.begin(&[(&slots[0], len)], 1).expect("a step").commit(&[len]).expect("all rows");
    let mut bytes = Vec::new();
    memory.save(&slots[0]).expect("copied").write_to(&mut bytes);
    let at = bytes.len() - len * 2 * 8 * 128 * 2 * 4;
    bytes[at..].iter_mut().enumerate().for_each(|(i, b)| *b = (i % 59) as u8);
    let saved = SavedSequence::from_bytes(&bytes).expect("the same lengths");
    memory.load(&slots[0], &saved).expect("it fits");
    let before = proportional();
    for slot in &slots[1..] {
        memory.copy(&slots[0], slot, len, None).expect("a copy");
    }
    // Read all of them: what is shown counts when it was looked at.
    for slot in &slots {
        assert!(memory.save(slot).expect("copied") == saved);
    }
    let taken = proportional().saturating_sub(before);
    assert!(taken < one / 8, "{taken} bytes more for seven copies of {one}");
    let counted = memory.taken_bytes();
    assert!(counted < one + one / 50, "{counted} bytes counted for eight sequences of {one}");
    assert!(memory.shareable_bytes(len) > one / 100 * 98);
    assert_eq!(memory.common_bytes(&slots[0], len).unwrap(), memory.shown_by(&slots[0]).unwrap());
    // Whoever writes over the beginning takes what it writes, and the others keep what they have.
    memory.truncate(&slots[0], 100).expect("attention alone");
    memory.begin(&[(&slots[0], 50)], 1).expect("a step").commit(&[50]).expect("all rows");
    assert!(memory.shown_by(&slots[0]).unwrap() <= one / 40);
    assert!(memory.save(&slots[7]).expect("copied") == saved);
    // One that comes back from elsewhere shares what another slot has.
    memory.discard(&slots[6]).expect("given back");
    let counted = memory.taken_bytes();
    let loading = memory.begin_loading(&slots[6], &saved, Some((&slots[7], len))).expect("it fits");
    memory.finish_loading(loading).expect("whole");
    assert!(memory.save(&slots[6]).expect("copied") == saved);
    assert!(memory.taken_bytes() < counted + one / 50, "{} bytes counted after {counted}", memory.taken_bytes());
    // With the last of them the pages go back.
    for slot in &slots[1..] {
        memory.discard(slot).expect("given back");
    }
    assert!(memory.shared_bytes(None) <= one / 40, "{}", memory.shared_bytes(None));
    memory.discard(&slots[0]).expect("given back");
    assert_eq!(memory.shared_bytes(None), 0);
    let left = proportional().saturating_sub(before.saturating_sub(one));
    assert!(left < one / 8, "{left} bytes are left of {one}");
}
