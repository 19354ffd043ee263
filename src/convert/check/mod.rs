//! Whether a model file is sound: every tensor there, of the right shape and type, with numbers that can be.
//! Owns the gate, the rules on numbers and the verdict; changes nothing.

mod gate;
mod rules;
mod values;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::Error;
use crate::heads::{Content, Facts};
use crate::source::Source;
use crate::stream::Control;

pub use gate::Gate;
pub use values::{Stats, scan};

/// What a check looks at.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Reads all data and judges the numbers; without it only the header is judged.
    pub values: bool,
    /// Threads that read.
    pub n_threads: usize,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The file; of several shards the first.
    pub path: PathBuf,
    /// In one word, for programs.
    pub verdict: Verdict,
    /// Architecture, if the header could be read.
    pub architecture: Option<String>,
    /// Tensors against those that the metadata promise; absent for architectures that are not known.
    pub gate: Option<Gate>,
    /// What is wrong, worst first.
    pub damage: Vec<String>,
    /// What is odd and may be right.
    pub notes: Vec<String>,
    /// Bytes of tensor data whose numbers were looked at.
    pub bytes_read: u64,
}

/// The outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A sound file with a complete NextN head.
    Complete,
    /// A sound file without one.
    NoHead,
    /// Something is missing or wrong.
    Damaged,
}

/// Checks a GGUF file, with all shards when it is the first of several.
///
/// ```no_run
/// # fn main() -> Result<(), convert::Error> {
/// use convert::check::{Options, Verdict, verify};
/// let options = Options { values: true, n_threads: 2 };
/// let report = verify("model.gguf".as_ref(), options, &Default::default())?;
/// assert_eq!(report.verdict, Verdict::Complete, "{:?}", report.damage);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The system refuses to open or read a file, or the check was stopped. Damage is not an error: it is in the report.
pub fn verify(path: &Path, options: Options, control: &Control) -> Result<Report, Error> {
    let mut report = Report {
        path: path.to_owned(),
        verdict: Verdict::Damaged,
        architecture: None,
        gate: None,
        damage: Vec::new(),
        notes: Vec::new(),
        bytes_read: 0,
    };
    let source = match Source::open(path) {
        Ok(source) => source,
        Err(e @ Error::Io { .. }) => return Err(e),
        Err(Error::Gguf { source, path: of }) if of == path => {
            report.damage.push(source.to_string());
            return Ok(report);
        }
        Err(e) => {
            report.damage.push(e.to_string());
            return Ok(report);
        }
    };
    report.architecture = source.text("general.architecture").map(str::to_owned);
    if source.surplus_bytes > 0 {
        report.notes.push(format!("{} bytes behind the end of the last tensor", source.surplus_bytes));
    }
    let facts = match Facts::of(&source) {
        Ok(facts) => Some(facts),
        Err(Error::Input { what, .. }) => {
            match &report.architecture {
                // Other architectures have no heads that are known here; their data can be looked at all the same.
                Some(name) if !crate::heads::is_known(name) => {
                    report
                        .notes
                        .push(format!("the tensors of architecture {name:?} are not known: only data is judged"));
                }
                _ => report.damage.push(what),
            }
            None
        }
        Err(e) => return Err(e),
    };
    if let Some(facts) = &facts {
        match Gate::of(&source, facts) {
            Ok(gate) => {
                report.damage.extend(gate.damage());
                report.gate = Some(gate);
            }
            Err(what) => report.damage.push(what),
        }
        rules::words(&source, facts, &mut report);
    }
    if options.values {
        let stats = scan(&source, options.n_threads, control)?;
        report.bytes_read = source.tensors.iter().map(|t| t.n_bytes).sum();
        rules::numbers(&source, facts.as_ref(), &stats, &mut report);
    }
    report.verdict = match facts.map(|f| f.content) {
        _ if !report.damage.is_empty() => Verdict::Damaged,
        Some(Content::Combined | Content::Head(_)) => Verdict::Complete,
        _ => Verdict::NoHead,
    };
    Ok(report)
}
