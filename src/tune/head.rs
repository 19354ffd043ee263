//! `nextn-tune head`: options become texts and a trainer; the file at the end.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use std::{io, thread};

use anyhow::{Context, ensure};
use candle_core::Tensor;
use convert::Key;
use convert::heads::{Extract, Layout, NewHead};
use convert::stream::Control;
use plot::Format;
use program::signals::Hearing;
use program::terminal::tell;
use session::options::{CapacityOptions, DraftOptions, RunOptions};
use session::{LoadedModel, ModelOptions};
use sha2::{Digest, Sha256};
use text::hex;

use crate::answers::{self, Wanted};
use crate::batches::{Batches, Part, Sizes};
use crate::data::{self, Text};
use crate::from_use::{self, FromUse};
use crate::head_args::{Args, Init};
use crate::loss::Worth;
use crate::place::{Place, with_remedy};
use crate::progress::{Shown, drawn, shares};
use crate::split::{hold_latest, measured, split, words};
use crate::start;
use crate::state::{self, Progress};
use crate::target::{Keep, Target};
use crate::train::{How, Trainer};
use crate::training::{Kept, Training, best};

/// Replies that are generated at a time.
const N_PARALLEL: u16 = 16;

/// Tokens that a measurement on the way is made on.
const N_MEASURED: usize = 16_384;

/// Runs it.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!((0.0..=0.5).contains(&args.held_out), "--held-out is {}, 0 to 0.5 expected", args.held_out);
    ensure!(args.minutes.is_none_or(|m| m > 0.0), "--minutes must be more than 0");
    args.plot.as_deref().map(Format::of).transpose()?;
    args.check_outputs()?;
    ensure!(args.rate.is_none_or(|rate| rate > 0.0 && rate <= 1.0), "--rate must be above 0 and at most 1");
    ensure!(
        args.refused_weight > 0.0 && args.refused_weight <= 100.0,
        "--refused-weight must be above 0 and at most 100"
    );
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let _hearing = Hearing::start(move |_| {
        if told.swap(true, Ordering::Relaxed) {
            std::process::exit(crate::INTERRUPTED.into());
        }
    })?;
    if args.until_stdin_ends {
        thread::spawn(|| {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            std::process::exit(crate::INTERRUPTED.into());
        });
    }
    let is_new = args.init == Some(Init::New) || args.heads > 1;
    ensure!(args.heads == 1 || args.init != Some(Init::Own), "--heads is for a new head (--init new)");
    let n_layers = is_new.then_some(u64::from(args.heads));
    let source = match &args.head {
        Some(head) => head_of_file(args, head)?,
        None => NewHead::of(convert::Source::open(&args.model)?, n_layers)?,
    };
    ensure!(args.init != Some(Init::Own) || source.is_own(), "{}: no head in it to start from", args.model.display());
    ensure!(!args.measure || source.is_own(), "{}: no head in it to measure", args.model.display());
    let model = open(args)?;
    let place = Place::of(model.model())?;
    place.said.iter().for_each(|said| tell(said));
    let (Some(output), false) = (&args.output, args.measure) else {
        return measure(args, source, (&model, &place), &stop).map_err(with_remedy);
    };
    ensure!(
        args.force || args.resume || !output.exists(),
        "{}: the file is there; --force overwrites it",
        output.display()
    );
    let folder = folder(output)?;
    begin(&folder, args)?;
    let done = train(args, source, (&model, &place), output, (&folder, &stop)).map_err(with_remedy);
    // Where nothing was kept, nothing was broken off: an empty folder goes.
    if done.is_err() {
        drop(std::fs::remove_dir(&folder));
    }
    done?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("{}: cannot be removed", folder.display()))
}

/// The head of another file for the model.
fn head_of_file(args: &Args, head: &Path) -> anyhow::Result<NewHead> {
    Ok(NewHead::of_file(convert::Source::open(&args.model)?, convert::Source::open(head)?)?)
}

/// Measures the model's own head on all texts.
fn measure(
    args: &Args,
    source: NewHead,
    (model, place): (&LoadedModel, &Place),
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir().context("no folder for the model's replies")?;
    let texts = texts(args, model, scratch.path(), stop)?;
    let n_part = n_part(args, &source, place);
    let mut trainer = trainer(args, source, (model, place), &texts)?;
    let parts = measured(&texts, 0, usize::MAX, n_part);
    trainer.keep(&texts, parts.iter());
    let worth = trainer.measure(&texts, &parts)?;
    let on_disk = trainer.on_disk().map(Path::to_owned);
    // A file that is open cannot be removed everywhere.
    drop(trainer);
    forget(on_disk.as_deref())?;
    println!("{} tokens: {} of drafts are right, by depth", worth[0].n, shares(&worth));
    Ok(())
}

/// Texts, training, the file.
fn train(
    args: &Args,
    source: NewHead,
    (model, place): (&LoadedModel, &Place),
    output: &Path,
    (folder, stop): (&Path, &AtomicBool),
) -> anyhow::Result<()> {
    let texts = texts(args, model, folder, stop)?;
    let (texts, n_learned) = match args.hold_latest {
        Some(n) => hold_latest(texts, n as usize)?,
        None => split(texts, args.held_out, args.seed)?,
    };
    let n_part = n_part(args, &source, place);
    let identity = identity(args, (&source, &texts), model.model(), (!place.device.is_cpu()).then_some(n_part))?;
    let rate = args.rate.unwrap_or(if source.is_own() { 0.005 } else { 0.02 });
    let mut trainer = trainer(args, source, (model, place), &texts)?;
    let held = measured(&texts, n_learned, N_MEASURED, n_part);
    let of_place = if place.device.is_cpu() { Sizes::of_threads } else { Sizes::of_gpu };
    let sizes = of_place(args.batch as usize, n_part);
    let first_round = Batches::first_round(&texts[..n_learned], sizes, args.seed);
    trainer.keep(&texts, held.iter().chain(&first_round));
    let rival = match &args.rival {
        Some(path) if !held.is_empty() => Some(rival(args, path, &mut trainer, &texts, &held)?),
        _ => None,
    };
    let training = Training { args, texts: &texts, n_learned, held: &held, folder, stop, rate, sizes };
    let (progress, kept) = training.run(&mut trainer, identity)?;
    if let Some(path) = &args.report {
        let start = progress.measured.first().map(|(_, right)| right.clone());
        let report = Report {
            n_tokens: progress.n_tokens,
            n_held_out: held.iter().flatten().map(|i| texts[*i].n_counted()).sum(),
            best: best(&progress).map(|(_, right)| right.clone()),
            start,
            rival,
        };
        let bytes = serde_json::to_vec(&report)?;
        std::fs::write(path, bytes).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    let on_disk = trainer.on_disk().map(Path::to_owned);
    match (write(args, trainer, &progress, output), kept) {
        (Err(error), Kept::Elsewhere(dir, _)) => return Err(error.context(training.taken_up(dir))),
        (Err(error), Kept::InFolder) => return Err(error.context("the training is kept: --resume writes the head")),
        (Ok(()), _) => {}
    }
    forget(on_disk.as_deref())?;
    if let Some(path) = args.plot.as_ref().filter(|_| !held.is_empty()) {
        let bytes = plot::bytes(&drawn(&progress.measured), Format::of(path)?)?;
        std::fs::write(path, bytes).with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(())
}

/// Removes the passes on disk: nothing is left to take them up.
fn forget(on_disk: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = on_disk else { return Ok(()) };
    std::fs::remove_file(path).with_context(|| format!("{}: cannot be removed", path.display()))
}

/// `--report`: shares of right drafts by depth, on what is held out.
#[derive(Debug, serde::Serialize)]
struct Report {
    /// Tokens that were learned from.
    n_tokens: usize,
    /// Tokens that were measured on.
    n_held_out: usize,
    /// Before the first step.
    start: Option<Vec<f64>>,
    /// Of the head that was written.
    best: Option<Vec<f64>>,
    /// Of `--rival`.
    rival: Option<Vec<f64>>,
}

/// What the head of another file is worth on what is held out, by depth.
fn rival(args: &Args, path: &Path, trainer: &mut Trainer, texts: &[Text], held: &[Part]) -> anyhow::Result<Vec<f64>> {
    let other = start::head(&head_of_file(args, path)?, args.context as usize, args.seed, trainer.head().device())?;
    let own: HashMap<String, Tensor> = state::named(trainer.head())
        .into_iter()
        .map(|(name, x)| Ok((name, x.copy()?)))
        .collect::<candle_core::Result<_>>()?;
    state::put(trainer.head(), &state::named(&other))
        .with_context(|| format!("{}: another kind of head than the one that is trained", path.display()))?;
    let worth = trainer.measure(texts, held)?;
    state::put(trainer.head(), &own)?;
    Ok(worth.iter().map(Worth::right).collect())
}

/// Tokens, padding included, that go through the head at once.
fn n_part(args: &Args, source: &NewHead, place: &Place) -> usize {
    place.n_part(source.shape(), args.context as usize, args.depth.into())
}

/// A trainer of the head for these texts.
fn trainer(
    args: &Args,
    source: NewHead,
    (model, place): (&LoadedModel, &Place),
    texts: &[Text],
) -> anyhow::Result<Trainer> {
    let n_ctx = args.context as usize;
    let n_threads = args.compute.threads.map_or_else(convert::stream::available_threads, usize::from);
    let keep = Keep {
        in_memory: (args.cache_size as usize) << 20,
        on_disk: args.cache_dir.as_deref().map(|dir| (dir, u64::from(args.cache_disk) << 20)),
    };
    let target = Target::new(model.model(), n_ctx, args.words.into(), keep, n_threads)?;
    let head = start::head(&source, n_ctx, args.seed, &place.device)?;
    let words = words(texts, source.n_vocab(), args.vocab as usize);
    let how = How { depth: args.depth.into(), pull: args.acceptance, refused: args.refused_weight, n_threads };
    Trainer::new(source, head, target, (texts, words.as_deref()), how)
}

/// The model with an engine for many replies.
fn open(args: &Args) -> anyhow::Result<LoadedModel> {
    let many = args.self_prompts.is_some();
    let capacity = CapacityOptions {
        parallel: if many { N_PARALLEL } else { 1 },
        max_queue: u32::from(N_PARALLEL) * 2,
        no_warmup: !many,
        ..CapacityOptions::of_one_chat()
    };
    let mut drafts = DraftOptions::default();
    if !many {
        // The engine answers nothing: what drafts cost is not measured, least of all by a program that is stopped now and then.
        drafts.spec = "off".parse().map_err(|why: String| anyhow::anyhow!(why))?;
    }
    let run = RunOptions { ctx_size: Some(args.context), compute: args.compute.clone() };
    Ok(session::open(args.model.as_path(), &ModelOptions { run, capacity, drafts, ..ModelOptions::default() })?)
}

/// Where a training keeps what it has done: beside its output.
fn folder(output: &Path) -> anyhow::Result<PathBuf> {
    let name = output.file_name().with_context(|| format!("{}: a file's name expected", output.display()))?;
    let mut name = name.to_owned();
    name.push(".training");
    Ok(output.with_file_name(name))
}

fn begin(folder: &Path, args: &Args) -> anyhow::Result<()> {
    let shown = folder.display();
    if folder.exists() && args.force {
        std::fs::remove_dir_all(folder).with_context(|| format!("{shown}: cannot be removed"))?;
    }
    ensure!(
        args.resume || !folder.exists(),
        "{shown}: a training was broken off here; --resume goes on with it, --force begins anew"
    );
    if folder.is_dir() {
        return Ok(());
    }
    std::fs::create_dir(folder).with_context(|| format!("{shown}: cannot be made"))
}

fn texts(args: &Args, model: &LoadedModel, folder: &Path, stop: &AtomicBool) -> anyhow::Result<Vec<Text>> {
    let n_ctx = args.context as usize;
    let mut all = Vec::new();
    let mut n_groups = 0;
    let mut add = |texts: Vec<Text>| {
        let n = texts.iter().map(|text| text.group + 1).max().unwrap_or(0);
        all.extend(texts.into_iter().map(|text| Text { group: n_groups + text.group, ..text }));
        n_groups += n;
    };
    for path in &args.data {
        let (texts, n_cut) = data::read(path, model, n_ctx)?;
        if n_cut > 0 {
            tell(&format!("{}: {n_cut} conversations lost what goes beyond --context {n_ctx}", path.display()));
        }
        add(texts);
    }
    if let Some(folder) = &args.from {
        let FromUse { texts, n_cut, n_others } = from_use::read(folder, model, n_ctx)?;
        let n_refused: usize = texts.iter().map(|text| text.refused.len()).sum();
        let n: usize = texts.iter().map(Text::n_counted).sum();
        tell(&format!("{} replies of {n} tokens; drafts were refused at {n_refused} of them", texts.len()));
        if n_cut > 0 {
            tell(&format!(
                "{n_cut} of them are longer than --context {n_ctx} with their prompts: they lost their beginnings"
            ));
        }
        if n_others > 0 {
            tell(&format!("{n_others} files of other models were left alone"));
        }
        add(texts);
    }
    if let Some(path) = &args.self_prompts {
        let prompts = answers::prompts(path)?;
        let wanted = Wanted {
            n_each: args.answers.into(),
            n_ctx,
            temperature: args.temperature,
            seed: args.seed,
            n_parallel: N_PARALLEL.into(),
        };
        let begun = Instant::now();
        let shown = Shown::new((prompts.len() * wanted.n_each) as u64, "replies");
        let tell = |n: usize, n_tokens: usize| shown.at(n as u64, format!("answering: {n_tokens} tokens"));
        let texts = answers::ask(model, &prompts, wanted, folder, (stop, &tell))?;
        let n: usize = texts.iter().map(Text::n_counted).sum();
        shown.line(&format!("{} replies of {n} tokens in {:.0} s", texts.len(), begun.elapsed().as_secs_f64()));
        add(texts);
    }
    Ok(all)
}

/// What tells trainings apart; `n_part` is the size of parts on a GPU, on which the order of texts depends.
fn identity(
    args: &Args,
    (source, texts): (&NewHead, &[Text]),
    model: &Arc<model::Model>,
    n_part: Option<usize>,
) -> anyhow::Result<String> {
    let mut digest = Sha256::new_with_prefix(model.fingerprint()?);
    let how = (args.init, args.heads, args.depth, args.tokens, args.minutes, args.batch, args.context, args.rate);
    let more = (args.acceptance, args.words, args.vocab, args.held_out, args.patience, args.seed, source.n_layers());
    digest.update(format!("{how:?} {more:?}"));
    // As those below: trainings without them keep their identity.
    if args.head.is_some() || args.hold_latest.is_some() {
        digest.update(format!("{:?} {:?}", args.head, args.hold_latest));
    }
    // Trainings that know nothing of refused drafts keep their identity.
    if args.refused_weight != 1.0 {
        digest.update(args.refused_weight.to_le_bytes());
        texts.iter().flat_map(|text| &text.refused).for_each(|at| digest.update((*at as u64).to_le_bytes()));
    }
    if let Some(n_part) = n_part {
        digest.update((n_part as u64).to_le_bytes());
    }
    for text in texts {
        text.tokens.iter().for_each(|token| digest.update(token.0.to_le_bytes()));
        digest.update(text.counted.iter().map(|counted| u8::from(*counted)).collect::<Vec<u8>>());
    }
    Ok(hex(&digest.finalize()))
}

/// Writes the head with what is to be known of it.
fn write(args: &Args, trainer: Trainer, progress: &Progress, output: &Path) -> anyhow::Result<()> {
    let (source, head) = trainer.into_parts();
    let best = best(progress);
    let files = args.data.iter().chain(&args.self_prompts).chain(&args.from);
    let names = files.map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned());
    let mut said = vec![
        ("nextn.training.program".to_owned(), Key::from(concat!("nextn-tune ", env!("CARGO_PKG_VERSION")))),
        ("nextn.training.start".to_owned(), Key::from(if source.is_own() { "own" } else { "new" })),
        ("nextn.training.data".to_owned(), Key::from(names.collect::<Vec<_>>().join(", ").as_str())),
        ("nextn.training.tokens".to_owned(), Key::U64(progress.n_tokens as u64)),
    ];
    if let Some((_, right)) = best {
        said.push(("nextn.training.acceptance".to_owned(), Key::Array(right.iter().map(|x| *x as f32).collect())));
    }
    let values = start::numbers(&head, source.n_layer())?;
    let layout = if args.slim { Layout::Slim } else { Layout::Upstream };
    let new = source.into_file(values, said, Extract { layout, dtype: args.dtype })?;
    new.write(output, convert::stream::available_threads(), &Control::default())?;
    let shown = output.display();
    let as_it_was = best.filter(|(n, _)| *n < progress.n_tokens).map(|(n, _)| format!("; the best was that after {n}"));
    println!("{shown}: the head, after {} tokens{}", progress.n_tokens, as_it_was.unwrap_or_default());
    tell(&format!("next: nextn-cli -m {} --draft-model {shown}", args.model.display()));
    Ok(())
}
