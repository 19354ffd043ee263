//! The line of timings after a reply, and the sums of a chat. Owns how speeds are written.

use engine::Timings;
use program::words::counted;

/// `prompt 512 tokens, 1830 tok/s | gen 96 tokens, 41.2 tok/s`, with the drafts where there were any; `by_mtp`: the MTP layer
/// made them. A reply that was stopped before its first token has its prompt alone.
pub fn line(timings: &Timings, by_mtp: bool) -> String {
    let mut line = format!("prompt {}", counted(timings.prompt_tokens, "token"));
    if timings.cached_tokens > 0 {
        line += &format!(" ({} cached)", timings.cached_tokens);
    }
    line += &format!(", {} tok/s", rate(timings.prompt_tokens_per_second()));
    if timings.generated_tokens == 0 {
        return line;
    }
    line += &format!(" | gen {}", counted(timings.generated_tokens, "token"));
    line += &format!(", {} tok/s", rate(timings.tokens_per_second()));
    line += &drafting((timings.drafted, timings.accepted), timings.generated_tokens, timings.steps, by_mtp);
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
    /// Generated tokens that steps made: the first of every reply belongs to its prompt.
    timed_tokens: usize,
    generated_ms: f64,
    steps: usize,
    drafted: usize,
    accepted: usize,
}

impl Totals {
    /// Adds one reply; one that was stopped before its first token is none.
    pub fn add(&mut self, timings: &Timings) {
        self.answers += usize::from(timings.generated_tokens > 0);
        self.prompt_tokens += timings.prompt_tokens;
        self.cached_tokens += timings.cached_tokens;
        self.prompt_ms += timings.prompt_ms;
        self.generated_tokens += timings.generated_tokens;
        self.timed_tokens += if timings.steps == 0 { 0 } else { timings.generated_tokens.saturating_sub(1) };
        self.generated_ms += timings.generated_ms;
        self.steps += timings.steps;
        self.drafted += timings.drafted;
        self.accepted += timings.accepted;
    }

    /// The sums as text for `/stats`; `by_mtp` as in [`line`].
    pub fn text(&self, by_mtp: bool) -> String {
        if self.answers == 0 {
            return "no reply yet".to_owned();
        }
        let computed = self.prompt_tokens.saturating_sub(self.cached_tokens);
        format!(
            "{}\nprompts    {}, {} of them from the cache, {} tok/s\ngenerated  {}, {} tok/s{}",
            counted(self.answers, "reply"),
            counted(self.prompt_tokens, "token"),
            self.cached_tokens,
            rate(per_second(computed, self.prompt_ms)),
            counted(self.generated_tokens, "token"),
            rate(per_second(self.timed_tokens, self.generated_ms)),
            drafting((self.drafted, self.accepted), self.generated_tokens, self.steps, by_mtp),
        )
    }
}

fn drafting((drafted, accepted): (usize, usize), generated: usize, steps: usize, by_mtp: bool) -> String {
    if drafted == 0 {
        return String::new();
    }
    let per_step = generated.saturating_sub(1) as f64 / steps.max(1) as f64;
    let drafts = match (by_mtp, drafted) {
        (true, 1) => format!("MTP: {accepted}/1 draft accepted"),
        (true, n) => format!("MTP: {accepted}/{n} drafts accepted"),
        (false, n) => format!("drafts: {accepted}/{n} accepted"),
    };
    format!(" | {drafts}, {per_step:.2} tokens per step")
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
        assert_eq!(line(&timings(), true), "prompt 512 tokens, 1830 tok/s | gen 97 tokens, 41.2 tok/s");
    }

    #[test]
    fn cached_prompts_and_drafts_are_told() {
        let timings = Timings { cached_tokens: 500, drafted: 100, accepted: 56, steps: 40, ..timings() };
        let told = "prompt 512 tokens (500 cached), 42.9 tok/s | gen 97 tokens, 41.2 tok/s | ";
        let mtp = "MTP: 56/100 drafts accepted, 2.40 tokens per step";
        assert_eq!(line(&timings, true), format!("{told}{mtp}"));
        assert_eq!(line(&timings, false), format!("{told}drafts: 56/100 accepted, 2.40 tokens per step"));
    }

    #[test]
    fn nothing_is_divided_by_nothing_and_one_is_one() {
        let timings = Timings { prompt_tokens: 1, generated_tokens: 1, drafted: 1, ..Timings::default() };
        assert_eq!(
            line(&timings, true),
            "prompt 1 token, - tok/s | gen 1 token, - tok/s | MTP: 0/1 draft accepted, 0.00 tokens per step"
        );
        let stopped = Timings { generated_tokens: 0, drafted: 0, ..timings };
        assert_eq!(line(&stopped, true), "prompt 1 token, - tok/s");
    }

    #[test]
    fn sums_count_the_time_between_tokens_only() {
        let mut totals = Totals::default();
        assert_eq!(totals.text(true), "no reply yet");
        totals.add(&Timings { prompt_tokens: 0, ..Timings::default() });
        assert_eq!(totals.text(true), "no reply yet", "one that was stopped before its first token is none");
        totals.add(&timings());
        assert!(totals.text(true).starts_with("1 reply\n"));
        totals.add(&timings());
        assert_eq!(
            totals.text(true),
            "2 replies\nprompts    1024 tokens, 0 of them from the cache, 1830 tok/s\n\
             generated  194 tokens, 41.2 tok/s"
        );
    }
}
