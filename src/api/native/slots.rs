//! `/slots`: what the engine's sequences do, and keeping their state in files.
//! Owns the names of those files: a client never leads out of the directory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use engine::{Scope, SlotError};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::props::generation_settings;
use crate::blocking::blocking;
use crate::error::ApiError;
use crate::json::{Input, Output};
use crate::query::Query;
use crate::registry::Served;
use crate::state::AppState;
use crate::work::Caller;

/// What is asked of `GET /slots`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Asked {
    model: Option<String>,
    fail_on_no_slot: Option<String>,
}

/// `GET /slots`.
pub(crate) async fn slots(State(state): State<AppState>, Query(asked): Query<Asked>) -> Result<Response, ApiError> {
    if !state.settings().slots {
        return Err(ApiError::not_supported("this server was started without /slots: start it with --slots"));
    }
    let served = state.registry().ready(asked.model.as_deref())?;
    let n_ctx = served.engine().limits().n_ctx;
    let speculative = served.drafts().max > 0;
    let slots = blocking(move || Ok(served.engine().slots()?)).await?;
    if asked.fail_on_no_slot.is_some_and(|on| on != "0") && slots.iter().all(|slot| slot.work.is_some()) {
        return Err(ApiError::unavailable("no slot is free", Some(1)));
    }
    let bodies = slots.into_iter().map(|slot| {
        let mut body = json!({
            "id": slot.index,
            "n_ctx": n_ctx,
            "speculative": speculative,
            "is_processing": slot.work.is_some(),
            "n_tokens": slot.n_tokens,
        });
        let next_token = |has_next: bool, has_new_line: bool, n_remain: i64, n_decoded: usize| {
            json!([{ "has_next_token": has_next, "has_new_line": has_new_line, "n_remain": n_remain, "n_decoded": n_decoded }])
        };
        if let Some(work) = slot.work {
            body["id_task"] = json!(work.id);
            body["params"] = generation_settings(&work.options);
            body["n_prompt_tokens"] = json!(work.prompt_tokens);
            body["n_prompt_tokens_processed"] = json!(work.prompt_done);
            body["n_prompt_tokens_cache"] = json!(work.cached_tokens);
            let n_remain = work.max_tokens.saturating_sub(work.generated_tokens) as i64;
            body["next_token"] = next_token(true, work.has_new_line, n_remain, work.generated_tokens);
        } else if slot.n_tokens > 0 {
            body["n_prompt_tokens"] = json!(slot.n_tokens);
            body["next_token"] = next_token(false, false, -1, 0);
        }
        body
    });
    Ok(Output(bodies.collect::<Vec<Value>>()).into_response())
}

/// What is to be done with a slot.
#[derive(Debug, Deserialize)]
pub(crate) struct Action {
    action: Option<String>,
    model: Option<String>,
}

#[derive(Debug, Deserialize)]
struct FileName {
    filename: String,
}

/// `POST /slots/{id}?action=save|restore|erase`.
pub(crate) async fn act(
    State(state): State<AppState>,
    caller: Caller,
    Path(id): Path<String>,
    Query(action): Query<Action>,
    input: Option<Input>,
) -> Result<Output<Value>, ApiError> {
    let Some(directory) = state.settings().slot_save_path.clone() else {
        let message = "this server does not save slots: start it with --slot-save-path DIR";
        return Err(ApiError::not_supported(message));
    };
    let served = state.registry().get(action.model.as_deref()).await?;
    let index: usize = id.parse().map_err(|_| ApiError::field("id", "a slot is a number from 0"))?;
    if index >= served.n_sequences() {
        return Err(unknown(&served, index));
    }
    match action.action.as_deref() {
        Some("erase") => {
            let n = blocking(move || Ok(served.engine().clear_slot(index)?)).await?;
            Ok(Output(json!({ "id_slot": index, "n_erased": n })))
        }
        Some("save") => {
            let name = file_name(input).await?;
            blocking(move || save(&served, index, caller.scope, &directory, &name)).await
        }
        Some("restore") => {
            let name = file_name(input).await?;
            blocking(move || restore(&served, index, caller.scope, &directory, &name)).await
        }
        _ => Err(ApiError::field("action", "action: save, restore or erase expected")),
    }
}

fn save(
    served: &Arc<Served>,
    index: usize,
    scope: Scope,
    directory: &FilePath,
    name: &str,
) -> Result<Output<Value>, ApiError> {
    let start = Instant::now();
    let saved = served.engine().save_slot(index, scope)?;
    let bytes = saved.to_bytes()?;
    // Renamed into place: what stands there, a link too, is replaced and not followed.
    let part = directory.join(format!(".{name}.{}", crate::ids::new("part-")));
    let written = create(&part).and_then(|mut file| file.write_all(&bytes).and_then(|()| file.sync_all()));
    let done = written.and_then(|()| std::fs::rename(&part, directory.join(name)));
    if let Err(error) = done {
        // It may not be there.
        let _ = std::fs::remove_file(&part);
        return Err(file_error(name, &error));
    }
    Ok(Output(json!({
        "id_slot": index,
        "filename": name,
        "n_saved": saved.n_tokens(),
        "n_written": bytes.len(),
        "timings": { "save_ms": millis(start) },
    })))
}

/// The state belongs to `scope` from then on, whoever saved it.
fn restore(
    served: &Arc<Served>,
    index: usize,
    scope: Scope,
    directory: &FilePath,
    name: &str,
) -> Result<Output<Value>, ApiError> {
    let start = Instant::now();
    let bytes = read(&directory.join(name), served.engine().max_slot_bytes() as u64)
        .map_err(|error| file_error(name, &error))?;
    let n = served.engine().load_slot(index, served.engine().read_slot(&bytes)?, scope)?;
    Ok(Output(json!({
        "id_slot": index,
        "filename": name,
        "n_restored": n,
        "n_read": bytes.len(),
        "timings": { "restore_ms": millis(start) },
    })))
}

fn create(path: &FilePath) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Elsewhere the folder says who may read.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.write(true).create_new(true).open(path)
}

/// All of a file that has `most` bytes or less; a longer one is not brought into memory.
fn read(path: &FilePath, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    let found = file.metadata()?.len();
    // The file may grow while it is read.
    if found > most || file.take(most + 1).read_to_end(&mut bytes)? as u64 > most {
        let found = found.max(most + 1);
        return Err(io::Error::other(format!(
            "it has {found} bytes or more, a slot of this server at most {most}: it was saved with another model or a \
             larger context"
        )));
    }
    Ok(bytes)
}

/// A plain file that is no link.
fn open(path: &FilePath) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags);
    }
    // FILE_FLAG_OPEN_REPARSE_POINT: a link itself, which is no plain file then.
    #[cfg(windows)]
    std::os::windows::fs::OpenOptionsExt::custom_flags(&mut options, 0x0020_0000);
    let file = options.read(true).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a plain file")),
    }
}

async fn file_name(input: Option<Input>) -> Result<String, ApiError> {
    let input = input.ok_or_else(|| ApiError::field("filename", "filename: this field is expected"))?;
    let FileName { filename } = input.read().await?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if filename.is_empty() || filename.len() > MAX_NAME || filename.starts_with('.') || !filename.chars().all(plain) {
        let message =
            format!("filename: 1 to {MAX_NAME} letters, digits, `.`, `-` or `_` expected, none of them a path");
        return Err(ApiError::field("filename", message));
    }
    Ok(filename)
}

fn file_error(name: &str, error: &io::Error) -> ApiError {
    match error.kind() {
        io::ErrorKind::NotFound => ApiError::not_found(format!("{name}: no slot was saved under this name")),
        _ => ApiError::field("filename", format!("{name}: {error}")),
    }
}

fn unknown(served: &Served, index: usize) -> ApiError {
    ApiError::not_found(SlotError::Unknown { index, n_slots: served.n_sequences() }.to_string())
}

impl From<SlotError> for ApiError {
    fn from(error: SlotError) -> Self {
        let message = error.to_string();
        match error {
            SlotError::Unknown { .. } => Self::not_found(message),
            SlotError::Busy { .. } => Self::refused(StatusCode::CONFLICT, message),
            SlotError::OtherScope { .. } => Self::refused(StatusCode::FORBIDDEN, message),
            SlotError::State(_) | SlotError::Drafts(_) | SlotError::Format(_) => Self::field("filename", message),
            SlotError::Stopped => Self::unavailable(message, None),
        }
    }
}

fn millis(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

const MAX_NAME: usize = 100;
