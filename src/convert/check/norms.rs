//! Whether one was added to the weights of norms: once, twice, or not at all.
//! Owns the thresholds and where they come from; reads no file.
//!
//! Checkpoints of some families store what a norm multiplies with less one; GGUF files have it whole. Means as far as they are known,
//! whole:
//!
//! | | `enorm` | `hnorm` | q and k of the head | its other two | q and k of the main model, all layers |
//! |---|---|---|---|---|---|
//! | Qwen3.6-35B-A3B | 0.27 | 0.49 | | | |
//! | Qwen3.6-27B, 3.8-27B | 0.56, 0.54 | 0.84 | 1.78 to 1.79 | 1.04 to 1.21 | 1.74 to 1.83 |
//! | other published ones | 0.2 and more | to 0.8 | 1.73 and more | 0.87 to 1.39 | |
//! | pocket | 0.90 | 0.82 | 1.58 to 1.60 | 1.04 to 1.38 | 1.53 to 1.54 |
//! | pocket-moe | 0.86 | 0.77 | 1.34 to 1.35 | 1.03 to 1.43 | 1.24 |
//! | models of random numbers | 0.98 to 1.02 | 1.00 to 1.01 | 1.25 to 1.31 | 0.95 to 1.01 | 1.27 to 1.33 |
//!
//! So a mean of `enorm` below 0.5 is nothing odd, and one that is wrong by one differs little from one that is right.
//! What tells is the sign: what is whole is above zero throughout, and what those two norms multiply with is below one
//! in many places, since they damp. Other norms of the main model differ too much from layer to layer to be judged.

use model::block_of;

use super::report::Report;
use super::values::Stats;
use crate::heads::ModelInfo;
use crate::source::Source;

/// Architectures whose checkpoints do so. Norms of others may be anything.
const LESS_ONE: [&str; 4] = ["qwen35", "qwen35moe", "qwen3next", "step35"];

/// What a norm looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shift {
    Missing,
    Once,
    Twice,
}

/// Two norms that are always made alike.
struct Pair {
    parts: [&'static str; 2],
    /// Means below are of norms that lack their one.
    least: f64,
    /// Means above are of norms that have it twice.
    most: f64,
    /// If most is not enough: no more numbers than one of so many are below one, when it was added twice.
    few_below_one: Option<u64>,
}

/// Those of the head.
const OF_HEAD: [Pair; 3] = [
    Pair { parts: ["nextn.enorm.weight", "nextn.hnorm.weight"], least: 0.0, most: 1.2, few_below_one: Some(64) },
    OF_HEADS,
    Pair { parts: ["attn_norm.weight", "post_attention_norm.weight"], least: 0.65, most: 1.65, few_below_one: None },
];
/// Of queries and keys; those of the main model are judged by the mean of all layers.
const OF_HEADS: Pair =
    Pair { parts: ["attn_q_norm.weight", "attn_k_norm.weight"], least: 0.9, most: 1.95, few_below_one: None };

impl Pair {
    fn shift(&self, s: &Stats) -> Shift {
        let mean = s.mean();
        let enough = self.few_below_one.is_none_or(|few| s.n_below_one <= s.n / few);
        if mean < self.least || is_negative(s) {
            Shift::Missing
        } else if mean > self.most && enough {
            Shift::Twice
        } else {
            Shift::Once
        }
    }

    /// What is wrong with two norms, or odd about one of them.
    fn judge(&self, of: &str, [a, b]: [&Stats; 2], report: &mut Report) {
        let short = |part: &str| part.trim_start_matches("nextn.").trim_end_matches(".weight").to_owned();
        let [name_a, name_b] = self.parts.map(short);
        let means = format!("mean({name_a}) {:.3}, mean({name_b}) {:.3}", a.mean(), b.mean());
        let told = |what: &str| format!("norms of the {of} are {what}: {means}; convert it again from the original");
        match (self.shift(a), self.shift(b)) {
            (Shift::Missing, Shift::Missing) => report.damage.push(told("not shifted by one")),
            (Shift::Twice, Shift::Twice) => report.damage.push(told("shifted twice")),
            (Shift::Once, Shift::Once) => {}
            _ => report.notes.push(format!("norms of the {of} are not alike: {means}; was one added to each once?")),
        }
    }
}

/// Judges the norms of the head, and those of the main model as far as they can be.
pub(super) fn check(source: &Source, info: Option<&ModelInfo>, stats: &[Stats], report: &mut Report) {
    if info.is_some_and(|info| !LESS_ONE.contains(&info.arch.as_str())) {
        return;
    }
    let all = || source.tensors.iter().zip(stats).filter(|(_, s)| s.n > 0);
    // A head alone has no blocks in its names.
    let alone = source.keys.is_empty();
    let in_head = |name: &str, part: &str| match (block_of(name), info) {
        (Some((il, p)), Some(info)) => il == info.n_layer && p == part,
        (None, _) => alone && name == part,
        _ => false,
    };
    for pair in &OF_HEAD {
        let found = pair.parts.map(|part| all().find(|(t, _)| in_head(&t.name, part)).map(|(_, s)| s));
        if let [Some(a), Some(b)] = found {
            pair.judge("head", [a, b], report);
        }
    }
    let Some(info) = info else { return };
    let of_main_model = OF_HEADS.parts.map(|part| {
        let mut sum = Stats::default();
        let is = |name: &str| block_of(name).is_some_and(|(il, p)| il < info.n_layer && p == part);
        all().filter(|(t, _)| is(&t.name)).for_each(|(_, s)| sum.join(s));
        sum
    });
    if let [a, b] = &of_main_model
        && a.n > 0
        && b.n > 0
    {
        OF_HEADS.judge("main model", [a, b], report);
    }
    // Whatever the others are like, below zero they are not.
    let judged = |name: &str| {
        let part = block_of(name).map_or(name, |(_, part)| part);
        part == "ssm_norm.weight"
            || OF_HEADS.parts.contains(&part)
            || OF_HEAD.iter().any(|pair| pair.parts.iter().any(|p| in_head(name, p)))
    };
    let negative: Vec<_> =
        all().filter(|(t, s)| t.name.ends_with("norm.weight") && !judged(&t.name) && is_negative(s)).collect();
    if let Some((t, s)) = negative.first() {
        report.damage.push(format!(
            "{} norms are not shifted by one, among them {}: {} of {} numbers are below zero",
            negative.len(),
            t.name,
            s.n_negative,
            s.n
        ));
    }
}

/// A quarter: what lacks its one has a half and more, what has it none.
fn is_negative(s: &Stats) -> bool {
    s.n_negative * 4 >= s.n
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers around a mean, as evenly spread as a norm's.
    fn stats(mean: f32, spread: f32) -> Stats {
        let floats: Vec<f32> = (-50..=50).map(|i| mean + spread * i as f32 / 25.0).collect();
        let mut s = Stats::default();
        s.add_row(0, &floats);
        s
    }

    #[test]
    fn published_norms_are_told_right_and_wrong_ones_wrong() {
        // Means, whole, of enorm and hnorm and of the head's other norms, with the spread of pocket's.
        let outer =
            [(0.2734, 0.07), (0.4937, 0.1), (0.54, 0.07), (0.84, 0.1), (0.904, 0.072), (0.766, 0.11), (1.02, 0.24)];
        let heads =
            [(1.785, 0.2), (1.73, 0.2), (1.579, 0.317), (1.599, 0.169), (1.341, 0.194), (1.252, 0.268), (1.139, 0.184)];
        let block = [(0.87, 0.1), (1.04, 0.1), (1.39, 0.1), (1.426, 0.082), (1.026, 0.059), (0.954, 0.267)];
        for (pair, means) in [(&OF_HEAD[0], &outer[..]), (&OF_HEAD[1], &heads), (&OF_HEAD[2], &block)] {
            for (mean, spread) in means {
                let shift = |by: f32| pair.shift(&stats(mean + by, *spread));
                let found = [shift(-1.0), shift(0.0), shift(1.0)];
                assert_eq!(found, [Shift::Missing, Shift::Once, Shift::Twice], "{:?}: {mean}", pair.parts);
            }
        }
    }
}
