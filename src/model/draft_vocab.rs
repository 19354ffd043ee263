//! The words that a draft is made of: the first rows of the head, which are the frequent tokens of a byte-pair vocabulary,
//! and copies of single rows further down for tokens that were seen; of each matrix, where MTP layers have their own. Verification always uses the whole head, so this
//! changes what is drafted, never what is generated.

use std::collections::HashMap;
use std::sync::Arc;

use ggml::{Graph, StateBuffer, StateId, StateSpec, WeightId, Weights};
use text::TokenId;

use crate::draft::DraftWords;
use crate::error::RunError;
use crate::model::Model;

/// Part of a head's vocabulary; one for each user of the head.
#[derive(Debug)]
pub struct DraftVocab {
    n_first: usize,
    n_side: usize,
    state: StateBuffer,
    /// For each rank that computes the model.
    tables: Vec<Tables>,
    /// The words of a head's own rows, in their order, where they are fixed.
    own: Option<Vec<TokenId>>,
    /// Where each token's row lies among the copies.
    places: HashMap<TokenId, usize>,
    /// The token of each copy, oldest use first to go.
    tokens: Vec<(TokenId, u64)>,
    clock: u64,
}

/// What drafts read on one device.
#[derive(Debug)]
struct Tables {
    copies: Vec<Copies>,
    ids: StateId,
    mask: Option<StateId>,
}

/// Copies of rows of one matrix.
#[derive(Debug)]
struct Copies {
    of: WeightId,
    row_bytes: usize,
    rows: StateId,
}

impl DraftVocab {
    /// The first `n_first` rows of the head, and room for `n_side` others.
    ///
    /// # Errors
    /// [`RunError::Pass`]: no head, or not so many rows. [`RunError::Device`]: no room.
    pub fn new(model: &Model, n_first: usize, n_side: usize) -> Result<Self, RunError> {
        let sizes = model.hparams();
        let refused = |what: String| RunError::Pass(what);
        let heads = model.draft_heads();
        if heads.is_empty() {
            return Err(refused("the model has no NextN head".into()));
        }
        if n_first == 0 || n_side == 0 || n_first > sizes.n_vocab {
            let n = sizes.n_vocab;
            return Err(refused(format!("a draft vocabulary of {n_first} rows and {n_side} others of a head of {n}")));
        }
        let n_ids = (n_first + n_side) as i64;
        let mut specs = Vec::new();
        let of_ranks: Vec<_> = model.weights_of_ranks().into_iter().zip(model.draft_heads_of_ranks()).collect();
        for (weights, heads) in &of_ranks {
            let device = weights.device_of(heads[0]).unwrap_or(weights.device());
            specs.push(StateSpec { name: "draft_ids".into(), dtype: ggml::Dtype::I32, ne: [1, n_ids, 1, 1], device });
            specs.push(StateSpec { name: "draft_mask".into(), dtype: ggml::Dtype::F32, ne: [n_ids, 1, 1, 1], device });
            for (i, &head) in heads.iter().enumerate() {
                let dtype = weights.dtype(head).ok_or_else(|| refused("the head is not among the weights".into()))?;
                let device = weights.device_of(head).unwrap_or(weights.device());
                // An assistant's rows are shorter than the model's hidden states.
                let n_row = weights.ne(head).map_or(0, |ne| ne[0]);
                let ne = [n_row, n_side as i64, 1, 1];
                specs.push(StateSpec { name: format!("draft_rows.{i}"), dtype, ne, device });
            }
        }
        let (mut state, ids) = StateBuffer::new(&specs)?;
        let table: Vec<u8> =
            (0..n_first as i32).chain(std::iter::repeat_n(0, n_side)).flat_map(i32::to_ne_bytes).collect();
        // Equal to the original they would count twice in a sum over words.
        let mask: Vec<u8> = std::iter::repeat_n(0.0, n_first)
            .chain(std::iter::repeat_n(f32::NEG_INFINITY, n_side))
            .flat_map(f32::to_ne_bytes)
            .collect();
        let mut tables = Vec::new();
        let each = 2 + heads.len();
        for ((ids, specs), (_, heads)) in ids.chunks_exact(each).zip(specs.chunks_exact(each)).zip(&of_ranks) {
            let mut copies = Vec::with_capacity(heads.len());
            for (i, ((&of, &rows), spec)) in heads.iter().zip(&ids[2..]).zip(&specs[2..]).enumerate() {
                let of_ranks: Vec<WeightId> = of_ranks.iter().map(|(_, heads)| heads[i]).collect();
                let row_bytes = spec.dtype.row_bytes(spec.ne[0])?;
                // Copies not in use hold the first token's row: equal to the original, which comes before them and wins.
                state.write(rows, 0, &model.row_of_head(&of_ranks, 0)?.repeat(n_side))?;
                copies.push(Copies { of, row_bytes, rows });
            }
            state.write(ids[0], 0, &table)?;
            state.write(ids[1], 0, &mask)?;
            tables.push(Tables { copies, ids: ids[0], mask: Some(ids[1]) });
        }
        let (places, tokens) = (HashMap::new(), Vec::with_capacity(n_side));
        Ok(Self { n_first, n_side, state, tables, own: None, places, tokens, clock: 0 })
    }

    /// The words of a head that has rows of its own for part of the vocabulary; `None` for other heads.
    ///
    /// # Errors
    /// [`RunError::Device`]: no room.
    pub fn of_head(model: &Model) -> Result<Option<Self>, RunError> {
        let Some(own) = model.draft_words() else { return Ok(None) };
        let ne = [1, own.len() as i64, 1, 1];
        let of_rank = |(weights, heads): (Arc<Weights>, Vec<WeightId>)| {
            let head = heads.first().and_then(|head| weights.device_of(*head));
            let device = head.unwrap_or(weights.device());
            StateSpec { name: "draft_ids".into(), dtype: ggml::Dtype::I32, ne, device }
        };
        let of_ranks = model.weights_of_ranks().into_iter().zip(model.draft_heads_of_ranks());
        let specs: Vec<StateSpec> = of_ranks.map(of_rank).collect();
        let (mut state, ids) = StateBuffer::new(&specs)?;
        let table: Vec<u8> = own.iter().flat_map(|&id| (id as i32).to_ne_bytes()).collect();
        ids.iter().try_for_each(|&ids| state.write(ids, 0, &table))?;
        let tables = ids.iter().map(|&ids| Tables { copies: Vec::new(), ids, mask: None });
        Ok(Some(Self {
            n_first: own.len(),
            n_side: 0,
            state,
            tables: tables.collect(),
            own: Some(own.iter().map(|&id| TokenId(id)).collect()),
            places: HashMap::new(),
            tokens: Vec::new(),
            clock: 0,
        }))
    }

    /// Bytes on the device.
    pub fn n_bytes(&self) -> usize {
        self.state.n_bytes()
    }

    /// Rows that a draft chooses from.
    pub fn len(&self) -> usize {
        self.n_first + self.tokens.len()
    }

    /// Never true: there is at least the first row.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Adds tokens that were seen; of those beyond the first rows, the one unused for longest makes room. The words of a head's
    /// own rows stay what they are.
    ///
    /// # Errors
    /// [`RunError::Device`]: a row could not be copied.
    pub fn see(&mut self, model: &Model, seen: impl IntoIterator<Item = TokenId>) -> Result<(), RunError> {
        if self.own.is_some() {
            return Ok(());
        }
        for token in seen {
            if (token.0 as usize) < self.n_first || token.0 as usize >= model.hparams().n_vocab {
                continue;
            }
            self.clock += 1;
            if let Some(&place) = self.places.get(&token) {
                self.tokens[place].1 = self.clock;
                continue;
            }
            let place = if self.tokens.len() < self.n_side {
                self.tokens.push((token, self.clock));
                let place = self.tokens.len() - 1;
                for mask in self.tables.iter().filter_map(|tables| tables.mask) {
                    self.state.write(mask, (self.n_first + place) * 4, &0f32.to_ne_bytes())?;
                }
                place
            } else {
                let oldest = (0..self.n_side).min_by_key(|&i| self.tokens[i].1).unwrap_or(0);
                self.places.remove(&self.tokens[oldest].0);
                self.tokens[oldest] = (token, self.clock);
                oldest
            };
            self.places.insert(token, place);
            for Tables { copies, ids, .. } in &self.tables {
                for (i, &Copies { row_bytes, rows, .. }) in copies.iter().enumerate() {
                    let heads: Vec<WeightId> = self.tables.iter().map(|tables| tables.copies[i].of).collect();
                    let row = model.row_of_head(&heads, token.0 as usize)?;
                    self.state.write(rows, place * row_bytes, &row)?;
                }
                self.state.write(*ids, (self.n_first + place) * 4, &(token.0 as i32).to_ne_bytes())?;
            }
        }
        Ok(())
    }

    /// The token of each row that a draft's logits have, in their order; `None` for copies not in use.
    pub fn words(&self) -> impl Iterator<Item = Option<TokenId>> {
        let word = |row: usize| self.own.as_ref().map_or(TokenId(row as u32), |own| own[row]);
        let first = (0..self.n_first).map(move |row| Some(word(row)));
        let copies = (0..self.n_side).map(|i| self.tokens.get(i).map(|(token, _)| *token));
        first.chain(copies)
    }

    /// Rows that a draft's logits have, copies not in use included.
    pub fn n_words(&self) -> usize {
        self.n_first + self.n_side
    }

    pub(crate) fn n_first(&self) -> usize {
        self.n_first
    }

    /// The words as tensors of a graph.
    pub(crate) fn words_in<'g>(&self, g: &Graph<'g>) -> DraftWords<'g> {
        let state = |id| g.state(&self.state, id);
        // There are tables for each rank of the model that it was made for.
        let Tables { copies, ids, mask } = &self.tables[g.rank()];
        let rows = copies.iter().map(|copies| (copies.of, state(copies.rows))).collect();
        DraftWords { n_first: self.n_first, rows, ids: state(*ids), mask: mask.map(state) }
    }
}
