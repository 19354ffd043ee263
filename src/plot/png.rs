//! A canvas as PNG, at twice the size: lines and bars by distance, words in a font that is part of the program.

use ab_glyph::{Font, FontRef, PxScale, ScaleFont, point};
use anyhow::Context;

use super::canvas::{Anchor, Canvas, Colour, Shape};

/// Pixels for one unit of the canvas.
const SCALE: f64 = 2.0;

/// Units of the letters' em, as in SVG.
const EM: f64 = 12.0;

/// Latin letters, figures and signs of DejaVu Sans (LICENSE-DejaVuSans).
const FONT: &[u8] = include_bytes!("DejaVuSans-subset.ttf");

struct Pixels {
    font: FontRef<'static>,
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

pub(super) fn bytes(canvas: &Canvas) -> anyhow::Result<Vec<u8>> {
    let (width, height) = ((canvas.width * SCALE) as usize, (canvas.height * SCALE) as usize);
    let font = FontRef::try_from_slice(FONT).context("the program's font")?;
    let mut pixels = Pixels { font, width, height, rgb: vec![255; 3 * width * height] };
    for shape in &canvas.shapes {
        pixels.draw(shape);
    }
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().context("PNG")?;
    writer.write_image_data(&pixels.rgb).context("PNG")?;
    writer.finish().context("PNG")?;
    Ok(out)
}

impl Pixels {
    fn draw(&mut self, shape: &Shape) {
        match shape {
            Shape::Bar { x, y, width, height, colour } => {
                let inside = |px: f64, py: f64| {
                    let dx = (px - x).min(x + width - px);
                    let dy = (py - y).min(y + height - py);
                    dx.min(dy)
                };
                self.cover((*x, *y), (x + width, y + height), *colour, inside);
            }
            Shape::Line { from, to, width, colour, dashed } => {
                let (dx, dy) = (to.0 - from.0, to.1 - from.1);
                let length = dx.hypot(dy).max(1e-9);
                let inside = |px: f64, py: f64| {
                    let along = (((px - from.0) * dx + (py - from.1) * dy) / length).clamp(0.0, length);
                    let gap = *dashed && along.rem_euclid(9.0) > 5.0;
                    let (cx, cy) = (from.0 + dx * along / length, from.1 + dy * along / length);
                    if gap { -1.0 } else { width / 2.0 - (px - cx).hypot(py - cy) }
                };
                let low = (from.0.min(to.0) - width, from.1.min(to.1) - width);
                self.cover(low, (from.0.max(to.0) + width, from.1.max(to.1) + width), *colour, inside);
            }
            Shape::Dot { at, radius, colour } => {
                let inside = |px: f64, py: f64| radius - (px - at.0).hypot(py - at.1);
                let low = (at.0 - radius, at.1 - radius);
                self.cover(low, (at.0 + radius, at.1 + radius), *colour, inside);
            }
            Shape::Words { at, anchor, bold, colour, text } => {
                self.words(*at, *anchor, *colour, text);
                if *bold {
                    self.words((at.0 + 0.4, at.1), *anchor, *colour, text);
                }
            }
        }
    }

    /// A line of text whose base line goes through `at`.
    fn words(&mut self, at: (f64, f64), anchor: Anchor, colour: Colour, text: &str) {
        let font = self.font.clone();
        let em = font.units_per_em().unwrap_or(font.height_unscaled());
        let scaled = font.as_scaled(PxScale::from((EM * SCALE) as f32 * font.height_unscaled() / em));
        let (mut width, mut glyphs, mut before) = (0.0, Vec::new(), None);
        for letter in text.chars() {
            let mut id = scaled.glyph_id(letter);
            if id.0 == 0 {
                id = scaled.glyph_id('?');
            }
            width += before.map_or(0.0, |before| scaled.kern(before, id));
            glyphs.push((id, width));
            width += scaled.h_advance(id);
            before = Some(id);
        }
        let left = (at.0 * SCALE) as f32
            - match anchor {
                Anchor::Start => 0.0,
                Anchor::Middle => width / 2.0,
                Anchor::End => width,
            };
        for (id, x) in glyphs {
            let glyph = id.with_scale_and_position(scaled.scale(), point(left + x, (at.1 * SCALE) as f32));
            let Some(outline) = font.outline_glyph(glyph) else { continue };
            let corner = outline.px_bounds().min;
            outline.draw(|dx, dy, share| {
                let (x, y) = (corner.x + dx as f32, corner.y + dy as f32);
                if x >= 0.0 && y >= 0.0 {
                    self.blend(x as usize, y as usize, colour, share.into());
                }
            });
        }
    }

    /// Colours the pixels of a box by how far inside of something they lie.
    fn cover(&mut self, low: (f64, f64), high: (f64, f64), colour: Colour, inside: impl Fn(f64, f64) -> f64) {
        let span = |low: f64, high: f64, n: usize| {
            let first = (low * SCALE - 1.0).max(0.0) as usize;
            first.min(n)..((high * SCALE + 2.0).max(0.0) as usize).min(n)
        };
        for py in span(low.1, high.1, self.height) {
            for px in span(low.0, high.0, self.width) {
                let distance = inside((px as f64 + 0.5) / SCALE, (py as f64 + 0.5) / SCALE);
                let share = (distance * SCALE + 0.5).clamp(0.0, 1.0);
                self.blend(px, py, colour, share);
            }
        }
    }

    /// Covers a share of a pixel, where there is one.
    fn blend(&mut self, x: usize, y: usize, colour: Colour, share: f64) {
        if x >= self.width || y >= self.height {
            return;
        }
        let at = 3 * (y * self.width + x);
        for (pixel, &c) in self.rgb[at..at + 3].iter_mut().zip(&colour) {
            *pixel = (f64::from(*pixel) * (1.0 - share) + f64::from(c) * share).round() as u8;
        }
    }
}
