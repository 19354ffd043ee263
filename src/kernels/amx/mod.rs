//! Products with many columns on processors with AMX, whose instructions multiply sixteen columns with sixteen weight rows at a time.
//! The bits are those of [`crate::avx512`]: integers are exact within a block, and floats are added block after block.
//!
//! Weights are unpacked to bytes, a panel of rows that stays in the second cache, once for all columns; so it takes some columns for
//! this to pay. Tile products of one step and the floats of the step before are computed at the same time.

mod blocks;
mod columns;
mod folded;
mod lanes;
mod step;
pub(crate) mod tiles;

use std::cell::RefCell;
use std::ops::Range;

use crate::isa::Isa;
use crate::low_bits;
use crate::prefetch::prefetch_far;
use crate::tile::WIDEST;
use crate::weight_rows::{Matrix, rows_from};
use crate::weight_type::{ActivationFormat, WeightType, quants};

use blocks::Blocks;
pub(crate) use columns::Columns;
use folded::Folded;
pub(crate) use lanes::Lanes;
use step::{Products, Step, Unpack};
use tiles::{COLUMNS, Tiles};

/// Columns from which on tiles are faster.
fn least_columns(ty: WeightType) -> usize {
    match ty.format() {
        ActivationFormat::Q8_0 => 20,
        _ => 16,
    }
}

/// Columns that are taken together: what they have of a step stays in the first cache.
const TOGETHER: usize = 8 * COLUMNS;

/// Bytes of a panel of unpacked rows.
const PANEL: usize = 1 << 19;

/// True if such products are computed here.
pub(crate) fn takes(isa: Isa, ty: WeightType, n: usize) -> bool {
    isa.has_tiles() && ty.is_quantised() && n >= least_columns(ty)
}

thread_local! {
    /// Unpacked rows and sums; kept from node to node.
    static MEMORY: RefCell<Vec<Lanes>> = const { RefCell::new(Vec::new()) };
}

/// The weight rows `rows` times the columns `x`; results of column `j` go to `out(j)`, each to the place of its row.
///
/// # Safety
/// [`takes`] says yes; the rows lie in the weight and are as long as the columns, which are in the format of its type; there is room
/// at `out` for a result of every row; nobody else writes those of these rows. Of joined rows the range is whole groups of eight.
/// `next`, where weights lie that are read next, is never read here.
pub(crate) unsafe fn product(
    w: &Matrix,
    rows: Range<usize>,
    x: &Columns,
    out: impl Fn(usize) -> *mut f32,
    next: *const u8,
) {
    macro_rules! unpack {
        ($step:ident::$unpack:ident $(, $parameter:expr)*) => {
            Kind::$step(match w.joined.is_null() {
                true => $step::$unpack::<$({ $parameter },)* false>,
                false => $step::$unpack::<$({ $parameter },)* true>,
            })
        };
    }
    let kind = match w.ty {
        WeightType::Q8_0 => unpack!(Blocks::of, quants::BYTES),
        WeightType::Q4_0 => unpack!(Blocks::of, quants::NIBBLES),
        WeightType::IQ4NL => unpack!(Blocks::of, quants::CHOICES),
        WeightType::Q5_0 => unpack!(Blocks::of, quants::FIVES),
        WeightType::Q4_1 => unpack!(Blocks::of, quants::NIBBLES_FROM),
        WeightType::Q5_1 => unpack!(Blocks::of, quants::FIVES_FROM),
        WeightType::MXFP4 => unpack!(Blocks::of, quants::POWERS),
        WeightType::Q4K => unpack!(Folded::of_q4_or_q5, false),
        WeightType::Q5K => unpack!(Folded::of_q4_or_q5, true),
        WeightType::Q6K => unpack!(Folded::of_q6),
        WeightType::Q2K => Kind::Folded(Folded::of_low_bits::<low_bits::Q2K>),
        WeightType::Q3K => Kind::Folded(Folded::of_low_bits::<low_bits::Q3K>),
        WeightType::IQ4XS => Kind::Folded(Folded::of_low_bits::<low_bits::Iq4Xs>),
        WeightType::IQ3XXS => Kind::Folded(Folded::of_low_bits::<low_bits::Iq3Xxs>),
        WeightType::IQ3S => Kind::Folded(Folded::of_low_bits::<low_bits::Iq3S>),
        WeightType::IQ2XXS => Kind::Folded(Folded::of_low_bits::<low_bits::Iq2Xxs>),
        WeightType::IQ2XS => Kind::Folded(Folded::of_low_bits::<low_bits::Iq2Xs>),
        WeightType::IQ2S => Kind::Folded(Folded::of_low_bits::<low_bits::Iq2S>),
        WeightType::IQ1S => Kind::Folded(Folded::of_low_bits::<low_bits::Iq1S>),
        WeightType::IQ1M => Kind::Folded(Folded::of_low_bits::<low_bits::Iq1M>),
        WeightType::F32 | WeightType::F16 | WeightType::BF16 => {
            debug_assert!(false, "floats have kernels of their own");
            return;
        }
    };
    MEMORY.with_borrow_mut(|memory| {
        // SAFETY: the caller's; `Isa::Amx` has the features.
        unsafe {
            match kind {
                Kind::Blocks(unpack) => in_panels(unpack, w, rows, x, &out, next, memory),
                Kind::Folded(unpack) => in_panels(unpack, w, rows, x, &out, next, memory),
            }
        }
    });
}

/// How rows are unpacked.
enum Kind {
    Blocks(Unpack<Blocks>),
    Folded(Unpack<Folded>),
}

/// Bytes that are prefetched in pieces.
struct Pieces {
    at: *const u8,
    left: usize,
    piece: usize,
}

impl Pieces {
    /// `n_bytes` at `at` in `n` pieces, whole cache lines.
    fn of(at: *const u8, n_bytes: usize, n: usize) -> Self {
        Self { at, left: if at.is_null() { 0 } else { n_bytes }, piece: n_bytes.div_ceil(n).next_multiple_of(64) }
    }

    /// The next one, if there is one left.
    #[inline(always)]
    fn prefetch(&mut self) {
        let n = self.piece.min(self.left);
        prefetch_far(self.at, n);
        (self.at, self.left) = (self.at.wrapping_add(n), self.left - n);
    }
}

/// What is computed at a time.
#[derive(Clone, Copy)]
struct Unit {
    step: usize,
    /// Number of the group of sixteen rows in the panel.
    group: usize,
    /// First of the columns that are taken together.
    column: usize,
}

impl Unit {
    /// The next one, of so many columns and groups: other columns first, then other rows, then the next step.
    #[inline(always)]
    fn next(self, n_columns: usize, n_groups: usize) -> Self {
        let column = self.column + COLUMNS;
        if column < n_columns {
            return Self { column, ..self };
        }
        match self.group + 1 {
            group if group < n_groups => Self { group, column: 0, ..self },
            _ => Self { step: self.step + 1, group: 0, column: 0 },
        }
    }
}

/// # Safety
/// That of [`product`]; `unpack` is for the weight's type and for its rows as they lie.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn in_panels<S: Step>(
    unpack: Unpack<S>,
    w: &Matrix,
    rows: Range<usize>,
    x: &Columns,
    out: &dyn Fn(usize) -> *mut f32,
    next: *const u8,
    memory: &mut Vec<Lanes>,
) {
    let n_steps = x.n_blocks.div_ceil(S::BLOCKS);
    let lines = size_of::<S>() / size_of::<Lanes>();
    let panel = (PANEL / (n_steps * size_of::<S>())).clamp(1, rows.len().div_ceil(WIDEST).max(1));
    let [n_unpacked, n_sums] = [panel * n_steps * lines, panel * TOGETHER];
    memory.resize(memory.len().max(n_unpacked + 2 * n_sums), Lanes::NOTHING);
    let (unpacked, sums) = memory.split_at_mut(n_unpacked);
    let (sums, mins) = sums.split_at_mut(n_sums);
    // SAFETY: as much memory, aligned to a line as steps are; any bytes are integers and floats.
    let steps: &mut [S] = unsafe { std::slice::from_raw_parts_mut(unpacked.as_mut_ptr().cast(), panel * n_steps) };
    let mut products = [const { Products([[[[0; 16]; COLUMNS]; 2]; 4]) }; 2];
    let row_bytes = w.ty.row_bytes(x.n_blocks * w.ty.format().block());
    let mut shape = COLUMNS.min(x.n);
    // SAFETY: there are tiles (the caller), and no others of this thread.
    let mut tiles = unsafe { Tiles::new(shape, S::TILE_BYTES) };
    for first in rows.clone().step_by(panel * WIDEST) {
        let n_groups = panel.min((rows.end - first).div_ceil(WIDEST));
        for group in 0..n_groups {
            let at = rows_from::<WIDEST>(w, &rows, first + group * WIDEST, row_bytes);
            if first == rows.start {
                prefetch_far(w.read().wrapping_add((first + (group + 1) * WIDEST) * row_bytes), WIDEST * row_bytes);
            }
            for (s, step) in steps[group * n_steps..][..n_steps].iter_mut().enumerate() {
                // SAFETY: the rows have these blocks (the caller).
                unsafe { unpack(step, &at, s * S::BLOCKS, S::BLOCKS.min(x.n_blocks - s * S::BLOCKS)) };
            }
        }
        // While these are multiplied, the next ones come.
        let ahead = match first + panel * WIDEST {
            row if row < rows.end => w.read().wrapping_add(row * row_bytes),
            _ => next,
        };
        let mut pieces = Pieces::of(ahead, panel * WIDEST * row_bytes, n_steps * n_groups * x.n.div_ceil(COLUMNS));
        let mut j = 0;
        while j < x.n {
            let n = if x.n - j < COLUMNS { x.n - j } else { TOGETHER.min((x.n - j) / COLUMNS * COLUMNS) };
            if shape != n.min(COLUMNS) {
                shape = n.min(COLUMNS);
                // SAFETY: as above.
                unsafe { tiles.reshape(shape, S::TILE_BYTES) };
            }
            let n_units = n_steps * n_groups * n.div_ceil(COLUMNS);
            let mut unit = Unit { step: 0, group: 0, column: 0 };
            let mut before = unit;
            for i in 0..=n_units {
                if i < n_units {
                    pieces.prefetch();
                    let Unit { step, group, column } = unit;
                    let step = &steps[group * n_steps + step];
                    // SAFETY: tiles are shaped for these columns.
                    unsafe { step.multiply(&mut tiles, x, j + column, unit.step, &mut products[i % 2]) };
                }
                if i > 0 {
                    let Unit { step, group, column } = before;
                    let at = group * n + column..group * n + column + shape;
                    let sums = [&mut sums[at.clone()], &mut mins[at]];
                    let unpacked = &steps[group * n_steps + step];
                    // SAFETY: they were multiplied before this unit.
                    unsafe { unpacked.add(w.ty, &products[(i - 1) % 2], x, j + column, step, sums) };
                }
                (before, unit) = (unit, unit.next(n, n_groups));
            }
            for column in 0..n {
                let to = out(j + column);
                for group in 0..n_groups {
                    let Lanes(mut lanes) = sums[group * n + column];
                    if S::has_mins(w.ty) {
                        for (sum, min) in lanes.iter_mut().zip(&mins[group * n + column].0) {
                            *sum += min;
                        }
                    }
                    let r = first + group * WIDEST;
                    let to = to.wrapping_add(r);
                    // SAFETY: these rows are among `rows`, for which there is room and no other writer (the caller); `lanes` is a copy.
                    unsafe {
                        if rows.end - r >= WIDEST {
                            to.cast::<[f32; WIDEST]>().write_unaligned(lanes);
                        } else {
                            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, rows.end - r);
                        }
                    }
                }
            }
            j += n;
        }
    }
}
