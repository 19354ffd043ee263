//! The options of `nextn-server`, as typed; llama.cpp's names where its server has the option.
//! Owns names, help texts and ranges. What they lead to is decided elsewhere.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::{FalseyValueParser, OsStr, Resettable};
use clap::{Arg, ArgAction, Args as ClapArgs, Command, CommandFactory, Parser};
use serde_json::{Map, Value};

use super::values::{chat_template, host_name, json_object, origin, seconds};
use hub::HubOptions;
use session::options::{
    AdapterOptions, CapacityOptions, DraftOptions, EmbeddingOptions, ImageOptions, RunOptions, SamplingOptions,
    ShiftOptions,
};

use program::choices::{OnOff, Think};

/// Serve a GGUF model over HTTP.
///
/// Serves clients of OpenAI's, Anthropic's, Ollama's and llama.cpp's HTTP interfaces. Without -m it serves the embedded model.
#[derive(Clone, Debug, Parser)]
#[command(name = "nextn-server", version, disable_version_flag = true, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Args {
    /// Read options and models from a TOML file; flags and environment variables override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Keep at most N models in memory [default: all, or with --allow-downloads as many as are configured]
    ///
    /// The least recently used idle model makes room first
    #[arg(long, value_name = "N", help_heading = "Model", value_parser = clap::value_parser!(u16).range(1..))]
    pub models_max: Option<u16>,

    /// Serve every GGUF file of this folder under its name, loaded when it is asked for; at most 4 are in memory
    /// unless --models-max says otherwise
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub models_dir: Option<PathBuf>,

    /// Free a model's memory after S seconds without a request, and load it again for the next one; -1 never does
    #[arg(long, value_name = "S", default_value_t = -1, allow_negative_numbers = true, help_heading = "Model", value_parser = clap::value_parser!(i64).range(-1..))]
    pub sleep_idle_seconds: i64,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub model: ModelFlags,

    /// Run as an RPC worker: lend the devices of --device to --rpc clients [default address: 127.0.0.1:50052]
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, default_missing_value = WORKER_ADDRESS, conflicts_with_all = ["model", "hf_repo", "config", "rpc"])]
    pub rpc_worker: Option<String>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub http: HttpFlags,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub access: AccessFlags,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub serving: ServingFlags,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub sampling: SamplingOptions,

    /// Log more; -vv logs engine steps
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = "Logs")]
    pub verbose: u8,

    /// Log warnings and errors only
    #[arg(short, long, help_heading = "Logs")]
    pub quiet: bool,

    /// Log as JSON
    #[arg(long, help_heading = "Logs")]
    pub log_json: bool,

    /// Write log lines to this file as well
    #[arg(long, value_name = "FILE", help_heading = "Logs")]
    pub log_file: Option<PathBuf>,

    /// Print versions and backends
    #[arg(short = 'V', long, help_heading = "Help")]
    pub version: bool,

    /// Print a shell completion script
    #[arg(long, value_name = "SHELL", help_heading = "Help")]
    pub completions: Option<clap_complete::Shell>,

    /// Print the manual page (roff)
    #[arg(long, help_heading = "Help")]
    pub man: bool,
}

/// Which model, and how it runs. A table of the configuration file may have these for each model.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    /// Serve this GGUF file, or a model in the hub's cache [default: the embedded model]
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub hub: HubOptions,

    /// Model names for clients, separated by commas; the first by the alphabet names the model [default: the file's name]
    #[arg(short, long, value_name = "NAME")]
    pub alias: Option<String>,

    /// Tags that /v1/models lists with the model, separated by commas
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    pub tags: Vec<String>,

    /// Use the chat template in this file instead of the model's
    #[arg(long, value_name = "FILE")]
    pub chat_template_file: Option<PathBuf>,

    /// Use this chat template (Jinja), or one by name such as chatml or llama3, instead of the model's
    #[arg(long, value_name = "TEMPLATE", conflicts_with = "chat_template_file", value_parser = chat_template)]
    pub chat_template: Option<String>,

    /// Most tokens of a reply, also where a request asks for more; -1 is until the context is full
    #[arg(short, long, alias = "predict", value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub n_predict: i64,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub shift: ShiftOptions,

    /// Continue past the end-of-generation token where a request does not say
    #[arg(long)]
    pub ignore_eos: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub adapters: AdapterOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub images: ImageOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub run: RunOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub capacity: CapacityOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub drafts: DraftOptions,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub embedding: EmbeddingOptions,
}

impl ModelFlags {
    /// The same for a model in the hub's cache: what says which file it is belongs to another model.
    pub(crate) fn cached(&self, name: &str) -> Self {
        let hub = HubOptions { hf_repo: Some(name.to_owned()), hf_file: None, offline: true, ..self.hub.clone() };
        let drafts = DraftOptions { draft_model: Vec::new(), ..self.drafts.clone() };
        Self { model: None, alias: None, chat_template_file: None, chat_template: None, hub, drafts, ..self.clone() }
    }

    /// The same for a file of a folder.
    pub(crate) fn of_file(&self, file: PathBuf) -> Self {
        let hub = HubOptions { hf_repo: None, hf_file: None, ..self.hub.clone() };
        let drafts = DraftOptions { draft_model: Vec::new(), ..self.drafts.clone() };
        Self { model: Some(file), alias: None, hub, drafts, ..self.clone() }
    }

    /// It says which model it is.
    pub(crate) fn names_a_model(&self) -> bool {
        self.model.is_some() || self.hub.hf_repo.is_some()
    }

    /// The tags of `--tags`.
    pub(crate) fn tags(&self) -> Vec<String> {
        let tags = self.tags.iter().map(|tag| tag.trim().to_owned());
        tags.filter(|tag| !tag.is_empty()).collect()
    }

    /// The names of `--alias`, by the alphabet, as llama-server has them: the first names the model.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let names = self.alias.iter().flat_map(|names| names.split(','));
        let names: BTreeSet<_> = names.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
        names.into_iter()
    }
}

/// Addresses, sizes and times.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "HTTP")]
pub struct HttpFlags {
    /// Address to listen on, or several separated by commas
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub host: String,

    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,

    /// Time limit of a reply in seconds; 0 is none
    #[arg(long, visible_alias = "timeout", value_name = "S", default_value_t = 0)]
    pub request_timeout: u64,

    /// Seconds for replies to finish after SIGTERM or SIGINT
    #[arg(long, value_name = "S", default_value_t = 30)]
    pub shutdown_timeout: u64,

    /// Largest request body in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20)]
    pub max_body: usize,

    /// Most open connections
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,

    /// Most open connections of one address; raise it behind a proxy [default: half of --max-connections]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections_per_address: Option<u32>,

    /// Seconds between keep-alive comments in a silent stream; 0 or -1 sends none
    #[arg(long, visible_alias = "sse-ping-interval", value_name = "S", default_value_t = 15, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub keep_alive: i64,

    /// TLS certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "ssl_key_file")]
    pub ssl_cert_file: Option<PathBuf>,

    /// TLS private key (PEM)
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file")]
    pub ssl_key_file: Option<PathBuf>,
}

/// `--cache-scope`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
#[allow(missing_docs)]
pub enum CacheScope {
    #[default]
    Key,
    All,
}

/// Who may ask, and how often.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Access")]
pub struct AccessFlags {
    /// Require this API key; repeatable, or separated by commas
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub api_key: Vec<String>,

    /// Read API keys from a file, one per line; # starts a comment
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,

    /// Accept this Host name without API keys; repeatable, `*` is any
    ///
    /// Addresses, localhost, --host and the machine's own name are always accepted
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = host_name)]
    pub allowed_host: Vec<String>,

    /// Let clients download models from a hub and remove them; lists the models in its cache
    ///
    /// Whoever may call the server may then fill its disk: use it with API keys
    #[arg(long)]
    pub allow_downloads: bool,

    /// Fetch images of the web that requests name, from public addresses
    #[arg(long)]
    pub allow_image_urls: bool,

    /// Share cached prefixes within an API key, or among all
    #[arg(long, value_name = "WHOSE", default_value = "key")]
    pub cache_scope: CacheScope,

    /// Allow web pages of this origin; repeatable, `*` is all, `localhost` this machine's at any port [default: all with API keys, else none]
    #[arg(long, alias = "cors-origins", value_name = "ORIGIN", value_delimiter = ',', value_parser = origin)]
    pub cors_origin: Vec<String>,

    /// Requests per minute for each API key, else each address [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate_limit: Option<u32>,
}

/// What is served beside replies.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Serving")]
pub struct ServingFlags {
    /// Do not serve the web pages
    #[arg(long, env = "NEXTN_NO_WEBUI", hide_env_values = true)]
    pub no_webui: bool,

    /// Responses kept in memory for previous_response_id; 0 keeps none
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub responses_max: u32,

    /// Memory for them and their conversations, in MiB; 0 keeps none
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    pub responses_ram: u32,

    /// Serve /metrics
    #[arg(long, value_name = "ON", num_args = 0..=1, require_equals = true, default_value = "on", default_missing_value = "on")]
    pub metrics: OnOff,

    /// Serve /slots
    #[arg(long, value_name = "ON", num_args = 0..=1, require_equals = true, default_value = "on", default_missing_value = "on")]
    pub slots: OnOff,

    /// Folder in which /slots saves state [default: off]
    #[arg(long, value_name = "DIR")]
    pub slot_save_path: Option<PathBuf>,

    /// Keep finished replies as token ids in this folder, to train the head on with nextn-tune --from [default: off]
    #[arg(long, value_name = "FOLDER")]
    pub learn: Option<PathBuf>,

    /// Most that is kept there, in MiB; the oldest goes first
    #[arg(long, value_name = "MIB", requires = "learn", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub learn_size: u32,

    /// Have the NextN head learn from the kept replies while no request waits, by the program nextn-tune [default: off]
    #[arg(long, requires = "learn")]
    pub learn_live: bool,

    /// It learns when no request has come for so many seconds
    #[arg(long, value_name = "SECONDS", requires = "learn_live", default_value_t = 5.0, value_parser = seconds)]
    pub learn_live_idle: f64,

    /// Tokens that it learns from before it is measured; a sixteenth of new ones begins another round
    #[arg(long, value_name = "N", requires = "learn_live", default_value_t = 32_768, value_parser = clap::value_parser!(u32).range(1024..))]
    pub learn_live_tokens: u32,

    /// Host memory for that, in MiB
    #[arg(long, value_name = "MIB", requires = "learn_live", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(64..=16_777_216))]
    pub learn_live_memory: u32,

    /// The program nextn-tune [default: beside this one, else on PATH]
    #[arg(long, value_name = "FILE", requires = "learn_live")]
    pub learn_live_program: Option<PathBuf>,

    /// Serve /v1/embeddings and /v1/rerank
    #[arg(long, visible_aliases = ["embedding", "rerank", "reranking"])]
    pub embeddings: bool,

    /// Default for thinking [auto: as the chat template decides]
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub reasoning: Think,

    /// Default limit of thinking in tokens; -1 is none, 0 does not think
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub reasoning_budget: i64,

    /// Return thinking in the text (none) or separately (auto, deepseek)
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = ["none", "auto", "deepseek"])]
    pub reasoning_format: String,

    /// Variables for the chat template, a JSON object; those of a request go before them
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    pub chat_template_kwargs: Option<Map<String, Value>>,

    /// Accepted for llama.cpp's command lines; always on
    #[arg(long, alias = "cont-batching", hide = true)]
    pub jinja: bool,
}

/// The options as a command line takes them: each has an environment variable, and the last of several counts.
pub fn command() -> Command {
    Args::command().args_override_self(true).mut_args(|arg| {
        let Some(ours) = variable(&arg) else { return arg };
        // An empty variable is none.
        let is_set = |name: &String| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let theirs = LLAMA_VARIABLES.iter().find(|(option, _)| arg.get_long() == Some(option));
        let theirs = theirs.map(|(_, name)| (*name).to_owned()).filter(|name| !is_set(&ours) && is_set(name));
        let name = theirs.unwrap_or(ours);
        let set = is_set(&name);
        let arg = if matches!(arg.get_action(), ArgAction::SetTrue) {
            arg.value_parser(FalseyValueParser::new())
        } else {
            arg
        };
        arg.env(if set { Resettable::Value(OsStr::from(name)) } else { Resettable::Reset }).hide_env(true)
    })
}

/// The environment variable of an option; what prints and exits has none.
fn variable(arg: &Arg) -> Option<String> {
    let values = !matches!(arg.get_id().as_str(), "verbose" | "version" | "completions" | "man" | "help");
    let name = arg.get_long().filter(|_| values)?;
    Some(format!("NEXTN_{}", name.replace('-', "_").to_uppercase()))
}

/// llama.cpp's environment variables, by our names of the options; ours go before them.
const LLAMA_VARIABLES: [(&str, &str); 37] = [
    ("model", "LLAMA_ARG_MODEL"),
    ("hf-repo", "LLAMA_ARG_HF_REPO"),
    ("hf-file", "LLAMA_ARG_HF_FILE"),
    ("alias", "LLAMA_ARG_ALIAS"),
    ("offline", "LLAMA_ARG_OFFLINE"),
    ("models-dir", "LLAMA_ARG_MODELS_DIR"),
    ("models-max", "LLAMA_ARG_MODELS_MAX"),
    ("chat-template", "LLAMA_ARG_CHAT_TEMPLATE"),
    ("chat-template-file", "LLAMA_ARG_CHAT_TEMPLATE_FILE"),
    ("chat-template-kwargs", "LLAMA_CHAT_TEMPLATE_KWARGS"),
    ("ctx-size", "LLAMA_ARG_CTX_SIZE"),
    ("n-predict", "LLAMA_ARG_N_PREDICT"),
    ("threads", "LLAMA_ARG_THREADS"),
    ("batch-size", "LLAMA_ARG_BATCH"),
    ("ubatch-size", "LLAMA_ARG_UBATCH"),
    ("parallel", "LLAMA_ARG_N_PARALLEL"),
    ("flash-attn", "LLAMA_ARG_FLASH_ATTN"),
    ("cache-type-k", "LLAMA_ARG_CACHE_TYPE_K"),
    ("cache-type-v", "LLAMA_ARG_CACHE_TYPE_V"),
    ("cache-ram", "LLAMA_ARG_CACHE_RAM"),
    ("gpu-layers", "LLAMA_ARG_N_GPU_LAYERS"),
    ("device", "LLAMA_ARG_DEVICE"),
    ("split-mode", "LLAMA_ARG_SPLIT_MODE"),
    ("tensor-split", "LLAMA_ARG_TENSOR_SPLIT"),
    ("main-gpu", "LLAMA_ARG_MAIN_GPU"),
    ("n-cpu-moe", "LLAMA_ARG_N_CPU_MOE"),
    ("override-tensor", "LLAMA_ARG_OVERRIDE_TENSOR"),
    ("host", "LLAMA_ARG_HOST"),
    ("port", "LLAMA_ARG_PORT"),
    ("api-key", "LLAMA_API_KEY"),
    ("ssl-key-file", "LLAMA_ARG_SSL_KEY_FILE"),
    ("ssl-cert-file", "LLAMA_ARG_SSL_CERT_FILE"),
    ("pooling", "LLAMA_ARG_POOLING"),
    ("reasoning", "LLAMA_ARG_REASONING"),
    ("reasoning-format", "LLAMA_ARG_THINK"),
    ("reasoning-budget", "LLAMA_ARG_THINK_BUDGET"),
    ("log-file", "LLAMA_ARG_LOG_FILE"),
];

/// Where a worker listens if nothing is said: on this machine only.
const WORKER_ADDRESS: &str = "127.0.0.1:50052";

const AFTER_HELP: &str = "\
llama.cpp's short names are accepted: -np, -ngl, -dev, -fa, -ctk, -ctv, -cram, -cpent, -hf, -hff,
-hft, -md, -cmoe, -ncmoe, -sm, -mg, -ts, -to.

nextn-server connect claude|codex|opencode|continue prints the settings by which that program uses
this server, and writes them with --write; connect --help says more.

Every option can be an environment variable, NEXTN_ and its name in capitals, such as
NEXTN_CTX_SIZE, or stand in the file of --config, without its dashes. Flags override variables, and
variables the file. Many of llama.cpp's variables are read as well, such as LLAMA_ARG_CTX_SIZE; ours
go before them.
NEXTN_LOG sets the level of log lines by part, such as engine=debug,info.

Exit codes:
  0  ended by SIGTERM or SIGINT
  1  something failed, such as an address in use or too little memory
  2  unknown options, or values out of range, or files of the options that cannot be used
  3  the model: missing, damaged, not to be fetched, unknown architecture";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_are_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_help_is_not_wrapped_twice() {
        let long: Vec<&str> = AFTER_HELP.lines().filter(|line| line.len() > 100).collect();
        assert!(long.is_empty(), "help is shown at 100 columns: {long:#?}");
    }

    #[test]
    fn it_starts_without_any_option_on_this_machine_only() {
        let args = Args::try_parse_from(["nextn-server"]).unwrap();
        assert_eq!((args.http.host.as_str(), args.http.port), ("127.0.0.1", 8080));
        assert!(args.model.model.is_none() && args.access.cors_origin.is_empty());
    }

    #[test]
    fn llama_cpps_names_are_taken() {
        let args = [
            "nextn-server",
            "-m",
            "x.gguf",
            "-c",
            "4096",
            "-np",
            "2",
            "-t",
            "3",
            "--api-key",
            "a,b",
            "--metrics",
            "--embeddings",
            "--host",
            "::1",
            "--port",
            "0",
            "--temp",
            "0",
            "--slot-save-path",
            "s",
            "-a",
            "name",
        ];
        let args = Args::try_parse_from(program::short_names::spelled_out(args.into_iter().map(Into::into))).unwrap();
        assert_eq!(args.access.api_key, ["a", "b"]);
        assert_eq!(args.model.capacity.parallel, 2);
    }
}
