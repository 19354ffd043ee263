//! What a request goes on with: its own items, those of the response before it, and items that it refers to by their names.

use std::sync::Arc;

use serde_json::{Value, json};

use super::input;
use super::store::Item;
use super::types::ResponsesRequest;
use crate::error::{ApiError, shortened};
use crate::ids;
use crate::state::AppState;
use crate::work::Caller;

/// The conversation of a request.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// Kept with the response before.
    pub(super) kept: Vec<Arc<Item>>,
    /// Of this request, each with a name.
    pub(super) own: Vec<Value>,
}

impl Conversation {
    /// That of `body`, whose `input` it takes.
    ///
    /// # Errors
    /// 400 for what is not kept, and for what this server does not do.
    pub(super) fn of(body: &mut ResponsesRequest, state: &AppState, caller: Caller) -> Result<Self, ApiError> {
        for (field, value) in [("conversation", &body.conversation), ("prompt", &body.prompt)] {
            if value.as_ref().is_some_and(|value| !value.is_null()) {
                let message =
                    format!("{field}: this server keeps responses only: use `previous_response_id`, or `input`");
                return Err(ApiError::field(field, message));
            }
        }
        if body.background == Some(true) {
            let message = "background: this server answers while its client waits; stop waiting with a stream's end";
            return Err(ApiError::field("background", message));
        }
        let kept = match &body.previous_response_id {
            None => Vec::new(),
            Some(id) => {
                let found = state.responses().find(id, caller.scope);
                found.ok_or_else(|| not_kept(id, state))?.items().to_vec()
            }
        };
        let own = match std::mem::take(&mut body.input) {
            Value::String(text) => {
                vec![json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": text }] })]
            }
            Value::Array(items) if !items.is_empty() => items,
            // To go on with the last turn alone.
            Value::Array(_) | Value::Null if !kept.is_empty() => Vec::new(),
            _ => return Err(ApiError::field("input", "input: a text or a list of items expected")),
        };
        let room = state.settings().limits.max_body;
        let mut n_bytes: usize = kept.iter().map(|item| item.n_bytes()).sum();
        let own = own.into_iter().enumerate().map(|(i, item)| match reference(&item) {
            None => Ok(named(item)),
            Some(id) => {
                let found = state.responses().item(id, caller.scope);
                let value = found.as_ref().and_then(|item| item.value()).ok_or_else(|| {
                    let id = shortened(id);
                    ApiError::field("input", format!("input[{i}]: no item `{id}` is kept here: send the item itself"))
                })?;
                n_bytes += found.map_or(0, |item| item.n_bytes());
                if n_bytes > room { Err(ApiError::too_large(room)) } else { Ok(value) }
            }
        });
        let own = own.collect::<Result<_, _>>()?;
        if n_bytes > room {
            return Err(ApiError::too_large(room));
        }
        Ok(Self { kept, own })
    }

    /// Some of the items may have images.
    pub(super) fn may_have_images(&self) -> bool {
        input::have_images(&self.own) || self.kept.iter().any(|item| SEEN.iter().any(|kind| item.holds(kind)))
    }

    /// All items, the kept ones first. They may be many: call it where that holds up nobody.
    pub(super) fn items(self) -> (Vec<Value>, usize) {
        let n_own = self.own.len();
        let kept = self.kept.iter().filter_map(|item| item.value());
        (kept.chain(self.own).collect(), n_own)
    }
}

/// The name of the item that this one refers to.
fn reference(item: &Value) -> Option<&str> {
    let is_reference = match item.get("type") {
        None | Some(Value::Null) => item.get("role").is_none(),
        Some(kind) => kind == "item_reference",
    };
    item.get("id").and_then(Value::as_str).filter(|_| is_reference)
}

/// An item with a type and a name.
fn named(mut item: Value) -> Value {
    let Some(fields) = item.as_object_mut() else { return item };
    if !fields.get("type").is_some_and(Value::is_string) && fields.contains_key("role") {
        fields.insert("type".into(), json!("message"));
    }
    if !fields.get("id").is_some_and(Value::is_string) {
        let prefix = match fields.get("type").and_then(Value::as_str) {
            Some("message") => "msg_",
            Some("reasoning") => "rs_",
            Some("function_call") => "fc_",
            _ => "item_",
        };
        fields.insert("id".into(), json!(ids::new(prefix)));
    }
    item
}

fn not_kept(id: &str, state: &AppState) -> ApiError {
    let id = shortened(id);
    let why = match state.responses().is_open() {
        true => "it was not stored, had to leave, or belongs to another key",
        false => "this server keeps none (`--responses-max`, `--responses-ram`)",
    };
    let message =
        format!("previous_response_id: no response `{id}` is kept here: {why}; send the whole conversation as `input`");
    ApiError { code: Some("previous_response_not_found"), ..ApiError::field("previous_response_id", message) }
}
/// As kept items have them whose parts a model sees.
const SEEN: [&str; 4] = ["\"input_image\"", "\"input_video\"", "\"video_url\"", "\"video\""];
