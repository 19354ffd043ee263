//! The gated delta rule over slices, in an instruction set of the caller's choice and with every size checked: for states whose log
//! is read, for tests and benches.

use crate::delta_lanes::of_size;
use crate::delta_rule::{HEAD_SIZES, Head, Keep, Log, LoggedStep, PerToken, TokenFactors, entry_floats};
use crate::isa::Isa;

/// Has tokens that were logged happen to the state of a head, `state: [s, s]`: `n_past` entries of its log from entry `first` on.
///
/// # Panics
/// `s` is none of [`HEAD_SIZES`], a slice is not whole, there are more entries than the log has, or the CPU lacks `isa`.
pub fn replay(isa: Isa, s: usize, state: &mut [f32], log: &[f32], (first, n_past): (usize, usize)) {
    let capacity = log.len() / entry_floats(s);
    assert!(Isa::available().contains(&isa) && HEAD_SIZES.contains(&(s as i64)), "no {isa:?} for heads of {s}");
    assert!(
        state.len() == s * s && log.len() == capacity * entry_floats(s),
        "{} and {} floats",
        state.len(),
        log.len()
    );
    assert!(capacity > 0 && n_past <= capacity, "{n_past} entries of {capacity}");
    let none = OneHead { q: &[], k: &[], v: &[], gates: &[], state: &[] };
    let into = state.as_mut_ptr();
    let mut head = none.head(s, &mut [], &mut []);
    head.from = into.cast_const();
    // Without tokens nothing is logged.
    head.past = Log { data: log.as_ptr().cast_mut(), first: first % capacity, capacity };
    head.n_past = n_past;
    head.keep = Keep::by(LoggedStep::WriteAndLog, into, Log::NONE);
    // SAFETY: state and log have their sizes, and the CPU has the instructions (asserted); each row is read before it is written.
    unsafe { of_size(isa, s, &mut head, 0..s) };
}

/// What one head of size `s` works on.
pub struct OneHead<'a> {
    /// Queries, `s` for each token.
    pub q: &'a [f32],
    /// Keys, likewise.
    pub k: &'a [f32],
    /// Values, likewise.
    pub v: &'a [f32],
    /// Decay (not its logarithm) and beta of each token.
    pub gates: &'a [(f32, f32)],
    /// Before the first token, `[s, s]`.
    pub state: &'a [f32],
}

impl OneHead<'_> {
    fn tokens(&self) -> Vec<TokenFactors> {
        let factors = |&(decay, beta): &(f32, f32)| TokenFactors { decay, beta, key_query: 0.0 };
        self.gates.iter().map(factors).collect()
    }

    /// As kernels take it, with nothing in a log and nothing to keep.
    fn head<'h>(&self, s: usize, tokens: &'h mut [TokenFactors], out: &mut [f32]) -> Head<'h> {
        let of = |x: &[f32]| PerToken::new(x, s);
        Head {
            tokens,
            q: of(self.q),
            k: of(self.k),
            v: of(self.v),
            out: out.as_mut_ptr(),
            out_stride: s,
            from: self.state.as_ptr(),
            past: Log::NONE,
            n_past: 0,
            keep: Keep::Snapshots { into: std::ptr::null_mut(), stride: 0, n: 0 },
            streams: false,
        }
    }
}

/// One head over slices: outputs of each token to `out`, snapshots to `snapshots`, the newest first.
///
/// # Panics
/// A slice has another length, `s` is none of [`HEAD_SIZES`], or the CPU lacks `isa`.
pub fn one_head(isa: Isa, s: usize, x: &OneHead<'_>, out: &mut [f32], snapshots: &mut [f32]) {
    let n_snapshots = snapshots.len() / (s * s);
    assert!(Isa::available().contains(&isa) && HEAD_SIZES.contains(&(s as i64)), "no {isa:?} for heads of {s}");
    assert!([x.q.len(), x.k.len(), x.v.len(), out.len()] == [s * x.gates.len(); 4], "{} tokens", x.gates.len());
    assert!(x.state.len() == s * s && snapshots.len() == n_snapshots * s * s && n_snapshots <= x.gates.len(), "states");
    let mut tokens = x.tokens();
    let mut head = x.head(s, &mut tokens, out);
    head.keep = Keep::Snapshots { into: snapshots.as_mut_ptr(), stride: s * s, n: n_snapshots };
    // SAFETY: everything has the sizes that it must have, and the CPU has the instructions (all asserted).
    unsafe { of_size(isa, s, &mut head, 0..s) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta_rule::log_keys;

    /// Numbers from -1 to 1.
    struct Noise(u32);

    impl Noise {
        fn list(&mut self, n: usize) -> Vec<f32> {
            let mut next = || {
                self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (self.0 >> 8) as f32 / 8_388_608.0 - 1.0
            };
            (0..n).map(|_| next()).collect()
        }

        /// Queries, keys and values of so many tokens, and gates.
        fn tokens(&mut self, s: usize, n: usize) -> ([Vec<f32>; 3], Vec<(f32, f32)>) {
            let qkv = [(); 3].map(|()| self.list(s * n));
            (qkv, self.list(2 * n).chunks(2).map(|g| ((g[0] - 1.0).exp(), g[1].abs())).collect())
        }
    }

    /// Bits of outputs and snapshots of one head of size `s`.
    fn computed(isa: Isa, s: usize, n_tokens: usize, n_snapshots: usize) -> Vec<u32> {
        let mut noise = Noise(7);
        let ([q, k, v], gates) = noise.tokens(s, n_tokens);
        let state = noise.list(s * s);
        let (mut out, mut snapshots) = (vec![0.0; s * n_tokens], vec![0.0; s * s * n_snapshots]);
        let x = OneHead { q: &q, k: &k, v: &v, gates: &gates, state: &state };
        one_head(isa, s, &x, &mut out, &mut snapshots);
        out.iter().chain(&snapshots).map(|x| x.to_bits()).collect()
    }

    /// A step over slices: the tokens of `x`, a head's state, its log from entry `first` on with `n_past` entries, and what it does.
    /// Gives the outputs.
    fn logged_step(
        (isa, s): (Isa, usize),
        x: &OneHead<'_>,
        (state, log): (&mut [f32], &mut [f32]),
        (first, n_past, step): (usize, usize, LoggedStep),
    ) -> Vec<f32> {
        let mut out = vec![0.0; x.v.len()];
        let (data, capacity) = (log.as_mut_ptr(), log.len() / entry_floats(s));
        let log = |first: usize| Log { data, first: first % capacity, capacity };
        let mut tokens = x.tokens();
        let mut head = x.head(s, &mut tokens, &mut out);
        let into = state.as_mut_ptr();
        (head.from, head.past, head.n_past) = (into.cast_const(), log(first), n_past);
        head.keep = Keep::by(step, into, log(first + n_past));
        // SAFETY: all slices have the sizes of the head and its tokens, which the test chose so that they fit the log.
        unsafe {
            if let Keep::Logged { log, .. } = head.keep {
                log_keys(&head, log, s);
            }
            of_size(isa, s, &mut head, 0..s);
        }
        out
    }

    #[test]
    fn logged_tokens_leave_the_bits_of_snapshots() {
        use LoggedStep::{Log, Write, WriteAndLog};
        // Tokens, those of them that are kept, and what the step does.
        let steps = [
            (3, 3, Log),
            (4, 1, Log),
            (1, 1, Log),
            (4, 2, WriteAndLog),
            (2, 2, Log),
            (9, 9, Write),
            (2, 1, WriteAndLog),
        ];
        for isa in Isa::available() {
            for s in [32usize, 64, 128] {
                let mut noise = Noise(3);
                let mut plain = noise.list(s * s);
                let capacity = 9;
                let (mut state, mut log) = (plain.clone(), vec![f32::NAN; capacity * entry_floats(s)]);
                // Near the end, so that the ring is closed on the way.
                let (mut first, mut n_past) = (capacity - 2, 0);
                for &(n, kept, step) in &steps {
                    let ([q, k, v], gates) = noise.tokens(s, n);
                    let (mut out, mut snapshots) = (vec![0.0; s * n], vec![0.0; s * s * n]);
                    let x = OneHead { q: &q, k: &k, v: &v, gates: &gates, state: &plain };
                    one_head(isa, s, &x, &mut out, &mut snapshots);
                    let found = logged_step((isa, s), &x, (&mut state, &mut log), (first, n_past, step));
                    assert_eq!(found, out, "{isa:?}, {s}, {n} tokens, {step:?}");
                    plain = snapshots[(n - kept) * s * s..][..s * s].to_vec();
                    (first, n_past) = match step {
                        Log => (first, n_past + kept),
                        WriteAndLog => (first + n_past, kept),
                        Write => (0, 0),
                    };
                    let mut whole = state.clone();
                    replay(isa, s, &mut whole, &log, (first, n_past));
                    assert_eq!(whole, plain, "{isa:?}, {s}, after {n} tokens, {step:?}");
                }
            }
        }
    }

    #[test]
    fn many_tokens_at_once_have_the_bits_of_one_after_the_other() {
        for isa in Isa::available() {
            for (s, n) in [(32, 70), (64, 60), (128, 101), (16, 60)] {
                let mut noise = Noise(5);
                let ([q, k, v], gates) = noise.tokens(s, n);
                let state = noise.list(s * s);
                let x = OneHead { q: &q, k: &k, v: &v, gates: &gates, state: &state };
                for n_snapshots in [0, 1, 4] {
                    let (mut out, mut snapshots) = (vec![0.0; s * n], vec![0.0; s * s * n_snapshots]);
                    one_head(isa, s, &x, &mut out, &mut snapshots);
                    let mut before = state.clone();
                    for t in 0..n {
                        let of = |x: &[f32]| x[t * s..][..s].to_vec();
                        let [q, k, v] = [of(&q), of(&k), of(&v)];
                        let one = OneHead { q: &q, k: &k, v: &v, gates: &gates[t..=t], state: &before };
                        let (mut out_1, mut after) = (vec![0.0; s], vec![0.0; s * s]);
                        one_head(isa, s, &one, &mut out_1, &mut after);
                        assert_eq!(out[t * s..][..s], out_1, "{isa:?}, {s}, token {t} of {n}");
                        if n - t <= n_snapshots {
                            assert_eq!(
                                snapshots[(n - t - 1) * s * s..][..s * s],
                                after,
                                "{isa:?}, {s}, after {t} of {n}"
                            );
                        }
                        before = after;
                    }
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        for isa in Isa::available() {
            for (n_tokens, n_snapshots) in [(1, 1), (5, 5), (7, 2), (40, 1), (70, 3)] {
                for s in [16, 32, 64, 128] {
                    let scalar = computed(Isa::Scalar, s, n_tokens, n_snapshots);
                    assert_eq!(computed(isa, s, n_tokens, n_snapshots), scalar, "{isa:?}, {s}");
                }
            }
        }
    }
}
