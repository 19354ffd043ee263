//! Each stage on values worked out by hand from its formula.

use engine::sample::{Mirostat, SampleError, Sampler, SamplingParams, Stage, logprobs};
use text::TokenId;

/// Tokens 0 to 9 are the bytes below; the default breakers ":" and "\n" are 8 and 9.
fn bytes_of(TokenId(id): TokenId, out: &mut Vec<u8>) {
    out.push(b"abcdefgh:\n"[id as usize]);
}

fn only(stage: Stage) -> SamplingParams {
    SamplingParams { stages: vec![stage], seed: Some(7), ..SamplingParams::default() }
}

fn sampler(params: &SamplingParams, logits: &[f32], history: &[u32]) -> Sampler {
    let mut sampler = Sampler::new(params, logits.len(), &bytes_of).unwrap();
    sampler.prime(&ids(history));
    sampler
}

fn ids(tokens: &[u32]) -> Vec<TokenId> {
    tokens.iter().map(|&t| TokenId(t)).collect()
}

/// The tokens that remain, likeliest first.
fn kept(params: &SamplingParams, logits: &[f32]) -> Vec<u32> {
    sampler(params, logits, &[]).distribution(logits).iter().map(|c| c.id.0).collect()
}

/// By how much the sampler lowers each logit, taking the last one as unchanged.
fn lowered(params: &SamplingParams, logits: &[f32], history: &[u32]) -> Vec<f32> {
    let mut sampler = sampler(params, logits, history);
    let mut by_id = sampler.distribution(logits).to_vec();
    by_id.sort_by_key(|c| c.id);
    assert_eq!(by_id.len(), logits.len());
    let last = by_id.len() - 1;
    let logit = |i: usize| (by_id[i].p / by_id[last].p).ln() + logits[last];
    // Two roundings to f32 of probabilities: 1e-6 is far above the error and far below any penalty here.
    (0..logits.len()).map(|i| ((logits[i] - logit(i)) * 1e5).round() / 1e5).collect()
}

fn ln(p: &[f32]) -> Vec<f32> {
    p.iter().map(|p| p.ln()).collect()
}

#[test]
fn penalties_follow_the_formula_within_their_window() {
    let params = SamplingParams {
        repeat_penalty: 1.25,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        ..only(Stage::Penalties)
    };
    // Token 0, twice: 2 - (2 / 1.25 - 2 * 0.5 - 0.25) = 1.65. Token 1, once: -1 - (-1 * 1.25 - 0.5 - 0.25) = 1.
    assert_eq!(lowered(&params, &[2.0, -1.0, 3.0], &[0, 1, 0]), [1.65, 1.0, 0.0]);
    // With a window of 2 token 0 counts once: 2 - (1.6 - 0.5 - 0.25).
    let params = SamplingParams { penalty_last_n: 2, ..params };
    assert_eq!(lowered(&params, &[2.0, -1.0, 3.0], &[0, 1, 0]), [1.15, 1.0, 0.0]);
    let params = SamplingParams { penalty_last_n: 0, ..params };
    assert_eq!(lowered(&params, &[2.0, -1.0, 3.0], &[0, 1, 0]), [0.0, 0.0, 0.0]);
}

#[test]
fn dry_penalises_what_would_continue_a_repetition() {
    let params = SamplingParams { dry_multiplier: 0.8, ..only(Stage::Dry) };
    let flat = [1.0; 10];
    // "ab" came before c: a run of 2 is the first to count, 0.8 * 1.75^0.
    assert_eq!(lowered(&params, &flat, &[0, 1, 2, 0, 1])[..4], [0.0, 0.0, 0.8, 0.0]);
    // "abc" before d: 0.8 * 1.75^1. "bc" is part of the same place.
    assert_eq!(lowered(&params, &flat, &[0, 1, 2, 3, 0, 1, 2])[..4], [0.0, 0.0, 0.0, 1.4]);
    // A run of 1 is free, and so is a place outside the window.
    assert_eq!(lowered(&params, &flat, &[1, 2, 0, 1]), [0.0; 10]);
    let short = SamplingParams { dry_penalty_last_n: 4, ..params.clone() };
    assert_eq!(lowered(&short, &flat, &[0, 1, 2, 0, 1]), [0.0; 10]);
}

#[test]
fn dry_does_not_reach_across_breakers_or_penalise_them() {
    let params = SamplingParams { dry_multiplier: 0.8, ..only(Stage::Dry) };
    let flat = [1.0; 10];
    // "a:b c" again: only "b" follows the break, too short.
    assert_eq!(lowered(&params, &flat, &[0, 8, 1, 2, 0, 8, 1]), [0.0; 10]);
    // "ab:" again: the break itself stays free.
    assert_eq!(lowered(&params, &flat, &[0, 1, 8, 2, 0, 1]), [0.0; 10]);
    // "gh" as one breaker, made of two tokens.
    let params = SamplingParams { dry_sequence_breakers: vec!["gh".into()], ..params };
    assert_eq!(lowered(&params, &flat, &[0, 6, 7, 1, 2, 0, 6, 7, 1]), [0.0; 10]);
    assert_eq!(lowered(&params, &flat, &[0, 8, 1, 2, 0, 8, 1])[2], 1.4);
}

#[test]
fn temperature_divides_and_its_dynamic_form_follows_the_entropy() {
    let ratio = |params: &SamplingParams, p: &[f32]| {
        let logits = ln(p);
        let mut sampler = sampler(params, &logits, &[]);
        let d = sampler.distribution(&logits);
        (d[0].p / d[1].p).ln()
    };
    let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-4, "{a} != {b}");
    let params = SamplingParams { temperature: 0.5, ..only(Stage::Temperature) };
    near(ratio(&params, &[0.75, 0.25]), 3.0_f32.ln() * 2.0);
    // H(3/4, 1/4) / ln 2 = 0.811278; from 0.5 to 1.5 that is 1.311278, squared 0.5 + 0.658172.
    let params = SamplingParams { temperature: 1.0, dynatemp_range: 0.5, ..params };
    near(ratio(&params, &[0.75, 0.25]), 3.0_f32.ln() / 1.311_278);
    let params = SamplingParams { dynatemp_exponent: 2.0, ..params };
    near(ratio(&params, &[0.75, 0.25]), 3.0_f32.ln() / 1.158_172);
}

#[test]
fn top_n_sigma_cuts_by_standard_deviations() {
    // Mean 1, deviation sqrt 5 = 2.236: one below 4 is 1.764, half of one 2.882.
    let logits = [0.0, 4.0, -2.0, 2.0];
    assert_eq!(kept(&SamplingParams { top_n_sigma: 1.0, ..only(Stage::TopNSigma) }, &logits), [1, 3]);
    assert_eq!(kept(&SamplingParams { top_n_sigma: 0.5, ..only(Stage::TopNSigma) }, &logits), [1]);
    assert_eq!(kept(&SamplingParams { top_n_sigma: 0.0, ..only(Stage::TopNSigma) }, &logits), [1, 3, 0, 2]);
    // Masked tokens count neither for the mean nor the deviation.
    let masked = [0.0, 4.0, -2.0, 2.0, f32::NEG_INFINITY];
    assert_eq!(kept(&SamplingParams { top_n_sigma: 1.0, ..only(Stage::TopNSigma) }, &masked), [1, 3]);
}

#[test]
fn top_k_top_p_and_min_p_cut_where_they_say() {
    let logits = ln(&[0.2, 0.5, 0.3]);
    assert_eq!(kept(&SamplingParams { top_k: 2, ..only(Stage::TopK) }, &logits), [1, 2]);
    assert_eq!(kept(&SamplingParams { top_k: 2, ..only(Stage::TopK) }, &[1.0, 1.0, 1.0]), [0, 1]);
    for (p, want) in [(0.0, &[1][..]), (0.45, &[1]), (0.6, &[1, 2]), (0.85, &[1, 2, 0]), (1.0, &[1, 2, 0])] {
        assert_eq!(kept(&SamplingParams { top_p: p, ..only(Stage::TopP) }, &logits), want, "top_p {p}");
    }
    for (p, want) in [(1.0, &[1][..]), (0.7, &[1]), (0.5, &[1, 2]), (0.3, &[1, 2, 0]), (0.0, &[1, 2, 0])] {
        assert_eq!(kept(&SamplingParams { min_p: p, ..only(Stage::MinP) }, &logits), want, "min_p {p}");
    }
    let at_least_two = SamplingParams { min_keep: 2, top_p: 0.1, ..only(Stage::TopP) };
    assert_eq!(kept(&at_least_two, &logits), [1, 2]);
    let at_least_two = SamplingParams { min_keep: 2, min_p: 1.0, ..only(Stage::MinP) };
    assert_eq!(kept(&at_least_two, &logits), [1, 2]);
}

#[test]
fn typical_prefers_the_surprise_near_the_entropy() {
    // Entropy 0.898; surprises 0.511, 1.204, 2.303; distances 0.387, 0.306, 1.405: token 1 first.
    let logits = ln(&[0.6, 0.3, 0.1]);
    for (p, want) in [(0.25, &[1][..]), (0.5, &[0, 1]), (0.95, &[0, 1, 2])] {
        assert_eq!(kept(&SamplingParams { typical_p: p, ..only(Stage::Typical) }, &logits), want, "typical_p {p}");
    }
}

#[test]
fn xtc_keeps_the_least_likely_of_the_top_ones() {
    let logits = ln(&[0.1, 0.4, 0.2, 0.3]);
    let params = SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.15, ..only(Stage::Xtc) };
    assert_eq!(kept(&params, &logits), [2, 0]);
    assert_eq!(kept(&SamplingParams { xtc_threshold: 0.35, ..params.clone() }, &logits), [1, 3, 2, 0]);
    assert_eq!(kept(&SamplingParams { xtc_threshold: 0.0, ..params.clone() }, &logits), [0]);
    assert_eq!(kept(&SamplingParams { xtc_threshold: 0.6, ..params.clone() }, &logits), [1, 3, 2, 0]);
    assert_eq!(kept(&SamplingParams { min_keep: 3, ..params.clone() }, &logits), [1, 3, 2, 0]);
    // It acts about as often as it is told to.
    let mut sampler = sampler(&SamplingParams { xtc_probability: 0.25, ..params }, &logits, &[]);
    let mut acted = || {
        let n_left = sampler.distribution(&logits).len();
        sampler.sample(&logits);
        n_left == 2
    };
    let n_acted = (0..2000).filter(|_| acted()).count();
    // Binomial with standard deviation 19.4.
    assert!((440..560).contains(&n_acted), "{n_acted} of 2000");
}

#[test]
fn the_order_of_stages_matters() {
    let logits = ln(&[0.5, 0.3, 0.2]);
    let params = SamplingParams { temperature: 0.5, top_p: 0.6, ..SamplingParams::default() };
    // Sharpened first, token 0 has 0.25 / 0.38 = 0.658.
    let first = SamplingParams { stages: vec![Stage::Temperature, Stage::TopP], ..params.clone() };
    assert_eq!(kept(&first, &logits), [0]);
    let last = SamplingParams { stages: vec![Stage::TopP, Stage::Temperature], ..params };
    assert_eq!(kept(&last, &logits), [0, 1]);
}

#[test]
fn mirostat_2_cuts_at_its_bound_and_moves_it_by_the_error() {
    let logits = ln(&[0.5, 0.25, 0.125, 0.125]);
    let params = SamplingParams {
        mirostat: Mirostat::V2,
        mirostat_tau: 1.1,
        mirostat_eta: 2.0,
        temperature: 1.0,
        ..SamplingParams::default()
    };
    let mut sampler = sampler(&params, &logits, &[]);
    let n_kept = |s: &mut Sampler| s.distribution(&logits).len();
    // Surprises 1, 2, 3, 3 bits; the bound starts at 2.2.
    assert_eq!(n_kept(&mut sampler), 2);
    // A fork remembers the distribution that it has yet to accept from. Token 1 has 1/3 of what is left, 1.585 bits:
    // 2.2 - 2 * 0.485 = 1.23.
    let mut fork = sampler.clone();
    fork.accept(TokenId(1));
    assert_eq!(n_kept(&mut fork), 1);
    // Token 0 has 2/3, 0.585 bits: 2.2 + 2 * 0.515 = 3.23. A second accept has no distribution to judge by.
    fork.clone_from(&sampler);
    fork.accept(TokenId(0));
    fork.accept(TokenId(1));
    assert_eq!(n_kept(&mut fork), 4);
    // Token 3 was not to be had, and the bound stays.
    sampler.accept(TokenId(3));
    assert_eq!(n_kept(&mut sampler), 2);
}

#[test]
fn mirostat_1_cuts_at_the_rank_of_its_bound() {
    // Zipf with s = 2 over 10 tokens, bound 2 * 1.5 bits: (1 * 8 / (1 - 1/10))^(1/2) = 2.98.
    let logits: Vec<f32> = (1..=10).map(|i| -2.0 * (i as f32).ln()).collect();
    let params =
        SamplingParams { mirostat: Mirostat::V1, mirostat_tau: 1.5, temperature: 1.0, ..SamplingParams::default() };
    assert_eq!(kept(&params, &logits), [0, 1]);
    // 2 * 1.6 bits: (9.19 / 0.9)^(1/2) = 3.195.
    assert_eq!(kept(&SamplingParams { mirostat_tau: 1.6, ..params }, &logits), [0, 1, 2]);
}

#[test]
fn a_bias_comes_first_adds_up_and_can_ban() {
    let logits = [3.0, 2.0, 1.0];
    let bias = |list: &[(u32, f32)]| SamplingParams {
        logit_bias: list.iter().map(|&(id, b)| (TokenId(id), b)).collect(),
        ..SamplingParams::greedy()
    };
    assert_eq!(kept(&bias(&[]), &logits), [0]);
    assert_eq!(kept(&bias(&[(2, 1.5), (2, 1.0)]), &logits), [2]);
    assert_eq!(kept(&bias(&[(0, f32::NEG_INFINITY)]), &logits), [1]);
    assert!(sampler(&bias(&[(2, 0.0)]), &logits, &[]).is_greedy());
    assert!(!sampler(&bias(&[(2, 0.1)]), &logits, &[]).is_greedy());
}

#[test]
fn log_probabilities_are_of_the_raw_logits_over_the_whole_row() {
    let mut logits = ln(&[0.125, 0.5, 0.25, 0.125]);
    logits.iter_mut().for_each(|x| *x += 50.0);
    logits.push(f32::NAN);
    let got = logprobs(&logits, TokenId(2), 3);
    let near = |a: f32, p: f32| assert!((a - p.ln()).abs() < 1e-5, "{a} != ln {p}");
    near(got.logprob, 0.25);
    assert_eq!(got.top.iter().map(|t| t.0.0).collect::<Vec<_>>(), [1, 2, 0]);
    got.top.iter().zip([0.5, 0.25, 0.125]).for_each(|(t, p)| near(t.1, p));
    assert_eq!(logprobs(&logits, TokenId(4), 9).logprob, f32::NEG_INFINITY);
    assert_eq!(logprobs(&logits, TokenId(4), usize::MAX).top.len(), 4);
    assert_eq!(logprobs(&[], TokenId(4), 2).top, []);
    assert_eq!(logprobs(&[f32::NEG_INFINITY], TokenId(0), 2).logprob, f32::NEG_INFINITY);
}

#[test]
fn stages_are_named_as_in_llama_cpp() {
    for stage in Stage::DEFAULT_ORDER {
        assert_eq!(stage.to_string().parse(), Ok(stage));
    }
    for (name, stage) in
        [("Top-K", Stage::TopK), ("minp", Stage::MinP), ("typ", Stage::Typical), ("temp", Stage::Temperature)]
    {
        assert_eq!(name.parse(), Ok(stage));
    }
    let error = "infill".parse::<Stage>().unwrap_err();
    assert_eq!(error, SampleError::UnknownStage { name: "infill".into() });
    assert!(error.to_string().contains("top_n_sigma") && error.to_string().contains("\"infill\""));
    assert!("x".repeat(1000).parse::<Stage>().unwrap_err().to_string().len() < 300);
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    type Set = fn(&mut SamplingParams, f32);
    let numbers: [(&str, Set, &[f32]); 16] = [
        ("temperature", |p, x| p.temperature = x, &[]),
        ("dynatemp_range", |p, x| p.dynatemp_range = x, &[-0.1]),
        ("dynatemp_exponent", |p, x| p.dynatemp_exponent = x, &[-0.1]),
        ("top_p", |p, x| p.top_p = x, &[-0.1, 1.1]),
        ("min_p", |p, x| p.min_p = x, &[-0.1, 1.1]),
        ("typical_p", |p, x| p.typical_p = x, &[-0.1, 1.1]),
        ("top_n_sigma", |p, x| p.top_n_sigma = x, &[]),
        ("xtc_probability", |p, x| p.xtc_probability = x, &[-0.1, 1.1]),
        ("xtc_threshold", |p, x| p.xtc_threshold = x, &[-0.1, 1.1]),
        ("repeat_penalty", |p, x| p.repeat_penalty = x, &[-1.0, 0.0, 1e-40]),
        ("presence_penalty", |p, x| p.presence_penalty = x, &[]),
        ("frequency_penalty", |p, x| p.frequency_penalty = x, &[]),
        ("dry_multiplier", |p, x| p.dry_multiplier = x, &[-0.1]),
        ("dry_base", |p, x| p.dry_base = x, &[-0.1]),
        ("mirostat_tau", |p, x| p.mirostat_tau = x, &[-0.1]),
        ("mirostat_eta", |p, x| p.mirostat_eta = x, &[-0.1]),
    ];
    for (name, set, bad) in numbers {
        for &x in bad.iter().chain(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]) {
            let mut params = SamplingParams::default();
            set(&mut params, x);
            let error = params.validate(100).expect_err(name).to_string();
            assert!(error.starts_with(&format!("{name}: ")) && error.contains("found"), "{name} = {x}: {error}");
        }
    }
    let refused = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        change(&mut params);
        params.validate(100).unwrap_err().to_string()
    };
    assert_eq!(refused(|p| p.penalty_last_n = -2), "penalty_last_n: -1 (all), 0 (off) or a count expected, -2 found");
    assert_eq!(
        refused(|p| p.logit_bias = vec![(TokenId(100), 1.0)]),
        "logit_bias: token ids below 100 expected, 100 found"
    );
    assert!(refused(|p| p.logit_bias = vec![(TokenId(1), f32::NAN)]).starts_with("logit_bias: "));
    assert_eq!(refused(|p| p.stages = vec![Stage::TopK; 33]), "samplers: at most 32 entries expected, 33 found");
    let breakers = refused(|p| p.dry_sequence_breakers = vec!["a".into(), "b".repeat(41)]);
    assert_eq!(breakers, "dry_sequence_breakers[1]: 1 to 40 bytes expected, 41 found");
    assert!(refused(|p| p.dry_sequence_breakers = vec![String::new()]).contains("0 found"));
    assert!(refused(|p| p.dry_sequence_breakers = vec!["a".into(); 65]).contains("65 found"));
    assert_eq!(SamplingParams::default().validate(100), Ok(()));
    assert_eq!(SamplingParams::greedy().validate(0), Err(SampleError::VocabularySize { n_vocab: 0 }));
}
