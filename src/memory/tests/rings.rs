//! Layers with a window that keep the cells of the window only: whatever happens to sequences, a row sees the numbers that it
//! sees in a memory which keeps all cells, bit for bit.

use memory::{ByteReader, CacheType, Checkpoint, Error, Kv, LayerState, MemoryConfig, SavedSequence, StateLayout};
use proptest::prelude::*;

mod support;

use support::Rig;

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
            ring: Rig::new(layout(), config(Some(MAX_ROWS), v_transposed)),
            all: Rig::new(layout(), config(None, v_transposed)),
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
        let (found, expected) = (self.ring.step(&rows, Some(&kept)), self.all.step(&rows, Some(&kept)));
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
    let (ring, all) = (Rig::new(layout(), config(Some(MAX_ROWS), false)), Rig::new(layout(), config(None, false)));
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
