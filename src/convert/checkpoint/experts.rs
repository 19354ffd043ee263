//! The plan of experts whose gates and up matrices stand in turns, row by row: in blocks of MXFP4, or in floats and then turned.
//! Owns that layout; what becomes of other tensors is `plan.rs`'s.

use gguf::TensorType;
use model::TensorSchema;

use super::plan::{MAX_EXPERTS, Maker, Sources, float, natural};
use crate::error::Error;
use crate::safetensors::{Dtype, Tensor, quoted};
use crate::stream::{MAX_ROW_ELEMENTS, Piece, Run, Scale, Stored, TensorPlan, Turned};

/// Every second one, or all.
#[derive(Clone, Copy)]
struct Pick {
    first: u64,
    every: u64,
}

impl Maker<'_> {
    /// As [`Maker::plan`], of all experts of a layer.
    pub(super) fn plan_of_experts(
        &self,
        sources: &Sources,
        expected: Option<&TensorSchema>,
    ) -> Result<TensorPlan, Error> {
        let t = self.shards.tensor(sources.first());
        let pick = match sources {
            Sources::Alternate(_, which) => Pick { first: *which, every: 2 },
            _ => Pick { first: 0, every: 1 },
        };
        if t.shape.first().is_some_and(|n| *n > MAX_EXPERTS) {
            return Err(self.refused(format!("{} experts found, at most {MAX_EXPERTS} allowed", t.shape[0])));
        }
        let plan = match (t.shape.as_slice(), t.dtype) {
            (&[n_expert, n_rows, n_blocks, 16], Dtype::U8) if n_rows.is_multiple_of(pick.every) => {
                self.blocks(sources, pick, [n_expert, n_rows, n_blocks])?
            }
            (&[n_expert, n], _) if pick.every == 2 && n.is_multiple_of(2) => {
                let stored = self.floats(t)?;
                let n_bytes = stored.row_bytes(1).unwrap_or(1);
                let at = t.start + pick.first * n_bytes;
                let (file, n_rows) = (sources.first().file, n_expert * n / 2);
                let piece = Piece { file, at, stored, n_rows, every: 2, scale: None };
                TensorPlan::of(self.name.clone(), vec![n / 2, n_expert], TensorType::F32, piece, 1)
            }
            (&[n_expert, n_in, n_out], _) if n_out.is_multiple_of(pick.every) => {
                let stored = self.floats(t)?;
                self.check_row(n_in.max(n_out))?;
                let (file, n_rows) = (sources.first().file, n_expert * n_in);
                let piece = Piece { file, at: t.start, stored, n_rows, every: 1, scale: None };
                let runs = (0..n_expert).map(|e| Run { piece: 0, start: e * n_in, n: n_in }).collect();
                let ne = vec![n_in, n_out / pick.every, n_expert];
                let rows = (n_in, vec![piece], runs);
                let turned = Some(Turned { n_cols: n_out, first: pick.first, every: pick.every });
                TensorPlan { turned, ..TensorPlan::of_rows(self.name.clone(), ne, natural(t.dtype), rows) }
            }
            (shape, dtype) => {
                return Err(self.refused(format!(
                    "{} of shape {shape:?} and type {dtype} found, experts in blocks of MXFP4 or in floats expected",
                    quoted(&t.name)
                )));
            }
        };
        match expected.filter(|expected| !expected.has_shape(&plan.ne)) {
            None => Ok(plan),
            Some(expected) => {
                Err(Error::Shape { name: self.name.clone(), found: plan.ne, expected: expected.ne.clone() })
            }
        }
    }

    /// Blocks of 32 numbers in 16 bytes, with their scales in a tensor of their own.
    fn blocks(
        &self,
        sources: &Sources,
        pick: Pick,
        [n_expert, n_rows, n_blocks]: [u64; 3],
    ) -> Result<TensorPlan, Error> {
        let (place, Pick { first, every }) = (sources.first(), pick);
        let t = self.shards.tensor(place);
        let missing = || self.refused(format!("the scales of {} are missing", quoted(&t.name)));
        let of_scales = *self.scales.get(&t.name).ok_or_else(missing)?;
        let scales = self.shards.tensor(of_scales);
        if scales.shape != [n_expert, n_rows, n_blocks] || !matches!(scales.dtype, Dtype::U8 | Dtype::F8_E8M0) {
            return Err(self.refused(format!(
                "scales of shape {:?} and type {} found, bytes of shape {:?} expected",
                scales.shape,
                scales.dtype,
                [n_expert, n_rows, n_blocks]
            )));
        }
        let row_len = 32 * n_blocks;
        self.check_row(row_len)?;
        let scale = Scale {
            file: of_scales.file,
            at: scales.start + first * n_blocks,
            stored: Stored::F8E8M0,
            matrix_rows: 1,
            n_rows: every,
            n_cols: n_blocks,
            cell_rows: 1,
            cell_cols: 32,
        };
        let piece = Piece {
            file: place.file,
            at: t.start + first * 16 * n_blocks,
            stored: Stored::F4E2M1,
            n_rows: n_expert * n_rows / every,
            every,
            scale: Some(scale),
        };
        let ne = vec![row_len, n_rows / every, n_expert];
        Ok(TensorPlan::of(self.name.clone(), ne, TensorType::MXFP4, piece, row_len))
    }

    fn floats(&self, t: &Tensor) -> Result<Stored, Error> {
        let refused = || self.refused(format!("{} is of type {}, floats expected", quoted(&t.name), t.dtype));
        float(t.dtype).map(Stored::Ggml).ok_or_else(refused)
    }

    fn check_row(&self, n: u64) -> Result<(), Error> {
        match n {
            1..=MAX_ROW_ELEMENTS => Ok(()),
            _ => Err(self.refused(format!("rows of {n} elements, 1 to {MAX_ROW_ELEMENTS} allowed"))),
        }
    }
}
