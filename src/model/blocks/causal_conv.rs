//! The short causal convolution in front of a recurrence: over the last inputs of each channel, which are state.

use ggml::{Graph, Tensor};
use memory::{Segment, StepView};

use crate::step::Numbers;

/// Convolves one segment's rows of `x: [.., n_tokens]`: `n_channels` elements from `first` on, by `w: [n_taps, n_channels]`,
/// the last tap on the row itself. Reads and writes the last inputs in the state of layer `il`, which lies where `numbers`
/// say. Gives `[n_channels, n_rows, n_seqs]`; `None` where the layer
/// has no such state.
pub(crate) fn causal_conv<'g>(
    g: &Graph<'g>,
    view: &StepView<'_>,
    il: usize,
    (seg, numbers): (&Segment, Numbers<'g>),
    (x, first): (Tensor<'g>, usize),
    w: Tensor<'g>,
) -> Option<Tensor<'g>> {
    let ([n_taps, n_channels, ..], n_seqs) = (w.ne(), seg.n_seqs as i64);
    let nb = x.nb();
    let ne = [n_channels, seg.n_rows as i64, n_seqs, 1];
    let strides = [nb[1], nb[1] * seg.n_rows, nb[1] * seg.n_tokens()];
    let rows = g.view(x, ne, strides, nb[1] * seg.first_row + nb[0] * first);
    let past = view.conv(g, il, seg, numbers.states)?;
    let planes = view.conv_planes(g, il, seg, numbers.slots)?;
    let by_kernel = g.short_conv(rows, past, w, planes);
    Some(by_kernel.unwrap_or_else(|| {
        let past = past.own(g, 2); // [n_taps - 1, n_channels, n_seqs]
        let columns = g.transpose(rows); // [n_rows, n_channels, n_seqs]
        // What lies apart is joined slowly on GPUs.
        let columns = if seg.n_rows > 1 { g.cont(columns) } else { columns };
        let window = g.concat(past, columns, 0); // [n_taps - 1 + n_rows, n_channels, n_seqs]
        for back in 0..seg.n_snapshots {
            let nb = window.nb();
            let ne = [n_taps - 1, n_channels, n_seqs, 1];
            let last = g.view(window, ne, [nb[1], nb[2], nb[3]], (seg.n_rows - back) * nb[0]);
            g.keep_snapshot(last, planes, back);
        }
        g.ssm_conv(window, w)
    }))
}
