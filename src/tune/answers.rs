//! The model's own replies as texts: a prompt's likeliest reply, and sampled ones. Owns the file in which they are kept as they
//! come, so that an interruption loses none.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

use anyhow::{Context, anyhow, ensure};
use engine::sample::SamplingParams;
use engine::{Event, RequestOptions};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use session::{ALWAYS, Conversation, LoadedModel};
use sha2::{Digest, Sha256};
use text::{TokenId, hex};

use crate::data::{self, Text};

/// What is asked of the model.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Replies to each prompt: the first is the likeliest, the others are sampled.
    pub n_each: usize,
    /// Most tokens of a prompt and its reply.
    pub n_ctx: usize,
    /// Of the sampled ones.
    pub temperature: f32,
    /// Of the sampled ones, with the number of each.
    pub seed: u64,
    /// Replies at a time.
    pub n_parallel: usize,
}

/// A reply in the file.
#[derive(Debug, Deserialize, Serialize)]
struct Line {
    n: usize,
    prompt: Vec<u32>,
    reply: Vec<u32>,
}

/// Prompts, one a line: text, or JSON with `prompt` or `messages`.
///
/// # Errors
/// A file that cannot be read, is empty, or has a line that is none of these.
pub fn prompts(path: &Path) -> anyhow::Result<Vec<Conversation>> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("{shown}: cannot be opened"))?;
    let mut prompts = Vec::new();
    let read = data::for_lines(BufReader::new(file), |n, line| {
        let prompt = match line.starts_with(['{', '[']) {
            false => Ok(Conversation::of(line)),
            true => match serde_json::from_str::<Value>(line) {
                Ok(value) if value.get("prompt").is_some_and(Value::is_string) => {
                    Ok(Conversation::of(value["prompt"].as_str().unwrap_or_default()))
                }
                _ => data::conversation(line),
            },
        };
        prompts.push(prompt.map_err(|e| anyhow!("line {n}: {e:#}"))?);
        Ok(())
    });
    read.map_err(|e| anyhow!("{shown}: {e:#}"))?;
    ensure!(!prompts.is_empty(), "{shown}: no prompts in it");
    Ok(prompts)
}

/// The replies to all prompts in their order. Those that an earlier run left in `folder` are not asked for again. `tell` is called with the number of
/// replies and of tokens that are there.
///
/// # Errors
/// The model refuses a prompt, the file cannot be written, or `stop` was set; what came until then is in the file.
pub fn ask(
    model: &LoadedModel,
    prompts: &[Conversation],
    wanted: Wanted,
    folder: &Path,
    (stop, tell): (&AtomicBool, &dyn Fn(usize, usize)),
) -> anyhow::Result<Vec<Text>> {
    // Replies to other prompts, or otherwise sampled ones, are none of these.
    let asked = Sha256::digest(format!("{prompts:?} {wanted:?}"));
    let name = hex(&asked[..8]);
    let kept = &folder.join(format!("answers-{name}.jsonl"));
    let failed_to_write = || format!("{}: cannot be written", kept.display());
    let mut replies = earlier(kept)?;
    let mut file = None;
    let open: Vec<usize> = (0..prompts.len() * wanted.n_each).filter(|n| !replies.contains_key(n)).collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let mut n_tokens: usize = replies.values().map(|text: &Text| text.tokens.len()).sum();
    thread::scope(|scope| -> anyhow::Result<()> {
        let (send, receive) = mpsc::channel();
        for _ in 0..wanted.n_parallel.min(open.len()) {
            let (send, open, next, failed) = (send.clone(), &open, &next, &failed);
            scope.spawn(move || {
                while let Some(&n) = open.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    match reply(model, &prompts[n % prompts.len()], n, n / prompts.len(), wanted) {
                        Ok(line) => drop(send.send(line)),
                        Err(error) => {
                            next.store(open.len(), Ordering::Relaxed);
                            failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
                            break;
                        }
                    }
                }
            });
        }
        drop(send);
        for line in receive {
            let mut words = serde_json::to_string(&line)?;
            words.push('\n');
            // There is none before the first reply: what was refused leaves nothing.
            if let Err(error) = append(&mut file, kept, words.as_bytes()) {
                next.store(open.len(), Ordering::Relaxed);
                return Err(error).with_context(failed_to_write);
            }
            let text = text_of(&line);
            n_tokens += text.tokens.len();
            replies.insert(line.n, text);
            tell(replies.len(), n_tokens);
        }
        Ok(())
    })?;
    if let Some(error) = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        return Err(error);
    }
    ensure!(!stop.load(Ordering::Relaxed), crate::Stopped);
    Ok(replies.into_iter().map(|(n, text)| Text { group: n % prompts.len(), ..text }).collect())
}

/// Writes at the end of the file, which is made when it is first written to.
fn append(file: &mut Option<File>, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let file = match file {
        Some(file) => file,
        None => file.insert(OpenOptions::new().create(true).append(true).open(path)?),
    };
    file.write_all(bytes)
}

/// Those of a run that was broken off. A last line that is not whole is none.
fn earlier(kept: &Path) -> anyhow::Result<BTreeMap<usize, Text>> {
    let mut replies = BTreeMap::new();
    let bytes = match std::fs::read(kept) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(replies),
        Err(error) => return Err(error).with_context(|| format!("{}: cannot be read", kept.display())),
    };
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
    if whole < bytes.len() {
        OpenOptions::new().write(true).open(kept)?.set_len(whole as u64)?;
    }
    for line in bytes[..whole].split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        let line: Line =
            serde_json::from_slice(line).map_err(|e| anyhow!("{}: {e}; remove it to begin anew", kept.display()))?;
        replies.insert(line.n, text_of(&line));
    }
    Ok(replies)
}

fn text_of(line: &Line) -> Text {
    let ids = |ids: &[u32]| ids.iter().map(|id| TokenId(*id)).collect::<Vec<_>>();
    Text::of_reply(&ids(&line.prompt), &ids(&line.reply))
}

/// Reply number `n` of all, the `i`th to this prompt.
fn reply(model: &LoadedModel, prompt: &Conversation, n: usize, i: usize, wanted: Wanted) -> anyhow::Result<Line> {
    let sampling = match i {
        0 => SamplingParams::greedy(),
        _ => SamplingParams {
            temperature: wanted.temperature,
            seed: Some(wanted.seed.wrapping_add(n as u64)),
            ..model.sampling().clone()
        },
    };
    let options = RequestOptions { sampling, ..model.request_options() };
    let mut prepared = model.prepare(prompt.clone(), options, ALWAYS)?;
    let ids: Vec<TokenId> = prepared.request.prompt().to_vec();
    let room = wanted.n_ctx.saturating_sub(ids.len());
    ensure!(room > 0, "a prompt of {} tokens, at most {} with its reply (--context)", ids.len(), wanted.n_ctx);
    let options = RequestOptions { max_tokens: Some(room), ..prepared.request.options().clone() };
    prepared.request = engine::GenerateRequest::new(ids.clone(), options, prepared.request.limits())?;
    let (mut generation, _) = model.submit(prepared)?;
    let mut reply = Vec::new();
    while let Some(event) = generation.next() {
        match event {
            Event::Tokens(pieces) => reply.extend(pieces.iter().map(|piece| piece.token.0)),
            Event::Failed(what) => return Err(anyhow!(what)),
            Event::Prompt(_) | Event::Finished(_) => {}
        }
    }
    Ok(Line { n, prompt: ids.iter().map(|id| id.0).collect(), reply })
}
