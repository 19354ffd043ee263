//! A canvas as SVG.

use std::fmt::Write;

use super::canvas::{Anchor, Canvas, Colour, Shape};

pub(super) fn bytes(canvas: &Canvas) -> Vec<u8> {
    let (w, h) = (canvas.width, canvas.height);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{w}\" height=\"{h}\" fill=\"white\"/>\n"
    );
    for shape in &canvas.shapes {
        // Writing to a string cannot fail.
        let _ = match shape {
            Shape::Bar { x, y, width, height, colour } => writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\"/>",
                hex(*colour)
            ),
            Shape::Line { from, to, width, colour, dashed } => {
                let dash = if *dashed { " stroke-dasharray=\"5 4\"" } else { "" };
                writeln!(
                    out,
                    "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{}\" stroke-width=\"{width}\"{dash}/>",
                    from.0,
                    from.1,
                    to.0,
                    to.1,
                    hex(*colour)
                )
            }
            Shape::Dot { at, radius, colour } => writeln!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{}\"/>",
                at.0,
                at.1,
                hex(*colour)
            ),
            Shape::Words { at, anchor, bold, colour, text } => {
                let anchor = match anchor {
                    Anchor::Start => "start",
                    Anchor::Middle => "middle",
                    Anchor::End => "end",
                };
                let weight = if *bold { " font-weight=\"bold\"" } else { "" };
                writeln!(
                    out,
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"{}\"{weight}>{}</text>",
                    at.0,
                    at.1,
                    hex(*colour),
                    escaped(text)
                )
            }
        };
    }
    out.push_str("</svg>\n");
    out.into_bytes()
}

fn hex([r, g, b]: Colour) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
