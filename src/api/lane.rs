//! Turns at long work, one at a time and fair among clients: of those that wait, the client whose last turn is longest ago comes
//! next, so that many requests of one client hold up another's by one turn, and long ones by a part of theirs. Knows not what is
//! worked on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::rate::Client;

/// One turn at a time.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    busy: bool,
    /// In the order in which they came.
    waiting: Vec<(Client, oneshot::Sender<Turn>)>,
    /// The number of a client's last turn.
    last: HashMap<Client, u64>,
    n_turns: u64,
}

/// A turn; the next begins when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn(Option<Arc<Lane>>);

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(lane) = self.0.take() {
            lane.pass_on();
        }
    }
}

impl Turn {
    /// Lets a client go first who waits and had no turn for longer than `client`, whose turn this is; gives the next turn of
    /// `client`. Blocks its thread until then: not for one that serves others.
    pub(crate) fn after_others(mut self, client: Client) -> Turn {
        let Some(lane) = self.0.clone() else { return self };
        let (sender, turn) = oneshot::channel();
        {
            let mut queue = lane.queue();
            if !queue.waiting.iter().any(|(waits, sender)| *waits != client && !sender.is_closed()) {
                return self;
            }
            // Before the client's later requests.
            queue.waiting.insert(0, (client, sender));
        }
        self.0 = None;
        lane.pass_on();
        turn.blocking_recv().unwrap_or(Turn(None))
    }
}

impl Lane {
    /// A turn of `client`, when it comes. Dropping the future leaves the queue.
    pub(crate) async fn turn(self: &Arc<Self>, client: Client) -> Turn {
        let turn = {
            let mut queue = self.queue();
            if !queue.busy {
                queue.busy = true;
                queue.note(client);
                return Turn(Some(Arc::clone(self)));
            }
            let (sender, turn) = oneshot::channel();
            queue.waiting.push((client, sender));
            turn
        };
        // Who waits is only ever let go with a turn.
        turn.await.unwrap_or(Turn(None))
    }

    fn pass_on(self: Arc<Self>) {
        loop {
            let Some(sender) = self.queue().next() else { return };
            match sender.send(Turn(Some(Arc::clone(&self)))) {
                Ok(()) => return,
                // Who waited is gone: the turn is for the one after it.
                Err(mut turn) => turn.0 = None,
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing is half-done in there when a thread panics.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Who comes next; nobody, and the lane is free.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        self.waiting.retain(|(_, sender)| !sender.is_closed());
        let last = |i: &usize| self.last.get(&self.waiting[*i].0).copied().unwrap_or(0);
        let Some(i) = (0..self.waiting.len()).min_by_key(last) else {
            self.busy = false;
            return None;
        };
        let (client, sender) = self.waiting.remove(i);
        self.note(client);
        Some(sender)
    }

    fn note(&mut self, client: Client) {
        if self.last.len() >= MAX_CLIENTS {
            let waiting = &self.waiting;
            self.last.retain(|client, _| waiting.iter().any(|(waits, _)| waits == client));
        }
        self.n_turns += 1;
        self.last.insert(client, self.n_turns);
    }
}

/// Clients whose last turn is known; then those that do not wait are forgotten.
const MAX_CLIENTS: usize = 4096;

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_clients_second_request_waits_behind_others() {
        let lane = Arc::new(Lane::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = lane.turn(Client::Key(0)).await;
        let mut all = Vec::new();
        for (i, key) in [0, 0, 0, 1, 2, 1].into_iter().enumerate() {
            let (lane, order) = (Arc::clone(&lane), Arc::clone(&order));
            all.push(tokio::spawn(async move {
                let _turn = lane.turn(Client::Key(key)).await;
                order.lock().unwrap().push((key, i));
            }));
            yield_now().await;
        }
        assert!(order.lock().unwrap().is_empty(), "one at a time");
        drop(first);
        for one in all {
            one.await.unwrap();
        }
        // Those who had no turn yet, then the one whose turn is longest ago.
        assert_eq!(*order.lock().unwrap(), [(1, 3), (2, 4), (0, 0), (1, 5), (0, 1), (0, 2)]);
    }

    #[tokio::test]
    async fn who_is_gone_holds_up_nobody() {
        let lane = Arc::new(Lane::default());
        let first = lane.turn(Client::Key(0)).await;
        let gone = tokio::spawn({
            let lane = Arc::clone(&lane);
            async move { lane.turn(Client::Key(1)).await }
        });
        yield_now().await;
        gone.abort();
        assert!(gone.await.is_err());
        let waits = tokio::spawn({
            let lane = Arc::clone(&lane);
            async move { drop(lane.turn(Client::Key(2)).await) }
        });
        yield_now().await;
        drop(first);
        waits.await.unwrap();
        assert!(!lane.queue().busy);
        drop(lane.turn(Client::Key(3)).await);
    }

    #[tokio::test]
    async fn between_two_parts_of_a_turn_another_client_has_one() {
        let lane = Arc::new(Lane::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        let long = lane.turn(Client::Key(0)).await;
        let long = long.after_others(Client::Key(0));
        let mut all = Vec::new();
        for key in [0, 1, 1] {
            let (lane, order) = (Arc::clone(&lane), Arc::clone(&order));
            all.push(tokio::spawn(async move {
                let _turn = lane.turn(Client::Key(key)).await;
                order.lock().unwrap().push(key);
            }));
            yield_now().await;
        }
        let parts = tokio::task::spawn_blocking({
            let order = Arc::clone(&order);
            move || {
                let mut turn = long;
                for _ in 0..3 {
                    turn = turn.after_others(Client::Key(0));
                    order.lock().unwrap().push(9);
                }
            }
        });
        parts.await.unwrap();
        for one in all {
            one.await.unwrap();
        }
        // A part for each turn of the other client, then the rest, and the own request that came later.
        assert_eq!(*order.lock().unwrap(), [1, 9, 1, 9, 9, 0]);
        assert!(!lane.queue().busy);
    }
}
