//! Two charts: curves over whole numbers, and bars of parts.

use super::canvas::{Anchor, COLOURS, Canvas, Colour, FAINT, INK, Shape};

/// A curve.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it is of.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
    /// Dots and a thick line; else a thin dashed one.
    pub measured: bool,
}

/// Curves in one frame.
#[derive(Clone, Debug)]
pub struct Curves {
    /// Above the frame.
    pub title: String,
    /// Below it.
    pub x_name: String,
    /// Beside it.
    pub y_name: String,
    /// The curves.
    pub series: Vec<Series>,
    /// A level to compare with.
    pub level: Option<f64>,
}

/// Bars side by side, each of parts on top of each other.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Above the frame.
    pub title: String,
    /// Beside it.
    pub y_name: String,
    /// Names of the parts, the lowest first.
    pub parts: Vec<String>,
    /// A name and a value for each part.
    pub bars: Vec<(String, Vec<f64>)>,
}

/// The frame of a chart: corners on the canvas, and the largest value.
struct Frame {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
    most: f64,
}

const LEFT: f64 = 56.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 44.0;

/// Numbers below a frame at most.
const MAX_TICKS: usize = 12;

/// Room for names beside a frame.
const LEGEND: f64 = 130.0;

impl Curves {
    /// Draws into the box at `x` of this width, as high as the canvas.
    pub fn draw(&self, canvas: &mut Canvas, x: f64, width: f64) {
        let all = || self.series.iter().flat_map(|s| s.points.iter());
        let most = all().map(|p| p.1).fold(self.level.unwrap_or(0.0), f64::max);
        let frame = Frame::new(canvas, x, width, &self.title, &self.y_name, most);
        let (low, high) = all().fold((f64::MAX, f64::MIN), |(low, high), p| (low.min(p.0), high.max(p.0)));
        let at = |&(x, y): &(f64, f64)| {
            let share = if high > low { (x - low) / (high - low) } else { 0.5 };
            (frame.left + 14.0 + share * (frame.right - frame.left - 28.0), frame.y(y))
        };
        let mut ticks: Vec<f64> = all().map(|p| p.0).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        // Numbers beside each other, not over each other.
        let every = ticks.len().div_ceil(MAX_TICKS).max(1);
        let ticks = ticks.into_iter().step_by(every);
        for x in ticks {
            canvas.words((at(&(x, 0.0)).0, frame.bottom + 16.0), Anchor::Middle, format!("{x}"));
        }
        canvas.words(((frame.left + frame.right) / 2.0, frame.bottom + 34.0), Anchor::Middle, self.x_name.as_str());
        if let Some(level) = self.level {
            canvas.line((frame.left, frame.y(level)), (frame.right, frame.y(level)), 1.0, INK);
        }
        for (i, series) in self.series.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let points: Vec<_> = series.points.iter().map(at).collect();
            for pair in points.windows(2) {
                let (from, to) = (pair[0], pair[1]);
                let (width, dashed) = if series.measured { (2.5, false) } else { (1.2, true) };
                canvas.shapes.push(Shape::Line { from, to, width, colour, dashed });
            }
            if series.measured {
                canvas.shapes.extend(points.iter().map(|&at| Shape::Dot { at, radius: 4.0, colour }));
            }
            frame.legend(canvas, i, &series.name, colour);
        }
    }
}

impl Bars {
    /// Draws into the box at `x` of this width, as high as the canvas.
    pub fn draw(&self, canvas: &mut Canvas, x: f64, width: f64) {
        let most = self.bars.iter().map(|bar| bar.1.iter().sum()).fold(0.0, f64::max);
        let frame = Frame::new(canvas, x, width, &self.title, &self.y_name, most);
        let step = (frame.right - frame.left) / self.bars.len().max(1) as f64;
        for (i, (name, parts)) in self.bars.iter().enumerate() {
            let (middle, wide) = (frame.left + step * (i as f64 + 0.5), step * 0.62);
            let mut sum = 0.0;
            for (part, &value) in parts.iter().enumerate() {
                let (low, high) = (frame.y(sum), frame.y(sum + value));
                let (x, colour) = (middle - wide / 2.0, COLOURS[part % COLOURS.len()]);
                canvas.shapes.push(Shape::Bar { x, y: high, width: wide, height: low - high, colour });
                sum += value;
            }
            canvas.words((middle, frame.y(sum) - 5.0), Anchor::Middle, short(sum));
            canvas.words((middle, frame.bottom + 16.0), Anchor::Middle, name.as_str());
        }
        for (i, part) in self.parts.iter().enumerate() {
            frame.legend(canvas, i, part, COLOURS[i % COLOURS.len()]);
        }
    }
}

impl Frame {
    fn new(canvas: &mut Canvas, x: f64, width: f64, title: &str, y_name: &str, most: f64) -> Self {
        let step = round_step(most.max(1e-9) * 1.08 / 5.0);
        let most = (most.max(1e-9) * 1.08 / step).ceil() * step;
        let (left, right) = (x + LEFT, x + width - LEGEND);
        let frame = Self { left, top: TOP, right, bottom: canvas.height - BOTTOM, most };
        canvas.title((left, 18.0), title);
        canvas.words((left, 36.0), Anchor::Start, y_name);
        for i in 0..=(most / step).round() as usize {
            let y = frame.y(step * i as f64);
            canvas.line((left, y), (right, y), 1.0, if i == 0 { INK } else { FAINT });
            canvas.words((left - 6.0, y + 4.0), Anchor::End, short(step * i as f64));
        }
        frame
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - value / self.most * (self.bottom - self.top)
    }

    fn legend(&self, canvas: &mut Canvas, i: usize, name: &str, colour: Colour) {
        let (x, y) = (self.right + 10.0, self.top + 8.0 + 18.0 * i as f64);
        canvas.shapes.push(Shape::Bar { x, y: y - 8.0, width: 10.0, height: 8.0, colour });
        canvas.words((x + 15.0, y), Anchor::Start, name);
    }
}

/// 1, 2 or 5 times a power of ten, at least `wanted`.
fn round_step(wanted: f64) -> f64 {
    let power = 10f64.powf(wanted.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|s| s * power >= wanted * 0.999);
    step.unwrap_or(10.0) * power
}

/// A number with about three digits.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, bytes};
    use super::*;

    fn canvas() -> Canvas {
        let mut canvas = Canvas::new(500.0, 300.0);
        let series = vec![Series { name: "a < b".into(), points: vec![(0.0, 1.0), (1.0, 1.5)], measured: true }];
        Curves { title: "t".into(), x_name: "x".into(), y_name: "y".into(), series, level: Some(1.0) }.draw(
            &mut canvas,
            0.0,
            500.0,
        );
        let bars = vec![("0".into(), vec![1.0, 2.0])];
        Bars { title: "t".into(), y_name: "ms".into(), parts: vec!["p".into(), "q".into()], bars }.draw(
            &mut canvas,
            0.0,
            500.0,
        );
        canvas
    }

    #[test]
    fn a_chart_stays_on_its_canvas() {
        let canvas = canvas();
        for shape in &canvas.shapes {
            let (x, y) = match shape {
                Shape::Bar { x, y, height, .. } => {
                    assert!(*height >= 0.0);
                    (*x, *y)
                }
                Shape::Line { to, .. } => *to,
                Shape::Dot { at, .. } | Shape::Words { at, .. } => *at,
            };
            assert!((0.0..=canvas.width).contains(&x) && (0.0..=canvas.height).contains(&y), "{shape:?}");
        }
        let svg = String::from_utf8(bytes(&canvas, Format::Svg).expect("text")).expect("text");
        assert!(svg.contains("a &lt; b") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_png_has_dark_and_coloured_pixels() {
        let bytes = bytes(&canvas(), Format::Png).expect("a picture");
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().expect("a PNG");
        let mut rgb = vec![0; reader.output_buffer_size().expect("a size")];
        reader.next_frame(&mut rgb).expect("a frame");
        let count = |wanted: Colour| rgb.as_chunks::<3>().0.iter().filter(|&&p| p == wanted).count();
        assert!(count(INK) > 100 && count(COLOURS[0]) > 100 && count([255; 3]) > 100_000);
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(round_step(0.3), 0.5);
        assert_eq!(round_step(1.0), 1.0);
        assert_eq!(round_step(21.0), 50.0);
    }
}
