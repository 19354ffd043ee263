//! Reading kept replies back: of one scope or of all, those of one model.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use model::Model;
use text::hex;

use super::kept::{ENDING, FORMAT, Head, KeptReply, VERSION, stem};

/// Why kept replies cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// A file or folder cannot be read.
    #[error("{}: cannot be read: {why}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// A line is not what it should be.
    #[error("{}, line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// The folder has nothing for this model.
    #[error("{}: {what}", path.display())]
    Nothing {
        /// The folder.
        path: PathBuf,
        /// What is there instead.
        what: String,
    },
    /// The model has no fingerprint.
    #[error(transparent)]
    Model(#[from] model::LoadError),
}

/// The replies of `model` in `folder` and in the folders in it, oldest file first, and how many files of other models were passed
/// over. A last line that was not written to its end is none.
///
/// # Errors
/// [`KeptError`]: a file that cannot be read, a line that is not a kept reply, a folder without a reply of this model.
pub fn read_replies(folder: &Path, model: &Model) -> Result<(Vec<KeptReply>, usize), KeptError> {
    let fingerprint = hex(&model.fingerprint()?);
    let n_vocab = model.hparams().n_vocab;
    let mut files = files(folder)?;
    for inside in folders(folder)? {
        files.extend(self::files(&inside)?);
    }
    files.sort_by(|a, b| a.file_name().cmp(&b.file_name()).then_with(|| a.cmp(b)));
    let (mut replies, mut others) = (Vec::new(), Vec::new());
    for path in &files {
        if let Some(other) = read_file(path, (&fingerprint, n_vocab), &mut replies)? {
            others.push(other);
        }
    }
    if replies.is_empty() {
        let what = match others.first() {
            _ if files.is_empty() => {
                "no kept replies are in this folder; nextn-server --learn FOLDER keeps them".into()
            }
            Some(other) => {
                format!("replies of model {} expected, {} found", stem(&fingerprint), stem(other))
            }
            None => "its files have no reply yet".into(),
        };
        return Err(KeptError::Nothing { path: folder.to_owned(), what });
    }
    Ok((replies, others.len()))
}

/// Gives the fingerprint of the file's model if that is another one.
fn read_file(
    path: &Path,
    (fingerprint, n_vocab): (&str, usize),
    replies: &mut Vec<KeptReply>,
) -> Result<Option<String>, KeptError> {
    let unreadable = |why| KeptError::Read { path: path.to_owned(), why };
    let mut lines = BufReader::new(fs::File::open(path).map_err(unreadable)?);
    let mut bytes = Vec::new();
    for line in 1.. {
        let wrong = |what: String| KeptError::Line { path: path.to_owned(), line, what };
        bytes.clear();
        let n = lines.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut bytes).map_err(unreadable)?;
        if n as u64 > MAX_LINE {
            return Err(wrong(format!("longer than {MAX_LINE} bytes")));
        }
        // Nothing, or a line whose writer was ended.
        if bytes.last() != Some(&b'\n') {
            break;
        }
        if line == 1 {
            let head: Head = serde_json::from_slice(&bytes)
                .map_err(|error| wrong(format!("not the beginning of kept replies: {error}")))?;
            if (head.format.as_str(), head.version) != (FORMAT, VERSION) {
                let found = format!("{} {}", head.format, head.version);
                return Err(wrong(format!("{FORMAT} {VERSION} expected, {found} found")));
            }
            if head.model != fingerprint {
                return Ok(Some(head.model));
            }
            if head.n_vocab != n_vocab {
                return Err(wrong(format!("a vocabulary of {n_vocab} tokens expected, {} found", head.n_vocab)));
            }
            continue;
        }
        let reply: KeptReply =
            serde_json::from_slice(&bytes).map_err(|error| wrong(format!("not a kept reply: {error}")))?;
        if let Some(id) = reply.prompt.iter().chain(&reply.reply).find(|id| **id as usize >= n_vocab) {
            return Err(wrong(format!("token id {id} is outside the vocabulary of {n_vocab} tokens")));
        }
        if let Some((at, _)) = reply.refused.iter().find(|(at, _)| *at >= reply.reply.len()) {
            let n = reply.reply.len();
            return Err(wrong(format!("a draft was refused at position {at} of a reply of {n} tokens")));
        }
        replies.push(reply);
    }
    Ok(None)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, KeptError> {
    let ours = |path: &PathBuf| path.to_str().is_some_and(|name| name.ends_with(ENDING));
    Ok(entries(folder)?.into_iter().filter(|path| !path.is_dir() && ours(path)).collect())
}

fn folders(folder: &Path) -> Result<Vec<PathBuf>, KeptError> {
    Ok(entries(folder)?.into_iter().filter(|path| path.is_dir()).collect())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, KeptError> {
    let unreadable = |why| KeptError::Read { path: folder.to_owned(), why };
    let listed = fs::read_dir(folder).map_err(unreadable)?;
    listed.map(|entry| entry.map(|entry| entry.path()).map_err(unreadable)).collect()
}

/// Longer lines are no kept reply.
const MAX_LINE: u64 = 1 << 20;
