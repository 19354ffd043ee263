//! From options to a server that runs until a signal ends it.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use api::{AppState, HttpLimits, KeptResponses, ModelEntry, Reasoning, Registry, Served, Server, Settings, Tls};
use engine::{EngineLife, Scope};
use session::{LearnOptions, Learning, LiveOptions};

use super::args::{AccessFlags, Args, CacheScope, HttpFlags, ModelFlags, ServingFlags};
use super::config::{self, Resolved};
use super::folder::{self, Found};
use super::load::FromFlags;
use super::store::HubStore;
use program::choices::OnOff;
use program::exit::{Exit, Failure, OrExit, Outcome};
use program::version;
use program::{logging, shell};

/// Does what the options say. `command`: all that the program takes, for completions and the manual.
pub(super) fn run(resolved: Resolved, notes: &[String], command: fn() -> clap::Command) -> Outcome<()> {
    let Resolved { args, models } = resolved;
    if let Some(shell) = args.completions {
        return Ok(shell::completions(command(), shell, &mut io::stdout())?);
    }
    if args.man {
        return Ok(shell::man(command(), &mut io::stdout())?);
    }
    if args.version {
        return Ok(io::stdout().write_all(version::text("nextn-server").as_bytes())?);
    }
    let level = match (args.quiet, args.verbose) {
        (true, _) => "warn",
        (false, 0) => "info",
        (false, 1) => "debug",
        (false, _) => "trace",
    };
    let lines = if args.log_json { logging::Lines::Json } else { logging::Lines::Service };
    logging::start_to(level, lines, args.log_file.as_deref()).map_err(|words| Failure::message(Exit::Usage, words))?;
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    if let Some(address) = &args.rpc_worker {
        return super::worker::run(address, &args.model);
    }
    let keys = api_keys(&args.access)?;
    if args.serving.learn_live && keys.len() > 1 && args.access.cache_scope == CacheScope::Key {
        let words = "--learn-live has one head learn from the replies of all API keys, and how fast others are answered may tell of \
                     them: --cache-scope all says that keys need not be kept apart; or train a head of one key's folder with nextn-tune";
        return Err(Failure::message(Exit::Usage, words.to_owned()));
    }
    let tls = tls(&args.http)?;
    tell_folders(&args, &keys);
    let settings = settings(&args, keys);
    let registry = registry(&args, models)?;
    room_for(settings.limits.max_connections);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().or_exit(Exit::Runtime)?;
    let mut ending = Vec::new();
    let served = runtime.block_on(serve(registry, settings, &args.http, tls, &mut ending));
    // Work on prompts of requests that are gone is not waited for.
    runtime.shutdown_background();
    // Engines are, which may have sequences to keep on disk.
    let start = Instant::now();
    let is_over = |ending: &Ending| ending.engine.is_freed() && ending.learning.as_ref().is_none_or(|l| l.is_done());
    while !ending.iter().all(is_over) && start.elapsed() < LONGEST_END {
        std::thread::sleep(Duration::from_millis(5));
    }
    served
}

/// Engines that take longer to end are left behind, with what they have not kept yet.
const LONGEST_END: Duration = Duration::from_secs(60);

/// What still runs at the end.
struct Ending {
    engine: EngineLife,
    /// Writes replies.
    learning: Option<Arc<Learning>>,
}

/// `ending`: gets the engines that still run at the end.
async fn serve(
    registry: Registry,
    settings: Settings,
    http: &HttpFlags,
    tls: Option<Tls>,
    ending: &mut Vec<Ending>,
) -> Outcome<()> {
    let told = told_to_end().or_exit(Exit::Runtime)?;
    let state = AppState::new(registry, settings);
    let scheme = if tls.is_some() { "https" } else { "http" };
    let hosts: Vec<String> = hosts(http).collect();
    let server = Server::bind_all(&hosts, http.port, state.clone(), tls).await.or_exit(Exit::Runtime)?;
    let addresses = server.local_addrs().or_exit(Exit::Runtime)?;
    state.registry().start();
    tokio::spawn(announce(state.registry().clone(), scheme, addresses));
    let registry = state.registry().clone();
    let mut lost = None;
    let stop = async {
        tokio::select! {
            () = told => {}
            why = registry.lost() => lost = Some(why),
        }
    };
    server.run(api::router(state), stop, Duration::from_secs(http.shutdown_timeout)).await;
    let of = |served: &Arc<Served>| Ending { engine: served.engine().life(), learning: served.learning().cloned() };
    *ending = registry.loaded().iter().map(of).collect();
    match lost {
        // A server without a model is of no use. The log has said why, unless it is off.
        Some(_) if tracing::enabled!(tracing::Level::ERROR) => Err(Failure::silent(Exit::ModelFile)),
        Some(why) => Err(Failure::message(Exit::ModelFile, why)),
        None => {
            tracing::info!("ended");
            Ok(())
        }
    }
}

/// Ready when SIGTERM or SIGINT comes.
#[cfg(unix)]
fn told_to_end() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Ready when Ctrl-C or Ctrl-Break is pressed, the console is closed, or the system ends.
#[cfg(windows)]
fn told_to_end() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
    let (mut interrupt, mut stop, mut close, mut end) = (ctrl_c()?, ctrl_break()?, ctrl_close()?, ctrl_shutdown()?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = stop.recv() => {}
            _ = close.recv() => {}
            _ = end.recv() => {}
        }
    })
}

/// Tells the addresses once a model can be had. The socket is open before, so that `/health` can tell how far the start is.
async fn announce(registry: Registry, scheme: &str, addresses: Vec<SocketAddr>) {
    if !registry.started().await {
        return;
    }
    for address in addresses {
        tracing::info!("listening on {scheme}://{address}");
    }
}

fn settings(args: &Args, api_keys: Vec<String>) -> Settings {
    let seconds = |n: u64| (n > 0).then(|| Duration::from_secs(n));
    let budget = args.serving.reasoning_budget;
    let mut template_kwargs = args.serving.chat_template_kwargs.clone().unwrap_or_default();
    let enable = template_kwargs.remove("enable_thinking").and_then(|value| value.as_bool());
    Settings {
        limits: HttpLimits {
            max_body: args.http.max_body,
            request_timeout: seconds(args.http.request_timeout),
            keep_alive: u64::try_from(args.http.keep_alive).ok().and_then(seconds),
            max_connections: args.http.max_connections as usize,
            max_connections_per_address: share_of_one(&args.http),
            ..HttpLimits::default()
        },
        allowed_hosts: args.access.allowed_host.iter().cloned().chain(hosts(&args.http)).collect(),
        cache_scope: match args.access.cache_scope {
            CacheScope::Key => api::CacheScope::Key,
            CacheScope::All => api::CacheScope::All,
        },
        cors_origins: cors_origins(&args.access.cors_origin, &api_keys),
        api_keys,
        requests_per_minute: args.access.rate_limit,
        embeddings: args.serving.embeddings,
        webui: !args.serving.no_webui,
        metrics: args.serving.metrics == OnOff::On,
        slots: args.serving.slots == OnOff::On,
        kept_responses: KeptResponses {
            max_count: args.serving.responses_max as usize,
            max_bytes: (args.serving.responses_ram as usize) << 20,
        },
        slot_save_path: args.serving.slot_save_path.clone(),
        fetcher: args.access.allow_image_urls.then(api::Fetcher::new),
        build: format!("nextn {}", env!("CARGO_PKG_VERSION")),
        reasoning: Reasoning {
            in_content: args.serving.reasoning_format == "none",
            budget: usize::try_from(budget).ok().filter(|&n| n > 0),
            enable: if budget == 0 { Some(false) } else { args.serving.reasoning.enabled().or(enable) },
            ..Reasoning::default()
        },
        template_kwargs,
        verbose: args.verbose > 0,
    }
}

/// The origins of `--cors-origin`. A page that has to show a key may be of any, unless some are named: others have no key.
fn cors_origins(named: &[String], api_keys: &[String]) -> Vec<String> {
    match named.is_empty() && !api_keys.is_empty() {
        true => vec!["*".to_owned()],
        false => named.to_vec(),
    }
}

/// The addresses of `--host`.
fn hosts(flags: &HttpFlags) -> impl Iterator<Item = String> {
    flags.host.split(',').map(|host| host.trim().trim_matches(['[', ']']).to_owned())
}

/// Connections that one address may have: half where nothing is said, so that one alone cannot take all.
fn share_of_one(flags: &HttpFlags) -> usize {
    flags.max_connections_per_address.unwrap_or(flags.max_connections.div_ceil(2)) as usize
}

/// Raises the number of files that may be open, as far as the system lets, to that of connections and some more.
#[cfg(unix)]
fn room_for(n_connections: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = n_connections as u64 + OTHER_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` is without limit.
    let (Some(now), possible) = (current, maximum.map_or(wanted, |most| most.min(wanted))) else { return };
    let raised = possible <= now || setrlimit(Resource::Nofile, Rlimit { current: Some(possible), maximum }).is_ok();
    if !raised || possible < wanted {
        tracing::warn!(wanted, possible, "the limit of open files (ulimit -n) is below what --max-connections needs");
    }
}

/// Windows has no such limit.
#[cfg(windows)]
fn room_for(_: usize) {}

/// Files that are open beside connections: the model's, those of threads, connections that are being refused.
#[cfg(unix)]
const OTHER_FILES: u64 = 512;

/// The models of the configuration file, or the one of the command line; with `--allow-downloads` those in the hub's cache too.
fn registry(args: &Args, models: Vec<(String, config::Model)>) -> Outcome<Registry> {
    let mut entries = Vec::new();
    let mut loaders = HashMap::new();
    let sleep = u64::try_from(args.sleep_idle_seconds).ok().map(Duration::from_secs);
    for (id, model) in models {
        let idle = model.idle.map(Duration::from_secs).or(sleep);
        let at_start = model.at_start;
        let flags = model.args.model;
        let (aliases, tags) = (model.aliases, flags.tags());
        entries.push(ModelEntry { id: id.clone(), aliases, tags, idle, at_start, ..ModelEntry::default() });
        loaders.insert(id, (flags, model.args.sampling));
    }
    let in_folder = in_folder(args)?;
    if entries.is_empty() && (in_folder.is_empty() || args.model.names_a_model()) {
        let id = model_name(&args.model);
        let (aliases, tags) = (args.model.names().collect(), args.model.tags());
        let entry = ModelEntry { id: id.clone(), aliases, tags, at_start: true, idle: sleep, ..ModelEntry::default() };
        entries.push(entry);
        loaders.insert(id, (args.model.clone(), args.sampling.clone()));
    }
    let has_folder = !in_folder.is_empty();
    for Found { name, file } in in_folder {
        if loaders.contains_key(&name) {
            tracing::warn!(model = %name, file = %file.display(), "left out: another model has this name");
            continue;
        }
        entries.push(ModelEntry { id: name.clone(), idle: sleep, ..ModelEntry::default() });
        loaders.insert(name, (args.model.of_file(file), args.sampling.clone()));
    }
    let mut store = None;
    let n_configured = entries.len();
    if args.access.allow_downloads {
        let configured = loaders.values().map(|(flags, _): &(ModelFlags, _)| &flags.hub);
        let found = HubStore::new(&args.model.hub, configured).or_exit(Exit::Usage)?;
        entries.extend(found.entries(&entries));
        if args.access.api_key.is_empty() && args.access.api_key_file.is_none() {
            tracing::warn!("--allow-downloads without API keys: whoever can call this server can fill its disk");
        }
        store = Some(found);
    }
    let others = store.is_some().then(|| (args.model.clone(), args.sampling.clone()));
    let learn = learn_options(&args.serving)?;
    let loader = FromFlags { models: loaders, others, embeddings: args.serving.embeddings, learn };
    // Whoever asks for model after model is not to fill the memory.
    let of_store = store.is_some().then_some(n_configured);
    let max_loaded = args.models_max.map(usize::from).or(if has_folder { Some(FROM_FOLDER) } else { of_store });
    let registry = Registry::new(entries, Box::new(loader), max_loaded);
    if let Some(store) = store {
        registry.allow_downloads(Box::new(store));
    }
    Ok(registry)
}

/// `--learn`, its bound, and `--learn-live`.
fn learn_options(flags: &ServingFlags) -> Outcome<Option<LearnOptions>> {
    let n_bytes = u64::from(flags.learn_size) << 20;
    let live = if flags.learn_live { Some(live_options(flags)?) } else { None };
    Ok(flags.learn.clone().map(|folder| LearnOptions { folder, n_bytes, live }))
}

fn live_options(flags: &ServingFlags) -> Outcome<LiveOptions> {
    Ok(LiveOptions {
        program: tune_program(flags.learn_live_program.as_deref())?,
        n_tokens: flags.learn_live_tokens,
        n_new: flags.learn_live_tokens / 16,
        n_held_out: LIVE_HELD_OUT,
        idle: Duration::from_secs_f64(flags.learn_live_idle),
        n_mib: flags.learn_live_memory,
    })
}

/// Tokens of the latest replies that heads are measured on.
const LIVE_HELD_OUT: u32 = 4096;

/// The program that trains: the one that was named, beside this one, or on `PATH`.
fn tune_program(named: Option<&Path>) -> Outcome<PathBuf> {
    if let Some(named) = named {
        let missing =
            || Failure::message(Exit::Usage, format!("--learn-live-program {}: no such file", named.display()));
        return if named.is_file() { Ok(named.to_owned()) } else { Err(missing()) };
    }
    let name = format!("nextn-tune{}", std::env::consts::EXE_SUFFIX);
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()));
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let found = beside.into_iter().chain(std::env::split_paths(&on_path)).map(|folder| folder.join(&name));
    found.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let words = format!(
            "--learn-live: {name} is neither beside this program nor on PATH; archives have it, `cargo build --release -p \
             nextn-tune` builds it, --learn-live-program FILE names it"
        );
        Failure::message(Exit::Usage, words)
    })
}

/// Says which folder is whose, so that one key's replies can be removed.
fn tell_folders(args: &Args, keys: &[String]) {
    let Some(folder) = args.serving.learn.as_ref().filter(|_| args.access.cache_scope == CacheScope::Key) else {
        return;
    };
    for (i, key) in keys.iter().enumerate() {
        let folder = folder.join(session::folder_of(Scope::of_key(key)));
        tracing::info!(key = i + 1, folder = %folder.display(), "replies of this API key, counted from 1, are kept here");
    }
}

/// The models of `--models-dir`.
fn in_folder(args: &Args) -> Outcome<Vec<Found>> {
    let Some(folder) = &args.models_dir else { return Ok(Vec::new()) };
    let place = || format!("--models-dir {}", folder.display());
    let found = folder::models(folder).with_context(place).or_exit(Exit::Usage)?;
    match found.is_empty() {
        true => Err(Failure::message(Exit::Usage, format!("{}: no GGUF file is in this folder", place()))),
        false => Ok(found),
    }
}

/// Models of a folder that are in memory at a time, as llama.cpp has it.
const FROM_FOLDER: usize = 4;

/// The alias, or the file's name without its ending.
fn model_name(flags: &ModelFlags) -> String {
    let of_file = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let file = || flags.model.as_deref().and_then(of_file);
    let of_hub = || flags.hub.hf_repo.as_deref().and_then(|name| Some(name.split(':').next()?.to_owned()));
    flags.names().next().or_else(of_hub).or_else(file).unwrap_or_else(|| "pocket".to_owned())
}

/// The keys of the flags and of the file that they name.
///
/// # Errors
/// A file that cannot be read or holds no key, and an empty key.
pub(super) fn api_keys(flags: &AccessFlags) -> Outcome<Vec<String>> {
    let mut keys = flags.api_key.clone();
    if let Some(path) = &flags.api_key_file {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string()).or_exit(Exit::Usage)?;
        keys.extend(text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned));
        if keys.is_empty() {
            // A server that was meant to be closed must not be open.
            let error = anyhow!("{}: no key is in this file", path.display());
            return Err(Failure::new(Exit::Usage, error));
        }
    }
    if keys.iter().any(|key| key.trim().is_empty()) {
        return Err(Failure::message(Exit::Usage, "an API key is empty: give a text of your own"));
    }
    Ok(keys)
}

fn tls(flags: &HttpFlags) -> Outcome<Option<Tls>> {
    match (&flags.ssl_cert_file, &flags.ssl_key_file) {
        (Some(certificate), Some(key)) => Tls::from_files(certificate, key).map(Some).or_exit(Exit::Usage),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_must_show_a_key_may_be_of_any_origin_unless_some_are_named() {
        let (keys, none) = (["k".to_owned()], Vec::<String>::new());
        let named = ["https://a.example".to_owned()];
        assert_eq!(cors_origins(&none, &keys), ["*"]);
        assert_eq!(cors_origins(&none, &none), none);
        assert_eq!(cors_origins(&named, &keys), named);
        assert_eq!(cors_origins(&named, &none), named);
    }
}
