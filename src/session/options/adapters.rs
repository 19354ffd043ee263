//! The options of LoRA adapters, the same in every program that generates. Their numbers follow the order of the flags.

use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use model::{AdapterSet, AdapterSetError};

/// Adapters that are loaded with a model, and how they are used where a request does not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterOptions {
    /// Files with their factors; an adapter's number is its place here.
    pub adapters: Vec<(PathBuf, f32)>,
    /// They are loaded only: until somebody sets factors, they are 0.
    pub init_without_apply: bool,
}

impl AdapterOptions {
    /// The files, in the order of their numbers.
    pub fn files(&self) -> Vec<PathBuf> {
        self.adapters.iter().map(|(path, _)| path.clone()).collect()
    }

    /// What holds at first.
    ///
    /// # Errors
    /// A factor that is no finite number.
    pub fn set(&self) -> Result<AdapterSet, AdapterSetError> {
        let scales = self.adapters.iter().enumerate().map(|(id, &(_, scale))| (id, scale));
        AdapterSet::new(scales.filter(|_| !self.init_without_apply), self.adapters.len())
    }
}

const PLAIN: &str = "lora";
const SCALED: &str = "lora_scaled";
const WITHOUT_APPLY: &str = "lora_init_without_apply";

impl Args for AdapterOptions {
    fn augment_args(command: Command) -> Command {
        let file = |name| Arg::new(name).action(ArgAction::Append).value_delimiter(',').help_heading("Model");
        let plain = PathBufValueParser::new().map(|path| (path, 1.0f32));
        let without_apply = Arg::new(WITHOUT_APPLY).action(ArgAction::SetTrue).help_heading("Model");
        command
            .arg(
                file(PLAIN)
                    .long("lora")
                    .value_name("FILE")
                    .help("Use this LoRA adapter (GGUF); repeatable, or separated by commas")
                    .value_parser(ValueParser::new(plain)),
            )
            .arg(
                file(SCALED)
                    .long("lora-scaled")
                    .value_name("FILE:SCALE")
                    .help("Use this LoRA adapter with a factor; repeatable, or separated by commas")
                    .value_parser(ValueParser::new(scaled)),
            )
            .arg(
                without_apply
                    .long("lora-init-without-apply")
                    .help("Load LoRA adapters with a factor of 0, to be set later or by request"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for AdapterOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options = Self::default();
        options.update_from_arg_matches(matches)?;
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let mut found: Vec<(usize, (PathBuf, f32))> = Vec::new();
        for name in [PLAIN, SCALED] {
            let values = matches.get_many::<(PathBuf, f32)>(name).into_iter().flatten().cloned();
            found.extend(matches.indices_of(name).into_iter().flatten().zip(values));
        }
        found.sort_by_key(|&(place, _)| place);
        self.adapters = found.into_iter().map(|(_, adapter)| adapter).collect();
        self.init_without_apply = matches.get_flag(WITHOUT_APPLY);
        Ok(())
    }
}

/// A file and its factor behind the last colon.
fn scaled(words: &str) -> Result<(PathBuf, f32), String> {
    let wrong = || format!("`{words}`: a file, a colon and a number expected, such as adapter.gguf:0.5");
    let (file, scale) = words.rsplit_once(':').filter(|(file, _)| !file.is_empty()).ok_or_else(wrong)?;
    let scale: f32 = scale.trim().parse().map_err(|_| wrong())?;
    if scale.is_finite() { Ok((file.into(), scale)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<AdapterOptions, String> {
        let command = AdapterOptions::augment_args(Command::new("test").no_binary_name(true)).args_override_self(true);
        let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
        AdapterOptions::from_arg_matches(&matches).map_err(|error| error.to_string())
    }

    #[test]
    fn adapters_are_numbered_in_the_order_of_the_command_line() {
        let options =
            parsed(&["--lora-scaled", "a.gguf:0.5,b:c.gguf:-2", "--lora", "d.gguf,e.gguf", "--lora-scaled", "f:0"]);
        let options = options.unwrap();
        let expected = [("a.gguf", 0.5), ("b:c.gguf", -2.0), ("d.gguf", 1.0), ("e.gguf", 1.0), ("f", 0.0)];
        assert_eq!(options.adapters, expected.map(|(file, scale)| (PathBuf::from(file), scale)));
        let set = options.set().unwrap();
        assert_eq!(set.scales().collect::<Vec<_>>(), [(0, 0.5), (1, -2.0), (2, 1.0), (3, 1.0)]);
        assert_eq!(parsed(&[]).unwrap(), AdapterOptions::default());
    }

    #[test]
    fn adapters_may_be_loaded_without_being_applied() {
        let options = parsed(&["--lora", "a.gguf", "--lora-init-without-apply"]).unwrap();
        assert_eq!((options.files(), options.set()), (vec![PathBuf::from("a.gguf")], Ok(AdapterSet::default())));
    }

    #[test]
    fn a_factor_is_a_finite_number_behind_the_last_colon() {
        for words in ["a.gguf", "a.gguf:", "a.gguf:x", "a.gguf:nan", "a.gguf:inf", ":1", "a.gguf:1e39"] {
            let error = parsed(&["--lora-scaled", words]).expect_err(words);
            assert!(error.contains("a file, a colon and a number expected"), "{error}");
        }
    }
}
