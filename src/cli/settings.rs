//! What holds after all sources have spoken: flags, then the model file's `general.sampling.*`, then built-in values.
//! Turns what was typed into the engine's parameters. Knows no terminal.

use std::collections::BTreeMap;

use clap::Parser;
use engine::RequestOptions;
use engine::sample::{PARAMETERS, SamplingParams, Setting};
use model::AdapterSet;

use super::args::TurnFlags;
use program::choices::OnOff;
use program::words::counted;

/// The settings of the next turn.
#[derive(Clone, Debug)]
pub struct TurnSettings {
    /// As typed on the command line.
    flags: TurnFlags,
    /// Changed since, by name.
    changed: BTreeMap<String, String>,
    /// What holds where nothing was said: the model's.
    defaults: RequestOptions,
    /// Most tokens of a draft; `None` is as many as the engine makes.
    pub max_draft: Option<usize>,
}

impl TurnSettings {
    /// Settings as typed on the command line.
    pub fn new(flags: TurnFlags, defaults: RequestOptions) -> Self {
        Self { flags, changed: BTreeMap::new(), defaults, max_draft: None }
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

    /// The engine's options. `attempt` counts repetitions of one reply: with a fixed seed each gets one of its own.
    pub fn options(&self, attempt: u64) -> RequestOptions {
        let flags = self.flags();
        let mut options = RequestOptions {
            max_tokens: flags.max_tokens.map(|n| n as usize),
            stops: flags.stop,
            ignore_eos: flags.ignore_eos == Some(OnOff::On),
            max_draft: self.max_draft,
            logprobs: flags.logprobs.map(usize::from),
            ..self.defaults.clone()
        };
        flags.sampling.apply(&mut options.sampling).expect("flags are in their ranges");
        options.sampling.seed = options.sampling.seed.map(|seed| seed.wrapping_add(attempt));
        options
    }

    /// The LoRA adapters.
    pub fn adapters(&self) -> &AdapterSet {
        &self.defaults.adapters
    }

    /// Sets the LoRA adapters.
    pub fn set_adapters(&mut self, adapters: AdapterSet) {
        self.defaults.adapters = adapters;
    }

    /// The settings that hold for the next turn, for `/show` and `/set`: the usual ones, then those that differ from the
    /// built-in values, because of a flag, `/set` or the model file.
    pub fn text(&self) -> String {
        let options = self.options(0);
        let s = &options.sampling;
        let seed = s.seed.map_or("new each time".to_owned(), |seed| seed.to_string());
        let order = s.stages.iter().map(|stage| stage.name()).collect::<Vec<_>>().join(", ");
        let mut text = format!(
            "temp {}  top-k {}  top-p {}  min-p {}  seed {seed}  max-tokens {}\nsamplers {order}",
            s.temperature,
            s.top_k,
            s.top_p,
            s.min_p,
            options.max_tokens.map_or("until the context is full".to_owned(), |n| n.to_string()),
        );
        let built_in = SamplingParams::default();
        for parameter in PARAMETERS.iter().filter(|p| !SHOWN.contains(&p.name) && p.get(s) != p.get(&built_in)) {
            let value = match parameter.get(s) {
                Setting::Number(x) => x.to_string(),
                Setting::Integer(n) => n.to_string(),
                Setting::Texts(texts) => format!("{texts:?}"),
                Setting::Biases(biases) => format!("for {}", counted(biases.len(), "token")),
                Setting::Seed(_) => continue,
            };
            text += &format!("\n{} {value}", parameter.flag);
        }
        for (name, value) in &self.changed {
            text += &format!("\nset here: {name} {value}");
        }
        text
    }
}

/// Parameters that [`TurnSettings::text`] shows in any case.
const SHOWN: [&str; 6] = ["temperature", "top_k", "top_p", "min_p", "seed", "stages"];

/// The names that `/set` knows, ascending.
pub fn names() -> Vec<String> {
    use clap::CommandFactory;

    let command = SetLine::command();
    let mut names: Vec<_> = command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned).collect();
    names.retain(|name| name != "help");
    names.sort();
    names
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

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(args: &[&str], sampling: SamplingParams) -> TurnSettings {
        let mut line = SetLine { turn: TurnFlags::default() };
        line.try_update_from(args).expect("test flags");
        TurnSettings::new(line.turn, RequestOptions { sampling, ..RequestOptions::default() })
    }

    #[test]
    fn a_flag_goes_before_the_model() {
        let of_model = SamplingParams { temperature: 0.6, top_k: 20, ..SamplingParams::default() };
        let params = settings(&["--temp", "0.3"], of_model.clone()).options(0).sampling;
        assert_eq!(params, SamplingParams { temperature: 0.3, ..of_model.clone() });
        assert_eq!(settings(&[], of_model.clone()).options(0).sampling, of_model);
    }

    #[test]
    fn what_a_model_file_sets_is_shown() {
        let of_model =
            SamplingParams { top_k: 20, repeat_penalty: 1.25, penalty_last_n: -1, ..SamplingParams::default() };
        let text = settings(&["--top-p", "0.5"], of_model).text();
        assert!(text.contains("top-k 20  top-p 0.5"), "{text}");
        assert!(text.ends_with("\nrepeat-penalty 1.25\nrepeat-last-n -1"), "{text}");
    }

    #[test]
    fn set_uses_the_names_and_ranges_of_the_command_line() {
        let mut s = settings(&["--temp", "0.3", "--stop", "a"], SamplingParams::default());
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
        let s = settings(&["--seed", "7"], SamplingParams::default());
        assert_eq!((s.options(0).sampling.seed, s.options(2).sampling.seed), (Some(7), Some(9)));
        assert_eq!(settings(&[], SamplingParams::default()).options(3).sampling.seed, None);
    }
}
