//! A picture as the rows that a tower reads.

/// The patches of one picture.
///
/// They lie in blocks of `merge` x `merge`, each block becoming one token: by block row, block column, row in the block,
/// column in the block. Within a patch the order is that of the weights of projector files: channel, row, column.
#[derive(Clone, Debug, PartialEq)]
pub struct Patches {
    /// `[patch * patch * 3, n_patches]`, normalised.
    pub pixels: Vec<f32>,
    /// The same of the frame that follows, where two frames of a video are seen as one; empty for a picture.
    pub later: Vec<f32>,
    /// Patches in time, height and width.
    pub grid: [usize; 3],
    /// Patches along a side of a block that becomes one token.
    pub merge: usize,
    /// Tokens that the picture takes in a prompt: patches by `merge * merge`.
    pub n_tokens: usize,
}

impl Patches {
    /// Patches in all.
    pub fn n_patches(&self) -> usize {
        self.grid.iter().product()
    }

    /// Tokens in time, height and width.
    pub fn token_grid(&self) -> [usize; 3] {
        let [t, h, w] = self.grid;
        [t, h / self.merge, w / self.merge]
    }

    /// Row and column of every patch, in the order of `pixels`.
    pub fn places(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let ([n_times, height, width], merge) = (self.grid, self.merge);
        let in_block = move |(by, bx): (usize, usize)| {
            (0..merge * merge).map(move |i| (by * merge + i / merge, bx * merge + i % merge))
        };
        let (rows, columns) = (height / merge, width / merge);
        (0..n_times).flat_map(move |_| (0..rows * columns).map(move |i| (i / columns, i % columns))).flat_map(in_block)
    }
}
