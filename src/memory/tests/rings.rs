//! Layers with a window that keep the cells of the window only: whatever happens to sequences, a row sees the numbers that it
//! sees in a memory which keeps all cells, bit for bit.

use std::sync::Arc;

use ggml::{Data, Device, Dtype, Executor, Graph, Mapping, Name, WeightsBuilder};
use memory::{
    ByteReader, CacheType, Checkpoint, Error, Kv, LayerState, Memory, MemoryConfig, SavedSequence, Slot, StateLayout,
};
use proptest::prelude::*;

/// More than one ring of the narrow windows holds, and than the wide one's.
const N_CTX: usize = 1024;
const MAX_ROWS: usize = 40;
const N_SLOTS: usize = 3;

fn layout() -> StateLayout {
    let kv = |n_head_kv, d_v, window| LayerState::Kv(Kv { n_head_kv, d_k: 2, d_v, window, latent: false });
    let layers = vec![kv(1, 3, None), kv(2, 1, Some(5)), LayerState::None, kv(1, 1, Some(300)), kv(1, 2, Some(1))];
    StateLayout { layers }
}

fn config(max_rows: Option<usize>, v_transposed: bool) -> MemoryConfig {
    MemoryConfig {
        n_slots: N_SLOTS,
        n_ctx: N_CTX,
        type_k: CacheType::F32,
        type_v: CacheType::F32,
        v_transposed,
        n_snapshots: 1,
        transactional: false,
        max_rows,
        rotate: true,
    }
}

/// A memory with a graph that writes to it and reads it.
struct Rig {
    memory: Memory,
    slots: Vec<Slot>,
    executor: Executor<usize>,
    n_steps: usize,
}

impl Rig {
    fn new(config: MemoryConfig) -> Rig {
        let mut memory = Memory::new(Device::cpu().unwrap(), layout(), config).expect("a sound layout");
        let slots = (0..N_SLOTS).map(|_| memory.acquire().unwrap().expect("a free slot")).collect();
        let nothing = vec![Arc::new(Mapping::Static(&[]))];
        let weights = WeightsBuilder::new(nothing).build(Device::cpu().unwrap()).expect("no weights");
        Rig { memory, slots, executor: Executor::new(weights, 1).expect("the CPU"), n_steps: 0 }
    }

    /// Writes a number for each row, as keys and values of all layers; keeps the first rows of each sequence. Gives what each
    /// row sees in each layer, in the order of the numbers' bits.
    fn step(&mut self, parts: &[(usize, Vec<f32>)], kept: &[usize]) -> Vec<Vec<u32>> {
        let rows: Vec<_> = parts.iter().map(|(slot, rows)| (&self.slots[*slot], rows.len())).collect();
        let txn = self.memory.begin(&rows, 1).expect("a step that can be made");
        let view = txn.view();
        let numbers: Vec<f32> = parts.iter().flat_map(|(_, rows)| rows.iter().copied()).collect();
        let of = |n: usize| numbers.iter().flat_map(|&x| (0..n).map(move |i| x + i as f32)).collect::<Vec<f32>>();
        let kvs: Vec<(usize, Kv)> = layout().layers.iter().enumerate().filter_map(kv_of).collect();
        let operands: Vec<_> =
            kvs.iter().map(|(_, kv)| (of(kv.d_k * kv.n_head_kv), of(kv.d_v * kv.n_head_kv))).collect();
        let cells: Vec<(Vec<i64>, Vec<i64>)> = kvs
            .iter()
            .map(|&(il, _)| {
                let (mut rows, mut elements) = (Vec::new(), Vec::new());
                view.kv_rows(view.window_of(il), &mut rows);
                if view.v_transposed() {
                    view.v_element_rows(view.v_kind_of(il), &mut elements);
                }
                (rows, elements)
            })
            .collect();
        let mut inputs = Vec::new();
        for ((&(il, _), (k, v)), (rows, elements)) in kvs.iter().zip(&operands).zip(&cells) {
            inputs.extend([(Name("k", il as u32), Data::F32(k)), (Name("v", il as u32), Data::F32(v))]);
            inputs.push((Name("rows", il as u32), Data::I64(rows)));
            if !elements.is_empty() {
                inputs.push((Name("elements", il as u32), Data::I64(elements)));
            }
        }
        let n_tokens = numbers.len() as i64;
        let build = |g: &Graph<'_>| {
            for (&(il, kv), (_, elements)) in kvs.iter().zip(&cells) {
                let input = |name, dtype, n: i64, m: i64| g.input(Name(name, il as u32), dtype, [n, m, 1, 1]);
                let k = input("k", Dtype::F32, (kv.d_k * kv.n_head_kv) as i64, n_tokens);
                let v = input("v", Dtype::F32, (kv.d_v * kv.n_head_kv) as i64, n_tokens);
                let rows = input("rows", Dtype::I64, n_tokens, 1);
                let n = elements.len() as i64;
                let elements = (n > 0).then(|| input("elements", Dtype::I64, n, 1));
                view.store_kv(g, il, (k, v), rows, elements);
                for (i, s) in view.segments().iter().enumerate() {
                    let name = |what| Name(what, (il * 100 + i) as u32);
                    let (k, v) = (view.k(g, il, s).expect("keys").rows, view.v(g, il, s).expect("values").rows);
                    g.output(name("keys"), g.cont(k)); // [d_k, n_kv, n_head_kv, n_seqs]
                    g.output(name("values"), g.cont(if view.v_transposed() { g.transpose(v) } else { v }));
                }
            }
        };
        self.n_steps += 1;
        let mut results = self.executor.run(&self.n_steps, 512, build, &inputs).expect("a graph that can be computed");
        let mut seen = Vec::new();
        for &(il, kv) in &kvs {
            for (i, s) in view.segments().iter().enumerate() {
                let (mut keys, mut values, mut mask) = (Vec::new(), Vec::new(), Vec::new());
                results.f32(Name("keys", (il * 100 + i) as u32), &mut keys).expect("an output");
                results.f32(Name("values", (il * 100 + i) as u32), &mut values).expect("an output");
                view.mask(view.window_of(il), s, &mut mask);
                let n_kv = view.n_kv(view.window_of(il), s);
                for (row, mask) in mask.chunks(n_kv).enumerate() {
                    let seq = row / s.n_rows;
                    let (of_k, of_v) = (kv.d_k * n_kv * kv.n_head_kv * seq, kv.d_v * n_kv * kv.n_head_kv * seq);
                    let cells = (0..n_kv).filter(|&c| mask[c] == 0);
                    let mut found: Vec<[u32; 2]> = cells
                        .map(|c| [keys[of_k + c * kv.d_k].to_bits(), values[of_v + c * kv.d_v].to_bits()])
                        .collect();
                    found.sort_unstable();
                    seen.push(found.into_flattened());
                }
            }
        }
        txn.commit(kept).expect("rows that can be kept");
        seen
    }
}

fn kv_of((il, layer): (usize, &LayerState)) -> Option<(usize, Kv)> {
    if let LayerState::Kv(kv) = layer { Some((il, *kv)) } else { None }
}

/// Two memories to which the same happens, and what is known of their sequences.
struct Pair {
    ring: Rig,
    all: Rig,
    /// The numbers behind each slot.
    tokens: Vec<Vec<f32>>,
    next: f32,
    /// Checkpoints and saved sequences, with the numbers before them.
    checkpoints: Vec<(Vec<f32>, Checkpoint)>,
    saved: Vec<(Vec<f32>, SavedSequence, SavedSequence)>,
}

impl Pair {
    fn new(v_transposed: bool) -> Pair {
        Pair {
            ring: Rig::new(config(Some(MAX_ROWS), v_transposed)),
            all: Rig::new(config(None, v_transposed)),
            tokens: vec![Vec::new(); N_SLOTS],
            next: 1.0,
            checkpoints: Vec::new(),
            saved: Vec::new(),
        }
    }

    /// One event, by numbers that choose it.
    fn event(&mut self, [what, slot, a, b]: [usize; 4]) {
        let slot = slot % N_SLOTS;
        let (ring, all) = (&self.ring.slots[slot], &self.all.slots[slot]);
        let len = self.tokens[slot].len();
        match what % 12 {
            // A cut: at most a few positions back, or anywhere.
            0 | 1 => {
                let to = if what % 12 == 0 { len - a % (len.min(60) + 1) } else { a % (len + 1) };
                let earliest = self.ring.memory.rewinds_to(ring).expect("in use");
                let cut = self.ring.memory.truncate(ring, to);
                assert_eq!(cut.is_ok(), to == 0 || to >= earliest, "{len} cut to {to}: {cut:?}");
                if cut.is_ok() {
                    self.all.memory.truncate(all, to).expect("any cut");
                    self.tokens[slot].truncate(to);
                }
            }
            2 => {
                let checkpoint = self.ring.memory.checkpoint(ring).expect("taken");
                let shape = self.ring.memory.shape();
                assert_eq!(checkpoint.n_bytes(), shape.checkpoint_bytes(len));
                let mut bytes = Vec::new();
                checkpoint.write_to(&mut bytes);
                assert_eq!(Checkpoint::read_from(&mut ByteReader::new(&bytes)).expect("as written"), checkpoint);
                shape.check_checkpoint_values(&checkpoint).expect("finite");
                self.checkpoints.push((self.tokens[slot].clone(), checkpoint));
            }
            3 => {
                let of_slot = |(tokens, _): &&(Vec<f32>, Checkpoint)| self.tokens[slot].starts_with(tokens);
                let Some((tokens, checkpoint)) = self.checkpoints.iter().filter(of_slot).nth(a % 3) else { return };
                self.ring.memory.restore(ring, checkpoint).expect("a checkpoint of it");
                self.all.memory.truncate(all, tokens.len()).expect("any cut");
                self.tokens[slot].truncate(tokens.len());
            }
            4 => {
                let earliest = self.ring.memory.rewinds_to(ring).expect("in use");
                let n = len - a % (len.min(20) + 1);
                let saved = self.ring.memory.save_first(ring, n);
                assert_eq!(saved.is_ok(), n >= earliest);
                let Ok(saved) = saved else { return };
                let mut bytes = Vec::new();
                saved.write_to(&mut bytes);
                assert_eq!(bytes.len(), self.ring.memory.shape().saved_bytes(n));
                let saved = SavedSequence::from_bytes(&bytes).expect("as written");
                self.ring.memory.shape().check_values(&saved).expect("finite");
                let of_all = self.all.memory.save_first(all, n).expect("any part");
                self.saved.push((self.tokens[slot][..n].to_vec(), saved, of_all));
            }
            5 => {
                let Some((tokens, of_ring, of_all)) = self.saved.get(a % self.saved.len().max(1)) else { return };
                self.ring.memory.load(ring, of_ring).expect("of this shape");
                self.all.memory.load(all, of_all).expect("of this shape");
                self.tokens[slot].clone_from(tokens);
            }
            6 => {
                let to = (slot + 1) % N_SLOTS;
                let n = len - a % (len.min(20) + 1);
                let earliest = self.ring.memory.rewinds_to(ring).expect("in use");
                let copied = self.ring.memory.copy(ring, &self.ring.slots[to], n, None);
                assert_eq!(copied.is_ok(), n >= earliest);
                if copied.is_ok() {
                    self.all.memory.copy(all, &self.all.slots[to], n, None).expect("any part");
                    self.tokens[to] = self.tokens[slot][..n].to_vec();
                }
            }
            7 if a % 4 == 0 => {
                self.ring.memory.spoil(ring).expect("in use");
                self.all.memory.spoil(all).expect("in use");
                self.ring.memory.reset(ring).expect("cleared");
                self.all.memory.reset(all).expect("cleared");
                self.tokens[slot].clear();
            }
            // A step that is dropped.
            8 => {
                let n_rows = (1 + a % MAX_ROWS).min(N_CTX - len);
                if n_rows > 0 {
                    self.step(&[(slot, n_rows)], Some(0));
                }
            }
            // Steps of one sequence or several, of which all is kept or the end is dropped.
            _ => {
                let n = |slot: usize| (1 + (a + slot * b) % MAX_ROWS).min(N_CTX - self.tokens[slot].len());
                let of = |slot: usize| Some((slot, n(slot))).filter(|(_, n)| *n > 0);
                let parts: Vec<_> =
                    if b % 3 == 0 { (0..N_SLOTS).filter_map(of).collect() } else { of(slot).into_iter().collect() };
                if !parts.is_empty() {
                    self.step(&parts, (b % 5 == 0).then_some(b / 5));
                }
            }
        }
    }

    /// A step, of which each sequence keeps all, or this many rows where it has them.
    fn step(&mut self, parts: &[(usize, usize)], kept: Option<usize>) {
        let mut rows = Vec::new();
        for &(slot, n_rows) in parts {
            rows.push((slot, (0..n_rows).map(|i| self.next + 8.0 * i as f32).collect::<Vec<f32>>()));
            self.next += 8.0 * n_rows as f32;
        }
        let kept: Vec<usize> = rows.iter().map(|(_, rows)| kept.map_or(rows.len(), |n| n % (rows.len() + 1))).collect();
        let (found, expected) = (self.ring.step(&rows, &kept), self.all.step(&rows, &kept));
        assert!(found == expected, "rows see other numbers");
        for ((slot, rows), kept) in rows.iter().zip(kept) {
            self.tokens[*slot].extend_from_slice(&rows[..kept]);
            assert_eq!(self.ring.memory.len(&self.ring.slots[*slot]).expect("in use"), self.tokens[*slot].len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_row_sees_what_it_sees_where_all_cells_are_kept(
        v_transposed: bool,
        lens in prop::collection::vec(0usize..700, N_SLOTS),
        events in prop::collection::vec(prop::array::uniform4(0usize..10_000), 1..40),
    ) {
        let mut pair = Pair::new(v_transposed);
        for (slot, len) in lens.into_iter().enumerate() {
            (0..len / MAX_ROWS).for_each(|_| pair.step(&[(slot, MAX_ROWS)], None));
        }
        events.into_iter().for_each(|event| pair.event(event));
    }
}

#[test]
fn rings_take_the_bytes_of_their_windows_and_refuse_longer_steps() {
    let (ring, all) = (Rig::new(config(Some(MAX_ROWS), false)), Rig::new(config(None, false)));
    // Keys and values of a position in each layer; 5 + 39 and 1 + 39 cells are rounded up to 256, 300 + 39 to 512.
    let row = [5, 6, 3, 4].map(|n| 4 * n * N_SLOTS);
    assert_eq!(all.memory.n_bytes(), row.iter().sum::<usize>() * N_CTX);
    assert_eq!(ring.memory.n_bytes(), row[0] * N_CTX + row[1] * 256 + row[2] * 512 + row[3] * 256);
    assert_eq!(config(Some(MAX_ROWS), false).n_bytes(&layout()).expect("countable"), ring.memory.n_bytes());
    let mut memory = ring.memory;
    let error = memory.begin(&[(&ring.slots[0], MAX_ROWS + 1)], 1).expect_err("too many rows");
    assert!(matches!(error, Error::Step(_)), "{error}");
    assert_eq!(error.to_string(), "41 rows of a sequence in one step, the memory was made for 40");
    let saved = all.memory.save(&all.slots[0]).expect("an empty sequence");
    assert!(memory.load(&ring.slots[0], &saved).is_err(), "cells of another kind of memory");
}
