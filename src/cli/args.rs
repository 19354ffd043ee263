//! The options of `nextn-cli`, as typed. Owns names, help texts and ranges that need no model.
//! What a missing flag means is decided in `settings`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand};

use hub::HubOptions;
use session::options::{AdapterOptions, DraftOptions, ImageOptions, RunOptions, SamplingOptions, ShiftOptions};

use program::choices::{OnOff, Think};

use super::choices::{AutoOnOff, When};
use super::form::FormFlags;

/// Chat with a GGUF model, or complete a text, in the terminal.
///
/// Without -p or -f, nextn-cli opens a chat on a terminal and reads the prompt from a pipe. Replies go to standard output,
/// everything else to standard error.
#[derive(Clone, Debug, Parser)]
#[command(name = "nextn-cli", version, disable_version_flag = true, disable_help_subcommand = true, max_term_width = 100, after_long_help = AFTER_HELP)]
pub struct Args {
    /// Load this GGUF file, or a model in the hub's cache [default: the embedded model]
    #[arg(short, long, value_name = "FILE", env = "NEXTN_MODEL", hide_env_values = true, help_heading = "Model")]
    pub model: Option<PathBuf>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub hub: HubOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub adapters: AdapterOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub prompt: PromptFlags,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: RunOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub shift: ShiftOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub spec: DraftOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub images: ImageOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub turn: TurnFlags,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub form: FormFlags,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: OutputFlags,

    /// Print versions and backends
    #[arg(short = 'V', long, help_heading = "Help")]
    pub version: bool,

    /// Print a shell completion script
    #[arg(long, value_name = "SHELL", help_heading = "Help")]
    pub completions: Option<clap_complete::Shell>,

    /// Print the manual page (roff)
    #[arg(long, help_heading = "Help")]
    pub man: bool,

    #[command(subcommand)]
    #[allow(missing_docs)]
    pub command: Option<Command>,
}

/// What there is beside a chat.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Download, list and remove models of a hub
    #[command(subcommand, disable_help_subcommand = true)]
    Models(ModelsCommand),
}

/// What can be done with the models of a hub.
#[derive(Clone, Debug, Subcommand)]
pub enum ModelsCommand {
    /// Download a model into the hub's cache, with its MTP layer and projector
    Pull {
        /// USER/REPO[:QUANT] or USER/REPO:FILE.gguf
        name: String,

        /// Token for closed repositories [default: HF_TOKEN, else the one that the hub's own program saved]
        #[arg(long, value_name = "TOKEN")]
        hf_token: Option<String>,

        /// Do not download the projector
        #[arg(long)]
        no_mmproj: bool,
    },
    /// List the models in the hub's cache
    #[command(visible_alias = "ls")]
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Remove models from the hub's cache; without QUANT the whole repository
    #[command(visible_alias = "remove")]
    Rm {
        /// USER/REPO[:QUANT] or USER/REPO:FILE.gguf
        #[arg(required = true)]
        names: Vec<String>,

        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

/// What the model is asked.
#[derive(Clone, Debug, Default, ClapArgs)]
#[command(next_help_heading = "Prompt")]
pub struct PromptFlags {
    /// Answer this prompt and exit
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,

    /// Read the prompt from a file, answer and exit; `-` is standard input (one trailing newline is dropped)
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Set the system message
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "raw")]
    pub system: Option<String>,

    /// Read the system message from a file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["system", "raw"])]
    pub system_file: Option<PathBuf>,

    /// Show this image (PNG, JPEG, WebP, GIF) with the prompt, or with a chat's first message; repeatable
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub image: Vec<PathBuf>,

    /// Show this frame of a video, or all frames of a folder by their names, as --image shows images; repeatable
    #[arg(long, value_name = "FILE|FOLDER", conflicts_with = "raw")]
    pub video: Vec<PathBuf>,

    /// Frames a second of --video [default: 2]
    #[arg(long, value_name = "N", requires = "video", default_value = "2", hide_default_value = true)]
    pub fps: f64,

    /// Complete the text without a chat template
    #[arg(long)]
    pub raw: bool,

    /// Think before answering [auto: as the chat template decides]
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub think: Think,
}

/// What may differ from turn to turn; `/set` changes it.
#[derive(Clone, Debug, Default, ClapArgs)]
#[command(next_help_heading = "Generation")]
pub struct TurnFlags {
    /// Generate at most N tokens [default: until the context is full]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: Option<u32>,

    /// Stop before this text; repeatable
    #[arg(long, value_name = "STRING", allow_hyphen_values = true)]
    pub stop: Vec<String>,

    /// Continue past the end-of-generation token
    #[arg(long, value_name = "ON", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub ignore_eos: Option<OnOff>,

    /// Report log probabilities of the N likeliest tokens, 0 to 20 (with --json, --jsonl)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    pub logprobs: Option<u8>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub sampling: SamplingOptions,
}

/// What is printed, and where.
#[derive(Clone, Debug, Default, ClapArgs)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Print one JSON object per reply
    #[arg(long)]
    pub json: bool,

    /// Print one JSON object per event
    #[arg(long, conflicts_with = "json")]
    pub jsonl: bool,

    /// Hide the text of the thinking
    #[arg(long)]
    pub hide_thinking: bool,

    /// Use colours (NO_COLOR is respected)
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: When,

    /// Render Markdown [auto: on a terminal with colours]
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub markdown: AutoOnOff,

    /// Do not break lines at words (pipes get lines as they are in any case)
    #[arg(long)]
    pub no_wrap: bool,

    /// Do not save typed lines
    #[arg(long)]
    pub no_history: bool,

    /// Do not print the speed after each reply
    #[arg(long)]
    pub no_stats: bool,

    /// Log more; -vv and -vvv log more still (NEXTN_LOG sets levels by part)
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl Args {
    /// True when `--json` or `--jsonl` was given.
    pub fn machine(&self) -> bool {
        self.output.json || self.output.jsonl
    }
}

/// The command line whose `-h` is one screen; `--help` has all options.
pub fn with_short_help() -> clap::Command {
    use clap::CommandFactory;

    Args::command().override_help(SHORT_HELP)
}

/// At most 80 columns, of options that a first hour needs.
const SHORT_HELP: &str = "\
Chat with a GGUF model, or complete a text, in the terminal.

Usage: nextn-cli [OPTIONS]
       nextn-cli models pull|list|rm

  -m, --model FILE       load this GGUF file [default: the embedded model]
  -hf USER/REPO[:QUANT]  load a model of the hub; the first time downloads it
  -p, --prompt TEXT      answer this prompt and exit; -f FILE reads it
  -s, --system TEXT      set the system message
      --image FILE       show this image with the prompt
  -c, --ctx-size N       set the context in tokens
  -ngl N                 put N layers on GPUs
      --spec MODE        draft: auto, off, nextn, ngram, draft
  -n, --max-tokens N     generate at most N tokens
      --temp T           set the temperature; 0 is greedy
      --json             print one JSON object per reply
      --help             list all options, in groups

Examples:
  nextn-cli                                    chat with the embedded model
  nextn-cli -m model.gguf -p \"Why is the sky blue?\"
  git diff | nextn-cli -p \"Write a commit message.\"
";

const AFTER_HELP: &str = "\
Exit codes:
  0    the reply is complete, or the reader of the pipe has gone
  1    something failed while running
  2    unknown options, or values out of range
  3    the model file: missing, damaged, not to be fetched, unknown architecture
  4    the prompt: missing, empty, unreadable, longer than the context
  130  ended by Ctrl-C
  143  ended by SIGTERM

llama.cpp's short names are accepted: -hf, -hff, -hft, -ngl, -fa, -ctk, -ctv, -md and others.

Sampling: flags override the model file's values, and these the built-in ones.
`/help` in a chat lists its commands.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;
    use engine::FlashAttention;
    use engine::sample::Setting;
    use memory::CacheType;
    use speculate::{Depth, DraftVocabSize, Mode};

    use super::*;

    fn parse(args: &[&str]) -> Result<Args, ErrorKind> {
        Args::try_parse_from([&["nextn-cli"], args].concat()).map_err(|e| e.kind())
    }

    #[test]
    fn the_options_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn fixed_options_parse_as_scripts_write_them() {
        let args = parse(&[
            "-m",
            "x.gguf",
            "-p",
            "hi",
            "-s",
            "sys",
            "-n",
            "8",
            "--temp",
            "0",
            "--top-k",
            "20",
            "--top-p",
            "0.9",
            "--min-p",
            "0.05",
            "--seed",
            "7",
            "--ignore-eos",
            "-c",
            "512",
            "-t",
            "2",
            "--think",
            "off",
            "--spec",
            "off",
            "--cache-type-k",
            "q8_0",
            "--cache-type-v",
            "f32",
            "--flash-attn",
            "on",
            "--json",
        ])
        .expect("every option of the interface");
        assert_eq!(args.model.as_deref(), Some(std::path::Path::new("x.gguf")));
        assert_eq!(args.prompt.prompt.as_deref(), Some("hi"));
        assert_eq!(args.turn.max_tokens, Some(8));
        assert_eq!(args.turn.ignore_eos, Some(OnOff::On));
        assert_eq!(args.turn.sampling.get("temperature"), Some(&Setting::Number(0.0)));
        assert_eq!(args.prompt.think, Think::Off);
        assert_eq!((args.run.compute.cache_type_k, args.run.compute.cache_type_v), (CacheType::Q8_0, CacheType::F32));
        assert_eq!(args.run.compute.flash_attn, FlashAttention::On);
        assert!(args.output.json);
        let long = parse(&[
            "--model",
            "x",
            "--prompt",
            "a",
            "--system",
            "b",
            "--max-tokens",
            "1",
            "--ctx-size",
            "2",
            "--threads",
            "3",
        ]);
        assert!(long.is_ok(), "{long:?}");
        assert!(parse(&["--raw", "--file", "x"]).is_ok());
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for args in [
            &["-n", "0"][..],
            &["-n", "-1"],
            &["--temp", "nan"],
            &["--temp", "-0.5"],
            &["--top-p", "1.5"],
            &["--min-p", "-0.1"],
            &["--threads", "0"],
            &["--logprobs", "21"],
            &["--spec", "on"],
            &["--draft-max", "17"],
            &["--draft-vocab", "0"],
            &["--cache-type-k", "q5_k"],
            &["--think", "maybe"],
            &["--logit-bias", "x=1"],
            &["--logit-bias", "1"],
            &["--mirostat", "3"],
        ] {
            let kind = parse(args).expect_err(&args.join(" "));
            assert!(matches!(kind, ErrorKind::ValueValidation | ErrorKind::InvalidValue), "{args:?}: {kind:?}");
        }
        assert_eq!(parse(&["--no-such"]).unwrap_err(), ErrorKind::UnknownArgument);
        assert_eq!(parse(&["--json", "--jsonl"]).unwrap_err(), ErrorKind::ArgumentConflict);
        assert_eq!(parse(&["--raw", "-s", "x"]).unwrap_err(), ErrorKind::ArgumentConflict);
        assert_eq!(parse(&["-j", "{}", "--grammar", "x"]).unwrap_err(), ErrorKind::ArgumentConflict);
    }

    #[test]
    fn the_short_help_fits_a_screen_and_names_options_that_are_there() {
        let command = Args::command();
        assert!(SHORT_HELP.lines().count() <= 24 && SHORT_HELP.lines().all(|line| line.len() <= 80));
        for word in SHORT_HELP.split([' ', ',']).filter(|word| word.starts_with("--") && *word != "--help") {
            assert!(command.get_arguments().any(|arg| arg.get_long() == Some(&word[2..])), "{word}");
        }
        let mut words = program::short_names::spelled_out(["-ngl", "-hf"].map(Into::into).into_iter());
        assert!(words.all(|word| word.to_string_lossy().starts_with("--")));
    }

    #[test]
    fn a_prompt_may_start_with_a_dash() {
        assert_eq!(parse(&["-p", "- a list"]).unwrap().prompt.prompt.as_deref(), Some("- a list"));
    }

    #[test]
    fn drafting_is_automatic_unless_told_otherwise() {
        let spec = parse(&[]).unwrap().spec;
        assert_eq!((spec.spec, spec.draft_max), (Mode::Auto, Depth::Auto));
        let spec = parse(&["--spec", "nextn", "--draft-max", "3", "--draft-vocab", "full"]).unwrap().spec;
        assert_eq!((spec.spec, spec.draft_max, spec.draft_vocab), (Mode::NextN, Depth::Fixed(3), DraftVocabSize::Full));
    }
}
