//! What drafting gains by depth and acceptance, and where the time of an engine step goes.

use super::super::stats::median;
use super::measured::{Drafted, Findings, Measured};
use crate::draft::{Draft, Source};
use plot::{Bars, Canvas, Curves, Format, Series};
use speculate::Depth;

/// Acceptances to show beside what was measured.
const SHARES: [f64; 4] = [0.5, 0.7, 0.8, 0.9];

pub(super) fn draw(found: &Findings, format: Format) -> anyhow::Result<Vec<u8>> {
    // One picture shows one thing: the first number of sequences, context and cache type.
    let tests: Vec<(&Measured, &Drafted)> = found.tests.iter().filter_map(|t| Some((t, t.drafted.as_ref()?))).collect();
    let first = tests[0].0;
    let alike = |t: &Measured| (t.n_sequences, t.n_ctx, &t.cache) == (first.n_sequences, first.n_ctx, &first.cache);
    let tests: Vec<_> = tests.into_iter().filter(|(t, _)| alike(t)).collect();

    let depth = |d: &Drafted| match d.depth {
        Draft::Off => Some(0.0),
        Draft::On(Source::Head, Depth::Fixed(n)) => Some(n as f64),
        Draft::On(..) => None,
    };
    let measured = tests.iter().filter_map(|(_, d)| Some((depth(d)?, d.to_plain))).collect();
    let mut series = vec![Series { name: "measured".into(), points: measured, measured: true }];
    let plain = tests.iter().find(|(_, d)| d.depth == Draft::Off).map_or(1.0, |(t, _)| median(&t.pass_ms));
    for share in SHARES {
        let points = tests.iter().filter_map(|(t, d)| {
            let depth = depth(d)?;
            let tokens: f64 = (0..=depth as i32).map(|i| share.powi(i)).sum();
            Some((depth, tokens * plain / median(&t.pass_ms)))
        });
        series.push(Series {
            name: format!("if {:.0} % accepted", 100.0 * share),
            points: points.collect(),
            measured: false,
        });
    }
    for series in &mut series {
        series.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let bars = tests.iter().map(|(_, d)| (d.depth.to_string(), d.cycle_ms.to_vec())).collect();

    let mut canvas = Canvas::new(1080.0, 360.0);
    Curves {
        title: found.line.clone(),
        x_name: "draft length (tokens)".into(),
        y_name: "speed-up (times plain decoding)".into(),
        series,
        level: Some(1.0),
    }
    .draw(&mut canvas, 0.0, 560.0);
    Bars {
        title: String::new(),
        y_name: "time of an engine step (ms), by draft length (tokens)".into(),
        parts: ["forward pass", "draft", "rest"].map(str::to_owned).to_vec(),
        bars,
    }
    .draw(&mut canvas, 560.0, 500.0);
    plot::bytes(&canvas, format)
}
