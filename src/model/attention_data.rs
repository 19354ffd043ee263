//! Contents of a step's attention inputs, which [`crate::step::AttentionInputs`] declares; kept from pass to pass.

use std::ops::Range;

use ggml::{Data, Name};
use memory::StepView;

use crate::pictures::{BothWays, Pictures};
use crate::step::{LOGGED, kind_number, segment_number};

/// Where the rows of one view stand, and what they see.
#[derive(Default)]
pub(crate) struct AttentionData {
    positions: Vec<i32>,
    /// Four of each row, as a rotation by sections takes them; empty where one is enough.
    sections: Vec<i32>,
    /// One for each window of the view.
    windows: Vec<WindowData>,
    /// One for each kind of values that are kept transposed.
    v_elements: Vec<Vec<i64>>,
    /// One for each segment; empty where it reads one recurrent-state slot.
    states: Vec<Vec<i32>>,
    /// One for each segment; empty where slots are a part of the graph.
    slots: Vec<Vec<i32>>,
    /// Each of [`LOGGED`] for each segment; none where no layer logs tokens.
    logged: [Vec<Vec<i32>>; 3],
}

#[derive(Default)]
struct WindowData {
    kv_rows: Vec<i64>,
    /// One for each segment; empty where the device makes it.
    masks: Vec<Vec<u16>>,
    /// One for each segment; empty where there is a mask.
    spans: Vec<Vec<i32>>,
}

impl AttentionData {
    /// Takes those of `view`.
    pub(crate) fn fill(&mut self, view: StepView<'_>) {
        let n_segments = view.segments().len();
        view.positions(&mut self.positions);
        self.sections.clear();
        self.windows.resize_with(view.n_windows(), WindowData::default);
        for (window, data) in self.windows.iter_mut().enumerate() {
            view.kv_rows(window, &mut data.kv_rows);
            data.masks.resize_with(n_segments, Vec::new);
            data.spans.resize_with(n_segments, Vec::new);
            for ((segment, mask), spans) in view.segments().iter().zip(&mut data.masks).zip(&mut data.spans) {
                mask.clear();
                spans.clear();
                if view.has_spans(window, segment) {
                    view.spans(segment, spans);
                } else {
                    view.mask(window, segment, mask);
                }
            }
        }
        self.v_elements.resize_with(view.v_elements().count(), Vec::new);
        self.v_elements.iter_mut().enumerate().for_each(|(kind, elements)| view.v_element_rows(kind, elements));
        self.states.resize_with(n_segments, Vec::new);
        for (segment, states) in view.segments().iter().zip(&mut self.states) {
            states.clear();
            if segment.read_plane.is_none() {
                view.state_rows(segment, states);
            }
        }
        self.slots.resize_with(n_segments, Vec::new);
        for (segment, slots) in view.segments().iter().zip(&mut self.slots) {
            slots.clear();
            if segment.names_slots {
                view.slot_numbers(segment, slots);
            }
        }
        self.fill_logged(view);
    }

    /// Takes what layers that log tokens are told.
    fn fill_logged(&mut self, view: StepView<'_>) {
        let n = if view.logs_some() { view.segments().len() } else { 0 };
        self.logged.iter_mut().for_each(|of| of.resize_with(n, Vec::new));
        let [rows, places, steps] = &mut self.logged;
        for (((segment, rows), places), steps) in view.segments().iter().zip(rows).zip(places).zip(steps) {
            view.logged_rows(segment, [rows, places, steps]);
        }
    }

    /// Moves rows of one sequence to where the pictures of that sequence put them: the first of them is its token number
    /// `first`. True when their positions in time, height and width are not all the same.
    pub(crate) fn place(&mut self, rows: Range<usize>, first: usize, pictures: &Pictures) -> bool {
        let mut differ = false;
        for (row, token) in rows.zip(first..) {
            let [t, h, w] = pictures.position(token);
            self.positions[row] = t;
            differ |= (t, t) != (h, w);
        }
        differ
    }

    /// Has all rows turn by sections; those that [`AttentionData::place`] put somewhere are given again.
    pub(crate) fn turn_by_sections<'p>(&mut self, placed: impl Iterator<Item = (Range<usize>, usize, &'p Pictures)>) {
        let n = self.positions.len();
        (0..4).for_each(|_| self.sections.extend_from_slice(&self.positions));
        for (rows, first, pictures) in placed {
            for (row, token) in rows.zip(first..) {
                let [_, h, w] = pictures.position(token);
                (self.sections[n + row], self.sections[2 * n + row]) = (h, w);
            }
        }
    }

    /// Lets rows of one sequence see one another in layers with a window, or in all.
    pub(crate) fn see_later(&mut self, view: StepView<'_>, rows: &Range<usize>, both_ways: BothWays) {
        let sees = |window: usize| match both_ways {
            BothWays::Nowhere => false,
            BothWays::InWindows => view.is_window(window),
            BothWays::Everywhere => true,
        };
        for (window, data) in self.windows.iter_mut().enumerate().filter(|(window, _)| sees(*window)) {
            let segments = view.segments().iter().zip(&mut data.masks);
            segments.for_each(|(s, mask)| view.see_later(window, s, rows.clone(), mask));
        }
    }

    /// Adds them as the inputs of a part of a graph.
    pub(crate) fn inputs<'a>(&'a self, part: u32, into: &mut Vec<(Name, Data<'a>)>) {
        into.push((Name("positions", part), Data::I32(&self.positions)));
        if !self.sections.is_empty() {
            into.push((Name("sections", part), Data::I32(&self.sections)));
        }
        for (window, data) in self.windows.iter().enumerate() {
            let number = kind_number(part, window);
            into.push((Name("kv_rows", number), Data::I64(&data.kv_rows)));
            for (i, (mask, spans)) in data.masks.iter().zip(&data.spans).enumerate() {
                let number = segment_number(number, i);
                into.push(match &spans[..] {
                    [] => (Name("mask", number), Data::F16(mask)),
                    spans => (Name("spans", number), Data::I32(spans)),
                });
            }
        }
        let elements = |(kind, elements)| (Name("v_elements", kind_number(part, kind)), Data::I64(elements));
        into.extend(self.v_elements.iter().map(Vec::as_slice).enumerate().map(elements));
        let logged = LOGGED.into_iter().zip(&self.logged);
        for (name, numbers) in [("states", &self.states), ("slots", &self.slots)].into_iter().chain(logged) {
            let given = numbers.iter().map(Vec::as_slice).enumerate().filter(|(_, numbers)| !numbers.is_empty());
            into.extend(given.map(|(i, numbers)| (Name(name, segment_number(part, i)), Data::I32(numbers))));
        }
    }
}
