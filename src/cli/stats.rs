//! The line of timings after a reply, and the sums of a chat. Owns how speeds are written.

use engine::Timings;

/// `prompt 512 tok 1830 tok/s | gen 96 tok 41.2 tok/s`, with the share of accepted drafts when there were any.
pub fn line(timings: &Timings) -> String {
    let mut line = format!("prompt {} tok", timings.prompt_tokens);
    if timings.cached_tokens > 0 {
        line += &format!(" ({} cached)", timings.cached_tokens);
    }
    line += &format!(" {} tok/s", rate(timings.prompt_tokens_per_second()));
    line += &format!(" | gen {} tok", timings.generated_tokens);
    line += &format!(" {} tok/s", rate(timings.tokens_per_second()));
    line += &drafting(timings.drafted, timings.accepted, timings.generated_tokens, timings.steps);
    line
}

/// What all replies of a chat took together.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    answers: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    prompt_ms: f64,
    generated_tokens: usize,
    /// Generated tokens that lie between two others in time: the first of every reply belongs to its prompt.
    timed_tokens: usize,
    generated_ms: f64,
    cycles: usize,
    drafted: usize,
    accepted: usize,
}

impl Totals {
    /// Adds one reply.
    pub fn add(&mut self, timings: &Timings) {
        self.answers += 1;
        self.prompt_tokens += timings.prompt_tokens;
        self.cached_tokens += timings.cached_tokens;
        self.prompt_ms += timings.prompt_ms;
        self.generated_tokens += timings.generated_tokens;
        self.timed_tokens += timings.generated_tokens.saturating_sub(1);
        self.generated_ms += timings.generated_ms;
        self.cycles += timings.steps;
        self.drafted += timings.drafted;
        self.accepted += timings.accepted;
    }

    /// The sums as text for `/stats`.
    pub fn text(&self) -> String {
        if self.answers == 0 {
            return "no answer yet".to_owned();
        }
        let computed = self.prompt_tokens.saturating_sub(self.cached_tokens);
        format!(
            "{} answers\nprompts    {} tok, {} of them from the cache, {} tok/s\ngenerated  {} tok, {} tok/s{}",
            self.answers,
            self.prompt_tokens,
            self.cached_tokens,
            rate(per_second(computed, self.prompt_ms)),
            self.generated_tokens,
            rate(per_second(self.timed_tokens, self.generated_ms)),
            drafting(self.drafted, self.accepted, self.generated_tokens, self.cycles),
        )
    }
}

fn drafting(drafted: usize, accepted: usize, generated: usize, cycles: usize) -> String {
    if drafted == 0 {
        return String::new();
    }
    let share = 100.0 * accepted as f64 / drafted as f64;
    let per_step = generated.saturating_sub(1) as f64 / cycles.max(1) as f64;
    format!(" | NextN {share:.0}% ({per_step:.1} tok/step)")
}

fn per_second(tokens: usize, ms: f64) -> f64 {
    if ms > 0.0 { tokens as f64 * 1e3 / ms } else { 0.0 }
}

/// Three digits that mean something: `1830`, `41.2`; `-` where there is nothing to divide.
fn rate(per_second: f64) -> String {
    if !per_second.is_finite() || per_second <= 0.0 {
        "-".to_owned()
    } else if per_second < 100.0 {
        format!("{per_second:.1}")
    } else {
        format!("{per_second:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timings() -> Timings {
        Timings {
            prompt_tokens: 512,
            prompt_ms: 279.8,
            generated_tokens: 97,
            generated_ms: 2330.0,
            steps: 96,
            ..Timings::default()
        }
    }

    #[test]
    fn the_line_reads_as_documented() {
        assert_eq!(line(&timings()), "prompt 512 tok 1830 tok/s | gen 97 tok 41.2 tok/s");
    }

    #[test]
    fn cached_prompts_and_drafts_are_told() {
        let timings = Timings { cached_tokens: 500, drafted: 100, accepted: 56, steps: 40, ..timings() };
        assert_eq!(
            line(&timings),
            "prompt 512 tok (500 cached) 42.9 tok/s | gen 97 tok 41.2 tok/s | NextN 56% (2.4 tok/step)"
        );
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        assert_eq!(
            line(&Timings { prompt_tokens: 3, generated_tokens: 1, ..Timings::default() }),
            "prompt 3 tok - tok/s | gen 1 tok - tok/s"
        );
    }

    #[test]
    fn sums_count_the_time_between_tokens_only() {
        let mut totals = Totals::default();
        assert_eq!(totals.text(), "no answer yet");
        totals.add(&timings());
        totals.add(&timings());
        assert_eq!(
            totals.text(),
            "2 answers\nprompts    1024 tok, 0 of them from the cache, 1830 tok/s\ngenerated  194 tok, 41.2 tok/s"
        );
    }
}
