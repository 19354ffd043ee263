//! The conversation so far: what was said, taking it back, and its file. Owns the format of saved conversations.
//! Knows neither templates nor tokens.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use session::Video;

use super::input::read_bytes;
use super::pictures::{Film, Image, content};
use super::report::ToolCall;

/// A system message and the turns after it.
#[derive(Clone, Debug, Default)]
pub struct Transcript {
    /// Stands before all turns; `None` leaves it out.
    pub system: Option<String>,
    turns: Vec<Turn>,
}

/// One message of the person and what came back.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Turn {
    user: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    images: Vec<Image>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    video: Option<Film>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply: Option<Reply>,
    /// Tokens of the context up to here, once that was computed.
    #[serde(skip)]
    n_tokens: Option<usize>,
}

/// What the model gave back, also when it was stopped half-way.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Reply {
    /// The reply.
    pub text: String,
    /// What was thought before it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reasoning: String,
    /// Tools asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

impl Transcript {
    /// A conversation with nothing said.
    pub fn new(system: Option<String>) -> Self {
        Self { system, turns: Vec::new() }
    }

    /// Adds a message with images before its text; it waits for its reply. Where a message waits already, the new one goes on
    /// with it: templates want replies between messages.
    pub fn ask(&mut self, user: String, images: Vec<Image>) {
        match self.turns.last_mut().filter(|turn| turn.reply.is_none()) {
            Some(turn) => {
                turn.user += &format!("\n\n{user}");
                turn.images.extend(images);
            }
            None => self.turns.push(Turn { user, images, video: None, reply: None, n_tokens: None }),
        }
    }

    /// Adds a video to the last message.
    pub fn show(&mut self, video: Film) {
        if let Some(turn) = self.turns.last_mut() {
            turn.video = Some(video);
        }
    }

    /// Sets the reply to the last message; with it `n_tokens` of the context are used.
    pub fn reply(&mut self, reply: Reply, n_tokens: usize) {
        if let Some(turn) = self.turns.last_mut() {
            turn.reply = Some(reply);
            turn.n_tokens = Some(n_tokens);
        }
    }

    /// Tokens of the context that the conversation took when its last reply was made: 0 where nothing was said, `None` where
    /// that reply comes from a file.
    pub fn n_tokens(&self) -> Option<usize> {
        let answered = self.turns.iter().rev().find(|turn| turn.reply.is_some());
        answered.map_or(Some(0), |turn| turn.n_tokens)
    }

    /// Drops the last reply, so that its message can be answered again; false when nothing was said.
    pub fn reopen(&mut self) -> bool {
        self.turns.last_mut().map(|turn| turn.reply = None).is_some()
    }

    /// Drops the last message and its reply, and gives the message.
    pub fn undo(&mut self) -> Option<String> {
        self.turns.pop().map(|turn| turn.user)
    }

    /// Drops all turns.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// How many messages were sent.
    pub fn n_turns(&self) -> usize {
        self.turns.len()
    }

    /// The last message of the person.
    pub fn last_message(&self) -> Option<&str> {
        self.turns.last().map(|turn| turn.user.as_str())
    }

    /// The last reply.
    pub fn last_reply(&self) -> Option<&Reply> {
        self.turns.iter().rev().find_map(|turn| turn.reply.as_ref())
    }

    /// The conversation in the shape of chat messages, as templates take it.
    pub fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        let turns = self.turns.iter().flat_map(|turn| {
            let user = json!({"role": "user", "content": content(&turn.user, turn.images.len(), turn.video.is_some())});
            std::iter::once(user).chain(turn.reply.as_ref().map(assistant))
        });
        system.chain(turns).collect()
    }

    /// The images of all messages, in their order.
    pub fn images(&self) -> Vec<Arc<[u8]>> {
        self.turns.iter().flat_map(|turn| &turn.images).map(Image::bytes).collect()
    }

    /// The videos of all messages, in their order.
    pub fn videos(&self) -> Vec<Video> {
        self.turns.iter().filter_map(|turn| turn.video.as_ref()).map(Film::video).collect()
    }

    /// Writes the conversation; a file that is no conversation is not overwritten.
    ///
    /// # Errors
    /// A file of another kind in its place; a directory that cannot be written.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let name = path.display().to_string();
        if path.exists() && read(path).is_err() {
            bail!("{name} exists and is no saved conversation: choose another name");
        }
        let saved = Saved {
            format: FORMAT.to_owned(),
            version: VERSION,
            system: self.system.clone(),
            turns: self.turns.clone(),
        };
        let mut text = serde_json::to_string_pretty(&saved).context(name.clone())?;
        text.push('\n');
        // Beside the old file first: a full disk must not cost the conversation that is there.
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let written = File::create(&part)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&part, path));
        written.inspect_err(|_| drop(std::fs::remove_file(&part))).context(name)
    }

    /// Reads a conversation.
    ///
    /// # Errors
    /// A file that cannot be read, is too long, or is no conversation of a known version.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let saved = read(path)?;
        Ok(Self { system: saved.system, turns: saved.turns })
    }
}

fn assistant(reply: &Reply) -> Value {
    let mut message = json!({"role": "assistant", "content": reply.text});
    if !reply.reasoning.is_empty() {
        message["reasoning_content"] = json!(reply.reasoning);
    }
    if !reply.tool_calls.is_empty() {
        let calls = reply.tool_calls.iter().map(|call| json!({"type": "function", "function": call}));
        message["tool_calls"] = calls.collect();
    }
    message
}

#[derive(Deserialize, Serialize)]
struct Saved {
    format: String,
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    system: Option<String>,
    turns: Vec<Turn>,
}

fn read(path: &Path) -> anyhow::Result<Saved> {
    let name = path.display().to_string();
    let bytes = read_bytes(&mut File::open(path).context(name.clone())?, &name, MAX_BYTES)?;
    let saved: Saved = serde_json::from_slice(&bytes).with_context(|| format!("{name} is no saved conversation"))?;
    if saved.format != FORMAT || saved.version != VERSION {
        bail!("{name}: format {FORMAT} {VERSION} expected, {} {} found", saved.format, saved.version);
    }
    Ok(saved)
}

const FORMAT: &str = "nextn-chat";
const VERSION: u32 = 1;
/// Longest file that is read.
const MAX_BYTES: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn chat() -> Transcript {
        let mut chat = Transcript::new(Some("be brief".into()));
        chat.ask("one".into(), Vec::new());
        chat.reply(Reply { text: "1".into(), reasoning: "count".into(), tool_calls: Vec::new() }, 12);
        chat.ask("two".into(), Vec::new());
        chat
    }

    #[test]
    fn messages_have_the_shape_that_templates_take() {
        assert_eq!(
            json!(chat().messages()),
            json!([
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "1", "reasoning_content": "count"},
                {"role": "user", "content": "two"},
            ])
        );
        let mut calls = Transcript::new(None);
        calls.ask("weather?".into(), Vec::new());
        let call = ToolCall { name: "weather".into(), arguments: "{\"at\":\"Ulm\"}".into() };
        calls.reply(Reply { tool_calls: vec![call], ..Reply::default() }, 12);
        assert_eq!(
            calls.messages()[1]["tool_calls"],
            json!([{"type": "function", "function": {"name": "weather", "arguments": "{\"at\":\"Ulm\"}"}}])
        );
    }

    #[test]
    fn a_message_that_waits_takes_the_next_one_in() {
        let mut chat = chat();
        chat.ask("three".into(), Vec::new());
        assert_eq!((chat.n_turns(), chat.last_message()), (2, Some("two\n\nthree")));
        assert_eq!(chat.messages().len(), 4, "templates want replies between messages");
    }

    #[test]
    fn the_context_in_use_follows_what_is_taken_back() {
        let mut chat = chat();
        assert_eq!(chat.n_tokens(), Some(12), "a message that waits was not computed");
        chat.reply(Reply::default(), 30);
        assert_eq!(chat.n_tokens(), Some(30));
        chat.undo();
        assert_eq!(chat.n_tokens(), Some(12));
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::remove_file(file.path()).expect("its name is free");
        chat.save(file.path()).expect("saved");
        assert_eq!(Transcript::load(file.path()).expect("loaded").n_tokens(), None, "a file does not know");
        chat.undo();
        assert_eq!(chat.n_tokens(), Some(0));
    }

    #[test]
    fn turns_are_taken_back_whole() {
        let mut chat = chat();
        assert_eq!(chat.undo().as_deref(), Some("two"));
        assert_eq!(chat.last_reply().map(|r| r.text.as_str()), Some("1"));
        assert!(chat.reopen());
        assert_eq!((chat.n_turns(), chat.last_reply()), (1, None), "the message stays, its reply goes");
        chat.clear();
        assert_eq!(chat.undo(), None);
        assert!(!chat.reopen());
        assert_eq!(chat.messages().len(), 1, "the system message stays");
    }

    #[test]
    fn a_saved_conversation_comes_back_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("chat.json");
        chat().save(&path).unwrap();
        chat().save(&path).expect("its own file may be overwritten");
        let loaded = Transcript::load(&path).unwrap();
        assert_eq!(loaded.messages(), chat().messages());
        let file = directory.path().join("picture.png");
        std::fs::write(&file, [1, 2, 255]).unwrap();
        let mut seen = chat();
        seen.undo();
        seen.ask("what is it?".into(), vec![Image::read(&file).unwrap()]);
        std::fs::remove_file(&file).unwrap();
        seen.save(&path).unwrap();
        let loaded = Transcript::load(&path).unwrap();
        let message = json!([{ "type": "image" }, { "type": "text", "text": "what is it?" }]);
        assert_eq!(loaded.messages()[3]["content"], message);
        assert_eq!(loaded.images(), [Arc::from([1, 2, 255])]);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no other file is left");
    }

    #[test]
    fn other_files_are_neither_overwritten_nor_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious.txt");
        for content in ["my notes", "{\"turns\":[]}", "{\"format\":\"nextn-chat\",\"version\":9,\"turns\":[]}"] {
            std::fs::write(&path, content).unwrap();
            assert!(chat().save(&path).is_err(), "{content}");
            assert!(Transcript::load(&path).is_err(), "{content}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        assert!(chat().save(&directory.path().join("no/such/directory")).is_err());
        assert!(Transcript::load(directory.path()).is_err());
    }
}
