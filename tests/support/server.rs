//! `nextn-server` as a process of its own: started on a free port, asked by plain HTTP, told to end.
#![allow(dead_code, reason = "every test file uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A server that is ended when it is dropped.
pub struct Running {
    child: Child,
    /// Host and port.
    pub address: String,
    /// What it said until it could answer.
    pub said: String,
    lines: Option<std::thread::JoinHandle<()>>,
}

/// Starts the program on a free port, and waits until it can answer.
pub fn start(options: &[&str]) -> Running {
    begin(options, true)
}

/// As [`start`], but nobody reads what it says from then on: its lines cannot be written any more.
pub fn start_unheard(options: &[&str]) -> Running {
    begin(options, false)
}

fn begin(options: &[&str], is_heard: bool) -> Running {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nextn-server"))
        .args(["--port", "0", "-t", "1", "-c", "512", "-np", "1"])
        .args(options)
        .env_remove("NEXTN_LOG")
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program is built");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
    // The line comes when the model is there.
    let mut said = String::new();
    let mut tell = |line: String| {
        said += &format!("{line}\n");
        Some(line.split_once("listening on http://")?.1.trim().to_owned())
    };
    let address = lines.by_ref().find_map(&mut tell).expect("a line tells the address");
    // Somebody has to read on, or the program would wait for room.
    let lines = is_heard.then(|| std::thread::spawn(move || lines.for_each(drop)));
    Running { child, address, said, lines }
}

impl Running {
    /// Sends a whole request that closes the connection, and gives the whole answer.
    pub fn say(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers in UTF-8");
        answer
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a process id")).expect("not 0");
        kill_process(pid, signal).expect("it runs");
    }

    /// Waits until it has ended.
    pub fn end(mut self) -> ExitStatus {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("it is ours") {
                Some(status) => break status,
                None if start.elapsed() > Duration::from_secs(30) => {
                    let _ = self.child.kill();
                    panic!("it does not end");
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if let Some(lines) = self.lines.take() {
            let _ = lines.join();
        }
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only after a failed test is there something to end.
        let _ = self.child.kill();
    }
}
