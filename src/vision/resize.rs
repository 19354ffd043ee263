//! The resize of the published processors: bicubic (a = -0.5) or bilinear, antialiased, in 8 bits as Pillow computes it.
//! Across first, then down, rounded to 8 bits after each; the golden files hold its bytes.

use crate::picture::Picture;

/// Bits behind the point of a weight. A byte times the weights of one pixel, whose sizes sum to less than 2, fits 32 bits.
const BITS: u32 = 22;
/// Multiplications below which a second thread costs more than it saves.
const FEW: usize = 1 << 22;

/// What a pixel is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Filter {
    /// Keys's cubic convolution with a = -0.5.
    #[default]
    Bicubic,
    /// A triangle.
    Bilinear,
}

impl Filter {
    /// Pixels to each side that count, where nothing is scaled down.
    fn support(self) -> f64 {
        match self {
            Filter::Bicubic => 2.0,
            Filter::Bilinear => 1.0,
        }
    }

    fn weight(self, t: f64) -> f64 {
        match self {
            Filter::Bicubic => cubic(t),
            Filter::Bilinear => (1.0 - t.abs()).max(0.0),
        }
    }
}

impl Picture {
    /// This picture at `width` x `height`, stretched to both. A side that has its length already is not filtered.
    ///
    /// # Panics
    /// Where a side is 0.
    pub fn resized(&self, filter: Filter, width: usize, height: usize) -> Picture {
        assert!(width > 0 && height > 0, "a picture has pixels");
        let across = (width != self.width()).then(|| self.across(width, filter));
        let wide = across.as_ref().unwrap_or(self);
        if height == wide.height() { wide.clone() } else { wide.down(height, filter) }
    }

    /// Filtered along the rows.
    fn across(&self, width: usize, filter: Filter) -> Picture {
        let (taps, from) = (Taps::new(self.width(), width, filter), 3 * self.width());
        let rows = by_rows(3 * width, self.height(), taps.weights.len() * 3, |y, out| {
            let row = &self.rgb()[y * from..][..from];
            for (x, pixel) in out.chunks_exact_mut(3).enumerate() {
                let (first, weights) = taps.of(x);
                let mut sums = [1 << (BITS - 1); 3];
                for (weight, source) in weights.iter().zip(row[3 * first..].chunks_exact(3)) {
                    sums.iter_mut().zip(source).for_each(|(sum, &v)| *sum += weight * i32::from(v));
                }
                pixel.iter_mut().zip(sums).for_each(|(v, sum)| *v = byte(sum));
            }
        });
        Picture::new(width, self.height(), rows).expect("one row was made of each row")
    }

    /// Filtered along the columns.
    fn down(&self, height: usize, filter: Filter) -> Picture {
        let (taps, row) = (Taps::new(self.height(), height, filter), 3 * self.width());
        let rows = by_rows(row, height, taps.weights.len() / height * row, |y, out| {
            let (first, weights) = taps.of(y);
            let mut sums = vec![1 << (BITS - 1); row];
            for (weight, source) in weights.iter().zip(self.rgb()[first * row..].chunks_exact(row)) {
                sums.iter_mut().zip(source).for_each(|(sum, &v)| *sum += weight * i32::from(v));
            }
            out.iter_mut().zip(sums).for_each(|(v, sum)| *v = byte(sum));
        });
        Picture::new(self.width(), height, rows).expect("all rows have one length")
    }
}

fn byte(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// The weights of every pixel of one line.
struct Taps {
    /// First source pixel, and where its weights begin.
    at: Vec<(usize, usize)>,
    weights: Vec<i32>,
}

impl Taps {
    fn new(n_in: usize, n_out: usize, filter: Filter) -> Taps {
        let scale = n_in as f64 / n_out as f64;
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        let mut taps = Taps { at: Vec::with_capacity(n_out + 1), weights: Vec::new() };
        let mut line = Vec::new();
        for x in 0..n_out {
            let centre = (x as f64 + 0.5) * scale;
            let first = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(n_in);
            line.clear();
            line.extend((first..end).map(|i| filter.weight((i as f64 - centre + 0.5) / stretch)));
            let sum: f64 = line.iter().sum();
            taps.at.push((first, taps.weights.len()));
            let fixed = |w: &f64| (w / sum * f64::from(1 << BITS)).round() as i32;
            taps.weights.extend(line.iter().map(fixed));
        }
        taps.at.push((n_in, taps.weights.len()));
        taps
    }

    /// First source pixel of output pixel `x`, and the weights from there on.
    fn of(&self, x: usize) -> (usize, &[i32]) {
        let (first, begin) = self.at[x];
        (first, &self.weights[begin..self.at[x + 1].1])
    }
}

/// Keys's cubic convolution with a = -0.5.
fn cubic(t: f64) -> f64 {
    const A: f64 = -0.5;
    let t = t.abs();
    match t {
        t if t < 1.0 => ((A + 2.0) * t - (A + 3.0)) * t * t + 1.0,
        t if t < 2.0 => (((t - 5.0) * t + 8.0) * t - 4.0) * A,
        _ => 0.0,
    }
}

/// `n_rows` rows of `row` bytes, each written by `make(index, row)`, on several threads where `cost` a row is worth them.
fn by_rows(row: usize, n_rows: usize, cost: usize, make: impl Fn(usize, &mut [u8]) + Sync) -> Vec<u8> {
    let mut bytes = vec![0; row * n_rows];
    let n_cores = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let n_threads = (cost.saturating_mul(n_rows) / FEW).clamp(1, n_cores);
    let per_thread = n_rows.div_ceil(n_threads);
    let part = |(i, rows): (usize, &mut [u8])| {
        rows.chunks_exact_mut(row).enumerate().for_each(|(y, out)| make(i * per_thread + y, out));
    };
    if n_threads == 1 {
        part((0, &mut bytes));
    } else {
        let part = &part;
        std::thread::scope(|scope| {
            bytes.chunks_mut(row * per_thread).enumerate().for_each(|p| drop(scope.spawn(move || part(p))));
        });
    }
    bytes
}
