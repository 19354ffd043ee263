//! Ops of recurrent layers, by ggml and by our own kernels.

use kernels::Isa;
pub use kernels::LoggedStep;

use super::checks::{ask, op};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

/// The recurrent state that the sequences of an op go on from.
#[derive(Clone, Copy, Debug)]
pub enum PastState<'g> {
    /// One state for each sequence, in their order: `[.., n_seqs]`.
    Own(Tensor<'g>),
    /// All states, `[.., n_states]`, and which of them each sequence has: i32 `[n_seqs]`. Which one it is changes from run to
    /// run of one graph.
    Among(Tensor<'g>, Tensor<'g>),
}

impl<'g> PastState<'g> {
    /// The tensor that the states lie in.
    fn tensor(self) -> Tensor<'g> {
        match self {
            Self::Own(states) | Self::Among(states, _) => states,
        }
    }

    /// One state for each sequence, copied where they lie among others. `dim`: the dimension that counts states.
    pub fn own(self, g: &Graph<'g>, dim: usize) -> Tensor<'g> {
        match self {
            Self::Own(states) => states,
            Self::Among(all, which) => {
                let mut ne = all.ne();
                let flat = g.reshape(all, [ne[..dim].iter().product(), ne[dim]]);
                ne[dim] = which.ne()[0];
                g.reshape(g.get_rows(flat, which), ne) // was [.., n_seqs] with all but the last dimension in one
            }
        }
    }

    /// True when there is one for each of `n_seqs` sequences of this shape, counted in dimension `dim`.
    fn fits(self, ne: [i64; 4], dim: usize) -> bool {
        match self {
            Self::Own(states) => states.ne() == ne,
            Self::Among(all, which) => {
                let mut all = all.ne();
                let n_states = std::mem::replace(&mut all[dim], ne[dim]);
                n_states > 0 && all == ne && which.ne() == [ne[dim], 1, 1, 1] && which.dtype() == Dtype::I32
            }
        }
    }

    /// The numbers that an op takes as another operand: in range, like all numbers that rows are looked up by.
    fn which(self, g: &Graph<'g>, op: &'static str, dim: usize) -> Option<Tensor<'g>> {
        match self {
            Self::Own(_) => None,
            Self::Among(all, which) => Some(g.bounded(op, which, all.ne()[dim])),
        }
    }
}

/// Where snapshots of a state go that an op makes: no weight.
#[derive(Clone, Copy, Debug)]
pub enum Snapshots<'g> {
    /// A window on the state, the newest first: `[.., n_seqs, n_snapshots]`.
    Window(Tensor<'g>),
    /// Of all slots, `[.., n_slots, n_snapshots]`, and the slot of each sequence: i32 `[n_seqs]`. For devices of which
    /// [`crate::Device::states_by_number`] says that they take it.
    OfSlots(Tensor<'g>, Tensor<'g>),
}

impl<'g> Snapshots<'g> {
    /// The window, of the op's sequences or of all slots.
    pub fn window(self) -> Tensor<'g> {
        match self {
            Self::Window(into) | Self::OfSlots(into, _) => into,
        }
    }

    /// True when there are 1 to `n_tokens` of each of `n_seqs` sequences, `n` elements each.
    fn fit(self, n: i64, n_seqs: i64, n_tokens: i64) -> bool {
        let [row, n_slots, n_snapshots, one] = self.window().ne();
        let slots_fit = match self {
            Self::Window(_) => n_slots == n_seqs,
            Self::OfSlots(_, slots) => slots.ne() == [n_seqs, 1, 1, 1] && slots.dtype() == Dtype::I32,
        };
        // Fewer would leave snapshots as they are, which nobody expects.
        row == n && slots_fit && (1..=n_tokens).contains(&n_snapshots) && one == 1
    }

    /// The numbers that an op takes as another operand, in range.
    fn slots(self, g: &Graph<'g>, op: &'static str) -> Option<Tensor<'g>> {
        match self {
            Self::Window(_) => None,
            Self::OfSlots(into, slots) => Some(g.bounded(op, slots, into.ne()[1])),
        }
    }
}

/// Where the logs of sequences lie among the states that an op reads ([`PastState::Among`]), and what its step does with them: inputs
/// that change from run to run of one graph ([`Graph::delta_rule_logged`]).
#[derive(Clone, Copy, Debug)]
pub struct Logs<'g> {
    /// For each sequence the number of the state to write and that of its log, which takes a state's place: i32 `[2 * n_seqs]`.
    /// What one sequence writes and logs is no other's.
    pub places: Tensor<'g>,
    /// For each sequence the entry of the first token that was logged since the state was written, how many there are, and a
    /// [`LoggedStep`]: i32 `[3 * n_seqs]`.
    pub steps: Tensor<'g>,
    /// Entries of each log, at most [`log_capacity`].
    pub capacity: usize,
}

/// Tokens that a log of the delta rule takes, of heads of `s`; `None` where no kernel logs them.
pub fn log_capacity(s: usize) -> Option<usize> {
    let served = Isa::chosen().is_some() && kernels::HEAD_SIZES.iter().any(|&size| size as usize == s);
    served.then(|| kernels::log_capacity(s))
}

/// Bytes of an entry of a log, of heads of `s`.
pub fn log_entry_bytes(s: usize) -> usize {
    4 * kernels::entry_floats(s)
}

/// Has logged tokens happen to the state of a head, `state: [s, s]`: `n` entries of its log from entry `first` on. Nothing happens
/// where [`log_capacity`] says that there are no logs.
///
/// # Panics
/// A slice is not whole, or there are more entries than the log has.
pub fn replay(s: usize, state: &mut [f32], log: &[f32], (first, n): (usize, usize)) {
    if let Some(isa) = Isa::chosen().filter(|_| log_capacity(s).is_some()) {
        kernels::replay(isa, s, state, log, (first, n));
    }
}

/// True where recurrent ops on a CPU go on from [`PastState::Among`] without copying it: our kernels do, for the sizes that
/// models have, and ggml's scan.
pub fn take_state_numbers() -> bool {
    Isa::chosen().is_some()
}

/// What the gated delta rule works on, all F32; value head `h` reads key head `h mod n_k_heads`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule<'g> {
    /// Queries, `[s, n_k_heads, n_tokens, n_seqs]`.
    pub q: Tensor<'g>,
    /// Keys, likewise.
    pub k: Tensor<'g>,
    /// Values, `[s, n_v_heads, n_tokens, n_seqs]`.
    pub v: Tensor<'g>,
    /// Logarithms of decays, `[1, n_v_heads, n_tokens, n_seqs]`.
    pub g: Tensor<'g>,
    /// Shares of a value that are written, likewise.
    pub beta: Tensor<'g>,
    /// Before the first token, `[s, s, n_v_heads, n_seqs]`.
    pub state: PastState<'g>,
}

impl<'g> DeltaRule<'g> {
    pub(crate) fn named(&self) -> [(&'static str, Tensor<'g>); 6] {
        let &Self { q, k, v, g, beta, state } = self;
        [("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta), ("state", state.tensor())]
    }

    /// True when the shapes belong together.
    pub(crate) fn fits(&self) -> bool {
        let (nq, [s, n_heads, n_tokens, n_seqs]) = (self.q.ne(), self.v.ne());
        self.k.ne() == nq
            && nq == [s, nq[1], n_tokens, n_seqs]
            && n_heads % nq[1] == 0
            && self.g.ne() == [1, n_heads, n_tokens, n_seqs]
            && self.beta.ne() == self.g.ne()
            && self.state.fits([s, s, n_heads, n_seqs], 3)
    }
}

/// What the scan of Mamba-2 works on, all F32; head `h` reads group `h / (n_heads / n_groups)`.
#[derive(Clone, Copy, Debug)]
pub struct SsmScan<'g> {
    /// Before the first token, `[d_state, d_head, n_heads, n_seqs]`.
    pub state: PastState<'g>,
    /// Inputs, `[d_head, n_heads, n_tokens, n_seqs]`.
    pub x: Tensor<'g>,
    /// Time steps before their softplus, `[n_heads, n_tokens, n_seqs]`.
    pub dt: Tensor<'g>,
    /// What a time step is multiplied with to give the logarithm of the decay, `[1, n_heads]`, below 0.
    pub a: Tensor<'g>,
    /// What writes, `[d_state, n_groups, n_tokens, n_seqs]`.
    pub b: Tensor<'g>,
    /// What reads, likewise.
    pub c: Tensor<'g>,
}

impl<'g> SsmScan<'g> {
    fn named(&self) -> [(&'static str, Tensor<'g>); 6] {
        let &Self { state, x, dt, a, b, c } = self;
        [("state", state.tensor()), ("x", x), ("dt", dt), ("a", a), ("b", b), ("c", c)]
    }

    fn fits(&self) -> bool {
        let ([d_head, n_heads, n_tokens, n_seqs], [d_state, n_groups, ..]) = (self.x.ne(), self.b.ne());
        self.state.fits([d_state, d_head, n_heads, n_seqs], 3)
            && self.dt.ne() == [n_heads, n_tokens, n_seqs, 1]
            && self.a.ne() == [1, n_heads, 1, 1]
            && self.b.ne() == [d_state, n_groups, n_tokens, n_seqs]
            && self.c.ne() == self.b.ne()
            && n_heads % n_groups == 0
    }
}

impl<'g> Graph<'g> {
    /// The scan of Mamba-2: `S = exp(dt A) S + dt x B`, `y = S C` with `dt` through a softplus, token by token. Gives the
    /// outputs `[d_head * n_heads, n_tokens * n_seqs]` and `n_snapshots` states `[d_state * d_head * n_heads, n_seqs,
    /// n_snapshots]`, the newest first. There are at most as many snapshots as tokens.
    ///
    /// Source: Dao & Gu 2024, Transformers are SSMs.
    pub fn ssm_scan(&self, x: &SsmScan<'g>, n_snapshots: i64) -> (Tensor<'g>, Tensor<'g>) {
        let [d_head, n_heads, n_tokens, n_seqs] = x.x.ne();
        let fits = x.fits() && (1..=n_tokens).contains(&n_snapshots) && n_snapshots <= i64::from(i32::MAX);
        let n_state = x.state.tensor().ne()[..3].iter().product::<i64>();
        let n_outputs = d_head * n_heads * n_tokens * n_seqs;
        let packed = |t: Tensor<'g>| t.nb()[1] == 4 * t.ne()[0] as usize;
        let sound = self.check("ssm_scan", fits, || {
            let shapes = x.named().map(|(name, t)| format!("`{name}` {:?}, ", t.ne())).concat();
            format!("{shapes}{n_snapshots} snapshots do not fit")
        }) && x.named().iter().all(|&(name, t)| self.check_f32("ssm_scan", name, t))
            && x.named().iter().all(|&(name, t)| {
                let sound = match name {
                    "x" | "b" | "c" => t.nb()[0] == 4 && packed(t),
                    _ => ask!(ggml_is_contiguous, t),
                };
                self.check("ssm_scan", sound, || format!("`{name}` {t:?} is not contiguous"))
            })
            && self.check_size("ssm_scan", Dtype::F32, [n_state, n_seqs, n_snapshots, 1])
            && self.check_size("ssm_scan", Dtype::F32, [n_outputs, 1, 1, 1]);
        if !sound {
            return (x.x, x.state.tensor());
        }
        let ids = x.state.which(self, "ssm_scan", 3).unwrap_or_else(|| self.ids_up_to(n_seqs, x.x));
        let (of_x, dt, a, b, c) = (x.x.raw(), x.dt.raw(), x.a.raw(), x.b.raw(), x.c.raw());
        let all = op!(self, "ssm_scan", ggml_ssm_scan, x.state.tensor(), of_x, dt, a, b, c, ids.raw(), n_snapshots);
        let (row, state) = (4 * (d_head * n_heads) as usize, 4 * n_state as usize);
        let outputs = self.view(all, [d_head * n_heads, n_tokens * n_seqs, 1, 1], [row; 3], 0);
        let planes = [state, state * n_seqs as usize, state * n_seqs as usize];
        (outputs, self.view(all, [n_state, n_seqs, n_snapshots, 1], planes, 4 * n_outputs as usize))
    }

    /// Causal depthwise convolution without bias. `x: [n_taps - 1 + n_tokens, n_channels, n_seqs]`, time fastest;
    /// `w: [n_taps, n_channels]`, the last tap on the current token; gives `[n_channels, n_tokens, n_seqs]`.
    pub fn ssm_conv(&self, x: Tensor<'g>, w: Tensor<'g>) -> Tensor<'g> {
        let (nx, nw) = (x.ne(), w.ne());
        let fits = nx[3] == 1 && nw[2] == 1 && nw[3] == 1 && nx[1] == nw[1] && nx[0] >= nw[0];
        let sound = self.check("ssm_conv", fits, || format!("`x` {nx:?} does not fit `w` {nw:?}"))
            && self.check_f32("ssm_conv", "x", x)
            && self.check_f32("ssm_conv", "w", w)
            && self.check(
                "ssm_conv",
                x.nb()[0] == 4 && x.nb()[1] == 4 * nx[0] as usize && ask!(ggml_is_contiguous, w),
                || format!("`x` {x:?} or `w` {w:?} is not laid out row after row"),
            )
            && self.check_elements("ssm_conv", "w", w);
        if !sound {
            return x;
        }
        op!(self, "ssm_conv", ggml_ssm_conv, x, w.raw())
    }

    /// The gated delta rule; outputs are scaled by `1 / sqrt(s)`.
    ///
    /// Gives `[s * n_v_heads, n_tokens * n_seqs + n_snapshots * s * n_seqs]`: first the outputs `[s, n_v_heads, n_tokens,
    /// n_seqs]`, then `n_snapshots` states `[s, s, n_v_heads, n_seqs]`, the newest first. With more tokens than snapshots
    /// only the newest is certain; with fewer, the surplus ones are not written.
    ///
    /// Source: Yang et al. 2024, Gated Delta Networks.
    pub fn gated_delta_net(&self, x: &DeltaRule<'g>, n_snapshots: i64) -> Tensor<'g> {
        let [s, n_heads, n_tokens, n_seqs] = x.v.ne();
        let fits = x.fits() && (1..=i64::from(i32::MAX)).contains(&n_snapshots);
        let sound = self.check("gated_delta_net", fits, || {
            let shapes = x.named().map(|(name, t)| format!("`{name}` {:?}, ", t.ne())).concat();
            format!("{shapes}{n_snapshots} snapshots do not fit")
        }) && x.named().iter().all(|&(name, t)| self.check_f32("gated_delta_net", name, t))
            && x.named().iter().all(|&(name, t)| {
                let rows_only = matches!(name, "q" | "k" | "v");
                let sound = if rows_only { t.nb()[0] == Dtype::F32.block_bytes() } else { ask!(ggml_is_contiguous, t) };
                self.check("gated_delta_net", sound, || format!("`{name}` {t:?} is not contiguous"))
            })
            && self.check_size("gated_delta_net", Dtype::F32, [s, n_heads, n_tokens, n_seqs])
            && self.check_size("gated_delta_net", Dtype::F32, [s * n_heads, n_snapshots, s, n_seqs]);
        if !sound {
            return x.v;
        }
        let state = x.state.own(self, 3).raw();
        let (k, v, g, beta) = (x.k.raw(), x.v.raw(), x.g.raw(), x.beta.raw());
        op!(self, "gated_delta_net", ggml_gated_delta_net, x.q, k, v, g, beta, state, n_snapshots)
    }

    /// Copies `x`, so many numbers of each of `n_seqs` sequences in their order, over the snapshot that many before the newest.
    pub fn keep_snapshot(&self, x: Tensor<'g>, into: Snapshots<'g>, back: usize) {
        let window = into.window();
        let ([n, n_slots, ..], nb) = (window.ne(), window.nb());
        let plane = self.view(window, [n, n_slots, 1, 1], [nb[1], nb[2], nb[2]], back * nb[2]);
        self.keep(match into {
            Snapshots::Window(_) => self.cpy(x, plane),
            Snapshots::OfSlots(_, slots) => {
                let rows = self.reshape(self.cont(x), [n, slots.ne()[0]]); // was [.., n_seqs]
                self.set_rows(plane, rows, slots)
            }
        });
    }

    /// Copies all snapshots `x: [n, n_seqs, n_snapshots]`, the newest first, to where they go.
    pub fn keep_snapshots(&self, x: Tensor<'g>, into: Snapshots<'g>) {
        if let Snapshots::Window(window) = into {
            return self.keep(self.cpy(x, window));
        }
        let ([n, n_seqs, n_snapshots, _], nb) = (x.ne(), x.nb());
        for back in 0..n_snapshots as usize {
            self.keep_snapshot(self.view(x, [n, n_seqs, 1, 1], [nb[1], nb[2], nb[2]], back * nb[2]), into, back);
        }
    }

    /// [`Graph::ssm_conv`] over `past: [3, n_channels, n_seqs]`, time fastest, and `inputs: [n_channels, n_tokens, n_seqs]` after
    /// it; `w: [4, n_channels]`. The last three inputs as they were after the last tokens, `3 * n_channels` numbers of each
    /// sequence, go to `into`. Gives `[n_channels, n_tokens, n_seqs]`. `past` may lie in the same buffer, and each sequence's
    /// in the place of a snapshot of itself, but of no other. `None` where there is no kernel for these operands.
    pub fn short_conv(
        &self,
        inputs: Tensor<'g>,
        past: PastState<'g>,
        w: Tensor<'g>,
        into: Snapshots<'g>,
    ) -> Option<Tensor<'g>> {
        const OP: &str = "short_conv";
        let [n_channels, n_tokens, n_seqs, one] = inputs.ne();
        let past_ne = [kernels::PAST as i64, n_channels, n_seqs, 1];
        let fits = one == 1
            && n_channels % kernels::CHANNELS_AT_ONCE as i64 == 0
            && past.fits(past_ne, 2)
            && w.ne() == [kernels::TAPS as i64, n_channels, 1, 1]
            && into.fit(past_ne[0] * n_channels, n_seqs, n_tokens);
        let all = [inputs, past.tensor(), w, into.window()];
        let served = fits
            && all.into_iter().all(in_rows)
            && past.tensor().nb()[1] == 4 * kernels::PAST
            && w.nb()[1] == 4 * kernels::TAPS
            && self.takes_states(into, n_tokens, 0)
            && self.check_writable(OP, "into", into.window());
        served.then(|| {
            let all: Vec<_> = all.into_iter().chain(past.which(self, OP, 2)).chain(into.slots(self, OP)).collect();
            let ne = [n_channels, n_tokens, n_seqs, 1];
            self.custom_of(OP, Dtype::F32, ne, &all, kernels::short_conv, &[kernels::SHORT_CONV])
        })
    }

    /// [`Graph::gated_delta_net`] whose snapshots, `s * s * n_heads` numbers of each sequence, go to `into`; gives the outputs
    /// `[s * n_heads, n_tokens * n_seqs]`. `state` may lie in the same buffer, and each of its rows in the place of a snapshot of
    /// itself, but of no other. `None` where there is no kernel for these operands.
    pub fn delta_rule(&self, x: &DeltaRule<'g>, into: Snapshots<'g>) -> Option<Tensor<'g>> {
        const OP: &str = "delta_rule";
        let [s, n_heads, n_tokens, n_seqs] = x.v.ne();
        let all = [x.q, x.k, x.v, x.g, x.beta, x.state.tensor(), into.window()];
        let fits = x.fits() && into.fit(s * s * n_heads, n_seqs, n_tokens);
        let whole = |t: Tensor<'g>, n: i64| t.nb()[1] == 4 * s as usize && t.nb()[2] == 4 * n as usize;
        let served = kernels::HEAD_SIZES.contains(&s)
            && fits
            && all.into_iter().all(in_rows)
            && whole(x.state.tensor(), s * s)
            // GPUs read four numbers at a time.
            && (into.window().lies_on_host() || [x.q, x.k].into_iter().all(in_fours))
            && self.takes_states(into, n_tokens, s)
            && self.check_writable(OP, "into", into.window());
        served.then(|| {
            let all: Vec<_> = all.into_iter().chain(x.state.which(self, OP, 3)).chain(into.slots(self, OP)).collect();
            let ne = [s * n_heads, n_tokens * n_seqs, 1, 1];
            self.custom_of(OP, Dtype::F32, ne, &all, kernels::delta_rule, &[kernels::DELTA_RULE])
        })
    }

    /// [`Graph::delta_rule`] whose tokens are logged in the place of snapshots, over states in the host's memory that
    /// [`PastState::Among`] names. Those that were logged since a state was written happen before the first one; what the step
    /// keeps itself `logs` says. Gives the outputs `[s * n_heads, n_tokens * n_seqs]`.
    pub fn delta_rule_logged(&self, x: &DeltaRule<'g>, logs: Logs<'g>) -> Tensor<'g> {
        const OP: &str = "delta_rule_logged";
        let [s, n_heads, n_tokens, n_seqs] = x.v.ne();
        let most = usize::try_from(s).ok().and_then(log_capacity).unwrap_or(0);
        let states = x.state.tensor();
        let (places, steps) = (logs.places, logs.steps);
        let numbers = |t: Tensor<'g>, n: i64| t.ne() == [n * n_seqs, 1, 1, 1] && t.dtype() == Dtype::I32;
        let fits = x.fits() && numbers(places, 2) && numbers(steps, 3);
        let whole = states.nb()[1] == 4 * s as usize && states.nb()[2] == 4 * (s * s) as usize;
        let all = [x.q, x.k, x.v, x.g, x.beta, states];
        let sound = self.check(OP, fits, || {
            let shapes = x.named().map(|(name, t)| format!("`{name}` {:?}, ", t.ne())).concat();
            format!("{shapes}`places` {:?} and `steps` {:?} do not fit", places.ne(), steps.ne())
        }) && self.check(OP, (1..=most).contains(&logs.capacity), || {
            format!("a log of {} entries, heads of {s} have at most {most}", logs.capacity)
        }) && self
            .check(OP, all.into_iter().all(in_rows) && whole, || "operands that are not laid out in rows".into())
            && self.check(OP, states.lies_on_host(), || format!("`state` {states:?} is not in the host's memory"))
            && self.check_writable(OP, "state", states);
        let named = matches!(x.state, PastState::Among(..));
        let sound = sound && self.check(OP, named, || format!("`state` {states:?} is not named by numbers"));
        let (true, Some(read)) = (sound, x.state.which(self, OP, 3)) else { return x.v };
        let places = self.bounded(OP, places, states.ne()[3]);
        // Entries from 0 on, counts up to all of them, or a step.
        let steps = self.bounded(OP, steps, (logs.capacity as i64 + 1).max(LoggedStep::ALL.len() as i64));
        let all: Vec<_> = all.into_iter().chain([read, places, steps]).collect();
        let ne = [s * n_heads, n_tokens * n_seqs, 1, 1];
        // At most a head's size.
        let parameters = [kernels::DELTA_RULE_LOGGED, logs.capacity as i32];
        self.custom_of(OP, Dtype::F32, ne, &all, kernels::delta_rule_logged, &parameters)
    }

    /// True when a kernel of ours computes so many tokens of a sequence where its snapshots go, with heads of `s` (0: the
    /// convolution).
    fn takes_states(&self, into: Snapshots<'g>, n_tokens: i64, s: i64) -> bool {
        let window = into.window();
        if window.lies_on_host() {
            return matches!(into, Snapshots::Window(_)) && Isa::chosen().is_some();
        }
        let most = window.device().and_then(|d| d.states_by_number(kernels::PAST, 0, usize::try_from(s).ok()?));
        most.is_some_and(|most| usize::try_from(n_tokens).is_ok_and(|n| n <= most))
    }
}

/// True where rows, whatever they count, are whole multiples of four floats apart and begin at such a multiple of the tensor that
/// they lie in.
fn in_fours(t: Tensor<'_>) -> bool {
    t.nb()[1..].iter().all(|n| n.is_multiple_of(16)) && t.view_offset().is_multiple_of(16)
}

/// True for floats whose rows follow each other element by element.
fn in_rows(t: Tensor<'_>) -> bool {
    t.dtype() == Dtype::F32 && t.nb()[0] == 4
}
