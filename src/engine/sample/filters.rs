//! The stages that cut or reshape by probability alone: top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature.
//! Owns their formulas. Knows nothing of the tokens before.
//!
//! What each means follows llama.cpp's src/llama-sampler.cpp (crate llama-cpp-sys-4 0.11.0). One difference: a masked
//! token (minus infinity) is gone here, where llama.cpp keeps it as a candidate of probability zero; that shows only in
//! the number of candidates that the dynamic temperature divides by.

use super::math::exp;
use super::params::MIN_TEMPERATURE;
use super::pool::Pool;
use super::select::Cand;

/// Keeps logits of at least the largest minus `n` standard deviations.
pub(super) fn top_n_sigma(pool: &mut Pool<'_>, n: f32) {
    let (Some(max), Some((_, deviation))) = (pool.max(), pool.mean_and_deviation()) else { return };
    pool.keep_at_least((f64::from(max) - f64::from(n) * deviation) as f32, 1);
}

/// Keeps tokens at least `p` times as likely as the likeliest.
pub(super) fn min_p(pool: &mut Pool<'_>, p: f32, min_keep: usize) {
    let Some(max) = pool.max() else { return };
    pool.keep_at_least((f64::from(max) + f64::from(p).ln()) as f32, min_keep);
}

/// Keeps the likeliest tokens up to and including the one with which their sum reaches `p`.
pub(super) fn top_p(pool: &mut Pool<'_>, p: f32, min_keep: usize) {
    let Some(max) = pool.max() else { return };
    let (p, sum) = (f64::from(p), pool.sum_exp(max));
    if pool.is_row() {
        // Tokens less likely than (1 - p) / 2n sum to less than (1 - p) / 2, so the sum reaches `p` without them.
        let share = (1.0 - p) / (2.0 * pool.n_usable() as f64);
        pool.keep_at_least((f64::from(max) + (share * sum).ln()) as f32, min_keep);
    }
    let (mut reached, mut n) = (0.0, 0);
    while let Some(c) = pool.nth(n) {
        reached += f64::from(exp(c.logit() - max)) / sum;
        n += 1;
        if reached >= p && n >= min_keep {
            break;
        }
    }
    pool.keep_top(n);
}

/// Keeps the tokens whose surprise is nearest to the entropy, up to the one with which their sum exceeds `p`.
/// Source: Meister et al. 2022, "Locally typical sampling".
pub(super) fn typical(pool: &mut Pool<'_>, p: f32, min_keep: usize) {
    let Some(max) = pool.max() else { return };
    let sum = pool.sum_exp(max);
    // The surprise of a logit x is ln(sum) + max - x, so its distance from the entropy is that of x from `centre`.
    let centre = sum.ln() + f64::from(max) - pool.entropy(max, sum);
    let distance = |c: &Cand| (centre - f64::from(c.logit())).abs();
    let nearer = |a: &Cand, b: &Cand| distance(a).total_cmp(&distance(b)).then(a.cmp(b));

    let list = pool.list();
    let (mut reached, mut n, mut n_sorted) = (0.0, 0, 0);
    while n < list.len() {
        if n == n_sorted {
            // Sorts in growing pieces: seldom is more than the first one needed.
            n_sorted = (4 * n).max(FIRST_SORTED).min(list.len());
            let (rest, want) = (&mut list[n..], n_sorted - n);
            if want < rest.len() {
                rest.select_nth_unstable_by(want - 1, nearer);
            }
            rest[..want].sort_unstable_by(nearer);
        }
        reached += f64::from(exp(list[n].logit() - max)) / sum;
        n += 1;
        if reached > f64::from(p) && n >= min_keep {
            break;
        }
    }
    list.truncate(n);
    pool.forget_order();
}

/// With a chance of `probability` removes all tokens at least as likely as `threshold` except the last of them in order.
/// `u` in (0, 1) decides.
pub(super) fn xtc(pool: &mut Pool<'_>, probability: f32, threshold: f32, min_keep: usize, u: f64) {
    if pool.list().len() < 2 || u > f64::from(probability) {
        return;
    }
    let Some(max) = pool.max() else { return };
    let sum = pool.sum_exp(max);
    // Most of a vocabulary is ruled out by a comparison, with room for rounding; the rest by its probability.
    let nearly = (f64::from(max) + (f64::from(threshold) * sum).ln() - 1e-3) as f32;
    let likely = |c: &Cand| c.logit() >= nearly && f64::from(exp(c.logit() - max)) / sum >= f64::from(threshold);
    let list = pool.list();
    let n_likely = list.iter().filter(|c| likely(c)).count();
    let Some(last) = list.iter().copied().filter(likely).max() else { return };
    if list.len() - (n_likely - 1) < min_keep {
        return;
    }
    list.retain(|c| !likely(c) || *c == last);
    pool.forget_order();
}

/// Divides by `t`; up to [`MIN_TEMPERATURE`] keeps only the best token.
/// With a `range` above 0 the temperature goes from `t - range` (at least 0) for a certain next token to `t + range`
/// for a uniform distribution, as the power `exponent` of the entropy's share of its largest value.
pub(super) fn temperature(pool: &mut Pool<'_>, t: f32, range: f32, exponent: f32) {
    let mut t = t;
    if range > 0.0 {
        let n = pool.n_usable();
        let Some(max) = pool.max().filter(|_| n > 1) else { return };
        let entropy = pool.entropy(max, pool.sum_exp(max));
        let share = (entropy / (n as f64).ln()).clamp(0.0, 1.0);
        let lowest = f64::from((t - range).max(0.0));
        let highest = f64::from(t) + f64::from(range);
        t = (lowest + (highest - lowest) * share.powf(f64::from(exponent))) as f32;
    }
    if t <= MIN_TEMPERATURE {
        pool.keep_best();
    } else if t != 1.0 {
        pool.divide(t);
    }
}

const FIRST_SORTED: usize = 128;
