//! Memory that is taken when it is written, and given back: as the memory counts it, and as the system does.
#![cfg(target_os = "linux")]

use ggml::Device;
use memory::{CacheType, Kv, LayerState, Memory, MemoryConfig, Recurrent, Slot, StateLayout};

const KV: LayerState = LayerState::Kv(Kv { n_head_kv: 8, d_k: 128, d_v: 128, window: None, latent: false });
const RECURRENT: LayerState = LayerState::Recurrent(Recurrent {
    n_conv: 3,
    n_channels: 1024,
    n_heads: 16,
    d_state: 64,
    d_head: 64,
    is_delta_net: false,
});

fn memory(layers: &[LayerState], n_slots: usize, n_ctx: usize, v_transposed: bool) -> Memory {
    let (type_k, type_v) = (CacheType::F16, CacheType::F16);
    let (n_snapshots, transactional, max_rows, rotate) = (2, false, None, true);
    let config =
        MemoryConfig { n_slots, n_ctx, type_k, type_v, v_transposed, n_snapshots, transactional, max_rows, rotate };
    let layout = StateLayout { layers: layers.to_vec() };
    Memory::new(Device::cpu().expect("the CPU is there"), layout, config).expect("nothing is taken yet")
}

/// Bytes that lie in memory of this process, as the system counts them exactly.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux tells");
    let line = text.lines().find(|line| line.starts_with("Rss:")).expect("its first number");
    let kib: usize = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    kib << 10
}

/// Fills `to` with a sequence of `len` positions that holds numbers.
fn fill(memory: &mut Memory, from: &Slot, to: &Slot, len: usize) {
    memory.reset(from).expect("cleared");
    memory.begin(&[(from, len)], 1).expect("a step").commit(&[len]).expect("all rows");
    let saved = memory.save(from).expect("copied");
    memory.load(to, &saved).expect("it fits");
}

/// All in one test: others beside it would change what the process takes.
#[test]
fn a_memory_takes_what_was_written_and_gives_it_back() {
    // 32 sequences of 1 Mi positions, 4 layers: 512 GiB if all were written.
    for v_transposed in [false, true] {
        let before = resident();
        let mut memory = memory(&[KV, RECURRENT, KV, KV, KV], 32, 1 << 20, v_transposed);
        let slots: Vec<Slot> = (0..32).map(|_| memory.acquire().expect("cleared").expect("free")).collect();
        assert!(memory.n_bytes() > 512 << 30, "{} bytes", memory.n_bytes());
        let taken = resident().saturating_sub(before);
        assert!(taken < 8 << 20, "{taken} bytes were taken by an empty memory, transposed {v_transposed}");
        assert_eq!(memory.taken_by(&slots[0]).unwrap(), 0);
        let len = 3000;
        // The pieces of a first copy leave the allocator a few pages for the next.
        fill(&mut memory, &slots[0], &slots[4], len);
        memory.discard(&slots[4]).expect("given back");
        for (i, slot) in slots[1..4].iter().enumerate() {
            let before = resident();
            fill(&mut memory, &slots[0], slot, len + i);
            // What was read takes nothing, and the copy is gone.
            let (counted, found) = (memory.taken_by(slot).unwrap(), resident().saturating_sub(before));
            assert!(counted >= 4 * 2 * 2048 * len, "{counted} bytes counted");
            let apart = counted.abs_diff(found);
            assert!(apart < counted / 20 + (4 << 20), "{counted} bytes counted, {found} found, {v_transposed}");
        }
        let (before, counted) = (resident(), memory.taken_by(&slots[1]).unwrap());
        let of_all = memory.taken_bytes();
        memory.discard(&slots[1]).expect("given back");
        assert_eq!((memory.len(&slots[1]).unwrap(), memory.taken_by(&slots[1]).unwrap()), (0, 0));
        assert_eq!(of_all - memory.taken_bytes(), counted);
        let found = before.saturating_sub(resident());
        assert!(found > counted / 20 * 19, "{counted} bytes were to go back, {found} did, {v_transposed}");
        // What went back is zeros, and its neighbours are what they were.
        let neighbour = memory.save(&slots[2]).expect("copied");
        fill(&mut memory, &slots[0], &slots[1], 10);
        assert_eq!(memory.save(&slots[2]).unwrap(), neighbour);
        assert!(memory.taken_by(&slots[1]).unwrap() < counted);
    }
}

#[test]
fn a_discarded_slot_holds_zeros_up_to_its_edges() {
    // Stripes that begin and end within pages.
    for n_ctx in [256, 768, 4096] {
        let kv = LayerState::Kv(Kv { n_head_kv: 1, d_k: 5, d_v: 3, window: None, latent: false });
        let mut memory = memory(&[kv], 3, n_ctx, false);
        let slots: Vec<Slot> = (0..3).map(|_| memory.acquire().expect("cleared").expect("free")).collect();
        for slot in &slots {
            memory.begin(&[(slot, n_ctx)], 1).expect("a step").commit(&[n_ctx]).expect("all rows");
        }
        let empty = memory.save(&slots[0]).expect("copied");
        let mut bytes = Vec::new();
        empty.write_to(&mut bytes);
        let n_cells = n_ctx * 8 * 2;
        let at = bytes.len() - n_cells;
        bytes[at..].fill(1);
        let ones = memory::SavedSequence::from_bytes(&bytes).expect("the same lengths");
        slots.iter().for_each(|slot| memory.load(slot, &ones).expect("it fits"));
        memory.discard(&slots[1]).expect("given back");
        memory.begin(&[(&slots[1], n_ctx)], 1).expect("a step").commit(&[n_ctx]).expect("all rows");
        assert_eq!(memory.save(&slots[1]).unwrap(), empty, "context {n_ctx}");
        assert_eq!(memory.save(&slots[0]).unwrap(), ones, "context {n_ctx}");
        assert_eq!(memory.save(&slots[2]).unwrap(), ones, "context {n_ctx}");
    }
}
