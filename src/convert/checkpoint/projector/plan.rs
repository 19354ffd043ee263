//! The plan of a projector's tensor: its shape, its rows, the order of their numbers.

use std::collections::HashMap;
use std::sync::Arc;

use gguf::TensorType;

use super::row::Part;
use crate::checkpoint::plan::{Maker, natural};
use crate::error::Error;
use crate::safetensors::{Place, Shards};
use crate::stream::{MAX_ROW_ELEMENTS, Map, Run, TensorPlan};

/// What `part` becomes, one plan for each tensor of the new file.
///
/// # Errors
/// A shape that such a tensor cannot have, or numbers that are no floats.
pub(super) fn plans(
    shards: &Shards,
    scales: &HashMap<String, Place>,
    place: Place,
    part: &Part,
) -> Result<Vec<TensorPlan>, Error> {
    let t = shards.tensor(place);
    let ne: Vec<u64> = t.shape.iter().rev().copied().collect();
    let name = match part {
        Part::Whole(name) => name.as_str(),
        Part::LacksOne(name) | Part::Frames(name) | Part::Pixels(name) => name,
    };
    let maker = Maker { shards, scales, config: None, name: name.to_owned() };
    let refused = |what: &str| Error::tensor(name, format!("{ne:?} found, {what} expected"));
    let row_len = ne.first().copied().unwrap_or(1);
    if row_len > MAX_ROW_ELEMENTS || row_len == 0 {
        return Err(refused("rows of numbers, and not too many,"));
    }
    let piece = maker.piece(place, row_len)?;
    match part {
        Part::Whole(_) => {
            // A single number is a vector of one.
            let ne = if ne.is_empty() { vec![1] } else { ne };
            let dtype = if ne.len() < 2 { TensorType::F32 } else { natural(t.dtype) };
            Ok(vec![TensorPlan::of(name.to_owned(), ne, dtype, piece, row_len)])
        }
        Part::LacksOne(_) => {
            let plan = TensorPlan::of(name.to_owned(), ne, TensorType::F32, piece, row_len);
            Ok(vec![TensorPlan { map: Map::AddOne, ..plan }])
        }
        Part::Frames(_) => {
            let &[width, height, 2, n_channels, n] = ne.as_slice() else {
                return Err(refused("a kernel for two frames"));
            };
            let frame = |frame: u64, name: String| {
                let runs = (0..n * n_channels).map(|i| Run { piece: 0, start: (2 * i + frame) * height, n: height });
                let rows = (row_len, vec![piece.clone()], runs.collect());
                TensorPlan::of_rows(name, vec![width, height, n_channels, n], TensorType::F32, rows)
            };
            Ok(vec![frame(0, name.to_owned()), frame(1, format!("{name}.1"))])
        }
        Part::Pixels(_) => {
            let side = (row_len / 3).isqrt();
            if ne.len() != 2 || side * side * 3 != row_len {
                return Err(refused("a row of square patches of three channels"));
            }
            let plan = TensorPlan::of(name.to_owned(), vec![side, side, 3, ne[1]], TensorType::F32, piece, row_len);
            let columns = (0..3).flat_map(|channel| (0..side * side).map(move |pixel| (pixel * 3 + channel) as u32));
            Ok(vec![TensorPlan { columns: Some(Arc::new(columns.collect())), ..plan }])
        }
    }
}
