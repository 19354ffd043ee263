//! What one sequence takes of memory that is taken when it is written, by its length.
//! Plain arithmetic over runs of cells; knows nothing of tensors.

/// Cells of one slot that lie together: what a sequence takes of them depends on its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Bytes of one cell.
    pub(crate) cell_bytes: usize,
    /// Cells at most.
    pub(crate) n_cells: usize,
    /// Bytes that memory is taken by.
    pub(crate) page: usize,
}

/// What one sequence takes of memory that is taken when it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Each kind with how many there are.
    pub(crate) runs: Vec<(Run, usize)>,
    /// Bytes of one recurrent state, but for what is logged.
    pub(crate) plane_bytes: usize,
    /// Bytes of the states of layers that log, and of their logs.
    pub(crate) logged_bytes: usize,
    pub(crate) n_planes: usize,
    /// Nothing of a sequence was reserved at the start.
    pub(crate) is_all: bool,
}

impl Footprint {
    /// True when nothing of a sequence was reserved at the start: what is not written can be used for something else.
    pub fn is_all(&self) -> bool {
        self.is_all
    }

    /// Bytes of a sequence of `len` positions, with all snapshots of its recurrent state.
    pub fn n_bytes(&self, len: usize) -> usize {
        self.of(len, self.n_planes)
    }

    /// As [`Footprint::n_bytes`], with so many snapshots.
    pub(crate) fn of(&self, len: usize, n_planes: usize) -> usize {
        let bytes = |(run, n): &(Run, usize)| {
            let (written, all) = (len.min(run.n_cells) * run.cell_bytes, run.n_cells * run.cell_bytes);
            n * written.next_multiple_of(run.page).min(all)
        };
        self.runs.iter().map(bytes).sum::<usize>() + n_planes * self.plane_bytes + n_planes.min(1) * self.logged_bytes
    }

    /// Counts `n` runs of a kind.
    pub(crate) fn add(&mut self, run: Run, n: usize) {
        if n == 0 {
            return;
        }
        match self.runs.iter_mut().find(|(known, _)| *known == run) {
            Some((_, known)) => *known += n,
            None => self.runs.push((run, n)),
        }
    }
}
