//! Responses that are kept, with the conversations that led to them: `previous_response_id`, references to items, and fetching.
//! Owns their memory: a number of responses and of bytes that are never exceeded, the one used longest ago goes first. What one
//! scope of callers keeps no other finds. Knows neither HTTP nor what items mean.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use engine::Scope;
use serde_json::Value;

use crate::settings::KeptResponses;

/// All that is kept.
#[derive(Debug)]
pub(crate) struct Store {
    limits: KeptResponses,
    /// Bytes of all items and responses that are alive.
    n_bytes: Arc<AtomicUsize>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    responses: HashMap<String, Arc<Kept>>,
    /// The ids by their last use.
    by_use: BTreeMap<u64, String>,
    n_uses: u64,
    items: HashMap<(u64, String), Weak<Item>>,
    /// So many names of items are looked through for those that are gone.
    sweep_at: usize,
}

/// A response that is kept.
#[derive(Debug)]
pub(crate) struct Kept {
    /// As JSON.
    body: Counted,
    scope: Scope,
    /// The conversation that led to it, and what it says.
    items: Vec<Arc<Item>>,
    n_input: usize,
    last_use: AtomicU64,
}

/// An item of a conversation; responses that go on with one another share it.
#[derive(Debug)]
pub(crate) struct Item {
    /// Its name.
    pub(crate) id: String,
    text: Counted,
}

/// A text whose bytes count as long as it is there.
#[derive(Debug)]
struct Counted {
    text: Box<str>,
    n_bytes: usize,
    total: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.total.fetch_sub(self.n_bytes, Ordering::Relaxed);
    }
}

impl Item {
    /// Its JSON has this text.
    pub(super) fn holds(&self, text: &str) -> bool {
        self.text.text.contains(text)
    }
}

impl Store {
    /// Nothing yet.
    pub(crate) fn new(limits: KeptResponses) -> Self {
        Self { limits, n_bytes: Arc::default(), table: Mutex::default() }
    }

    /// Whether anything may be kept.
    pub(crate) fn is_open(&self) -> bool {
        self.limits.max_count > 0 && self.limits.max_bytes > 0
    }

    /// Items that may become part of a response that is kept; `None`: there is no room for them.
    pub(crate) fn items(&self, items: &[Value]) -> Option<Vec<Arc<Item>>> {
        let one = |item: &Value| {
            let id = item.get("id")?.as_str()?.to_owned();
            Some(Arc::new(Item { text: self.counted(item.to_string(), id.len() + OF_ITEM)?, id }))
        };
        items.iter().map(one).collect()
    }

    /// Keeps a response under its id, with the items before it and its own. False: there is no room for it.
    pub(crate) fn keep(
        &self,
        id: &str,
        scope: Scope,
        body: String,
        mut items: Vec<Arc<Item>>,
        output: &[Value],
    ) -> bool {
        let n_input = items.len();
        let Some(own) = self.items(output) else { return false };
        items.extend(own);
        let Some(body) = self.counted(body, id.len() + OF_RESPONSE + items.len() * size_of::<Arc<Item>>()) else {
            return false;
        };
        let kept = Arc::new(Kept { body, scope, items, n_input, last_use: AtomicU64::new(0) });
        let dropped = self.with(|table| {
            let mut dropped = Vec::new();
            while table.responses.len() >= self.limits.max_count {
                dropped.extend(table.drop_oldest());
            }
            for item in &kept.items {
                table.items.insert((scope.0, item.id.clone()), Arc::downgrade(item));
            }
            if table.items.len() >= table.sweep_at {
                table.items.retain(|_, item| item.strong_count() > 0);
                table.sweep_at = 2 * table.items.len() + SWEEP_AT;
            }
            table.responses.insert(id.to_owned(), Arc::clone(&kept));
            table.used(id, &kept);
            dropped
        });
        drop(dropped);
        true
    }

    /// The response of this id, if this scope keeps it.
    pub(crate) fn find(&self, id: &str, scope: Scope) -> Option<Arc<Kept>> {
        self.with(|table| {
            let kept = table.responses.get(id).filter(|kept| kept.scope == scope).cloned()?;
            table.used(id, &kept);
            Some(kept)
        })
    }

    /// The item of this id, as JSON, if this scope keeps it.
    pub(crate) fn item(&self, id: &str, scope: Scope) -> Option<Arc<Item>> {
        self.with(|table| table.items.get(&(scope.0, id.to_owned()))?.upgrade())
    }

    /// Keeps it no longer. False: this scope did not keep it.
    pub(crate) fn remove(&self, id: &str, scope: Scope) -> bool {
        let removed = self.with(|table| match table.responses.get(id) {
            Some(kept) if kept.scope == scope => table.remove(id),
            _ => None,
        });
        removed.is_some()
    }

    /// A text that counts, with `more` bytes around it, once there is room for it.
    fn counted(&self, text: String, more: usize) -> Option<Counted> {
        let n_bytes = text.len() + more;
        loop {
            let taken = self.n_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |total| {
                total.checked_add(n_bytes).filter(|total| *total <= self.limits.max_bytes)
            });
            if taken.is_ok() {
                return Some(Counted { text: text.into_boxed_str(), n_bytes, total: Arc::clone(&self.n_bytes) });
            }
            if n_bytes > self.limits.max_bytes {
                return None;
            }
            // Its bytes go when nobody reads it any more.
            drop(self.with(Table::drop_oldest)?);
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Table) -> T) -> T {
        // A panic under this lock leaves a table that is whole enough: an entry more or less.
        work(&mut self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Table {
    fn used(&mut self, id: &str, kept: &Kept) {
        self.n_uses += 1;
        let before = kept.last_use.swap(self.n_uses, Ordering::Relaxed);
        self.by_use.remove(&before);
        self.by_use.insert(self.n_uses, id.to_owned());
    }

    fn drop_oldest(&mut self) -> Option<Arc<Kept>> {
        let (_, id) = self.by_use.pop_first()?;
        self.remove(&id)
    }

    fn remove(&mut self, id: &str) -> Option<Arc<Kept>> {
        let kept = self.responses.remove(id)?;
        self.by_use.remove(&kept.last_use.load(Ordering::Relaxed));
        Some(kept)
    }
}

impl Kept {
    /// The response as JSON.
    pub(crate) fn body(&self) -> &str {
        &self.body.text
    }

    /// The conversation that led to it, and what it says.
    pub(crate) fn items(&self) -> &[Arc<Item>] {
        &self.items
    }

    /// The conversation that led to it.
    pub(crate) fn input(&self) -> &[Arc<Item>] {
        &self.items[..self.n_input]
    }
}

impl Item {
    /// The item.
    pub(crate) fn value(&self) -> Option<Value> {
        // It was written as JSON.
        serde_json::from_str(&self.text.text).ok()
    }

    /// Its bytes as JSON.
    pub(crate) fn n_bytes(&self) -> usize {
        self.text.text.len()
    }
}

/// What an item and a response take beside their texts.
const OF_ITEM: usize = 160;
const OF_RESPONSE: usize = 320;

/// Names of items that are kept without a look at whether the items are there still.
const SWEEP_AT: usize = 1024;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MINE: Scope = Scope(1);

    fn store(max_count: usize, max_bytes: usize) -> Store {
        Store::new(KeptResponses { max_count, max_bytes })
    }

    fn item(id: &str, n: usize) -> Value {
        json!({ "id": id, "text": "x".repeat(n) })
    }

    fn keep(store: &Store, id: &str, before: &[Arc<Item>], own: Value) -> bool {
        store.keep(id, MINE, "{}".into(), before.to_vec(), &[own])
    }

    #[test]
    fn the_response_used_longest_ago_goes_first() {
        let store = store(2, 1 << 20);
        assert!(keep(&store, "a", &[], item("a1", 1)) && keep(&store, "b", &[], item("b1", 1)));
        assert!(store.find("a", MINE).is_some());
        assert!(keep(&store, "c", &[], item("c1", 1)));
        let there = |id| store.find(id, MINE).is_some();
        assert_eq!([there("a"), there("b"), there("c")], [true, false, true]);
        assert!(store.item("b1", MINE).is_none() && store.item("a1", MINE).is_some());
        assert_eq!(store.with(|table| table.by_use.len()), 2);
    }

    #[test]
    fn bytes_are_never_exceeded_and_all_come_back() {
        let store = store(1000, 10_000);
        for i in 0..100 {
            assert!(keep(&store, &format!("r{i}"), &[], item(&format!("i{i}"), 1000)));
            assert!(store.n_bytes.load(Ordering::Relaxed) <= 10_000);
        }
        assert!(!keep(&store, "large", &[], item("l", 20_000)), "it fits nowhere");
        assert!(store.find("r99", MINE).is_some(), "and throws nothing out");
        // What somebody reads is in memory still: then there is room for less.
        let held: Vec<_> = (90..100).filter_map(|i| store.find(&format!("r{i}"), MINE)).collect();
        assert!(!keep(&store, "more", &[], item("m", 5_000)));
        drop(held);
        assert!(keep(&store, "more", &[], item("m", 5_000)));
        assert!(store.remove("more", MINE) && !store.remove("more", MINE));
        store.with(|table| while table.drop_oldest().is_some() {});
        assert_eq!(store.n_bytes.load(Ordering::Relaxed), 0);
        assert!(store.item("i99", MINE).is_none());
    }

    #[test]
    fn responses_that_go_on_share_their_items() {
        let store = store(10, 1 << 20);
        assert!(keep(&store, "a", &[], item("a1", 10_000)));
        let first = store.n_bytes.load(Ordering::Relaxed);
        let before = store.find("a", MINE).unwrap().items().to_vec();
        assert!(keep(&store, "b", &before, item("b1", 10)));
        drop(before);
        assert!(store.n_bytes.load(Ordering::Relaxed) < first + 1000);
        // The first may go: the second has all that it needs.
        assert!(store.remove("a", MINE));
        let second = store.find("b", MINE).unwrap();
        assert_eq!((second.input().len(), second.items().len()), (1, 2));
        assert!(store.item("a1", MINE).is_some());
    }

    #[test]
    fn what_one_scope_keeps_no_other_finds() {
        let store = store(10, 1 << 20);
        assert!(keep(&store, "a", &[], item("a1", 1)));
        let other = Scope(2);
        assert!(store.find("a", other).is_none() && store.item("a1", other).is_none() && !store.remove("a", other));
        assert!(store.find("a", MINE).is_some());
        assert!(!self::store(0, 1).is_open() && !self::store(1, 0).is_open());
    }
}
