//! Computes passes: fills a step's inputs, runs the architecture's graph, reads logits and hidden rows.
//! Owns the executor and its scratch. Knows a step's rows; knows nothing of what the tokens are for.

use std::sync::Arc;

use ggml::{Data, Executor, Name, Stats};
use memory::{Segment, StepView};
use text::TokenId;

use crate::error::RunError;
use crate::model::Model;
use crate::step::{OutRows, Step};

/// Which rows of a pass give logits.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// None: the pass only fills the state.
    None,
    /// Every row.
    All,
    /// These, by number among the step's rows, in this order.
    Some(&'a [usize]),
}

/// What one pass computes.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// The token of each row of the step, in the step's order.
    pub tokens: &'a [TokenId],
    /// Rows that give logits.
    pub rows: Rows<'a>,
    /// Also give the hidden rows (after the final norm) of all tokens.
    pub hidden: bool,
}

/// Results of a pass; reused from pass to pass.
#[derive(Clone, Debug, Default)]
pub struct PassOutput {
    /// `[n_vocab]` for each row asked for, one after the other.
    pub logits: Vec<f32>,
    /// `[n_embd]` for each token, when hidden rows were asked for.
    pub hidden: Vec<f32>,
    n_vocab: usize,
}

impl PassOutput {
    /// Logits of the `i`-th row asked for.
    ///
    /// # Panics
    /// If fewer rows were asked for.
    pub fn logits(&self, i: usize) -> &[f32] {
        &self.logits[i * self.n_vocab..(i + 1) * self.n_vocab]
    }
}

/// Tells graphs apart: everything that a graph's shape depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    segments: Vec<Segment>,
    out: OutRows,
    hidden: bool,
}

/// Computes passes of one model.
pub struct Runner {
    model: Arc<Model>,
    executor: Executor<Key>,
    key: Key,
    scratch: Scratch,
}

#[derive(Default)]
struct Scratch {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    kv_rows: Vec<i64>,
    v_elements: Vec<i64>,
    masks: Vec<Vec<u16>>,
    out: Vec<i32>,
}

impl Runner {
    /// A runner with `n_threads` threads of its own (on a CPU).
    ///
    /// # Errors
    /// [`RunError::Device`]: the device cannot be opened.
    pub fn new(model: Arc<Model>, n_threads: usize) -> Result<Self, RunError> {
        let executor = Executor::new(Arc::clone(model.weights()), n_threads)?;
        let key = Key { segments: Vec::new(), out: OutRows::None, hidden: false };
        Ok(Self { model, executor, key, scratch: Scratch::default() })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Where the time went.
    pub fn stats(&self) -> Stats {
        self.executor.stats()
    }

    /// Bytes of compute buffers.
    pub fn buffer_bytes(&self) -> usize {
        self.executor.buffer_bytes()
    }

    /// Makes room for steps of this size, so that later ones need no new memory.
    ///
    /// # Errors
    /// [`RunError::Device`]: no room.
    pub fn reserve(&mut self, view: StepView<'_>, n_out: usize, hidden: bool) -> Result<(), RunError> {
        let n_tokens = view.n_tokens();
        let out = out_rows(n_out.min(n_tokens), n_tokens);
        let key = Key { segments: view.segments().to_vec(), out, hidden };
        let arch = self.model.arch();
        let max_nodes = arch.max_nodes(view.segments());
        self.executor.reserve(max_nodes, &key, |g| arch.forward(g, &Step::declare(g, view, out, hidden)))?;
        Ok(())
    }

    /// Computes one pass over the rows of `view`. The state is written; commit the step to keep it.
    ///
    /// # Errors
    /// [`RunError::Pass`]: tokens, or rows asked for, that are not those of the step, or outside the vocabulary.
    /// [`RunError::Device`].
    pub fn run(&mut self, view: StepView<'_>, pass: &Pass<'_>, output: &mut PassOutput) -> Result<(), RunError> {
        let n_tokens = view.n_tokens();
        let n_vocab = self.model.hparams().n_vocab;
        if pass.tokens.len() != n_tokens {
            return Err(RunError::Pass(format!("{} tokens for a step of {n_tokens} rows", pass.tokens.len())));
        }
        if let Some(id) = pass.tokens.iter().find(|id| id.0 as usize >= n_vocab) {
            return Err(RunError::Pass(format!("token id {} is outside the vocabulary of {n_vocab}", id.0)));
        }
        let out = match pass.rows {
            Rows::None => OutRows::None,
            Rows::All => OutRows::All,
            Rows::Some(rows) => {
                if let Some(row) = rows.iter().find(|&&row| row >= n_tokens) {
                    return Err(RunError::Pass(format!("row {row} was asked for, the step has {n_tokens}")));
                }
                let in_order = rows.len() == n_tokens && rows.iter().enumerate().all(|(i, &row)| i == row);
                if in_order { OutRows::All } else { out_rows_of(rows.len()) }
            }
        };
        self.fill(view, pass, out);
        let s = &self.scratch;
        let mut inputs = vec![
            (Name("tokens", 0), Data::I32(&s.tokens)),
            (Name("positions", 0), Data::I32(&s.positions)),
            (Name("kv_rows", 0), Data::I64(&s.kv_rows)),
        ];
        if !s.v_elements.is_empty() {
            inputs.push((Name("v_elements", 0), Data::I64(&s.v_elements)));
        }
        let n_masks = view.segments().len();
        inputs.extend(s.masks[..n_masks].iter().enumerate().map(|(i, m)| (Name("mask", i as u32), Data::F16(m))));
        if matches!(out, OutRows::Some(_)) {
            inputs.push((Name("out", 0), Data::I32(&s.out)));
        }

        self.key.segments.clear();
        self.key.segments.extend_from_slice(view.segments());
        (self.key.out, self.key.hidden) = (out, pass.hidden);
        let arch = self.model.arch();
        let max_nodes = arch.max_nodes(view.segments());
        let build = |g: &ggml::Graph<'_>| arch.forward(g, &Step::declare(g, view, out, pass.hidden));
        let mut results = self.executor.run(&self.key, max_nodes, build, &inputs)?;
        output.n_vocab = n_vocab;
        output.logits.clear();
        output.hidden.clear();
        if out != OutRows::None {
            results.f32("logits", &mut output.logits)?;
        }
        if pass.hidden {
            results.f32("hidden", &mut output.hidden)?;
        }
        Ok(())
    }

    fn fill(&mut self, view: StepView<'_>, pass: &Pass<'_>, out: OutRows) {
        let s = &mut self.scratch;
        s.tokens.clear();
        s.tokens.extend(pass.tokens.iter().map(|id| id.0 as i32));
        view.positions(&mut s.positions);
        view.kv_rows(&mut s.kv_rows);
        view.v_element_rows(&mut s.v_elements);
        if s.masks.len() < view.segments().len() {
            s.masks.resize_with(view.segments().len(), Vec::new);
        }
        for (segment, mask) in view.segments().iter().zip(&mut s.masks) {
            view.mask(segment, mask);
        }
        s.out.clear();
        if let (OutRows::Some(_), Rows::Some(rows)) = (out, pass.rows) {
            s.out.extend(rows.iter().map(|&row| row as i32));
        }
    }
}

fn out_rows(n_out: usize, n_tokens: usize) -> OutRows {
    if n_out == n_tokens { OutRows::All } else { out_rows_of(n_out) }
}

fn out_rows_of(n_out: usize) -> OutRows {
    if n_out == 0 { OutRows::None } else { OutRows::Some(n_out) }
}
