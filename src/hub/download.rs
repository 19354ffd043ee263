//! One file of a repository into the cache: resumed where an earlier run stopped, checked, and by one program at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use ureq::Body;
use ureq::http::Response;
use ureq::http::header::{CONTENT_LENGTH, CONTENT_RANGE};

use crate::cache::{Lock, RepoCache};
use crate::choose::RepoFile;
use crate::error::{HubError, in_cache};
use crate::http::{Client, Fault, Tries};
use crate::watch::{Event, Watch};

/// Fetches the bytes of a file, unless they are there.
///
/// # Errors
/// [`HubError`]. Bytes that came and may be right stay for the next time.
pub(crate) fn blob(
    client: &Client,
    repo: &RepoCache,
    url: &str,
    file: &RepoFile,
    watch: &Watch<'_>,
) -> Result<(), HubError> {
    let Some(sha256) = &file.sha256 else {
        let what = "the hub gives no checksum for this file, so it is not fetched".to_owned();
        return Err(HubError::Http { url: url.to_owned(), what });
    };
    let blob = repo.blob(sha256);
    let is_there = || fs::metadata(&blob).is_ok_and(|meta| meta.len() == file.size);
    let there = || watch.tell(Event::Progress { file: &file.path, done: file.size, size: file.size });
    if is_there() {
        there();
        return Ok(());
    }
    let _lock = Lock::wait(&repo.lock(sha256), &file.path, watch)?;
    if is_there() {
        there();
        return Ok(());
    }
    let path = repo.part(sha256);
    let mut part = Part::open(&path, url, file, watch)?;
    part.fill(client, watch)?;
    let found: String = part.hash.finalize_reset().iter().map(|b| format!("{b:02x}")).collect();
    if found != *sha256 {
        in_cache(&path, fs::remove_file(&path))?;
        return Err(HubError::Checksum { path: file.path.clone(), expected: sha256.clone(), found });
    }
    in_cache(&path, part.out.sync_all())?;
    drop(part);
    in_cache(&blob, fs::rename(&path, &blob))
}

/// A file of which the first bytes are there.
struct Part<'a> {
    path: &'a Path,
    url: &'a str,
    file: &'a RepoFile,
    out: File,
    /// Of the bytes that are there.
    hash: Sha256,
    done: u64,
}

impl<'a> Part<'a> {
    /// Reads what an earlier run left.
    fn open(path: &'a Path, url: &'a str, file: &'a RepoFile, watch: &Watch<'_>) -> Result<Self, HubError> {
        if let Some(folder) = path.parent() {
            in_cache(folder, fs::create_dir_all(folder))?;
        }
        let out = in_cache(path, OpenOptions::new().create(true).read(true).append(true).open(path))?;
        let mut part = Self { path, url, file, out, hash: Sha256::new(), done: 0 };
        if in_cache(path, part.out.metadata())?.len() > file.size {
            part.restart()?;
        }
        let mut buffer = vec![0; BUFFER];
        loop {
            watch.check()?;
            let n = in_cache(path, part.out.read(&mut buffer))?;
            if n == 0 {
                break;
            }
            part.hash.update(&buffer[..n]);
            part.done += n as u64;
        }
        watch.tell(Event::Progress { file: &file.path, done: part.done, size: file.size });
        Ok(part)
    }

    /// Forgets what came.
    fn restart(&mut self) -> Result<(), HubError> {
        in_cache(self.path, self.out.set_len(0))?;
        self.hash = Sha256::new();
        self.done = 0;
        Ok(())
    }

    /// Asks for the rest until it is there.
    fn fill(&mut self, client: &Client, watch: &Watch<'_>) -> Result<(), HubError> {
        let mut tries = Tries::new(client.retry);
        // A hub that makes us begin anew again and again makes no progress by it.
        let mut most = self.done;
        while self.done < self.file.size {
            watch.check()?;
            let (what, after) = match self.receive(client, watch) {
                Ok(()) => continue,
                Err(Fault::Final(error)) => return Err(error),
                Err(Fault::Again(what, after)) => (what, after),
                Err(Fault::Silent(what)) => (what, None),
            };
            if self.done > most {
                most = self.done;
                tries.progressed();
            }
            let what =
                format!("{what}; {} of {} bytes came, and the next run goes on there", self.done, self.file.size);
            tries.pause(self.url, what, after, watch)?;
        }
        Ok(())
    }

    /// What one request gives.
    fn receive(&mut self, client: &Client, watch: &Watch<'_>) -> Result<(), Fault> {
        let mut response = client.get(self.url, self.done)?;
        match response.status().as_u16() {
            206 if starts_at(&response, self.done) => {}
            206 => return Err(self.wrong("the hub sends other bytes than those that were asked for".into())),
            // All of it comes, whatever was asked for.
            200 => self.restart().map_err(Fault::Final)?,
            // What is here is not the beginning of what is there.
            status => {
                self.restart().map_err(Fault::Final)?;
                return Err(Fault::Again(format!("the hub answers {status}"), None));
            }
        }
        let size = self.file.size;
        let announced = response.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|n| n > size - self.done) {
            return Err(self.too_long());
        }
        let mut reader = response.body_mut().as_reader();
        let mut buffer = vec![0; BUFFER];
        loop {
            watch.check().map_err(Fault::Final)?;
            let n = match reader.read(&mut buffer) {
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Fault::Again(error.to_string(), None)),
            };
            if n == 0 {
                break;
            }
            if n as u64 > size - self.done {
                return Err(self.too_long());
            }
            in_cache(self.path, self.out.write_all(&buffer[..n])).map_err(Fault::Final)?;
            self.hash.update(&buffer[..n]);
            self.done += n as u64;
            watch.tell(Event::Progress { file: &self.file.path, done: self.done, size });
        }
        if self.done < size { Err(Fault::Again("the connection ended early".into(), None)) } else { Ok(()) }
    }

    /// More comes than the hub's list promises: whatever it is, it is not that file.
    fn too_long(&mut self) -> Fault {
        // What is there may be right, but it is cheaper to fetch it again than to find out.
        if let Err(error) = self.restart() {
            return Fault::Final(error);
        }
        self.wrong(format!("the hub's list promises {} bytes, and more come; nothing was kept", self.file.size))
    }

    fn wrong(&self, what: String) -> Fault {
        Fault::Final(HubError::Http { url: self.url.to_owned(), what })
    }
}

/// The first byte of a part that comes, by its `Content-Range`; one that does not say is believed and checked at the end.
fn starts_at(response: &Response<Body>, at: u64) -> bool {
    let Some(range) = response.headers().get(CONTENT_RANGE) else { return true };
    let start =
        range.to_str().ok().and_then(|text| text.trim().strip_prefix("bytes ")?.split('-').next()?.parse().ok());
    start == Some(at)
}

const BUFFER: usize = 1 << 20;
