//! The prefix cache together with drafting: a server that has served many conversations says what a fresh one says.
//!
//! Forward passes have up to 16 tokens here, so that the bits of a token do not depend on where a prompt is cut or on what
//! shares a pass, and equality is a promise instead of luck at near ties (docs/NUMERICS.md).

use engine::EngineConfig;
use serde_json::{Value, json};

use crate::support::App;

const N_CONVERSATIONS: usize = 200;

const QUESTIONS: [&str; 16] = [
    "What is 20 + 15?",
    "Double it.",
    "What is 412 - 187?",
    "Who are you?",
    "What is the capital of France?",
    "Tell me a joke.",
    "Spell the word garden.",
    "Count from 3 to 9.",
    "What is the opposite of hot?",
    "List three planets.",
    "What does a fox eat?",
    "Reverse the word planet.",
    "Tell me a short story about a robot.",
    "Hi, my name is Clara.",
    "What is my name?",
    "Write a poem about the sea.",
];

const SYSTEMS: [Option<&str>; 3] =
    [None, Some("You are a helpful assistant."), Some("You are a pirate who answers briefly and likes numbers.")];

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }

    fn of<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }
}

/// One conversation: what its client has on the screen.
struct Conversation {
    messages: Vec<Value>,
    thinking: bool,
}

impl Conversation {
    fn new(random: &mut Random) -> Self {
        let system = SYSTEMS[random.below(SYSTEMS.len())].map(|text| json!({ "role": "system", "content": text }));
        Self { messages: system.into_iter().collect(), thinking: random.below(2) == 0 }
    }

    /// Positions of the user's messages.
    fn asked(&self) -> Vec<usize> {
        (0..self.messages.len()).filter(|&i| self.messages[i]["role"] == "user").collect()
    }

    /// What the client does next: it goes on, edits a message, asks for another answer, or branches off.
    fn act(&mut self, random: &mut Random) {
        let asked = self.asked();
        let question = json!({ "role": "user", "content": random.of(&QUESTIONS) });
        match (random.below(6), asked.as_slice()) {
            // Edited: that message is another one, and what followed it is gone.
            (0, [.., _]) => {
                let at = asked[random.below(asked.len())];
                self.messages.truncate(at);
                self.messages.push(question);
            }
            // Regenerated: the last answer is gone.
            (1, [.., last]) => self.messages.truncate(last + 1),
            // Branched: from some earlier answer on, another way.
            (2, [.., _]) => {
                let at = asked[random.below(asked.len())];
                self.messages.truncate((at + 2).min(self.messages.len()));
                self.messages.push(question);
            }
            _ => self.messages.push(question),
        }
    }

    fn request(&self, max_tokens: usize) -> Value {
        json!({
            "messages": self.messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "chat_template_kwargs": { "enable_thinking": self.thinking },
        })
    }

    fn hear(&mut self, answer: &Value) {
        self.messages.push(answer["choices"][0]["message"].clone());
    }
}

/// What speculation and reuse must not change.
fn seen(answer: &Value) -> Value {
    let choice = &answer["choices"][0];
    json!([choice["message"], choice["finish_reason"], answer["usage"]["completion_tokens"]])
}

fn narrow(n_sequences: usize) -> EngineConfig {
    EngineConfig { n_sequences, n_batch: 16, n_batch_shared: 8, store_bytes: 8 << 20, ..EngineConfig::default() }
}

#[tokio::test]
async fn two_hundred_random_conversations_get_the_tokens_of_a_fresh_server() {
    let used = App::over(narrow(2), api::Settings::default());
    let fresh = App::plain(narrow(1));
    let mut random = Random(20_261_122);
    let (mut n_cached, mut n_accepted, mut n_requests) = (0, 0, 0);
    // Two clients at a time, and a third conversation now and then, so that slots change hands.
    let mut open: Vec<Conversation> = (0..3).map(|_| Conversation::new(&mut random)).collect();
    let mut n_begun = open.len();
    while n_begun < N_CONVERSATIONS {
        let pair = [random.below(3), 2 - random.below(2)];
        let mut requests = Vec::new();
        for &i in if pair[0] == pair[1] { &pair[..1] } else { &pair[..] } {
            // Three to four requests of each conversation, then another takes its place.
            if random.below(4) == 0 || open[i].asked().len() > 4 {
                open[i] = Conversation::new(&mut random);
                n_begun += 1;
            }
            open[i].act(&mut random);
            requests.push((i, open[i].request(4 + random.below(28))));
        }
        let answers = futures_util::future::join_all(
            requests.iter().map(|(_, request)| used.ok("/v1/chat/completions", request)),
        );
        for ((i, request), answer) in requests.iter().zip(answers.await) {
            let mut request = request.clone();
            request["cache_prompt"] = json!(false);
            let expected = fresh.ok("/v1/chat/completions", &request).await;
            assert_eq!(expected["timings"]["cache_n"], 0, "nothing is reused there");
            assert_eq!(seen(&answer), seen(&expected), "conversation {n_begun}, request {n_requests}: {request}");
            n_cached += answer["timings"]["cache_n"].as_u64().expect("a number");
            n_accepted += answer["timings"]["draft_n_accepted"].as_u64().expect("a number");
            n_requests += 1;
            open[*i].hear(&answer);
        }
    }
    // Otherwise nothing was tried.
    assert!(n_cached > 20 * n_requests && n_accepted > 2 * n_requests, "{n_cached} {n_accepted} {n_requests}");
}
