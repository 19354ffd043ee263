//! Stop strings in a stream of bytes, across the boundaries of tokens.
//! Owns what may be shown and what must wait. Knows nothing of tokens or characters.

use std::collections::VecDeque;
use std::sync::Arc;

/// Watches one stream. Cheap to clone: a fork shares the prepared strings.
///
/// The match that ends first wins, and of those that end together the longest, so the generation does not depend on how
/// the stream is cut. Held back is only the longest end of the stream that begins a stop string.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    tree: Arc<Tree>,
    node: u32,
    stopped: Option<usize>,
    out: Vec<u8>,
}

/// What a piece of the stream brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopOutcome<'a> {
    /// No stop string yet: these bytes can no longer become part of one.
    Text(&'a [u8]),
    /// A stop string is complete; the stream ends before it.
    Stopped {
        /// The last bytes before the stop string.
        text: &'a [u8],
        /// Index of the stop string in the list given.
        which: usize,
    },
}

/// What is wrong with a list of stop strings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// Too many of them.
    #[error("stop: at most {MAX_STOPS} strings expected, {found} found")]
    TooMany {
        /// How many there were.
        found: usize,
    },
    /// An empty one would stop before the first byte; a very long one is a mistake.
    #[error("stop[{index}]: 1 to {MAX_STOP_BYTES} bytes expected, {n_bytes} found")]
    Length {
        /// Which one.
        index: usize,
        /// Its length.
        n_bytes: usize,
    },
}

impl StopMatcher {
    /// Prepares the strings, in time linear in their length. An empty list never stops anything.
    ///
    /// # Errors
    /// More than [`MAX_STOPS`] strings; one that is empty or longer than [`MAX_STOP_BYTES`].
    pub fn new(stops: &[String]) -> Result<Self, StopError> {
        if stops.len() > MAX_STOPS {
            return Err(StopError::TooMany { found: stops.len() });
        }
        for (index, n_bytes) in stops.iter().map(String::len).enumerate() {
            if n_bytes == 0 || n_bytes > MAX_STOP_BYTES {
                return Err(StopError::Length { index, n_bytes });
            }
        }
        Ok(Self { tree: Arc::new(Tree::new(stops)), node: ROOT, stopped: None, out: Vec::new() })
    }

    /// Takes the next bytes of the stream. After a stop everything is swallowed.
    pub fn push(&mut self, bytes: &[u8]) -> StopOutcome<'_> {
        self.out.clear();
        if let Some(which) = self.stopped {
            return StopOutcome::Stopped { text: &[], which };
        }
        self.out.extend_from_slice(self.tree.text(self.node));
        let n_held = self.out.len();
        self.out.extend_from_slice(bytes);
        for (i, &byte) in bytes.iter().enumerate() {
            self.node = self.tree.step(self.node, byte);
            if let Some((which, n_stop)) = self.tree.nodes[self.node as usize].stop {
                self.stopped = Some(which);
                self.node = ROOT;
                // The stop string may reach back into what was held, never further.
                self.out.truncate(n_held + i + 1 - n_stop);
                return StopOutcome::Stopped { text: &self.out, which };
            }
        }
        self.out.truncate(self.out.len() - self.tree.text(self.node).len());
        StopOutcome::Text(&self.out)
    }

    /// The stream ends: the bytes held back, which are text after all. Empty after a stop.
    pub fn finish(&mut self) -> Vec<u8> {
        let held = self.tree.text(self.node).to_vec();
        self.node = ROOT;
        held
    }

    /// Which stop string ended the stream, if one did.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }
}

/// Aho and Corasick's automaton: a node stands for the longest end of the stream that begins a stop string.
/// That text is a beginning of a string we have, so no matcher needs to store what it holds back.
#[derive(Debug)]
struct Tree {
    nodes: Vec<Node>,
    stops: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Node {
    /// A stop string that begins with this node's text, and the length of that text.
    of: usize,
    depth: usize,
    /// At most one child per stop string, so a list is short.
    first_child: u32,
    next_sibling: u32,
    /// The node of the longest proper end of this text that begins a stop string.
    fallback: u32,
    /// The longest stop string that this text ends with: its index and length.
    stop: Option<(usize, usize)>,
}

impl Tree {
    fn new(stops: &[String]) -> Self {
        let stops: Vec<Vec<u8>> = stops.iter().map(|s| s.as_bytes().to_vec()).collect();
        let mut tree = Self { nodes: vec![Node::new(0, 0)], stops };
        for which in 0..tree.stops.len() {
            let mut at = ROOT;
            for depth in 1..=tree.stops[which].len() {
                let byte = tree.stops[which][depth - 1];
                at = tree.child(at, byte).unwrap_or_else(|| tree.add(at, Node::new(which, depth)));
            }
            let end = &mut tree.nodes[at as usize];
            end.stop = end.stop.or(Some((which, end.depth)));
        }
        tree.link();
        tree
    }

    fn add(&mut self, parent: u32, mut node: Node) -> u32 {
        let id = self.nodes.len() as u32;
        node.next_sibling = std::mem::replace(&mut self.nodes[parent as usize].first_child, id);
        self.nodes.push(node);
        id
    }

    /// Sets the fallbacks, nearest to the root first: a node's own needs those of shorter texts.
    fn link(&mut self) {
        let mut waiting = VecDeque::from([ROOT]);
        while let Some(at) = waiting.pop_front() {
            let mut child = self.nodes[at as usize].first_child;
            while child != NONE {
                let fallback = if at == ROOT { ROOT } else { self.step(self.fallback(at), self.last_byte(child)) };
                let inherited = self.nodes[fallback as usize].stop;
                let node = &mut self.nodes[child as usize];
                node.fallback = fallback;
                node.stop = node.stop.or(inherited);
                waiting.push_back(child);
                child = node.next_sibling;
            }
        }
    }

    /// The node after one more byte.
    fn step(&self, from: u32, byte: u8) -> u32 {
        let mut at = from;
        loop {
            match self.child(at, byte) {
                Some(child) => return child,
                None if at == ROOT => return ROOT,
                None => at = self.fallback(at),
            }
        }
    }

    fn child(&self, at: u32, byte: u8) -> Option<u32> {
        let mut child = self.nodes[at as usize].first_child;
        while child != NONE && self.last_byte(child) != byte {
            child = self.nodes[child as usize].next_sibling;
        }
        (child != NONE).then_some(child)
    }

    fn fallback(&self, at: u32) -> u32 {
        self.nodes[at as usize].fallback
    }

    /// The text that a node stands for.
    fn text(&self, at: u32) -> &[u8] {
        let node = &self.nodes[at as usize];
        self.stops.get(node.of).map_or(&[], |stop| &stop[..node.depth])
    }

    fn last_byte(&self, at: u32) -> u8 {
        let node = &self.nodes[at as usize];
        self.stops[node.of][node.depth - 1]
    }
}

impl Node {
    fn new(of: usize, depth: usize) -> Self {
        Self { of, depth, first_child: NONE, next_sibling: NONE, fallback: ROOT, stop: None }
    }
}

/// Most stop strings of a request.
pub const MAX_STOPS: usize = 64;
/// Longest stop string.
pub const MAX_STOP_BYTES: usize = 4096;
const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(&stops.iter().map(|s| s.to_string()).collect::<Vec<_>>()).unwrap()
    }

    fn text<'a>(outcome: StopOutcome<'a>) -> &'a str {
        match outcome {
            StopOutcome::Text(t) => std::str::from_utf8(t).unwrap(),
            StopOutcome::Stopped { .. } => panic!("stopped: {outcome:?}"),
        }
    }

    #[test]
    fn only_what_may_become_a_stop_string_is_held_back() {
        let mut m = matcher(&["</s>", "User:"]);
        assert_eq!(text(m.push(b"hi <")), "hi ");
        assert_eq!(text(m.push(b"/")), "");
        assert_eq!(text(m.push(b"b> Us")), "</b> ");
        assert_eq!(text(m.push(b"eUser")), "Use");
        let mut fork = m.clone();
        assert_eq!(m.push(b": more"), StopOutcome::Stopped { text: b"", which: 1 });
        assert_eq!(m.push(b"</s>"), StopOutcome::Stopped { text: b"", which: 1 });
        assert_eq!(m.finish(), b"");
        assert_eq!(fork.finish(), b"User");
        assert_eq!(fork.finish(), b"");
    }

    #[test]
    fn the_match_that_ends_first_wins_and_then_the_longest() {
        assert_eq!(matcher(&["abcd", "bc"]).push(b"xabcd"), StopOutcome::Stopped { text: b"xa", which: 1 });
        assert_eq!(matcher(&["c", "abc"]).push(b"xabc"), StopOutcome::Stopped { text: b"x", which: 1 });
        assert_eq!(matcher(&["q", "q"]).push(b"q"), StopOutcome::Stopped { text: b"", which: 0 });
    }

    #[test]
    fn no_stop_strings_hold_nothing_back() {
        let mut m = matcher(&[]);
        assert_eq!(m.push(b"\xff\x00abc"), StopOutcome::Text(b"\xff\x00abc"));
        assert_eq!(m.finish(), b"");
    }

    #[test]
    fn lists_beyond_the_caps_are_refused() {
        let new = |n: usize, text: &str| StopMatcher::new(&vec![text.to_owned(); n]).map(|_| ());
        assert_eq!(new(MAX_STOPS, "a"), Ok(()));
        assert_eq!(new(MAX_STOPS + 1, "a"), Err(StopError::TooMany { found: 65 }));
        assert_eq!(new(2, ""), Err(StopError::Length { index: 0, n_bytes: 0 }));
        assert_eq!(new(1, &"a".repeat(4096)), Ok(()));
        let error = new(1, &"a".repeat(4097)).unwrap_err();
        assert_eq!(error.to_string(), "stop[0]: 1 to 4096 bytes expected, 4097 found");
    }

    #[test]
    fn long_lists_of_alike_strings_take_linear_time() {
        // 64 strings of 4 KiB that differ at their ends, and a stream that nearly matches: quadratic work would be
        // 64 * 4096 * 1e6 steps and never finish here.
        let stops: Vec<String> = (0..64).map(|i| "a".repeat(4095 - i) + "b").collect();
        let mut m = StopMatcher::new(&stops).unwrap();
        let stream = "a".repeat(1 << 20);
        assert_eq!(text(m.push(stream.as_bytes())).len(), stream.len() - 4095);
        assert_eq!(m.push(b"b"), StopOutcome::Stopped { text: b"", which: 0 });
    }

    /// The plainest search: after each byte, whether the stream so far ends with a stop string.
    fn plain(stops: &[String], stream: &[u8]) -> (Vec<u8>, Option<usize>) {
        for end in 1..=stream.len() {
            let hits = (0..stops.len()).filter(|&i| stream[..end].ends_with(stops[i].as_bytes()));
            if let Some(which) = hits.max_by_key(|&i| (stops[i].len(), std::cmp::Reverse(i))) {
                return (stream[..end - stops[which].len()].to_vec(), Some(which));
            }
        }
        (stream.to_vec(), None)
    }

    proptest! {
        #[test]
        fn any_cut_of_the_stream_gives_what_a_plain_search_gives(
            stops in prop::collection::vec("[ab]{1,5}|[abc]{1,3}", 0..5),
            stream in "[abcd]{0,40}",
            cuts in prop::collection::vec(0_usize..6, 0..60),
        ) {
            let want = plain(&stops, stream.as_bytes());
            let mut m = StopMatcher::new(&stops).unwrap();
            let (mut shown, mut rest) = (Vec::new(), stream.as_bytes());
            for n in cuts.into_iter().chain([stream.len()]) {
                let (piece, left) = rest.split_at(n.min(rest.len()));
                rest = left;
                let seen = stream.len() - rest.len();
                match m.push(piece) {
                    StopOutcome::Stopped { text, .. } => shown.extend_from_slice(text),
                    StopOutcome::Text(text) => {
                        shown.extend_from_slice(text);
                        // Exactly the longest end that is a proper beginning of a stop string waits.
                        let begins = |at: &usize| {
                            stops.iter().any(|s| s.as_bytes().starts_with(&stream.as_bytes()[*at..seen]))
                        };
                        prop_assert_eq!(Some(shown.len()), (0..=seen).find(|at| *at == seen || begins(at)));
                    }
                }
            }
            shown.extend(m.finish());
            prop_assert_eq!((shown, m.stopped()), want);
        }
    }
}
