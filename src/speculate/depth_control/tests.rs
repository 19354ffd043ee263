//! The choice of depths on made-up machines and texts.

use super::*;
use crate::chances::{FIRST_CHANCE, NEXT_CHANCE};

/// A machine with made-up costs, and a text with made-up acceptance.
struct World {
    control: DepthControl,
    state: u64,
    time: f64,
    tokens: f64,
}

impl World {
    fn new(max: usize) -> Self {
        Self { control: DepthControl::new(4, max), state: 12345, time: 0.0, tokens: 0.0 }
    }

    fn random(&mut self) -> f64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as f64 / (1u64 << 31) as f64
    }

    /// `n` steps of `n_seqs` sequences; `cost(n)` are the seconds of a step with so many tokens of a sequence, with noise.
    fn run(&mut self, n: usize, n_seqs: usize, a: f64, cost: impl Fn(usize) -> f64, noise: f64) {
        let slots: Vec<usize> = (0..n_seqs).collect();
        for _ in 0..n {
            let d = self.control.choose(&slots, usize::MAX);
            self.run_at(d, n_seqs, a, cost(1 + d), noise);
        }
    }

    /// A step with `d` draft tokens that takes so many seconds, with noise.
    fn run_at(&mut self, d: usize, n_seqs: usize, a: f64, seconds: f64, noise: f64) {
        for slot in 0..n_seqs {
            let n_accepted = (0..d).take_while(|_| self.random() < a).count();
            self.control.verified(slot, d, n_accepted);
            self.tokens += (1 + n_accepted) as f64;
        }
        let took = seconds * (1.0 + noise * (self.random() - 0.5));
        self.control.took(n_seqs, d, Duration::from_secs_f64(took));
        self.time += took;
    }

    /// Time a token from here on, as a share of plain decoding's.
    fn measure(&mut self, n: usize, n_seqs: usize, a: f64, cost: impl Fn(usize) -> f64, noise: f64) -> f64 {
        (self.time, self.tokens) = (0.0, 0.0);
        self.run(n, n_seqs, a, &cost, noise);
        self.time / self.tokens * n_seqs as f64 / cost(1)
    }
}

fn linear(first: f64, row: f64) -> impl Fn(usize) -> f64 {
    move |rows| first * (1.0 + row * (rows as f64 - 1.0))
}

#[test]
fn a_better_head_is_drafted_by_at_once_however_bad_the_one_before_was() {
    let mut world = World::new(6);
    world.run(200, 1, 0.05, linear(0.01, 0.11), 0.1);
    assert_eq!(world.control.choose(&[0], usize::MAX), 0, "drafts do not pay");
    let mut head = Chances::new(4, 6);
    (0..8).for_each(|_| head.verified(0, 3, 3));
    world.control.follow(0, &head);
    assert!(world.control.choose(&[0], usize::MAX) > 0);
}

#[test]
fn cheap_tokens_and_good_drafts_go_deep_at_once() {
    let ratio = World::new(6).measure(60, 1, 0.8, linear(0.01, 0.11), 0.1);
    assert!(ratio < 0.55, "{ratio}");
}

#[test]
fn dear_tokens_or_bad_drafts_cost_little_from_the_first_token_on() {
    for (a, row) in [(0.3, 0.4), (0.8, 1.2), (0.5, 0.6), (0.05, 0.2), (0.0, 1.0)] {
        let mut world = World::new(6);
        let soon = world.measure(128, 1, a, linear(0.001, row), 0.1);
        assert!(soon < 1.05, "acceptance {a}, row {row}: {soon}");
        let later = world.measure(4000, 1, a, linear(0.001, row), 0.1);
        assert!(later < 1.02, "acceptance {a}, row {row}: {later}");
    }
}

#[test]
fn after_64_tokens_the_time_is_that_of_the_best_depth() {
    let mut worst: (f64, String) = (0.0, String::new());
    for a in [0.2, 0.4, 0.6, 0.8, 0.95] {
        for row in [0.04, 0.12, 0.25, 0.5] {
            for n_seqs in [1, 4] {
                let cost = linear(0.01, row);
                let rate = |d: usize| (0..=d).map(|i| f64::powi(a, i as i32)).sum::<f64>() / cost(1 + d);
                let best = (0..=6).map(rate).fold(0.0, f64::max);
                let mut world = World::new(6);
                for _ in 0..world.control.n_warm_up_steps() {
                    let d = world.control.choose_unknown(&(0..n_seqs).collect::<Vec<_>>(), 6);
                    world.control.took(n_seqs, d, Duration::from_secs_f64(cost(1 + d)));
                }
                world.run(64, n_seqs, a, linear(0.01, row), 0.1);
                let time = world.measure(2000, n_seqs, a, linear(0.01, row), 0.1);
                let of_best = time * 0.01 * best;
                if of_best > worst.0 {
                    worst = (of_best, format!("acceptance {a}, row {row}, {n_seqs} sequences"));
                }
            }
        }
    }
    assert!(worst.0 < 1.04, "{worst:?}");
}

#[test]
fn a_text_that_becomes_easy_is_found_again() {
    let mut world = World::new(6);
    world.run(2000, 1, 0.02, linear(0.01, 0.2), 0.1);
    assert_eq!(world.control.choose(&[0], 6), 0);
    world.run(1500, 1, 0.9, linear(0.01, 0.2), 0.1);
    let ratio = world.measure(500, 1, 0.9, linear(0.01, 0.2), 0.1);
    assert!(ratio < 0.6, "{ratio}");
}

#[test]
fn a_cost_that_was_too_high_at_first_is_measured_again_by_tries() {
    // What follows a plain step brings the proposer up to date and is no measure; before graphs were kept a draft took 2.2
    // plain steps, and takes 1.3 since.
    let mut world = World::new(6);
    let (mut last, mut n_drafted) = (0, 0);
    for step in 0..1500 {
        let d = world.control.choose(&[0], 1);
        let slow = if step < 8 { 2.2 } else { 1.3 };
        if d > 0 && last == 0 && step >= 8 {
            world.control.verified(0, d, d);
        } else {
            world.run_at(d, 1, 0.95, 0.01 * if d > 0 { slow } else { 1.0 }, 0.0);
        }
        n_drafted += usize::from(step >= 1000 && d > 0);
        last = d;
    }
    assert!(n_drafted > 450, "{n_drafted} of the last 500 steps drafted");
}

#[test]
fn one_slow_pass_does_not_change_the_choice() {
    let mut world = World::new(4);
    world.run(200, 1, 0.9, linear(0.01, 0.1), 0.0);
    let best = world.control.choose(&[0], 4);
    assert!(best > 0);
    world.control.took(1, best, Duration::from_secs(1));
    assert_eq!(world.control.choose(&[0], 4), best);
}

#[test]
fn depth_falls_as_the_batch_grows() {
    // Compute-bound from the second sequence on: each token more costs a whole one.
    let mut world = World::new(6);
    world.run(300, 1, 0.7, linear(0.01, 0.1), 0.1);
    assert!(world.control.choose(&[0], 6) >= 2);
    let ratio = world.measure(300, 4, 0.7, linear(0.04, 1.0), 0.1);
    assert!(ratio < 1.03, "{ratio}");
}

#[test]
fn after_a_warm_up_the_first_step_is_as_deep_as_the_best() {
    let mut control = DepthControl::new(1, 6);
    for _ in 0..control.n_warm_up_steps() {
        let d = control.choose_unknown(&[0], 6);
        control.took(1, d, Duration::from_secs_f64(linear(0.01, 0.1)(1 + d)));
    }
    assert!((0..=6).all(|d| control.costs.is_known(1, d, control.now)));
    let chance = |i: usize| (0..=i).map(|at| FIRST_CHANCE * NEXT_CHANCE.powi(at as i32)).product::<f64>();
    let rate = |d: usize| (1.0 + (0..d).map(chance).sum::<f64>()) / linear(0.01, 0.1)(1 + d);
    let best = (0..=6).max_by(|&a, &b| rate(a).total_cmp(&rate(b))).unwrap();
    assert_eq!(control.choose(&[0], 6), best);
}

#[test]
fn a_batch_whose_generations_end_one_by_one_drafts_on() {
    // As much for each sequence more as an eighth of the first; a token of a draft less than that.
    let cost = |n: usize, d: usize| Duration::from_secs_f64(0.01 * (1.0 + 0.12 * n as f64 + 0.03 * (n * d) as f64));
    let mut control = DepthControl::new(32, 6);
    for n in [1, 32, 8] {
        for _ in 0..control.n_warm_up_steps() {
            let d = control.choose_unknown(&(0..n).collect::<Vec<_>>(), 6);
            control.took(n, d, cost(n, d));
        }
    }
    assert!(
        control.costs.trusted(32, 3).is_some() && control.costs.trusted(32, 4).is_none(),
        "at most 128 tokens in a warm-up"
    );
    for n in (1..=32).rev() {
        let slots: Vec<usize> = (0..n).collect();
        let d = control.choose(&slots, 6);
        assert!(d >= 2, "{d} drafts for {n} sequences");
        let plain = cost(n, 0).as_secs_f64();
        let (guess, took) = (control.costs.estimate(n, d, plain), cost(n, d).as_secs_f64());
        assert!((guess / took - 1.0).abs() < 0.05, "{n} sequences, {d} drafts: {guess}, took {took}");
    }
}

#[test]
fn where_steps_are_short_a_gain_within_the_margin_is_tried_and_no_more() {
    // A draft of one gives 1.95 tokens for the time of 1.9 and one of two less.
    let mut world = World::new(6);
    let mut n_drafted = 0;
    for _ in 0..4000 {
        let before = world.tokens;
        world.run(1, 1, 0.95, linear(0.0003, 0.9), 0.0);
        n_drafted += usize::from(world.tokens - before > 1.0);
    }
    assert!((1..600).contains(&n_drafted), "{n_drafted} of 4000 steps kept a draft");
}

/// Seconds of a step of `n` sequences with `d` draft tokens each, on machines where tokens of a batch are cheap, where they
/// are dear, and where they are cheap up to six.
fn made_up(machine: usize, n: usize, d: usize) -> f64 {
    let more = (n * (1 + d)) as f64 - 1.0;
    let pass = match machine {
        0 => 1.0 + 0.09 * more,
        1 => 1.0 + 0.35 * more,
        _ => 1.0 + 0.02 * more + 0.25 * (more - 5.0).max(0.0),
    };
    let draft = if d == 0 { 0.0 } else { 0.04 + 0.025 * d as f64 * (1.0 + 0.05 * (n as f64 - 1.0)) };
    0.02 * (pass + draft)
}

/// Expected tokens a second: those of the first 64 tokens of each sequence, and those of the 960 after them.
fn soon_and_later(machine: usize, n: usize, a: f64, rate: impl Fn(usize) -> f64) -> (f64, f64) {
    const N_SEEDS: u64 = 20;
    let (mut soon, mut later) = ((0.0, 0.0), (0.0, 0.0));
    for seed in 0..N_SEEDS {
        let mut world = World { control: DepthControl::new(8, 6), state: 777 + 7919 * seed, ..World::new(6) };
        let slots: Vec<usize> = (0..n).collect();
        while world.tokens < 1024.0 * n as f64 {
            let d = world.control.choose(&slots, usize::MAX);
            let which = if world.tokens < 64.0 * n as f64 { &mut soon } else { &mut later };
            let seconds = made_up(machine, n, d);
            *which = (which.0 + rate(d) * seconds, which.1 + seconds);
            world.run_at(d, n, a, seconds, 0.1);
        }
    }
    (soon.0 / soon.1, later.0 / later.1)
}

#[test]
fn auto_is_soon_as_fast_as_the_best_fixed_length_and_never_much_slower_than_plain_decoding() {
    for machine in 0..3 {
        for n in [1, 2, 4, 8] {
            for a in [0.2_f64, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95] {
                let rate = |d: usize| {
                    let tokens: f64 = (0..=d).map(|i| a.powi(i as i32)).sum();
                    n as f64 * tokens / made_up(machine, n, d)
                };
                let best = (0..=6).map(rate).fold(0.0, f64::max);
                let (soon, later) = soon_and_later(machine, n, a, rate);
                let what = format!("machine {machine}, {n} sequences, acceptance {a}");
                assert!(later >= 0.975 * best, "{what}: {} of the best after 64 tokens", later / best);
                // 64 tokens are too few to pay for a look at each depth.
                assert!(soon >= 0.97 * rate(0), "{what}: {} of plain at first", soon / rate(0));
                let all = (64.0 + 960.0) / (64.0 / soon + 960.0 / later);
                assert!(all >= 0.98 * rate(0), "{what}: {} of plain", all / rate(0));
            }
        }
    }
}

#[test]
fn plain_steps_that_were_slow_at_first_do_not_keep_drafts_short() {
    // The first plain steps read the file, and none was measured since: a draft of one takes less, so they do too.
    let mut world = World::new(6);
    let cost = linear(0.0007, 0.55);
    for _ in 0..3 {
        let d = world.control.choose(&[0], 6);
        world.run_at(d, 1, 0.95, 0.018, 0.0);
    }
    world.run(60, 1, 0.95, &cost, 0.05);
    let rate = |d: usize| (0..=d).map(|i| 0.95_f64.powi(i as i32)).sum::<f64>() / cost(1 + d);
    let best = (0..=6).map(rate).fold(0.0, f64::max);
    let share = 1.0 / (world.measure(200, 1, 0.95, &cost, 0.05) * cost(1) * best);
    assert!(share > 0.96, "{share} of the best");
}

#[test]
fn an_engine_that_begins_with_what_another_measured_is_as_fast_from_the_first_token() {
    for machine in 0..3 {
        for (n, a) in [(1, 0.35), (1, 0.8), (1, 0.95), (4, 0.65), (8, 0.9)] {
            // The machine is half as fast now as it was.
            let cost = |d: usize| made_up(machine, n, d);
            let rate = |d: usize| n as f64 * (0..=d).map(|i| f64::powi(a, i as i32)).sum::<f64>() / cost(d);
            let best = (0..=6).map(rate).fold(0.0, f64::max);
            let mut first = World { control: DepthControl::new(8, 6), ..World::new(6) };
            first.run(2000, n, a, |tokens| 0.5 * cost(tokens - 1), 0.1);
            let known = first.control.known().unwrap();
            let slots: Vec<usize> = (0..n).collect();
            let (mut tokens, mut time) = (0.0, 0.0);
            for seed in 0..20 {
                let mut next = World { control: DepthControl::new(8, 6), state: 99 + 7919 * seed, ..World::new(6) };
                next.control.begin_with(&known);
                while next.tokens < 64.0 * n as f64 {
                    let d = next.control.choose(&slots, usize::MAX);
                    (tokens, time) = (tokens + rate(d) * cost(d), time + cost(d));
                    next.run_at(d, n, a, cost(d), 0.1);
                }
            }
            let what = format!("machine {machine}, {n} sequences, acceptance {a}");
            assert!(tokens / time >= 0.97 * best, "{what}: {} of the best", tokens / time / best);
            assert!(tokens / time >= 0.98 * rate(0), "{what}: {} of plain", tokens / time / rate(0));
        }
    }
}

#[test]
fn costs_of_another_machine_are_measured_anew() {
    // There drafts were free, here each token costs a whole step.
    let mut there = World::new(6);
    there.run(500, 1, 0.7, linear(0.01, 0.02), 0.1);
    let mut here = World::new(6);
    here.control.begin_with(&there.control.known().unwrap());
    here.run(40, 1, 0.7, linear(0.02, 1.0), 0.1);
    assert_eq!(here.control.known(), None, "a machine that may only have been busy");
    let ratio = here.measure(500, 1, 0.7, linear(0.02, 1.0), 0.1);
    assert!(ratio < 1.03, "{ratio}");
    // What is kept is what was measured here, as far as it was.
    let known = here.control.known().unwrap();
    let of = |d: usize| known.costs.iter().find(|&&(n, depth, _)| (n, depth) == (1, d)).map(|c| c.2);
    assert!(of(0).is_some_and(|s| (s / 0.02 - 1.0).abs() < 0.1), "{known:?}");
    assert!(known.accepted.len() == 6, "{known:?}");
}

#[test]
fn a_depth_whose_graphs_are_dear_must_be_worth_them_soon_and_is_taken_in_the_end() {
    let chosen = |told: bool| {
        let mut control = DepthControl::new(1, 6);
        for d in (0..=6).flat_map(|d| [d; TRUSTED]) {
            control.took(1, d, Duration::from_secs_f64(linear(0.01, 0.1)(1 + d)));
        }
        let first = control.choose(&[0], 6);
        // The graphs of this depth are there, at 50 ms each.
        if told {
            control.built((0, 1, first), Some(Built { n_graphs: 20, took: Duration::from_secs(1) }));
        }
        for _ in 0..200 {
            control.verified(0, 6, 6);
        }
        let steps: Vec<usize> = (0..600).map(|_| control.choose(&[0], 6)).collect();
        (first, steps)
    };
    let (first, steps) = chosen(false);
    assert!(first < 6 && steps[0] == 6, "{first}, then {}", steps[0]);
    let (first, steps) = chosen(true);
    assert_eq!(steps[0], first, "not at once");
    assert_eq!(steps[599], 6, "in the end");
}

/// Steps of a GPU whose graphs serve all states and slots: the first two of a depth build some, for 9 ms more, and the first of
/// a generation, whatever its depth. A warm-up of one sequence comes first. The share of the best depth's speed that 256 tokens
/// have, but for that first step.
fn share_on_gpu(a: f64, more: f64, slot: usize, seed: u64) -> f64 {
    const BUILDING: f64 = 0.009;
    let cost = |d: usize| 0.0031 + if d == 0 { 0.0 } else { 0.0006 + more * d as f64 };
    let mut n_steps = [0; 7];
    // Seconds of a step.
    let mut step = |control: &mut DepthControl, slot: usize, d: usize, is_first: bool| {
        n_steps[d] += 1;
        let builds = is_first || n_steps[d] <= 2;
        let seconds = cost(d) + if builds { BUILDING } else { 0.0 };
        let took = Duration::from_secs_f64(seconds);
        control.built((slot, 1, d), builds.then_some(Built { n_graphs: 2 - u64::from(d == 0), took }));
        if !builds {
            control.took(1, d, took);
        }
        seconds
    };
    let mut world = World { control: DepthControl::new(4, 6), state: 99 + 7919 * seed, ..World::new(6) };
    world.control.serve_all_slots();
    for _ in 0..world.control.n_warm_up_steps() {
        let d = world.control.choose_unknown(&[0], 6);
        step(&mut world.control, 0, d, false);
    }
    let rate = |d: usize| (0..=d).map(|i| a.powi(i as i32)).sum::<f64>() / cost(d);
    let (mut tokens, mut time) = (0.0, -BUILDING);
    while tokens < 256.0 {
        let d = world.control.choose(&[slot], 6);
        let n_accepted = (0..d).take_while(|_| world.random() < a).count();
        world.control.verified(slot, d, n_accepted);
        time += step(&mut world.control, slot, d, tokens == 0.0);
        tokens += rate(d) * cost(d);
    }
    tokens / time / (0..=6).map(rate).fold(0.0, f64::max)
}

#[test]
fn graphs_that_serve_all_states_and_slots_keep_no_depth_dear() {
    for (a, more) in [(0.8, 0.0005), (0.9, 0.0003), (0.6, 0.0008), (0.95, 0.0006)] {
        for slot in [0, 2] {
            let share = (0..20).map(|seed| share_on_gpu(a, more, slot, seed)).sum::<f64>() / 20.0;
            assert!(share > 0.96, "acceptance {a}, {more} s a token, slot {slot}: {share}");
        }
    }
}

/// A machine on which other programs come and go, so that steps take twice as long for a while; the first draft after plain steps
/// must catch up with them. `costs` are those of steps by their depth, in plain ones. Tokens a second as a share of plain decoding's.
fn share_on_busy_machine(costs: &[f64], a: f64, seed: u64) -> f64 {
    const PLAIN: f64 = 0.0006;
    const CATCH_UP: f64 = 8e-6;
    let mut world = World { control: DepthControl::new(1, costs.len() - 1), state: 99 + 7919 * seed, ..World::new(1) };
    let (mut factor, mut until, mut n_waiting, mut plain) = (1.0, 0.0, 0, 0.0);
    for _ in 0..1500 {
        if world.time >= until {
            factor = 3.0 - factor;
            until = world.time + 0.02 + 0.3 * world.random().powi(2);
        }
        let d = world.control.choose(&[0], usize::MAX);
        let n_accepted = (0..d).take_while(|_| world.random() < a).count();
        world.control.verified(0, d, n_accepted);
        let usual = costs[d] * PLAIN * factor * (0.94 + 0.2 * world.random());
        let catch_up = if d > 0 { CATCH_UP * factor * std::mem::take(&mut n_waiting) as f64 } else { 0.0 };
        let took = Duration::from_secs_f64(usual + catch_up);
        match catch_up > CATCH_UP * 8.0 {
            true => world.control.caught_up(1, d, took),
            false => world.control.took(1, d, took),
        }
        n_waiting += 1 + n_accepted;
        world.time += took.as_secs_f64();
        plain += PLAIN * factor * 1.04 * (0..=d).map(|i| a.powi(i as i32)).sum::<f64>();
    }
    plain / world.time
}

#[test]
fn drafts_that_do_not_pay_cost_little_where_others_use_the_machine_and_heads_must_catch_up() {
    for costs in [[1.0, 1.9, 2.7, 3.6], [1.0, 1.93, 2.8, 3.7]] {
        for a in [0.4, 0.6, 0.8] {
            let share = (0..20).map(|seed| share_on_busy_machine(&costs, a, seed)).sum::<f64>() / 20.0;
            assert!(share >= 0.98, "costs {costs:?}, acceptance {a}: {share} of plain");
        }
    }
}

#[test]
fn no_room_means_no_draft() {
    let mut world = World::new(6);
    world.run(100, 1, 0.9, linear(0.01, 0.1), 0.0);
    assert_eq!(world.control.choose(&[0], 0), 0);
    assert!(world.control.choose(&[0], 1) <= 1);
}
