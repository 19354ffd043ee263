//! What holds after all sources have spoken: flags, then the model file's `general.sampling.*`, then built-in values.
//! Turns what was typed into the engine's parameters. Knows no terminal.

use std::collections::BTreeMap;

use clap::Parser;
use engine::RequestOptions;
use engine::sample::{Mirostat, SamplingParams};

use super::args::TurnFlags;
use super::choices::OnOff;
use super::sampling::{Order, SamplingFlags};
use super::spec::SpecFlags;

/// The model file's own sampling values (`general.sampling.NAME`), by the last part of their keys: `temp`, `top_k`, ...
pub type FileSampling = BTreeMap<String, f32>;

/// The settings of the next answer: those of the command line, changed by `/set`.
#[derive(Clone, Debug)]
pub struct TurnSettings {
    flags: TurnFlags,
    /// Values set in the chat, by the flag's long name.
    changed: BTreeMap<String, String>,
    file: FileSampling,
    /// Most tokens of a draft, as `/spec` says.
    pub max_draft: Option<usize>,
    min_draft: usize,
    draft_p_min: f32,
}

impl TurnSettings {
    /// Settings as typed on the command line.
    pub fn new(flags: TurnFlags, spec: &SpecFlags, file: FileSampling) -> Self {
        let (min_draft, draft_p_min) = (spec.draft_min.into(), spec.draft_p_min);
        Self { flags, changed: BTreeMap::new(), file, max_draft: None, min_draft, draft_p_min }
    }

    /// `/set NAME VALUE`, with the names and ranges of the command line; `default` takes a change back.
    ///
    /// # Errors
    /// An unknown name, or a value out of range, in words for the user; nothing is changed then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let name = name.trim_start_matches('-').replace('_', "-");
        if !names().contains(&name) {
            return Err(format!("no setting is called {name}: /set lists them"));
        }
        let mut changed = self.changed.clone();
        if value == "default" {
            changed.remove(&name);
        } else {
            changed.insert(name, value.to_owned());
        }
        apply(&self.flags, &changed)?;
        self.changed = changed;
        Ok(())
    }

    /// The flags that hold now.
    pub fn flags(&self) -> TurnFlags {
        apply(&self.flags, &self.changed).expect("`set` tried these values")
    }

    /// The engine's options. `attempt` counts repetitions of one answer: with a fixed seed each gets one of its own.
    pub fn options(&self, attempt: u64) -> RequestOptions {
        let flags = self.flags();
        let mut sampling = resolve(&flags.sampling, &self.file);
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(attempt));
        let logprobs = flags.logprobs.map(usize::from);
        RequestOptions {
            max_tokens: flags.max_tokens.map(|n| n as usize),
            sampling,
            stops: flags.stop,
            ignore_eos: flags.ignore_eos == Some(OnOff::On),
            max_draft: self.max_draft,
            min_draft: self.min_draft,
            draft_p_min: self.draft_p_min,
            logprobs,
            ..RequestOptions::default()
        }
    }

    /// The settings that differ from neutral, one per line, for `/show` and `/set`.
    pub fn text(&self) -> String {
        let options = self.options(0);
        let s = &options.sampling;
        let seed = s.seed.map_or("new each time".to_owned(), |seed| seed.to_string());
        let order = s.stages.iter().map(|stage| stage.name()).collect::<Vec<_>>().join(";");
        let mut text = format!(
            "temp {}  top-k {}  top-p {}  min-p {}  seed {seed}  max-tokens {}\nsamplers {order}",
            s.temperature,
            s.top_k,
            s.top_p,
            s.min_p,
            options.max_tokens.map_or("until the context is full".to_owned(), |n| n.to_string()),
        );
        for (name, value) in &self.changed {
            text += &format!("\nset here: {name} {value}");
        }
        text
    }
}

/// The names that `/set` knows, ascending.
pub fn names() -> Vec<String> {
    use clap::CommandFactory;

    let command = SetLine::command();
    let mut names: Vec<_> = command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned).collect();
    names.retain(|name| name != "help");
    names.sort();
    names
}

/// The engine's parameters: flag, else file, else built-in.
pub fn resolve(flags: &SamplingFlags, file: &FileSampling) -> SamplingParams {
    let mut params = from_file(file);
    let p = &mut params;
    let f = flags;
    p.seed = f.seed;
    p.temperature = f.temp.unwrap_or(p.temperature);
    p.top_k = f.top_k.unwrap_or(p.top_k);
    p.top_p = f.top_p.unwrap_or(p.top_p);
    p.min_p = f.min_p.unwrap_or(p.min_p);
    p.typical_p = f.typical.unwrap_or(p.typical_p);
    p.top_n_sigma = f.top_n_sigma.unwrap_or(p.top_n_sigma);
    p.xtc_probability = f.xtc_probability.unwrap_or(p.xtc_probability);
    p.xtc_threshold = f.xtc_threshold.unwrap_or(p.xtc_threshold);
    p.repeat_penalty = f.repeat_penalty.unwrap_or(p.repeat_penalty);
    p.penalty_last_n = f.repeat_last_n.unwrap_or(p.penalty_last_n);
    p.presence_penalty = f.presence_penalty.unwrap_or(p.presence_penalty);
    p.frequency_penalty = f.frequency_penalty.unwrap_or(p.frequency_penalty);
    p.dry_multiplier = f.dry_multiplier.unwrap_or(p.dry_multiplier);
    p.dry_base = f.dry_base.unwrap_or(p.dry_base);
    p.dry_allowed_length = f.dry_allowed_length.unwrap_or(p.dry_allowed_length);
    p.dry_penalty_last_n = f.dry_penalty_last_n.unwrap_or(p.dry_penalty_last_n);
    if !f.dry_sequence_breaker.is_empty() {
        p.dry_sequence_breakers = f.dry_sequence_breaker.clone();
    }
    p.mirostat = f.mirostat.map_or(p.mirostat, mirostat);
    p.mirostat_eta = f.mirostat_lr.unwrap_or(p.mirostat_eta);
    p.mirostat_tau = f.mirostat_ent.unwrap_or(p.mirostat_tau);
    p.dynatemp_range = f.dynatemp_range.unwrap_or(p.dynatemp_range);
    p.dynatemp_exponent = f.dynatemp_exp.unwrap_or(p.dynatemp_exponent);
    p.min_keep = f.min_keep.unwrap_or(p.min_keep);
    if let Some(Order(stages)) = &f.samplers {
        p.stages = stages.clone();
    }
    p.logit_bias = f.logit_bias.iter().map(|&(id, bias)| (text::TokenId(id), bias)).collect();
    params
}

/// The file's values over the built-in ones; a value out of range is left out, with a warning.
fn from_file(file: &FileSampling) -> SamplingParams {
    let mut params = SamplingParams::default();
    for (name, &value) in file {
        let mut tried = params.clone();
        let known = set_number(&mut tried, name, value);
        match tried.validate(ANY_VOCAB) {
            Ok(()) if known => params = tried,
            Ok(()) => tracing::debug!(%name, value, "the model file's sampling key is not used"),
            Err(error) => tracing::warn!(%name, value, %error, "the model file's sampling value is left out"),
        }
    }
    params
}

/// False when no parameter has this name.
fn set_number(p: &mut SamplingParams, name: &str, x: f32) -> bool {
    match name {
        "temp" => p.temperature = x,
        "top_k" => p.top_k = x as u32,
        "top_p" => p.top_p = x,
        "min_p" => p.min_p = x,
        "xtc_probability" => p.xtc_probability = x,
        "xtc_threshold" => p.xtc_threshold = x,
        "penalty_last_n" => p.penalty_last_n = x as i32,
        "penalty_repeat" => p.repeat_penalty = x,
        "mirostat" => p.mirostat = mirostat(x as u8),
        "mirostat_tau" => p.mirostat_tau = x,
        "mirostat_eta" => p.mirostat_eta = x,
        _ => return false,
    }
    true
}

fn mirostat(version: u8) -> Mirostat {
    match version {
        1 => Mirostat::V1,
        2 => Mirostat::V2,
        _ => Mirostat::Off,
    }
}

/// `/set` as a command line of its own: one table of names, ranges and error words.
#[derive(Debug, Parser)]
#[command(name = "/set", no_binary_name = true, disable_help_flag = true)]
struct SetLine {
    #[command(flatten)]
    turn: TurnFlags,
}

fn apply(flags: &TurnFlags, changed: &BTreeMap<String, String>) -> Result<TurnFlags, String> {
    let mut line = SetLine { turn: flags.clone() };
    let words = changed.iter().map(|(name, value)| format!("--{name}={value}"));
    line.try_update_from(words).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").to_owned()
    })?;
    Ok(line.turn)
}

/// A vocabulary large enough for every check that is not about token ids.
const ANY_VOCAB: usize = u32::MAX as usize;

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(args: &[&str], file: FileSampling) -> TurnSettings {
        let mut line = SetLine { turn: TurnFlags::default() };
        line.try_update_from(args).expect("test flags");
        TurnSettings::new(line.turn, &SpecFlags::default(), file)
    }

    fn file(values: &[(&str, f32)]) -> FileSampling {
        values.iter().map(|&(name, value)| (name.to_owned(), value)).collect()
    }

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_the_built_in() {
        let params = settings(&["--temp", "0.3"], file(&[("temp", 0.6), ("top_k", 20.0)])).options(0).sampling;
        assert_eq!((params.temperature, params.top_k), (0.3, 20));
        assert_eq!(params.top_p, SamplingParams::default().top_p);
        assert_eq!(settings(&[], FileSampling::default()).options(0).sampling, SamplingParams::default());
    }

    #[test]
    fn values_out_of_range_in_the_file_are_left_out_one_by_one() {
        let params = settings(&[], file(&[("temp", f32::NAN), ("top_p", 7.0), ("min_p", 0.1), ("unknown", 1.0)]))
            .options(0)
            .sampling;
        assert_eq!(params, SamplingParams { min_p: 0.1, ..SamplingParams::default() });
    }

    #[test]
    fn set_uses_the_names_and_ranges_of_the_command_line() {
        let mut s = settings(&["--temp", "0.3", "--stop", "a"], FileSampling::default());
        s.set("temp", "1.5").unwrap();
        s.set("--max_tokens", "9").unwrap();
        s.set("ignore-eos", "on").unwrap();
        s.set("presence-penalty", "-1").unwrap();
        let options = s.options(0);
        assert_eq!((options.sampling.temperature, options.max_tokens, options.ignore_eos), (1.5, Some(9), true));
        assert_eq!(options.sampling.presence_penalty, -1.0);
        assert_eq!(options.stops, ["a"], "what is not set stays as typed at the start");

        assert!(s.set("temp", "-1").unwrap_err().contains("0 or more"), "ranges hold");
        assert_eq!(s.options(0).sampling.temperature, 1.5, "a refused value changes nothing");
        s.set("temp", "default").unwrap();
        assert_eq!(s.options(0).sampling.temperature, 0.3);
        assert!(s.set("colour", "red").unwrap_err().contains("colour"));
    }

    #[test]
    fn every_setting_is_listed() {
        let names = names();
        for name in ["temp", "top-k", "max-tokens", "stop", "mirostat-lr", "logit-bias"] {
            assert!(names.iter().any(|n| n == name), "{name} is missing in {names:?}");
        }
        assert!(!names.iter().any(|n| n == "model" || n == "help"), "{names:?}");
    }

    #[test]
    fn another_attempt_gets_another_fixed_seed() {
        let s = settings(&["--seed", "7"], FileSampling::default());
        assert_eq!((s.options(0).sampling.seed, s.options(2).sampling.seed), (Some(7), Some(9)));
        assert_eq!(settings(&[], FileSampling::default()).options(3).sampling.seed, None);
    }
}
