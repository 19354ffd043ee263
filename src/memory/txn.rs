//! One step's claim on the memory: where its tokens go, and what is kept of them.

use crate::error::Error;
use crate::slots::{Memory, Slot};
use crate::step_log::HeadStep;
use crate::view::{OfRank, Segment, StepView};

/// A step in progress over some sequences. [`Txn::commit`] keeps tokens; dropping it keeps none.
///
/// Tokens are ordered by slot, and within a sequence by position.
#[derive(Debug)]
pub struct Txn<'m> {
    memory: &'m mut Memory,
    claims: Vec<Claim>,
    segments: Vec<Segment>,
    done: bool,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    index: usize,
    n_rows: usize,
    n_snapshots: usize,
    write_plane: u32,
    head_step: HeadStep,
}

impl Memory {
    /// Begins a step that adds `n_rows` positions to each of the sequences, given in ascending order of their slots.
    /// `n_snapshots` states are kept of each (newest first), one for each of its tokens; of a sequence with more tokens
    /// only the newest. One is enough unless tokens may be dropped on commit.
    ///
    /// # Errors
    /// [`Error::Slot`], [`Error::Full`], [`Error::Step`]: nothing to do, slots out of order, more snapshots than the memory
    /// was made for, a sequence whose state was lost. [`Error::Device`]: cells that were shared could not be made its own.
    pub fn begin(&mut self, sequences: &[(&Slot, usize)], n_snapshots: usize) -> Result<Txn<'_>, Error> {
        let refuse = |what: &str| Err(Error::Step(what.into()));
        if sequences.is_empty() || sequences.iter().any(|(_, n_rows)| *n_rows == 0) {
            return refuse("a step needs at least one row of each of its sequences");
        }
        if !sequences.windows(2).all(|w| w[0].0.index < w[1].0.index) {
            return refuse("the sequences of a step must be in ascending order of their slots");
        }
        if n_snapshots == 0 || n_snapshots > self.config.n_snapshots {
            return Err(Error::Step(format!(
                "{n_snapshots} snapshots were asked for, the memory was made for 1 to {}",
                self.config.n_snapshots
            )));
        }
        let mut claimed = Vec::with_capacity(sequences.len());
        let mut segments: Vec<Segment> = Vec::new();
        let mut first_row = 0;
        let recurrent = self.layout.is_recurrent();
        for &(slot, n_rows) in sequences {
            let index = self.index(slot)?;
            let state = self.sound(index)?;
            if let Some(max_rows) = self.config.max_rows.filter(|&most| n_rows > most && self.has_rings()) {
                let what = format!("{n_rows} rows of a sequence in one step, the memory was made for {max_rows}");
                return Err(Error::Step(what));
            }
            let end = state.len + n_rows;
            if end > self.config.n_ctx {
                return Err(Error::Full { len: state.len, n_rows, n_ctx: self.config.n_ctx });
            }
            let n_snapshots = if n_rows <= n_snapshots { n_rows } else { 1 };
            let half = self.config.n_snapshots as u32;
            let write_plane = match state.free_plane() {
                Some(plane) if recurrent => plane,
                _ if self.config.transactional && state.plane < half => half,
                _ => 0,
            };
            if recurrent && state.held.is_some() && n_snapshots > 1 {
                return Err(Error::Step(format!(
                    "slot {index}: {n_snapshots} snapshots of a sequence that is held, 1 expected"
                )));
            }
            let planes = (state.held.map(|held| held.heads), self.config.transactional.then_some(half));
            let head_step = self.step_log.map(|log| log.step(state.heads, planes, (n_rows, n_snapshots)));
            claimed.push(Claim { index, n_rows, n_snapshots, write_plane, head_step: head_step.unwrap_or_default() });
            let n_kv = self.n_kv(end);
            match segments.last_mut() {
                Some(s) if s.first_slot + s.n_seqs == index && (s.n_rows, s.write_plane) == (n_rows, write_plane) => {
                    s.n_seqs += 1;
                    s.n_kv = s.n_kv.max(n_kv);
                    // Where each stands depends on what it kept last: fixed planes would mean a graph for every mixture.
                    s.read_plane = s.read_plane.filter(|&p| p == state.plane && p % half == 0);
                }
                _ => segments.push(Segment {
                    first_slot: index,
                    n_seqs: 1,
                    n_rows,
                    n_kv,
                    read_plane: (!self.names_states).then_some(state.plane),
                    write_plane,
                    n_snapshots,
                    first_row,
                    names_slots: n_rows <= self.names_slots,
                    says_spans: self.says_spans && n_rows >= crate::names::ROWS_OF_SPANS,
                }),
            }
            first_row += n_rows;
        }
        for p in &claimed {
            self.stop_showing(p.index, self.slots[p.index].len)?;
            let n_planes = if recurrent { p.write_plane + p.n_snapshots as u32 } else { 0 };
            self.take(p.index, self.slots[p.index].len + p.n_rows, n_planes)?;
            let state = &mut self.slots[p.index];
            state.head_step = p.head_step;
            state.writes(state.len + p.n_rows);
            state.n_stepped = state.n_stepped.max(state.len + p.n_rows);
            state.n_planes_written = state.n_planes_written.max(p.write_plane + p.n_snapshots as u32);
        }
        Ok(Txn { memory: self, claims: claimed, segments, done: false })
    }
}

impl Txn<'_> {
    /// What the forward pass may read and write.
    pub fn view(&self) -> StepView<'_> {
        StepView {
            memory: self.memory,
            rank: OfRank::ALONE,
            segments: &self.segments,
            skips: &[],
            at_end: false,
            mutual: false,
        }
    }

    /// Keeps the first `kept[i]` tokens of sequence `i`; the forward pass must have been computed.
    ///
    /// # Errors
    /// [`Error::Keep`], and nothing is kept: a count above the sequence's tokens, or one whose state was not snapshotted.
    pub fn commit(mut self, kept: &[usize]) -> Result<(), Error> {
        if kept.len() != self.claims.len() {
            return Err(Error::Step(format!("{} counts for {} sequences", kept.len(), self.claims.len())));
        }
        let recurrent = self.memory.layout.is_recurrent();
        for (p, &kept) in self.claims.iter().zip(kept) {
            // After more tokens than snapshots only the newest state is certain.
            let reachable = if p.n_rows <= p.n_snapshots { p.n_snapshots } else { 1 };
            let sound = kept <= p.n_rows && (!recurrent || kept > 0 && p.n_rows - kept < reachable);
            if !sound {
                let (slot, n_rows, n_snapshots) = (p.index as u32, p.n_rows, p.n_snapshots);
                return Err(Error::Keep { slot, kept, n_rows, n_snapshots });
            }
        }
        for (p, &kept) in self.claims.iter().zip(kept) {
            let log = self.memory.step_log;
            let state = &mut self.memory.slots[p.index];
            state.heads = log.map_or(state.heads, |log| state.heads.after(p.head_step, kept, log));
            state.len += kept;
            state.plane = p.write_plane + (p.n_rows - kept) as u32;
        }
        if !recurrent {
            self.claims.iter().for_each(|p| self.memory.slots[p.index].plane = 0);
        }
        self.done = true;
        Ok(())
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // Other planes hold the old recurrent state, unless the step was allowed to write over it.
        let lost = !self.memory.config.transactional && self.memory.layout.is_recurrent();
        for p in &self.claims {
            let state = &mut self.memory.slots[p.index];
            state.lost |= lost;
            // Cells past a sequence's length are masked, and what is in these nobody has seen.
            state.spoiled = true;
        }
    }
}
