//! KV caches in types of our own, [`Turbo`]: rows go in as they are rounded, attention unpacks them as it reads. A CPU computes
//! both, in kernels of the crate `kernels`; so does a GPU with kernels of ours ([`crate::Device::queries_alike_over`]).

use kernels::{ATTEND_CELLS, BESIDE, Isa, RUN, STORE_TURBO, Turbo};

use super::attention::Scores;
use super::checks::ask;
use crate::device::KeptAs;
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

/// Tokens of a sequence that keep threads busy without parting their cells.
const MANY_ROWS: i64 = 64;

/// Keys or values in a KV cache.
#[derive(Clone, Copy)]
pub struct Cells<'g> {
    /// `[d, n_cells, n_head_kv, n_seqs]`, whole rows; of a type of our own its bytes in place of `d`.
    pub rows: Tensor<'g>,
    /// How rows of bytes are kept; `None` for ggml's types.
    pub turbo: Option<Turbo>,
}

/// Where sequences read cells by number: `slots`, i32 `[n_seqs]`, has one of `n_slots` for each sequence.
pub type Slots<'g> = (Tensor<'g>, usize);

impl Cells<'_> {
    /// The device that they lie on, if it has kernels of ours that attend to cells of this type.
    fn lie_where_they_are_read(&self) -> bool {
        self.rows.lies_on_host() || self.d().and_then(|d| rows_read(d, *self, *self)).is_some()
    }

    fn kept_as(&self) -> KeptAs {
        (self.rows.dtype(), self.turbo)
    }

    /// Values of a row; `None` where its bytes are not whole groups.
    fn d(&self) -> Option<i64> {
        let (n, turbo) = (self.rows.ne()[0], self.turbo);
        turbo.map_or(Some(n), |t| {
            let block = t.block_bytes() as i64;
            (n % block == 0).then_some(n / block * t.group() as i64)
        })
    }
}

/// Rows of heads of `d` elements up to which kernels of ours on the device of these keys read them and values.
fn rows_read(d: i64, k: Cells<'_>, v: Cells<'_>) -> Option<i64> {
    let n = k.rows.device()?.queries_alike_over(usize::try_from(d).ok()?, k.kept_as(), v.kept_as())?;
    i64::try_from(n).ok()
}

impl<'g> Graph<'g> {
    /// Writes rows `from: [n, n_ids]` (F32) over the rows `ids: [n_ids]` (I64) of `into: [bytes, n_rows]`, state in bytes
    /// ([`Dtype::I8`]), as [`Turbo`] has them. The result is of no use; pass it to [`Graph::keep`]. Ids are checked as for
    /// [`Graph::get_rows`].
    pub fn store_turbo(&self, into: Tensor<'g>, from: Tensor<'g>, ids: Tensor<'g>, turbo: Turbo) -> Tensor<'g> {
        const OP: &str = "store_turbo";
        let (na, nb, nc) = (into.ne(), from.ne(), ids.ne());
        let row = usize::try_from(nb[0]).ok().and_then(|n| turbo.n_bytes(n));
        let fits = row.is_some_and(|row| row as i64 == na[0])
            && [na[2], na[3], nb[2], nb[3], nc[1], nc[2], nc[3]] == [1; 7]
            && nb[1] == nc[0];
        let types = from.dtype() == Dtype::F32 && ids.dtype() == Dtype::I64 && into.dtype() == Dtype::I8;
        let sound = self
            .check(OP, fits && types, || format!("`from` {from:?}, `ids` {ids:?} do not fit `into` {into:?}"))
            && self.check(OP, into.lies_on_host() || into.device().is_some_and(|d| d.keeps(turbo)), || {
                format!("`into` {into:?} does not lie where rows are rounded so")
            })
            && self.check_elements(OP, "into", into)
            && self.check_elements(OP, "from", from)
            && self.check_elements(OP, "ids", ids)
            && self.check_writable(OP, "into", into);
        if !sound {
            return from;
        }
        let ids = self.bounded(OP, ids, na[1]);
        let parameters = [STORE_TURBO, Turbo::word(Some(turbo))];
        self.custom_of(OP, Dtype::F32, [1; 4], &[into, from, ids], kernels::store_turbo, &parameters)
    }

    /// As [`Graph::flash_attn_of`] over cells of slots that an input names, of which `k` and `v` are windows on those of the first
    /// ones: `slots`, i32 `[n_seqs]`, has one of `n_slots` for each sequence, `nb[3]` of them apart. For devices, types and sizes
    /// of which [`crate::Device::queries_alike_over`] says that a kernel of ours serves so many tokens; anything else is an error.
    pub fn flash_attn_among(
        &self,
        (q, k, v): (Tensor<'g>, Cells<'g>, Cells<'g>),
        mask: Tensor<'g>,
        scores: &Scores<'g>,
        slots: Slots<'g>,
    ) -> Tensor<'g> {
        const OP: &str = "flash_attn";
        let nq = q.ne();
        let aligned = |cells: Cells<'g>| {
            let piece = if cells.rows.dtype() == Dtype::F16 { 16 } else { 2 };
            cells.rows.nb()[1..].iter().all(|n| n % piece == 0)
        };
        let served = rows_read(nq[0], k, v).is_some_and(|most| nq[1] <= most)
            && v.d() == Some(nq[0])
            && aligned(k)
            && aligned(v)
            && q.nb()[1..].iter().all(|n| n % 8 == 0)
            && k.rows.ne()[1] % 64 == 0;
        if k.turbo.or(v.turbo).is_some() && served {
            return self.attend_cells((q, k, v), mask, scores, Some(slots));
        }
        let slots = self.slots_of(OP, (k.rows, v.rows), nq[3], slots, served);
        let Some(slots) = slots else { return q };
        let t = self.flash_attn_of((q, k.rows, v.rows), mask, scores);
        if self.ok() {
            // SAFETY: the flash attention node just made, or a view of it, which nobody else looks at; the slots carry the brand.
            unsafe { (*t.raw()).src[5] = slots.raw() };
        }
        t
    }

    /// The numbers of slots, bounded, if a kernel reads cells so and they lie among those of `n_slots` slots.
    fn slots_of(
        &self,
        op: &'static str,
        (k, v): (Tensor<'g>, Tensor<'g>),
        n_seqs: i64,
        (slots, n_slots): Slots<'g>,
        served: bool,
    ) -> Option<Tensor<'g>> {
        let n_slots = i64::try_from(n_slots).unwrap_or(i64::MAX);
        let sound = self.check(op, served, || format!("no kernel reads cells of slots by number for {k:?}, {v:?}"))
            && self.check(op, slots.ne() == [n_seqs, 1, 1, 1] && slots.dtype() == Dtype::I32, || {
                format!("`slots` {slots:?} are not a number for each of {n_seqs} sequences")
            })
            && self.check(op, k.has_room_for(n_slots) && v.has_room_for(n_slots), || {
                format!("`k` {k:?} or `v` {v:?} do not lie in cells of {n_slots} slots")
            });
        sound.then(|| self.bounded(op, slots, n_slots))
    }

    /// True where [`Graph::attend_cells`] is the way to attend to these: on a CPU with kernels of our own, and for types of
    /// our own.
    pub fn attends_itself(&self, k: Cells<'g>, v: Cells<'g>) -> bool {
        let served = |cells: Cells<'g>| cells.rows.dtype().unpacks() && cells.rows.lies_on_host();
        k.turbo.or(v.turbo).is_some() || Isa::chosen().is_some() && served(k) && served(v)
    }

    /// Attention over cells as they are kept, in bytes as [`Turbo`] has them too: `q: [d_k, n_rows, n_head, n_seqs]` F32,
    /// `mask: [n_cells, >= n_rows, 1, n_seqs]` F16, zeros and minus infinities, contiguous; gives
    /// `[d_v, n_head, n_rows, n_seqs]`. On a CPU a token has the same bits in any company, on a GPU in that of so many as
    /// [`crate::Device::queries_alike_over`] says. On a GPU `k` and `v` may be windows on cells of the first slots, and an input says
    /// whose are read.
    pub fn attend_cells(
        &self,
        (q, k, v): (Tensor<'g>, Cells<'g>, Cells<'g>),
        mask: Tensor<'g>,
        scores: &Scores<'g>,
        slots: Option<Slots<'g>>,
    ) -> Tensor<'g> {
        const OP: &str = "attend_cells";
        let (nq, nk, nv, nm) = (q.ne(), k.rows.ne(), v.rows.ne(), mask.ne());
        let fits = k.d() == Some(nq[0])
            && nq[2] % nk[2] == 0
            && nk[1..] == nv[1..]
            && nq[3] == nk[3]
            && [nm[0], nm[2], nm[3]] == [nk[1], 1, nq[3]]
            && nm[1] >= nq[1];
        let Some(d_v) = v.d().filter(|_| fits) else {
            let (k, v) = (k.rows, v.rows);
            return self.fail(OP, format!("`q` {q:?}, `k` {k:?}, `v` {v:?}, `mask` {mask:?} do not fit"));
        };
        let readable = |cells: Cells<'g>| match cells.turbo {
            Some(_) => cells.rows.dtype() == Dtype::I8 && cells.lie_where_they_are_read(),
            None => cells.rows.dtype().unpacks(),
        };
        let ne = [d_v, nq[2], nq[1], nq[3]];
        let sound = self.check_f32(OP, "q", q)
            && self.check(OP, readable(k) && readable(v), || {
                format!("`k` {:?} or `v` {:?} cannot be read here", k.rows, v.rows)
            })
            && [("q", q), ("k", k.rows), ("v", v.rows)].iter().all(|&(name, t)| self.check_elements(OP, name, t))
            && self.check(OP, mask.dtype() == Dtype::F16 && ask!(ggml_is_contiguous, mask), || {
                format!("`mask` {mask:?} is not contiguous f16")
            })
            && self.check_scores(OP, scores, nq[2])
            && self.check_size(OP, Dtype::F32, ne);
        if !sound {
            return q;
        }
        let on_host = k.rows.lies_on_host();
        let mut args = vec![q, k.rows, v.rows, mask];
        if let Some(slots) = slots {
            let Some(slots) = self.slots_of(OP, (k.rows, v.rows), nq[3], slots, !on_host) else { return q };
            args.push(slots);
        }
        let floats = [scores.scale, scores.softcap.unwrap_or(0.0)].map(|x| x.to_bits() as i32);
        let Ok(n_values) = i32::try_from(d_v) else { return self.fail(OP, format!("heads of {d_v} values")) };
        let of_values = Turbo::word(v.turbo);
        let [of_keys, has_slots] = [Turbo::word(k.turbo), slots.is_some().into()];
        let parameters = [ATTEND_CELLS, of_keys, of_values, floats[0], floats[1], n_values, has_slots];
        let n_runs = (nk[1] as usize).div_ceil(RUN) as i64;
        if !on_host {
            args.extend(scores.sinks);
            return self.attend_on_device(ne, (q, k, v), &args, &parameters);
        }
        if n_runs == 1 || nq[1] >= MANY_ROWS {
            args.extend(scores.sinks);
            return self.custom_of(OP, Dtype::F32, ne, &args, kernels::attention_over_cells, &parameters);
        }
        let of_runs = [BESIDE as i64 + d_v, n_runs, nq[2], nq[1] * nq[3]];
        if !self.check_size(OP, Dtype::F32, of_runs) {
            return q;
        }
        let runs = self.custom_of(OP, Dtype::F32, of_runs, &args, kernels::attention_over_runs, &parameters);
        let mut args = vec![runs];
        args.extend(scores.sinks);
        self.custom_of(OP, Dtype::F32, ne, &args, kernels::sums_of_runs, &[of_values])
    }

    /// The node of [`Graph::attend_cells`] on a GPU, whose result has the dimensions `ne`. More rows than our kernels for few take are
    /// computed over cells as F16, by queries that are rotated: there is room for both behind the result.
    fn attend_on_device(
        &self,
        ne: [i64; 4],
        (q, k, v): (Tensor<'g>, Cells<'g>, Cells<'g>),
        args: &[Tensor<'g>],
        parameters: &[i32],
    ) -> Tensor<'g> {
        const OP: &str = "attend_cells";
        let fun = kernels::attention_over_cells;
        let (nq, nk) = (q.ne(), k.rows.ne());
        if rows_read(nq[0], k, v).is_some_and(|few| nq[1] <= few) {
            return self.custom_of(OP, Dtype::F32, ne, args, fun, parameters);
        }
        // In floats, each beginning at 256 bytes.
        let (n, n_q) = (ne.iter().product::<i64>(), nq.iter().product::<i64>());
        let n_cells = nk[1] * nk[2] * nk[3];
        let all = [n, nq[0] * n_cells / 2, ne[0] * n_cells / 2, n_q].map(|n| (n + 63) / 64 * 64);
        let with_room = [all.iter().sum(), 1, 1, 1];
        if !self.check_size(OP, Dtype::F32, with_room) {
            return q;
        }
        let whole = self.custom_of(OP, Dtype::F32, with_room, args, fun, parameters);
        let result = self.view(whole, [n, 1, 1, 1], [whole.nb()[0] * n as usize; 3], 0);
        self.reshape(result, ne)
    }
}
