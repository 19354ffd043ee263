//! A server on this machine that plays a hub: repositories with files, and all that can go wrong with them.
//! Owns its threads and a record of what was asked. Knows nothing of the programs that ask.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

/// The one revision of every repository.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub. It serves until the process ends.
#[derive(Clone, Debug)]
pub struct FakeHub {
    address: String,
    shared: Arc<Shared>,
}

/// A file of a repository.
#[derive(Clone, Debug, Default)]
pub struct FakeFile {
    /// Its path in the repository.
    pub path: String,
    /// What is served.
    pub bytes: Vec<u8>,
    /// The checksum that the list promises, where it is not that of the bytes.
    pub sha256: Option<String>,
    /// The size that the list promises, where it is not that of the bytes.
    pub size: Option<u64>,
    /// After how many bytes the connection breaks, for each of the first requests.
    pub breaks: VecDeque<usize>,
    /// All of it is sent, whatever range is asked for.
    pub no_ranges: bool,
    /// Ranges start so many bytes too late.
    pub shifted: usize,
    /// No more than so many bytes are sent before [`FakeHub::release`].
    pub hold: Option<usize>,
}

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// With its query.
    pub path: String,
    /// The first byte of the range, if there was one.
    pub from: Option<usize>,
    /// The `authorization` header.
    pub authorization: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    repos: HashMap<String, Vec<FakeFile>>,
    /// Lists that are sent as they stand.
    lists: HashMap<String, String>,
    asked: Vec<Asked>,
    /// Status and further headers of the next replies to paths with these words in them.
    faults: VecDeque<(String, u16, String)>,
    token: Option<String>,
    /// Where bytes are.
    cdn: Option<String>,
    page: Option<usize>,
    released: bool,
}

impl FakeFile {
    /// A file without faults.
    pub fn new(path: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), bytes: bytes.into(), ..Self::default() }
    }

    /// The checksum that the list promises.
    pub fn oid(&self) -> String {
        self.sha256.clone().unwrap_or_else(|| sha256(&self.bytes))
    }
}

/// The checksum of bytes, in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

impl FakeHub {
    /// An empty hub on a free port.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("this machine has a free port");
        let address = format!("http://{}", listener.local_addr().expect("it is bound"));
        let hub = Self { address, shared: Arc::default() };
        let own = hub.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let own = own.clone();
                // A client that leaves in the middle is part of the tests.
                std::thread::spawn(move || own.serve(stream).ok());
            }
        });
        hub
    }

    /// For `HF_ENDPOINT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Puts files into a repository, in place of those of the same paths.
    pub fn add(&self, repo: &str, files: impl IntoIterator<Item = FakeFile>) -> &Self {
        let mut state = self.lock();
        let there = state.repos.entry(repo.into()).or_default();
        for file in files {
            there.retain(|old| old.path != file.path);
            there.push(file);
        }
        drop(state);
        self
    }

    /// Sends this as the list of a repository's files.
    pub fn list(&self, repo: &str, json: String) -> &Self {
        self.lock().lists.insert(repo.into(), json);
        self
    }

    /// Lets in those with this token only.
    pub fn close(&self, token: &str) -> &Self {
        self.lock().token = Some(token.into());
        self
    }

    /// Lists so many files on a page.
    pub fn pages(&self, n_files: usize) -> &Self {
        self.lock().page = Some(n_files);
        self
    }

    /// Leads requests for bytes to another server.
    pub fn redirect(&self, cdn: &Self) -> &Self {
        self.lock().cdn = Some(cdn.address.clone());
        self
    }

    /// Answers the next request with `words` in its path so. `headers` end with line breaks.
    pub fn fail(&self, words: &str, status: u16, headers: &str) -> &Self {
        self.lock().faults.push_back((words.into(), status, headers.into()));
        self
    }

    /// Sends what was held back, and holds nothing back any more.
    pub fn release(&self) {
        self.lock().released = true;
        self.shared.released.notify_all();
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.lock().asked.clone()
    }

    /// The requests for bytes so far.
    pub fn asked_for_bytes(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(|asked| asked.path.contains("/resolve/")).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let lines = BufReader::new(stream.try_clone()?).lines().map_while(Result::ok);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
        let header = |name: &str| {
            let found = head.iter().find(|line| line.to_lowercase().starts_with(&format!("{name}: ")))?;
            Some(found[name.len() + 2..].to_owned())
        };
        let from = header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        let asked = Asked { path: path.clone(), from, authorization: header("authorization") };
        let mut state = self.lock();
        state.asked.push(asked.clone());
        if let Some(i) = state.faults.iter().position(|(words, ..)| path.contains(words.as_str())) {
            let (_, status, headers) = state.faults.remove(i).expect("it was found");
            drop(state);
            return reply(&mut stream, status, &headers, b"");
        }
        if state.token.as_ref().is_some_and(|token| asked.authorization != Some(format!("Bearer {token}"))) {
            let status = if asked.authorization.is_some() { 403 } else { 401 };
            drop(state);
            return reply(&mut stream, status, "", b"{\"error\":\"closed\"}");
        }
        if let Some((repo, file)) = path.strip_prefix('/').and_then(|p| p.split_once(&format!("/resolve/{COMMIT}/"))) {
            if let Some(cdn) = &state.cdn {
                let to = format!("location: {cdn}{path}\r\n");
                drop(state);
                return reply(&mut stream, 302, &to, b"");
            }
            let file = file.replace("%20", " ");
            let found = state.repos.get_mut(repo).and_then(|files| files.iter_mut().find(|f| f.path == file));
            let Some(found) = found else {
                drop(state);
                return reply(&mut stream, 404, "", b"");
            };
            let cut = found.breaks.pop_front();
            let file = found.clone();
            drop(state);
            return self.send(&mut stream, &file, from, cut);
        }
        let (status, headers, body) = self.api(&state, &path);
        drop(state);
        reply(&mut stream, status, &headers, body.as_bytes())
    }

    /// Revisions and lists.
    fn api(&self, state: &State, path: &str) -> (u16, String, String) {
        let none = || (404, String::new(), String::new());
        let Some(rest) = path.strip_prefix("/api/models/") else { return none() };
        let (repo, rest) = match rest.match_indices('/').nth(1) {
            Some((at, _)) => rest.split_at(at),
            None => return none(),
        };
        let list = state.lists.get(repo);
        let files = state.repos.get(repo);
        if list.is_none() && files.is_none() {
            return none();
        }
        if rest == "/revision/main" {
            return (200, String::new(), format!("{{\"sha\":\"{COMMIT}\"}}"));
        }
        let Some(query) = rest.strip_prefix(&format!("/tree/{COMMIT}?recursive=true")) else { return none() };
        if let Some(list) = list {
            return (200, String::new(), list.clone());
        }
        let files = files.map(Vec::as_slice).unwrap_or_default();
        let from: usize = query.strip_prefix("&cursor=").and_then(|n| n.parse().ok()).unwrap_or(0);
        let n = state.page.unwrap_or(files.len());
        let entry = |file: &FakeFile| {
            let size = file.size.unwrap_or(file.bytes.len() as u64);
            serde_json::json!({ "type": "file", "path": file.path, "size": size,
                "lfs": { "oid": file.oid(), "size": size, "pointerSize": 134 } })
        };
        let body: Vec<_> = files.iter().skip(from).take(n).map(entry).collect();
        let next = format!("{}/api/models/{repo}/tree/{COMMIT}?recursive=true&cursor={}", self.address, from + n);
        let link = if from + n < files.len() { format!("link: <{next}>; rel=\"next\"\r\n") } else { String::new() };
        (200, link, serde_json::Value::from(body).to_string())
    }

    fn send(
        &self,
        stream: &mut TcpStream,
        file: &FakeFile,
        from: Option<usize>,
        cut: Option<usize>,
    ) -> std::io::Result<()> {
        let from = from.filter(|_| !file.no_ranges);
        let n = file.bytes.len();
        let (status, start) = match from {
            Some(from) if from >= n => return reply(stream, 416, &format!("content-range: bytes */{n}\r\n"), b""),
            Some(from) => ("206 Partial Content", (from + file.shifted).min(n)),
            None => ("200 OK", 0),
        };
        let range = from.map(|_| format!("content-range: bytes {start}-{}/{n}\r\n", n - 1)).unwrap_or_default();
        let body = &file.bytes[start..];
        let head = format!("HTTP/1.1 {status}\r\n{range}content-length: {}\r\nconnection: close\r\n\r\n", body.len());
        stream.write_all(head.as_bytes())?;
        let first = cut.or(file.hold).unwrap_or(body.len()).min(body.len());
        stream.write_all(&body[..first])?;
        if cut.is_some() {
            return Ok(());
        }
        if file.hold.is_some() {
            let state = self.shared.released.wait_while(self.lock(), |state| !state.released);
            drop(state.unwrap_or_else(PoisonError::into_inner));
        }
        stream.write_all(&body[first..])
    }
}

fn reply(stream: &mut TcpStream, status: u16, headers: &str, body: &[u8]) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}
