//! The tensors that every pass brings along, declared once for all architectures.

use ggml::{Dtype, Graph, Name, Tensor};
use memory::StepView;
use text::TokenId;

use crate::blocks::RmsNorm;
use crate::features::{Features, Taps};

/// Parts in which the likeliest of so many words is looked for, if in parts: in one piece, a row of a large vocabulary
/// is one processor's work.
pub(crate) fn best_parts(n_vocab: usize) -> Option<usize> {
    const N_PARTS: usize = 256;
    (n_vocab.is_multiple_of(N_PARTS) && n_vocab >= 32 * N_PARTS).then_some(N_PARTS)
}

/// The likeliest token of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likeliest {
    /// The token; some token of the vocabulary where the row holds no numbers.
    pub token: TokenId,
    /// Its logit; NaN or minus infinity where the row holds no numbers.
    pub logit: f32,
}

impl Likeliest {
    /// False where the row holds no numbers, so that the token is none.
    pub fn is_number(&self) -> bool {
        self.logit > f32::NEG_INFINITY
    }

    /// Token `id` of a vocabulary. Ids are believed as little as other numbers of a device.
    fn of(id: Option<usize>, logit: f32, n_vocab: usize) -> Self {
        match id.filter(|&id| id < n_vocab) {
            Some(id) => Likeliest { token: TokenId(id as u32), logit },
            None => Likeliest { token: TokenId(0), logit: f32::NAN },
        }
    }

    /// Reads the outputs `top` and `top_logits` of a pass, row after row.
    pub(crate) fn read_top(ids: &[i32], logits: &[f32], n_vocab: usize, into: &mut Vec<(TokenId, f32)>) {
        let likeliest = ids.iter().zip(logits).map(|(&id, &logit)| Self::of(usize::try_from(id).ok(), logit, n_vocab));
        into.extend(likeliest.map(|likeliest| (likeliest.token, likeliest.logit)));
    }

    /// Reads the outputs `best` and `best_logits` of a pass.
    pub(crate) fn read(ids: &[i32], logits: &[f32], n_vocab: usize, into: &mut Vec<Likeliest>) {
        let likeliest = |(id, &logit): (Option<usize>, &f32)| Self::of(id, logit, n_vocab);
        let number = |&id: &i32| usize::try_from(id).ok();
        into.clear();
        match best_parts(n_vocab) {
            None => into.extend(ids.iter().map(number).zip(logits).map(likeliest)),
            Some(n_parts) => {
                let (parts, places) = ids.split_at(ids.len() / 2);
                let n_each = n_vocab / n_parts;
                let place = |place: &i32| number(place).filter(|&place| place < n_each);
                let id = |(part, at): (&i32, &i32)| Some(number(part)? * n_each + place(at)?);
                into.extend(parts.iter().zip(places).map(id).zip(logits).map(likeliest));
            }
        }
    }
}

/// What comes of the rows that give logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Give {
    /// The logits.
    Logits,
    /// The likeliest token of each.
    Best,
    /// So many of the likeliest tokens of each; the logits stay on the device.
    Top(usize),
}

/// Which rows of a pass give logits, as the graph sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OutRows {
    /// None: the pass only fills the state.
    None,
    /// Every row.
    All,
    /// So many rows, by an input with their numbers.
    Some(usize),
}

/// What a pass has beside tokens, as the graph sees it; passes over text have nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Extras {
    /// Some rows are a picture's.
    pub(crate) rows: bool,
    /// Some rows have several positions.
    pub(crate) sections: bool,
}

/// Embeddings that are given, and where they stand.
#[derive(Clone, Copy)]
pub(crate) struct GivenRows<'g> {
    /// F32 `[n_embd, n_tokens]`, with rows that nobody reads.
    rows: Tensor<'g>,
    /// The row of each token among the embeddings of tokens and then these: i32 `[n_tokens]`.
    choice: Tensor<'g>,
}

impl<'g> GivenRows<'g> {
    /// Declares the inputs where there are such rows.
    pub(crate) fn declare(g: &Graph<'g>, n_tokens: usize, n_embd: usize, extras: Extras) -> Option<Self> {
        let (n_tokens, n_embd) = (n_tokens as i64, n_embd as i64);
        extras.rows.then(|| Self {
            rows: g.input("rows", Dtype::F32, [n_embd, n_tokens, 1, 1]),
            choice: g.input("choice", Dtype::I32, [n_tokens, 1, 1, 1]),
        })
    }

    /// Puts them in place of embeddings `x: [n_embd, n_tokens]` of tokens.
    pub(crate) fn over(given: Option<Self>, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        // of [n_embd, 2 * n_tokens]
        given.map_or(x, |given| g.get_rows(g.concat(x, given.rows, 1), given.choice))
    }
}

/// Where the rows of a view stand: their positions, their KV cells, and what they see.
pub(crate) struct AttentionInputs<'s, 'g> {
    /// State of the step's sequences.
    pub(crate) view: StepView<'s>,
    /// Position of each row: i32 `[n_tokens]`.
    pub(crate) positions: Tensor<'g>,
    /// Four positions of each row: i32 `[4 * n_tokens]`; `None` where they are the same.
    pub(crate) sections: Option<Tensor<'g>>,
    /// For each window that attention layers have.
    windows: Vec<WindowInputs<'g>>,
    /// For each kind of values, the place of each element when they are kept transposed: i64 `[n_tokens * elements]`.
    v_elements: Vec<Tensor<'g>>,
    /// For each segment.
    pub(crate) numbers: Vec<Numbers<'g>>,
}

/// Where the state of a segment's sequences lies, as far as inputs say it.
#[derive(Clone, Copy)]
pub(crate) struct Numbers<'g> {
    /// Rows of recurrent state that it reads: i32 `[n_seqs]`; `None` where it reads one recurrent-state slot.
    pub(crate) states: Option<Tensor<'g>>,
    /// Slots of the sequences: i32 `[n_seqs]`; `None` where they are a part of the graph.
    pub(crate) slots: Option<Tensor<'g>>,
    /// [`StepView::logged_rows`]: i32 `[n_seqs]`, `[2 * n_seqs]`, `[3 * n_seqs]`; `None` where no layer logs tokens.
    pub(crate) logged: Option<[Tensor<'g>; 3]>,
}

/// Names of the inputs of layers that log tokens.
pub(crate) const LOGGED: [&str; 3] = ["logged_states", "logged_places", "logged_steps"];

/// What layers of one window read.
pub(crate) struct WindowInputs<'g> {
    /// Cell of each row: i64 `[n_tokens]`.
    pub(crate) kv_rows: Tensor<'g>,
    /// Additive masks: F16 `[n_kv, n_rows, 1, n_seqs]` for each segment.
    pub(crate) masks: Vec<Tensor<'g>>,
}

/// Segments of one part of a graph at most.
const MAX_SEGMENTS: u32 = 1 << 12;

/// The number in its name of an input of a part of a graph, for a window or kind of values.
pub(crate) fn kind_number(part: u32, kind: usize) -> u32 {
    part * memory::MAX_KINDS as u32 + kind as u32
}

/// The number in its name of an input of a segment: `of` is that of a part, or of its window.
pub(crate) fn segment_number(of: u32, segment: usize) -> u32 {
    of * MAX_SEGMENTS + segment as u32
}

impl<'s, 'g> AttentionInputs<'s, 'g> {
    /// Declares the inputs; `part` tells those of several views in one graph apart.
    pub(crate) fn declare(g: &Graph<'g>, view: StepView<'s>, part: u32) -> Self {
        let n_tokens = view.n_tokens() as i64;
        let window = |window: usize| {
            let number = kind_number(part, window);
            let mask = |(i, s): (usize, &memory::Segment)| {
                let ne = [view.n_kv(window, s) as i64, s.n_rows as i64, 1, s.n_seqs as i64];
                if view.has_spans(window, s) {
                    let [n_kv, n_rows, _, n_seqs] = ne;
                    let spans = Name("spans", segment_number(number, i));
                    return g.mask_of_spans(g.input(spans, Dtype::I32, [2, n_rows, n_seqs, 1]), n_kv);
                }
                g.input(Name("mask", segment_number(number, i)), Dtype::F16, ne)
            };
            WindowInputs {
                kv_rows: g.input(Name("kv_rows", number), Dtype::I64, [n_tokens, 1, 1, 1]),
                masks: view.segments().iter().enumerate().map(mask).collect(),
            }
        };
        let elements = |(kind, n): (usize, usize)| {
            g.input(Name("v_elements", kind_number(part, kind)), Dtype::I64, [n_tokens * n as i64, 1, 1, 1])
        };
        let numbers = |(i, s): (usize, &memory::Segment)| {
            let input = |name, n: usize| {
                g.input(Name(name, segment_number(part, i)), Dtype::I32, [(n * s.n_seqs) as i64, 1, 1, 1])
            };
            Numbers {
                states: s.read_plane.is_none().then(|| input("states", 1)),
                slots: s.names_slots.then(|| input("slots", 1)),
                logged: view.logs_some().then(|| std::array::from_fn(|k| input(LOGGED[k], k + 1))),
            }
        };
        Self {
            positions: g.input(Name("positions", part), Dtype::I32, [n_tokens, 1, 1, 1]),
            sections: None,
            windows: (0..view.n_windows()).map(window).collect(),
            v_elements: view.v_elements().enumerate().map(elements).collect(),
            numbers: view.segments().iter().enumerate().map(numbers).collect(),
            view,
        }
    }

    /// The same with four positions of each row, where rows of pictures need them.
    pub(crate) fn with_sections(self, g: &Graph<'g>, part: u32, extras: Extras) -> Self {
        let ne = [4 * self.view.n_tokens() as i64, 1, 1, 1];
        let sections = extras.sections.then(|| g.input(Name("sections", part), Dtype::I32, ne));
        Self { sections, ..self }
    }

    /// What layer `il` of the view reads; `None` for a layer without cells.
    pub(crate) fn window(&self, il: usize) -> Option<&WindowInputs<'g>> {
        self.windows.get(self.view.window_of(il))
    }

    /// The places of value elements of layer `il`, when values are kept transposed.
    pub(crate) fn v_elements(&self, il: usize) -> Option<Tensor<'g>> {
        self.v_elements.get(self.view.v_kind_of(il)).copied()
    }
}

/// Inputs and outputs of one pass, and the state it reads and writes.
pub(crate) struct Step<'s, 'g> {
    /// Where the rows stand.
    pub(crate) inputs: AttentionInputs<'s, 'g>,
    /// Token of each row, 0 for a row of a picture: i32 `[n_tokens]`.
    pub(crate) tokens: Tensor<'g>,
    given: Option<GivenRows<'g>>,
    /// Rows that give logits: i32 `[n_out]`, when they are some of several.
    out: Option<Tensor<'g>>,
    out_rows: OutRows,
    /// The hidden states of all tokens are wanted.
    hidden: bool,
    give: Give,
    /// The streams that a head of another file takes.
    taps: Option<Taps<'s, 'g>>,
}

impl<'s, 'g> Step<'s, 'g> {
    /// Declares the inputs.
    pub(crate) fn declare(g: &Graph<'g>, view: StepView<'s>, out_rows: OutRows, hidden: bool, give: Give) -> Self {
        let n_tokens = view.n_tokens() as i64;
        let out = match out_rows {
            OutRows::Some(n) => Some(g.input("out", Dtype::I32, [n as i64, 1, 1, 1])),
            OutRows::None | OutRows::All => None,
        };
        Self {
            tokens: g.input("tokens", Dtype::I32, [n_tokens, 1, 1, 1]),
            given: None,
            inputs: AttentionInputs::declare(g, view, 0),
            out,
            out_rows,
            hidden,
            give,
            taps: None,
        }
    }

    /// The same, whose hidden states are those that a head of another file takes, too.
    pub(crate) fn with_features(self, features: Option<&'s dyn Features>) -> Self {
        let taps = features.filter(|_| self.hidden).map(Taps::new);
        Self { taps, ..self }
    }

    /// Says that `x: [n_embd, n_tokens]` is the residual stream before layer `il`.
    pub(crate) fn tap(&self, il: usize, x: Tensor<'g>) {
        if let Some(taps) = &self.taps {
            taps.take(il, x);
        }
    }

    /// The same with what a pass has beside tokens.
    pub(crate) fn with(self, g: &Graph<'g>, n_embd: usize, extras: Extras) -> Self {
        let given = GivenRows::declare(g, self.inputs.view.n_tokens(), n_embd, extras);
        Self { given, inputs: self.inputs.with_sections(g, 0, extras), ..self }
    }

    /// What goes into the first layer: the rows of pictures, and what the first layer takes of other tokens,
    /// `x: [n_embd, n_tokens]`.
    pub(crate) fn placed(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        GivenRows::over(self.given, g, x)
    }

    /// Ends the pass. `rest` computes the residual stream after the last layer: what follows its mixer, row by row, on
    /// tensors that it puts through the given cut; `norm` is the final norm, `logits` makes those of hidden states. Rows that
    /// give logits are computed among themselves, also where the hidden states of all are wanted: a row's bits may depend on
    /// how many stand beside it. `stream`: with hidden states the stream comes out, too.
    ///
    /// `x: [n_embd, n_tokens]` is the residual stream before the last layer. Its sums and those of the rows that give logits
    /// come out, too: a sum tells whether all of its row is finite, and what is not stays so in the stream.
    pub(crate) fn end(
        &self,
        g: &Graph<'g>,
        x: Tensor<'g>,
        rest: impl Fn(&dyn Fn(Tensor<'g>) -> Tensor<'g>) -> Tensor<'g>,
        norm: &RmsNorm,
        (logits, stream): (impl Fn(Tensor<'g>) -> Tensor<'g>, bool),
    ) {
        let streams = (self.hidden || self.out_rows == OutRows::All).then(|| rest(&|x| x)); // [n_embd, n_tokens]
        let all = streams.map(|x| norm.forward(g, x));
        let cropped = self.out.map(|out| norm.forward(g, rest(&|x| g.get_rows(x, out))));
        g.no_layer();
        g.output("stream_sums", g.sum_rows(x)); // [1, n_tokens]
        if let Some(h) = all.filter(|_| self.hidden) {
            g.output("hidden", h);
        }
        if let Some(x) = streams.filter(|_| self.hidden && stream) {
            g.output("stream", x);
        }
        if let Some((taps, x)) = self.taps.as_ref().zip(streams) {
            g.output("features", taps.fused(g, x)); // [n_embd of the head, n_tokens]
        }
        let Some(rows) = cropped.or(all).filter(|_| self.out_rows != OutRows::None) else { return };
        // A product with quantised weights may make zeros of NaN: what a row is made of tells, not what comes of it.
        g.output("sums", g.sum_rows(rows)); // [1, n_out]
        let logits = logits(rows); // [n_vocab, n_out]
        match self.give {
            Give::Logits => return g.output("logits", logits),
            Give::Top(n) => {
                let (top, values) = g.largest(logits, n as i64); // [n, n_out]
                g.output("top", top);
                g.output("top_logits", values);
                return g.output_that_stays("logits", logits);
            }
            Give::Best => {}
        }
        let (best, values) = match best_parts(logits.ne()[0] as usize) {
            None => {
                let best = g.argmax(logits);
                (best, g.picked(logits, best))
            }
            Some(n_parts) => g.argmax_by_parts(logits, n_parts as i64),
        };
        g.output("best", best);
        g.output("best_logits", values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CUDA's `argmax` of a row of NaN is -1.
    #[test]
    fn an_id_outside_of_the_vocabulary_is_no_token() {
        let mut best = Vec::new();
        let mut read = |ids: &[i32], n_vocab| {
            Likeliest::read(ids, &[1.0; 4][..ids.len().min(4)], n_vocab, &mut best);
            best.iter().map(|b| b.logit.is_finite().then_some(b.token.0)).collect::<Vec<_>>()
        };
        assert_eq!(read(&[7, -1, 100, 99], 100), [Some(7), None, None, Some(99)]);
        // In 256 parts of 32 words: parts first, then places.
        assert_eq!(read(&[1, -1, 255, 256, 2, 0, 32, 0], 8192), [Some(34), None, None, None]);
    }
}
