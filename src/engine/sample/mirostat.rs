//! Mirostat 1 and 2: cuts the tail so that the surprise of the chosen tokens stays near a target.
//! Owns the bound `mu` and how a chosen token moves it. Knows nothing of stages.
//! Source: Basu et al. 2021, "Mirostat: a neural text decoding algorithm that directly controls perplexity".

use super::pool::Pool;
use super::stage::Mirostat;
use super::table::SamplingParams;

/// First value of the bound, in bits.
pub(super) fn first_mu(params: &SamplingParams) -> f64 {
    2.0 * f64::from(params.mirostat_tau)
}

/// The bound after a token of probability `p` was chosen.
pub(super) fn next_mu(params: &SamplingParams, mu: f64, p: f32) -> f64 {
    let error = -f64::from(p).log2() - f64::from(params.mirostat_tau);
    mu - f64::from(params.mirostat_eta) * error
}

/// Cuts the tail; at least one candidate stays.
pub(super) fn cut(pool: &mut Pool<'_>, version: Mirostat, mu: f64, n_vocab: usize) {
    match version {
        Mirostat::Off => {}
        Mirostat::V1 => {
            let k = rank(zipf_exponent(pool), mu, n_vocab);
            pool.keep_top(k);
        }
        Mirostat::V2 => {
            let Some(max) = pool.max() else { return };
            // A surprise of at most `mu` bits is a probability of at least 2^-mu.
            let least = f64::from(max) + pool.sum_exp(max).ln() - mu * std::f64::consts::LN_2;
            pool.keep_at_least(least as f32, 1);
        }
    }
}

/// Least-squares estimate of Zipf's exponent from the [`N_FITTED`] likeliest tokens; NaN for fewer than two.
fn zipf_exponent(pool: &mut Pool<'_>) -> f64 {
    pool.list();
    let (mut times, mut squares) = (0.0, 0.0);
    for i in 1..N_FITTED {
        let (Some(above), Some(below)) = (pool.nth(i - 1), pool.nth(i)) else { break };
        let t = ((i + 1) as f64 / i as f64).ln();
        // The logarithm of the ratio of two probabilities is the difference of the logits.
        times += t * (f64::from(above.logit()) - f64::from(below.logit()));
        squares += t * t;
    }
    times / squares
}

/// The rank at which a Zipf distribution with exponent `s` over `n_vocab` tokens has the surprise `mu`.
fn rank(s: f64, mu: f64, n_vocab: usize) -> usize {
    let beyond = s - 1.0;
    // (s - 1) / (1 - n^(1-s)) tends to 1 / ln n at s = 1.
    let ln_n = (n_vocab as f64).ln();
    let scale = if beyond.abs() < 1e-9 { 1.0 / ln_n } else { beyond / -(-beyond * ln_n).exp_m1() };
    // A cast of NaN (one candidate, or one token in the vocabulary) gives 0, of infinity the largest number.
    ((scale * mu.exp2()).powf(1.0 / s) as usize).max(1)
}

/// The paper's m.
const N_FITTED: usize = 100;

#[cfg(test)]
mod tests {
    use super::super::pool::Scratch;
    use super::*;

    #[test]
    fn the_exponent_of_a_zipf_distribution_is_found() {
        for s in [0.7_f64, 1.0, 1.3] {
            let row: Vec<f32> = (1..500).map(|i| (-s * f64::from(i).ln()) as f32).collect();
            let mut scratch = Scratch::default();
            let got = zipf_exponent(&mut Pool::new(&row, &mut scratch));
            // Logits rounded to f32, differences down to 0.01.
            assert!((got - s).abs() < 1e-5, "{got} for {s}");
        }
    }

    #[test]
    fn ranks_match_the_formula_and_survive_its_poles() {
        // s = 2, n = 1000, mu = 10: (1 * 1024 / (1 - 1/1000))^(1/2) = 32.016
        assert_eq!(rank(2.0, 10.0, 1000), 32);
        // s = 0.5: (-0.5 * 1024 / (1 - sqrt 1000))^2 = (512 / 30.623)^2 = 279.5
        assert_eq!(rank(0.5, 10.0, 1000), 279);
        // s = 1: 1024 / ln 1000 = 148.2, from both sides
        assert_eq!([1.0, 1.0 + 1e-8, 1.0 - 1e-8].map(|s| rank(s, 10.0, 1000)), [148; 3]);
        assert_eq!(rank(f64::NAN, 10.0, 1000), 1);
        assert_eq!(rank(0.0, 10.0, 100_000), 1);
        assert_eq!(rank(1.5, 1e6, 1000), usize::MAX);
        assert_eq!(rank(1.5, 10.0, 1), usize::MAX);
    }

    #[test]
    fn a_surprise_above_the_target_lowers_the_bound() {
        let params = SamplingParams { mirostat_tau: 2.0, mirostat_eta: 0.5, ..Default::default() };
        assert_eq!(first_mu(&params), 4.0);
        assert_eq!(next_mu(&params, 4.0, 0.125), 3.5);
        assert_eq!(next_mu(&params, 4.0, 0.5), 4.5);
    }
}
