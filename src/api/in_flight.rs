//! Responses under way, by the ids that clients are told: what finds one that is to be steered.
//! Owns the table, and who may see what of it. Knows no wire format.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use engine::GenerationId;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use crate::registry::Served;

/// All responses under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight(Arc<Mutex<HashMap<String, Response>>>);

/// A response under way.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    served: Arc<Served>,
    generations: Vec<GenerationId>,
    /// The key that it was asked for with.
    key: Option<usize>,
    /// What it has become, for those who wait for that.
    ended: Arc<watch::Sender<Option<Value>>>,
}

/// A place in the table; the response is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct Listed {
    table: InFlight,
    id: String,
    ended: Arc<watch::Sender<Option<Value>>>,
}

impl InFlight {
    /// Lists a response of these generations that was asked for with this key, if there are keys.
    pub(crate) fn list(
        &self,
        id: &str,
        served: &Arc<Served>,
        generations: Vec<GenerationId>,
        key: Option<usize>,
    ) -> Listed {
        let ended = Arc::new(watch::Sender::new(None));
        let response = Response { served: Arc::clone(served), generations, key, ended: Arc::clone(&ended) };
        self.with(|table| table.insert(id.to_owned(), response));
        Listed { table: self.clone(), id: id.to_owned(), ended }
    }

    /// The response of this id, if it is under way and was asked for with the same key.
    pub(crate) fn find(&self, id: &str, key: Option<usize>) -> Option<Response> {
        self.with(|table| table.get(id).filter(|response| response.key == key).cloned())
    }

    fn with<T>(&self, work: impl FnOnce(&mut HashMap<String, Response>) -> T) -> T {
        // A panic under this lock leaves a table that is whole.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Response {
    /// Ends all of its replies where they stand. Gives a receiver of what the response has become; it closes without a value
    /// where the response broke off.
    pub(crate) fn cancel(&self) -> watch::Receiver<Option<Value>> {
        let ended = self.ended.subscribe();
        self.generations.iter().for_each(|&id| self.served.engine().cancel(id));
        ended
    }

    /// Ends the thinking of its replies. Gives whether one of them was thinking. Blocks.
    pub(crate) fn end_thinking(&self) -> bool {
        // Each of them, also after the first that was.
        let ended = self.generations.iter().filter(|&&id| self.served.engine().end_thinking(id));
        ended.count() > 0
    }
}

impl Listed {
    /// The response has become this.
    pub(crate) fn ended(self, body: &impl Serialize) {
        if self.ended.receiver_count() > 0 {
            // Our own types have a JSON form.
            self.ended.send_replace(serde_json::to_value(body).ok());
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        let response = self.table.with(|table| table.remove(&self.id));
        // Its model may be freed by this, which takes long: not under the lock.
        drop(response);
    }
}
