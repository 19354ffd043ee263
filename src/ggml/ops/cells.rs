//! KV caches in types of our own, [`Turbo`]: rows go in as they are rounded, attention unpacks them as it reads. A CPU computes
//! both, in kernels of the crate `kernels`.

use kernels::{BESIDE, Isa, RUN, Turbo};

use super::attention::Scores;
use super::checks::ask;
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

impl Cells<'_> {
    /// Values of a row; `None` where its bytes are not whole groups.
    fn d(&self) -> Option<i64> {
        let (n, turbo) = (self.rows.ne()[0], self.turbo);
        turbo.map_or(Some(n), |t| {
            let block = t.block_bytes() as i64;
            (n % block == 0).then_some(n / block * t.group() as i64)
        })
    }
}

impl<'g> Graph<'g> {
    /// Writes rows `from: [n, n_ids]` (F32) over the rows `ids: [n_ids]` (I64) of `into: [bytes, n_rows]`, state of a CPU in
    /// bytes ([`Dtype::I8`]), as [`Turbo`] has them. The result is of no use; pass it to [`Graph::keep`]. Ids are checked as for
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
            && self.check(OP, into.lies_on_host(), || format!("`into` {into:?} does not lie in memory of the host"))
            && self.check_elements(OP, "into", into)
            && self.check_elements(OP, "from", from)
            && self.check_elements(OP, "ids", ids)
            && self.check_writable(OP, "into", into);
        if !sound {
            return from;
        }
        let ids = self.bounded(OP, ids, na[1]);
        let parameters = [Turbo::word(Some(turbo))];
        self.custom_of(OP, Dtype::F32, [1; 4], &[into, from, ids], kernels::store_turbo, &parameters)
    }

    /// True where [`Graph::attend_cells`] is the way to attend to these: on a CPU with kernels of our own, and for types of
    /// our own.
    pub fn attends_itself(&self, k: Cells<'g>, v: Cells<'g>) -> bool {
        let served = |cells: Cells<'g>| cells.rows.dtype().unpacks() && cells.rows.lies_on_host();
        k.turbo.or(v.turbo).is_some() || Isa::chosen().is_some() && served(k) && served(v)
    }

    /// Attention over cells as they are kept, in bytes as [`Turbo`] has them too: `q: [d_k, n_rows, n_head, n_seqs]` F32,
    /// `mask: [n_cells, >= n_rows, 1, n_seqs]` F16, zeros and minus infinities, contiguous; gives
    /// `[d_v, n_head, n_rows, n_seqs]`. A token has the same bits in any company.
    pub fn attend_cells(
        &self,
        (q, k, v): (Tensor<'g>, Cells<'g>, Cells<'g>),
        mask: Tensor<'g>,
        scores: &Scores<'g>,
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
            Some(_) => cells.rows.dtype() == Dtype::I8 && cells.rows.lies_on_host(),
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
        let mut args = vec![q, k.rows, v.rows, mask];
        let floats = [scores.scale, scores.softcap.unwrap_or(0.0)].map(|x| x.to_bits() as i32);
        let Ok(n_values) = i32::try_from(d_v) else { return self.fail(OP, format!("heads of {d_v} values")) };
        let of_values = Turbo::word(v.turbo);
        let parameters = [Turbo::word(k.turbo), of_values, floats[0], floats[1], n_values];
        let n_runs = (nk[1] as usize).div_ceil(RUN) as i64;
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
}
