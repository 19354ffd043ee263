//! Texts of made-up tokens on machines of made-up speed: lookup in them is real, the other source's drafts are right by chance.

use std::time::Duration;

use text::TokenId;

use super::*;
use crate::ngram::Ngram;

const MAX: usize = 6;

/// Seconds of a step: those of the pass, and those of drafting.
#[derive(Clone, Copy, Debug)]
struct Machine {
    name: &'static str,
    /// What a further token costs, as a share of a plain pass.
    token: f64,
    /// What a draft costs, and each token of it.
    draft: (f64, f64),
}

const PLAIN: f64 = 0.02;

/// Where tokens of a batch are cheap, where they are dear, and where they cost as much as alone.
const MACHINES: [Machine; 3] = [
    Machine { name: "cheap", token: 0.07, draft: (0.03, 0.04) },
    Machine { name: "dear", token: 0.35, draft: (0.05, 0.08) },
    Machine { name: "bound", token: 1.0, draft: (0.05, 0.1) },
];

impl Machine {
    fn pass(self, n: usize, d: usize) -> f64 {
        PLAIN * (1.0 + self.token * ((n * (1 + d)) as f64 - 1.0))
    }

    fn drafting(self, d: usize) -> f64 {
        if d == 0 { 0.0 } else { PLAIN * (self.draft.0 + self.draft.1 * d as f64) }
    }
}

#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as f64 / (1u64 << 31) as f64
    }

    fn below(&mut self, n: usize) -> usize {
        ((self.next() * n as f64) as usize).min(n - 1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing is said twice but by chance, which is often: few words, and some are frequent.
    New,
    /// Sixty tokens of the prompt, then twenty that are new, again and again.
    Quoting,
    /// A list of the same lines, which differ in every eighth token.
    Lists,
}

/// A prompt of 300 tokens, and what is generated after it.
fn text(kind: Kind, n: usize, seed: u64) -> Vec<TokenId> {
    let mut random = Random(seed);
    let mut word = || TokenId((120.0 * random.next().powi(3)) as u32);
    let mut tokens: Vec<TokenId> = (0..300).map(|_| word()).collect();
    let line: Vec<TokenId> = (0..16).map(|_| word()).collect();
    let mut places = Random(seed + 1);
    while tokens.len() < 300 + n {
        match kind {
            Kind::New => tokens.push(word()),
            Kind::Quoting => {
                tokens.extend((0..20).map(|_| word()));
                let from = places.below(240);
                tokens.extend_from_within(from..from + 60);
            }
            Kind::Lists => tokens.extend((0..16).map(|i| if i % 8 == 7 { word() } else { line[i] })),
        }
    }
    tokens
}

/// Who drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drafts {
    Plain,
    Head,
    Both,
    Lookup,
}

/// Tokens a second of generating these texts side by side, as a multiple of plain decoding's, where a head's drafts are right
/// with chance `a`; and the share of steps that held looked-up drafts. After a warm-up if there is a head, like an engine's.
fn run(machine: Machine, texts: &[Vec<TokenId>], a: f64, drafts: Drafts, seed: u64) -> (f64, f64) {
    let n = texts.len();
    let mut random = Random(seed);
    let slots: Vec<usize> = (0..n).collect();
    let mut head = DepthControl::new(n, MAX);
    let with_head = matches!(drafts, Drafts::Head | Drafts::Both);
    let mut choice = LookupChoice::new(Lengths::Measured, MAX, with_head.then_some((n, MAX)));
    let mut ngram = Ngram::with_max(n, 1 << 14, Depth::Auto, MAX);
    let seconds = |s: f64| Duration::from_secs_f64(s);
    if with_head {
        for _ in 0..head.n_warm_up_steps() {
            let d = head.choose_unknown(&slots, MAX);
            let (pass, drafting) = (machine.pass(n, d), machine.drafting(d));
            head.took(n, d, seconds(pass + drafting));
            choice.took((n, d), seconds(pass + drafting), seconds(drafting), false);
        }
    }
    slots.iter().for_each(|&i| ngram.begin(i, &texts[i][..300]));
    let mut at = vec![300; n];
    let (mut time, mut n_tokens, mut n_steps, mut n_looked_up) = (0.0, 0, 0, 0);
    while slots.iter().all(|&i| at[i] + MAX + 1 < texts[i].len()) {
        let lookup = matches!(drafts, Drafts::Both | Drafts::Lookup);
        let found: Vec<_> =
            slots.iter().map(|&i| if lookup { ngram.find(i, MAX) } else { Default::default() }).collect();
        let candidates: Vec<_> = found
            .iter()
            .enumerate()
            .map(|(slot, found)| Candidate { slot, most: MAX, expected: found.expected.clone() })
            .collect();
        let mut by = choice.choose(&candidates);
        let depth = if with_head && by.contains(&By::Other) { head.choose(&slots, MAX) } else { 0 };
        let mut exchanged = vec![0; n];
        for &i in &slots {
            if n > 1 && by[i] == By::Other && choice.is_better(&candidates[i], depth) {
                (by[i], exchanged[i]) = (By::Lookup(depth), depth);
            }
        }
        let looked_up = |i: usize| matches!(by[i], By::Lookup(1..));
        let n_drafted = |i: usize| match by[i] {
            By::Lookup(d) => d,
            By::Other => depth,
        };
        let deepest = slots.iter().map(|&i| n_drafted(i)).max().unwrap_or(0);
        let alike = slots.iter().all(|&i| n_drafted(i) == deepest);
        let drafting = machine.drafting(depth);
        let took = (machine.pass(n, deepest) + drafting) * (1.0 + 0.1 * (random.next() - 0.5));
        for &i in &slots {
            let rest = &texts[i][at[i]..];
            let d = n_drafted(i);
            let n_accepted = match by[i] {
                By::Lookup(d) => found[i].tokens[..d].iter().zip(rest).take_while(|(x, y)| x == y).count(),
                By::Other => (0..d).take_while(|_| random.next() < a).count(),
            };
            if looked_up(i) {
                // What came shows of the head's draft no more than this.
                let n = exchanged[i].min(n_accepted + 1);
                let n_right = (0..n).take_while(|_| random.next() < a).count();
                choice.verified(i, n, n_right);
            } else {
                choice.verified(i, d, n_accepted);
                head.verified(i, d, n_accepted);
            }
            ngram.extend(i, &rest[..1 + n_accepted], None);
            at[i] += 1 + n_accepted;
            n_tokens += 1 + n_accepted;
        }
        let any = slots.iter().any(|&i| looked_up(i));
        if alike {
            choice.took((n, deepest), seconds(took), seconds(drafting), any);
        }
        if alike && !any {
            head.took(n, deepest, seconds(took));
        }
        time += took;
        n_steps += 1;
        n_looked_up += usize::from(any);
    }
    (n_tokens as f64 / time * machine.pass(n, 0) / n as f64, n_looked_up as f64 / n_steps as f64)
}

/// The mean of several texts, one or more at a time.
fn mean(machine: Machine, kind: Kind, n_seqs: usize, n: usize, a: f64, drafts: Drafts) -> (f64, f64) {
    const N: u64 = 10;
    let (mut speed, mut share) = (0.0, 0.0);
    for seed in 0..N {
        let texts: Vec<_> = (0..n_seqs as u64).map(|i| text(kind, n, 31 + 101 * seed + 7 * i)).collect();
        let of = run(machine, &texts, a, drafts, 5 + seed);
        (speed, share) = (speed + of.0 / N as f64, share + of.1 / N as f64);
    }
    (speed, share)
}

#[test]
fn beside_a_head_it_never_costs_and_gains_where_the_text_repeats() {
    for machine in MACHINES {
        for n_seqs in [1, 4] {
            for kind in [Kind::New, Kind::Quoting, Kind::Lists] {
                for a in [0.1, 0.5, 0.8, 0.95] {
                    let of = |drafts| mean(machine, kind, n_seqs, 1000, a, drafts);
                    let ((plain, _), (head, _), (both, share)) =
                        (of(Drafts::Plain), of(Drafts::Head), of(Drafts::Both));
                    let what = format!("{}, {kind:?}, {n_seqs} sequences, acceptance {a}", machine.name);
                    println!("{what}: plain {plain:.2}, head {head:.2}, both {both:.2}, lookup in {share:.2} of steps");
                    assert!(both > 0.985 * head, "{what}: {both}, the head alone {head}");
                    assert!(both > 0.98 * plain, "{what}: {both}, plain {plain}");
                    let gains = kind == Kind::Quoting && n_seqs == 1 && machine.name == "cheap";
                    assert!(!gains || both > 1.1 * head && both > 2.0, "{what}: {both}, the head alone {head}");
                }
            }
        }
    }
}

#[test]
fn alone_it_never_costs_and_gains_where_the_text_repeats() {
    for machine in MACHINES {
        for n_seqs in [1, 4] {
            for kind in [Kind::New, Kind::Quoting, Kind::Lists] {
                for n in [64, 1000] {
                    let (plain, _) = mean(machine, kind, n_seqs, n, 0.0, Drafts::Plain);
                    let (lookup, share) = mean(machine, kind, n_seqs, n, 0.0, Drafts::Lookup);
                    let what = format!("{}, {kind:?}, {n_seqs} sequences, {n} tokens", machine.name);
                    println!("{what}: plain {plain:.2}, lookup {lookup:.2}, in {share:.2} of steps");
                    assert!(lookup > 0.98 * plain, "{what}: {lookup}, plain {plain}");
                    let gains = kind == Kind::Quoting && n_seqs == 1 && machine.name == "cheap";
                    assert!(!gains || lookup > 1.9, "{what}: {lookup}, plain {plain}");
                }
            }
        }
    }
}

fn candidate(slot: usize, expected: &[f64]) -> Candidate {
    Candidate { slot, most: MAX, expected: expected.to_vec() }
}

/// Steps of one sequence with up to three draft tokens, 20 % for each and 10 % for making it.
fn measured(other: Option<(usize, usize)>) -> LookupChoice {
    let mut choice = LookupChoice::new(Lengths::Measured, MAX, other);
    for d in (0..=3).flat_map(|d| [d; 3]) {
        let drafting = 1000 * d as u64;
        let took = Duration::from_micros(10_000 + 2000 * d as u64 + drafting);
        choice.took((1, d), took, Duration::from_micros(drafting), false);
    }
    choice
}

#[test]
fn a_draft_that_is_looked_up_saves_the_time_of_drafting_and_no_more() {
    let mut choice = measured(Some((1, MAX)));
    (0..200).for_each(|i| choice.verified(0, 3, if i % 4 == 0 { 1 } else { 3 }));
    choice.allowance = 0.0;
    let of_other = choice.other_tokens(0, 3);
    let like = |share: f64| candidate(0, &[1.0, 1.0 + 0.9 * share, 1.0 + 1.7 * share, 1.0 + (of_other - 1.0) * share]);
    assert_eq!(choice.choose(&[like(1.0)]), [By::Lookup(3)], "as good, and nothing to compute for it");
    assert_eq!(choice.choose(&[like(0.6)]), [By::Other]);
    assert_eq!(choice.choose(&[candidate(0, &[])]), [By::Other]);
}

#[test]
fn lengths_go_no_further_than_one_token_beyond_what_was_measured() {
    let mut choice = measured(None);
    let sure: Vec<f64> = (0..=MAX).map(|n| 1.0 + n as f64).collect();
    assert_eq!(choice.choose(&[candidate(0, &sure)]), [By::Lookup(4)]);
    assert_eq!(choice.choose(&[candidate(0, &sure[..=2])]), [By::Lookup(2)]);
    assert_eq!(choice.choose(&[candidate(0, &[1.0, 1.05, 1.06])]), [By::Other], "not worth their verification");
    let mut new = LookupChoice::new(Lengths::Measured, MAX, None);
    assert_eq!(new.choose(&[candidate(0, &sure)]), [By::Other], "plain steps were not measured yet");
    (0..3).for_each(|_| new.took((1, 0), Duration::from_millis(10), Duration::ZERO, false));
    assert_eq!(new.choose(&[candidate(0, &sure)]), [By::Lookup(1)]);
    assert_eq!(new.choose(&[candidate(0, &[1.0, 1.5])]), [By::Other], "what a token costs is a guess");
}

#[test]
fn graphs_that_are_not_there_yet_must_be_worth_it() {
    let choose = |built: bool| {
        let mut choice = measured(None);
        if built {
            choice.built((0, 1, 3), Some(Built { n_graphs: 1, took: Duration::from_millis(60) }));
        }
        choice.choose(&[candidate(0, &[1.0, 1.4])])
    };
    assert_eq!((choose(false), choose(true)), (vec![By::Lookup(1)], vec![By::Other]));
}

#[test]
fn where_lookup_drafts_for_long_the_other_source_is_looked_at() {
    let mut choice = measured(Some((1, MAX)));
    (0..50).for_each(|_| choice.verified(0, 3, 0));
    let sure: Vec<f64> = (0..=3).map(|n| 1.0 + 0.95 * n as f64).collect();
    let mut n_other = 0;
    for _ in 0..1000 {
        n_other += usize::from(choice.choose(&[candidate(0, &sure)]) == [By::Other]);
        choice.took((1, 3), Duration::from_millis(16), Duration::ZERO, true);
    }
    assert!((3..40).contains(&n_other), "{n_other} of 1000 steps");
}

#[test]
fn with_a_given_length_the_draft_of_which_more_is_expected_is_taken() {
    let mut choice = LookupChoice::new(Lengths::Given, 3, Some((2, 3)));
    (0..100).for_each(|_| choice.verified(0, 3, 3));
    (0..100).for_each(|_| choice.verified(1, 3, 0));
    let expected = [1.0, 1.7, 2.2, 2.6];
    assert_eq!(choice.choose(&[candidate(0, &expected), candidate(1, &expected)]), [By::Other, By::Lookup(3)]);
    assert!(choice.is_better(&candidate(1, &expected), 2) && !choice.is_better(&candidate(0, &expected), 2));
    let mut alone = LookupChoice::new(Lengths::Given, 3, None);
    assert_eq!(alone.choose(&[candidate(0, &expected), candidate(1, &[1.0, 1.2, 1.3])]), [By::Lookup(3), By::Other]);
}
