//! Whether a model file is sound: every tensor there, of the right shape and type, with numbers that can be.
//! Owns the gate, the rules on numbers and the verdict; changes nothing.

mod norms;
mod report;
mod rules;
mod safetensors;
mod tensors;
mod values;

use std::path::Path;

use model::ProjectorSchema;

use crate::error::Error;
use crate::heads::{Content, ModelInfo};
use crate::kind::Kind;
use crate::source::Source;
use crate::stream::Control;

pub use report::{Report, Verdict};
pub use tensors::Gate;
pub use values::{Stats, scan};

/// What a check looks at.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Reads all data and judges the numbers; without it only the header is judged.
    pub values: bool,
    /// Threads that read.
    pub n_threads: usize,
}

/// Checks a GGUF file, with all shards when it is the first of several; a checkpoint folder, as the GGUF file that it
/// would become; or a head alone in safetensors.
///
/// ```
/// use convert::check::{Options, Verdict, verify};
/// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pocket-q4_k_m.gguf");
/// let report = verify(file.as_ref(), Options { values: true, n_threads: 2 }, &Default::default())?;
/// assert_eq!(report.verdict, Verdict::Complete, "{:?}", report.damage);
/// # Ok::<(), convert::Error>(())
/// ```
///
/// # Errors
/// There is no model at all, the system refuses to open or read a file, or the check was stopped. Damage is not an error:
/// it is in the report.
pub fn verify(path: &Path, options: Options, control: &Control) -> Result<Report, Error> {
    let mut report = Report {
        path: path.to_owned(),
        verdict: Verdict::Damaged,
        architecture: None,
        projector: None,
        gate: None,
        damage: Vec::new(),
        notes: Vec::new(),
        bytes_read: 0,
    };
    let kind = Kind::of_whole(path)?;
    let opened = match kind {
        Kind::Gguf => Source::open(path),
        Kind::Checkpoint => safetensors::checkpoint(path, &mut report),
        Kind::Safetensors => safetensors::head(path, &mut report),
    };
    let source = match opened {
        Ok(source) => source,
        Err(e @ (Error::Io { .. } | Error::NoHead(_))) => return Err(e),
        Err(e) => {
            report.damage.push(match e {
                Error::Gguf { source, path: of } if of == path => source.to_string(),
                Error::Input { what, path: of } if of == path => what,
                e => e.to_string(),
            });
            return Ok(report);
        }
    };
    report.architecture = source.text("general.architecture").map(str::to_owned);
    if source.surplus_bytes > 0 {
        report.notes.push(format!("{} bytes behind the end of the last tensor", source.surplus_bytes));
    }
    let sees = projector(&source, &mut report);
    let info = if kind == Kind::Safetensors || sees { None } else { info(&source, &mut report) };
    if let Some(info) = &info {
        if kind == Kind::Gguf {
            match Gate::of(&source, info) {
                Ok(gate) => {
                    report.damage.extend(gate.damage());
                    report.gate = Some(gate);
                }
                Err(what) => report.damage.push(what),
            }
        }
        rules::words(&source, info, &mut report);
    }
    if options.values {
        let stats = scan(&source, options.n_threads, control)?;
        report.bytes_read = source.tensors.iter().map(|t| t.n_bytes).sum();
        rules::numbers(&source, info.as_ref(), &stats, &mut report);
    }
    report.verdict = match info.map(|f| f.content) {
        _ if !report.damage.is_empty() => Verdict::Damaged,
        Some(Content::Combined | Content::Head(_) | Content::Assistant) => Verdict::Complete,
        None if kind == Kind::Safetensors || report.projector.is_some() => Verdict::Complete,
        _ => Verdict::NoHead,
    };
    Ok(report)
}

/// Compares the tensors of a projector with its schema; false for all other files.
fn projector(source: &Source, report: &mut Report) -> bool {
    let meta = source.metadata();
    if !ProjectorSchema::is_for(&meta) {
        return false;
    }
    let kind = ProjectorSchema::kind_of(&meta).ok().flatten().unwrap_or_default();
    if !ProjectorSchema::kinds().contains(&kind) {
        report.notes.push(format!("projectors of type {kind:?} are not known: only data is judged"));
        return true;
    }
    report.projector = Some(kind.to_owned());
    let n_rows = |name: &str| source.tensor(name).map(|t| t.ne.get(1).copied().unwrap_or(1));
    match ProjectorSchema::of_meta(&meta, &|name| source.tensor(name).is_some(), &n_rows) {
        Ok(schema) => {
            let gate = Gate::compare(source, &schema.tensors, |_| false);
            report.damage.extend(gate.damage());
            report.gate = Some(gate);
        }
        Err(error) => report.damage.push(error.to_string()),
    }
    true
}

/// None when the architecture is not known, or the keys of a known one are damaged, which the report says.
fn info(source: &Source, report: &mut Report) -> Option<ModelInfo> {
    match (ModelInfo::of(source), &report.architecture) {
        (Ok(info), _) => Some(info),
        // Their data can be looked at all the same.
        (Err(_), Some(name)) if !crate::heads::is_known(name) => {
            report.notes.push(format!("the tensors of architecture {name:?} are not known: only data is judged"));
            None
        }
        (Err(Error::Input { what, .. }), _) => {
            report.damage.push(what);
            None
        }
        (Err(e), _) => {
            report.damage.push(e.to_string());
            None
        }
    }
}
