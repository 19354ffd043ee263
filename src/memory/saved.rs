//! State of one sequence as values on the host, and as bytes: checkpoints of what cannot be cut, and whole sequences.

use crate::bytes::{ByteReader, put_number};
use crate::error::Error;
use crate::saved_cells::SavedCells;

/// What cannot be cut, at a position: recurrent state, and the cells that are seen from there in layers with a window. With
/// the other cells before it still in place, a sequence can go back there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub(crate) position: usize,
    /// Recurrent state, then cells.
    pub(crate) rows: Vec<u8>,
}

impl Checkpoint {
    /// Positions before it.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes that it takes on the host.
    pub fn n_bytes(&self) -> usize {
        self.rows.len()
    }

    /// Appends it as bytes.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        put_number(out, self.position);
        put_number(out, self.rows.len());
        out.extend_from_slice(&self.rows);
    }

    /// Reads what [`Checkpoint::write_to`] wrote. Whether it fits is found by [`crate::StateShape::check_checkpoint`] and
    /// [`crate::StateShape::check_checkpoint_values`].
    ///
    /// # Errors
    /// [`Error::Saved`]: it is cut off.
    pub fn read_from(bytes: &mut ByteReader<'_>) -> Result<Self, Error> {
        let (position, n_bytes) = (bytes.number()?, bytes.number()?);
        Ok(Self { position, rows: bytes.take(n_bytes)?.to_vec() })
    }
}

/// Everything of one sequence: cells and recurrent state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedSequence {
    pub(crate) len: usize,
    pub(crate) recurrent: Vec<u8>,
    pub(crate) cells: SavedCells,
    /// What it was made for: types and widths of every layer.
    pub(crate) shape: Vec<u64>,
}

impl SavedSequence {
    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that it takes on the host.
    pub fn n_bytes(&self) -> usize {
        self.recurrent.len() + self.cells.len()
    }

    /// Bytes that no other sequence has in common with it.
    pub fn own_bytes(&self) -> usize {
        self.recurrent.len()
    }

    /// Parts of its cells, each with what tells it from others as long as a sequence has it, and its bytes: whoever keeps several
    /// sequences counts each part once.
    pub fn parts(&self) -> impl Iterator<Item = (usize, usize)> {
        self.cells.parts()
    }

    /// Appends it as bytes: numbers, then state.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        for n in [self.len, self.shape.len(), self.recurrent.len(), self.cells.len()] {
            put_number(out, n);
        }
        self.shape.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes()));
        out.extend_from_slice(&self.recurrent);
        self.cells.slices().for_each(|bytes| out.extend_from_slice(bytes));
    }

    /// Reads what [`SavedSequence::write_to`] wrote; nothing may follow it.
    ///
    /// # Errors
    /// [`Error::Saved`]: the lengths do not agree with the bytes. Whether it fits a memory is found by
    /// [`crate::StateShape::check`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let mut bytes = ByteReader::new(bytes);
        let (len, n_shape, n_recurrent, n_cells) = (bytes.number()?, bytes.number()?, bytes.number()?, bytes.number()?);
        let shape = bytes.words(n_shape.saturating_mul(2))?.as_flattened();
        let shape = shape.as_chunks::<8>().0.iter().map(|&n| u64::from_le_bytes(n)).collect();
        let recurrent = bytes.take(n_recurrent)?.to_vec();
        let cells = bytes.rest();
        if cells.len() != n_cells {
            return Err(Error::Saved(format!("{} bytes of cells, {n_cells} expected", cells.len())));
        }
        Ok(Self { len, recurrent, cells: SavedCells::whole_of(cells.to_vec()), shape })
    }
}

/// Checks that recurrent state is finite.
pub(crate) fn check_floats(bytes: &[u8]) -> Result<(), Error> {
    match bytes.as_chunks::<4>().0.iter().all(|&v| f32::from_le_bytes(v).is_finite()) {
        true => Ok(()),
        false => Err(Error::Saved("a value of its recurrent state is not finite".into())),
    }
}
