//! What README.md and the recipes quote is what the programs print: sessions are run, figures stand in a measurement.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The fenced blocks of a page with this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(told) = line.strip_prefix("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            if told == language {
                found.push(body.join("\n"));
            }
        }
    }
    found
}

/// What a command line prints, with this build's programs first in the path.
fn printed(line: &str) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_nextn-cli")).parent().expect("it lies in a folder").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&path))).expect("no colons");
    let done = Command::new("sh")
        .args(["-c", line])
        .env("PATH", path)
        .env_remove("NEXTN_MODEL")
        .stdin(Stdio::null())
        .output()
        .expect("there is a shell");
    assert!(done.status.success(), "{line}\n{}\n{}", done.status, String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

#[test]
fn sessions_of_the_readme_are_what_the_programs_print() {
    let sessions = blocks(&page("README.md"), "console");
    assert!(!sessions.is_empty(), "README.md shows no session (a block of `console`)");
    for session in sessions {
        for part in session.split("$ ").filter(|part| !part.is_empty()) {
            let (line, shown) = part.split_once('\n').unwrap_or((part, ""));
            assert_eq!(printed(line).trim_end(), shown.trim_end(), "{line}");
        }
    }
}

#[test]
fn figures_on_the_readmes_first_screen_stand_in_a_measurement() {
    let readme = page("README.md");
    let (first, _) = readme.split_once("\n## ").expect("it has parts");
    let pages: Vec<&str> = first.split("](").filter_map(|rest| rest.split(['#', ')']).next()).collect();
    let measured = pages.into_iter().filter(|path| path.starts_with("docs/measurements/"));
    let measured: Vec<String> = measured.map(page).collect();
    let rows: Vec<&str> = first.lines().filter(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= 3 && !measured.is_empty(), "a table and the measurement that it is from were expected");
    for row in rows {
        let stands = measured.iter().any(|page| page.lines().any(|line| line == row));
        assert!(stands, "no measurement that is linked has\n{row}");
    }
}

#[test]
fn the_recipe_for_curl_does_what_it_says() {
    let server = Server::start();
    let mut replies = Vec::new();
    for block in blocks(&page("docs/recipes/curl.md"), "sh") {
        let block = block.replace("127.0.0.1:8080", &server.address);
        replies.push(printed(&format!("set -e; curl() {{ command curl -fsS \"$@\"; }}\n{block}")));
    }
    let expected = ["20 + 15 = 35.", "data: [DONE]", "\\\"age\\\"", "get_weather", "\"message\"", "nextn:"];
    assert_eq!(replies.len(), expected.len(), "one for each block");
    for (reply, words) in replies.iter().zip(expected) {
        assert!(reply.contains(words), "{words} expected:\n{reply}");
    }
}

/// A server with the model inside it.
struct Server {
    child: Child,
    address: String,
    lines: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nextn-server"))
            .args(["--port", "0", "-t", "1", "-c", "2048", "-np", "1"])
            .env_remove("NEXTN_LOG")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program is built");
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
        let mut tell = |line: String| Some(line.split_once("listening on http://")?.1.trim().to_owned());
        let address = lines.by_ref().find_map(&mut tell).expect("a line tells the address");
        // Somebody has to read on, or the program would wait for room.
        let lines = Some(std::thread::spawn(move || lines.for_each(drop)));
        Self { child, address, lines }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(lines) = self.lines.take() {
            let _ = lines.join();
        }
    }
}
