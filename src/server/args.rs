//! The options of `nextn-server`, as typed; llama.cpp's names where its server has the option.
//! Owns names, help texts and ranges. What they lead to is decided elsewhere.

use std::path::PathBuf;

use clap::ValueEnum;
use clap::builder::{FalseyValueParser, OsStr, Resettable};
use clap::{Arg, ArgAction, Args as ClapArgs, Command, CommandFactory, Parser};

use hub::HubOptions;
use session::options::{AdapterOptions, CapacityOptions, DraftOptions, EmbeddingOptions, RunOptions, SamplingOptions};

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

    /// Model names for clients, separated by commas [default: the file's name]
    #[arg(short, long, value_name = "NAME")]
    pub alias: Option<String>,

    /// Use this chat template instead of the model's
    #[arg(long, value_name = "FILE")]
    pub chat_template_file: Option<PathBuf>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub adapters: AdapterOptions,

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
        let drafts = DraftOptions { draft_model: None, ..self.drafts.clone() };
        Self { model: None, alias: None, chat_template_file: None, hub, drafts, ..self.clone() }
    }

    /// The names of `--alias`.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let names = self.alias.iter().flat_map(|names| names.split(','));
        names.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty())
    }
}

/// Addresses, sizes and times.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "HTTP")]
pub struct HttpFlags {
    /// Address to listen on
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
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20)]
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

    /// Share cached prefixes within an API key, or among all
    #[arg(long, value_name = "WHOSE", default_value = "key")]
    pub cache_scope: CacheScope,

    /// Allow web pages of this origin; repeatable, `*` is all [default: none]
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

    /// Serve /metrics
    #[arg(long, value_name = "ON", num_args = 0..=1, require_equals = true, default_value = "on", default_missing_value = "on")]
    pub metrics: OnOff,

    /// Serve /slots
    #[arg(long, value_name = "ON", num_args = 0..=1, require_equals = true, default_value = "on", default_missing_value = "on")]
    pub slots: OnOff,

    /// Folder in which /slots saves state [default: off]
    #[arg(long, value_name = "DIR")]
    pub slot_save_path: Option<PathBuf>,

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

    /// Accepted for llama.cpp's command lines; always on
    #[arg(long, alias = "cont-batching", hide = true)]
    pub jinja: bool,
}

/// As browsers send it: a scheme, a host, a port unless it is the scheme's own. What could never match is a mistake.
fn origin(typed: &str) -> Result<String, String> {
    let host = typed.split_once("://").map_or("", |(_, host)| host);
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '?' | '#' | '@') && !c.is_ascii_uppercase();
    let sound = matches!(typed, "*" | "null") || (!host.is_empty() && host.chars().all(plain));
    if sound {
        Ok(typed.to_owned())
    } else {
        Err("an origin is like https://example.org, without a path, or `*`".into())
    }
}

/// The name in a URL, without what stands around it: what could never match is a mistake.
fn host_name(typed: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if typed == "*" || (!typed.is_empty() && typed.chars().all(plain)) {
        Ok(typed.to_owned())
    } else {
        Err("a host is a name like server.example.org, without scheme, port and path, or `*`".into())
    }
}

/// The options as a command line takes them: each has an environment variable, and the last of several counts.
pub fn command() -> Command {
    Args::command().args_override_self(true).mut_args(|arg| {
        let Some(name) = variable(&arg) else { return arg };
        // An empty variable is none.
        let set = std::env::var_os(&name).is_some_and(|value| !value.is_empty());
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

/// Where a worker listens if nothing is said: on this machine only.
const WORKER_ADDRESS: &str = "127.0.0.1:50052";

const AFTER_HELP: &str = "\
llama.cpp's short names are accepted: -np, -ngl, -dev, -fa, -ctk, -ctv, -cram, -cpent, -hf, -hff, -hft, -md, -cmoe,
-ncmoe, -sm, -mg, -ts, -to.

nextn-server connect claude|codex|opencode|continue prints the settings by which that program uses this server, and
writes them with --write; connect --help says more.

Every option can be an environment variable, NEXTN_ and its name in capitals, such as NEXTN_CTX_SIZE,
or stand in the file of --config, without its dashes. Flags override variables, and variables the file.
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
    fn it_starts_without_any_option_on_this_machine_only() {
        let args = Args::try_parse_from(["nextn-server"]).unwrap();
        assert_eq!((args.http.host.as_str(), args.http.port), ("127.0.0.1", 8080));
        assert!(args.model.model.is_none() && args.access.cors_origin.is_empty());
    }

    #[test]
    fn origins_that_no_browser_sends_are_refused() {
        for right in ["*", "https://example.org", "http://localhost:3000", "http://[::1]:80", "null"] {
            assert_eq!(origin(right), Ok(right.to_owned()));
        }
        for wrong in ["", "example.org", "https://", "https://example.org/", "https://Example.org", "two words"] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hosts_are_names_and_nothing_else() {
        for right in ["*", "server.example.org", "my_server", "10.0.0.1"] {
            assert_eq!(host_name(right), Ok(right.to_owned()));
        }
        for wrong in ["", "http://server", "server:8080", "server/", "two words", "[::1]"] {
            assert!(host_name(wrong).is_err(), "{wrong}");
        }
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
