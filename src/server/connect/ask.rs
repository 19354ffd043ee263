//! What a running server says of its models, for the settings of its clients.

use std::time::Duration;

use program::exit::{Exit, Failure, Outcome};
use serde::Deserialize;
use ureq::Agent;

/// Where a server is, and the key that it takes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    /// Without a path.
    pub(super) url: String,
    /// The first of its keys.
    pub(super) key: Option<String>,
}

/// A model of a server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Model {
    pub(super) id: String,
    /// Tokens of one sequence; unknown until the model was loaded.
    pub(super) n_ctx: Option<u64>,
}

/// All that settings are made of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Facts {
    pub(super) place: Place,
    /// At least one; the first is the one to use.
    pub(super) models: Vec<Model>,
}

impl Facts {
    /// The model to use.
    pub(super) fn model(&self) -> &Model {
        &self.models[0]
    }

    /// The key, or a word for programs that want one where the server wants none.
    pub(super) fn key_or_word(&self) -> &str {
        self.place.key.as_deref().unwrap_or("none")
    }
}

#[derive(Deserialize)]
struct List {
    data: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    id: String,
    #[serde(default)]
    aliases: Vec<String>,
    meta: Option<Meta>,
}

#[derive(Deserialize)]
struct Meta {
    n_ctx: u64,
}

/// Asks the server at `place`; `name`: the model to use, if not its first.
///
/// # Errors
/// No server answers, it wants another key, or it has no such model.
pub(super) fn ask(place: &Place, name: Option<&str>) -> Outcome<Facts> {
    let list = list(place).map_err(|why| Failure::message(Exit::Runtime, why))?;
    chosen(place, list, name).map_err(|why| Failure::message(Exit::Usage, why))
}

fn list(place: &Place) -> Result<List, String> {
    let Place { url, key } = place;
    let config = Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).proxy(None).build();
    let mut request = Agent::from(config).get(format!("{url}/v1/models"));
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut response = request.call().map_err(|error| {
        format!("no server answers at {url} ({error}): start one, such as `nextn-server -m model.gguf -c 65536`, or say where it is with --url")
    })?;
    let status = response.status().as_u16();
    if matches!(status, 401 | 403) {
        return Err(format!(
            "the server at {url} does not let this command in ({status}): give its key with --api-key or --api-key-file"
        ));
    }
    let list: Result<List, _> = response.body_mut().with_config().limit(MAX_BYTES).read_json();
    list.map_err(|error| {
        format!("{url}/v1/models: a list of models expected ({status}, {error}): is this a nextn-server?")
    })
}

/// The facts, with the model to use in the first place.
fn chosen(place: &Place, list: List, name: Option<&str>) -> Result<Facts, String> {
    let ids: Vec<&str> = list.data.iter().map(|model| model.id.as_str()).collect();
    let is_it =
        |model: &Listed| name.is_none_or(|name| model.id == name || model.aliases.iter().any(|alias| alias == name));
    let at = list.data.iter().position(is_it).ok_or_else(|| {
        format!("the server at {} has no model `{}`: it has {}", place.url, name.unwrap_or_default(), ids.join(", "))
    })?;
    let mut models: Vec<Model> =
        list.data.into_iter().map(|model| Model { id: model.id, n_ctx: model.meta.map(|meta| meta.n_ctx) }).collect();
    models[..=at].rotate_right(1);
    Ok(Facts { place: place.clone(), models })
}

/// What the server is called in the settings of its clients.
pub(super) const PROVIDER: &str = "nextn";

const PATIENCE: Duration = Duration::from_secs(10);
const MAX_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_model_that_is_named_stands_first() {
        let place = Place { url: "http://x".into(), key: None };
        let list = || {
            serde_json::from_value(
                json!({ "data": [{ "id": "a", "meta": { "n_ctx": 5 } }, { "id": "b", "aliases": ["c"] }] }),
            )
        };
        let ids = |name| {
            let facts = chosen(&place, list().unwrap(), name)?;
            Ok::<_, String>(facts.models.into_iter().map(|model| (model.id, model.n_ctx)).collect::<Vec<_>>())
        };
        let (a, b) = (("a".to_owned(), Some(5)), ("b".to_owned(), None));
        assert_eq!(ids(None), Ok(vec![a.clone(), b.clone()]));
        assert_eq!(ids(Some("c")), Ok(vec![b, a]));
        assert!(ids(Some("d")).unwrap_err().contains("a, b"));
    }

    #[test]
    fn without_a_server_it_is_said_how_one_is_started() {
        // A port that was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let place = Place { url: format!("http://127.0.0.1:{port}"), key: None };
        let failure = ask(&place, None).unwrap_err();
        let words = failure.error.unwrap().to_string();
        assert!(failure.exit == Exit::Runtime && words.contains("start one"), "{words}");
    }
}
