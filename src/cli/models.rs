//! `nextn-cli models`: pull, list, rm.

use std::fmt::Write as _;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::time::SystemTime;

use hub::{CachedModel, HubOptions, ModelName};
use indicatif::HumanBytes;
use program::exit::{Exit, Failure, Outcome};
use program::sanitize::clean_line;
use program::signals::Signals;
use serde_json::{Value, json};

use super::args::ModelsCommand;
use super::download::{failure, model_files};
use super::style::Terminals;

/// Does one of the commands.
///
/// # Errors
/// With the code of the name, of the model or of the machine.
pub(super) fn run(command: &ModelsCommand, signals: &Signals, terminals: Terminals) -> Outcome<()> {
    match command {
        ModelsCommand::Pull { name, hf_token, no_mmproj } => {
            let options = HubOptions {
                hf_repo: Some(name.clone()),
                hf_token: hf_token.clone(),
                no_mmproj: *no_mmproj,
                ..HubOptions::default()
            };
            let files = model_files(None, options, signals, terminals.stderr)?;
            let mut text = String::new();
            for (what, path) in [("model", &files.model), ("MTP layer", &files.head), ("projector", &files.projector)] {
                if let Some(path) = path {
                    writeln!(text, "{what:<10} {}", shown(path)).expect("a text takes all");
                }
            }
            if let Some(name) = &files.name {
                writeln!(text, "use it with -m {name}").expect("a text takes all");
            }
            Ok(io::stdout().write_all(text.as_bytes())?)
        }
        ModelsCommand::List { json } => list(*json),
        ModelsCommand::Rm { names, yes } => remove(names, *yes),
    }
}

fn hub() -> Outcome<hub::Hub> {
    HubOptions::default().hub(|name| std::env::var(name).ok()).map_err(failure)
}

fn list(as_json: bool) -> Outcome<()> {
    let hub = hub()?;
    let models = hub.models().map_err(failure)?;
    let text = if as_json {
        let all: Vec<Value> = models.iter().map(as_value).collect();
        serde_json::to_string_pretty(&all).expect("names and numbers") + "\n"
    } else if models.is_empty() {
        eprintln!("no models in {}: nextn-cli models pull NAME fetches one", shown(&hub.cache));
        String::new()
    } else {
        table(&models, SystemTime::now())
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}

fn as_value(model: &CachedModel) -> Value {
    let seconds = |time: Option<SystemTime>| time?.duration_since(SystemTime::UNIX_EPOCH).ok().map(|t| t.as_secs());
    json!({
        "name": model.name, "quantization": model.quant, "size": model.size, "path": model.path,
        "head": model.head, "projector": model.projector,
        "downloaded": seconds(model.downloaded), "used": seconds(model.used),
    })
}

/// One line for each model, under a heading.
fn table(models: &[CachedModel], now: SystemTime) -> String {
    let heading = ["NAME", "QUANT", "SIZE", "WITH", "DOWNLOADED", "USED", "PATH"].map(str::to_owned);
    let row = |model: &CachedModel| {
        let with = [("MTP", model.head.is_some()), ("projector", model.projector.is_some())];
        let with: Vec<&str> = with.into_iter().filter(|(_, is_there)| *is_there).map(|(word, _)| word).collect();
        // A file system that notes no reading says the time of writing, or an earlier one.
        let used = model.used.max(model.downloaded);
        [
            model.name.clone(),
            model.quant.clone(),
            HumanBytes(model.size).to_string(),
            with.join(","),
            ago(model.downloaded, now),
            ago(used, now),
            shown(&model.path),
        ]
    };
    let rows: Vec<[String; 7]> = std::iter::once(heading).chain(models.iter().map(row)).collect();
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..7).map(width).collect();
    let line = |row: &[String; 7]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn ago(time: Option<SystemTime>, now: SystemTime) -> String {
    let Some(seconds) = time.map(|time| now.duration_since(time).map_or(0, |age| age.as_secs())) else {
        return "-".to_owned();
    };
    let (n, unit) = match seconds {
        0..60 => return "now".to_owned(),
        60..3600 => (seconds / 60, "min"),
        3600..86_400 => (seconds / 3600, "h"),
        _ => (seconds / 86_400, "d"),
    };
    format!("{n} {unit} ago")
}

fn remove(names: &[String], yes: bool) -> Outcome<()> {
    let hub = hub()?;
    let names: Vec<ModelName> = names.iter().map(|name| name.parse()).collect::<Result<_, _>>().map_err(failure)?;
    let models = hub.models().map_err(failure)?;
    if !yes {
        let list: Vec<String> = names.iter().map(ToString::to_string).collect();
        if !io::stdin().is_terminal() {
            let words = format!("{}: nobody can be asked here: --yes removes without asking", list.join(", "));
            return Err(Failure::message(Exit::Usage, words));
        }
        for name in names.iter().filter(|name| name.to_string() == name.repo()) {
            let all = models.iter().filter(|model| model.name.split(':').next() == Some(name.repo()));
            let all: Vec<&str> = all.map(|model| model.name.as_str()).collect();
            eprintln!("{name} is the whole repository: {}", all.join(", "));
        }
        eprint!("remove {}? [y/N] ", list.join(", "));
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        if !matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
            return Err(Failure::message(Exit::Runtime, "nothing was removed"));
        }
    }
    for name in &names {
        let removed = hub.remove(name).map_err(failure)?;
        let (n, bytes) = (removed.files.len(), HumanBytes(removed.n_bytes));
        writeln!(io::stdout(), "removed {name}: {}, {bytes}", program::words::counted(n, "file"))?;
    }
    Ok(())
}

/// A path that cannot drive a terminal.
fn shown(path: &Path) -> String {
    clean_line(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_table_has_a_line_for_each_model() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(10_000_000);
        let model = CachedModel {
            name: "u/r:Q4_K_M".into(),
            quant: "Q4_K_M".into(),
            size: 5 << 30,
            path: "c/m.gguf".into(),
            head: Some("c/mtp-m.gguf".into()),
            projector: None,
            downloaded: Some(now - Duration::from_secs(200_000)),
            used: Some(now - Duration::from_secs(300)),
        };
        let text = table(&[model.clone(), CachedModel { head: None, downloaded: None, used: None, ..model }], now);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split("  ").filter(|c| !c.is_empty()).map(str::trim).collect()).collect();
        assert_eq!(lines[0], ["NAME", "QUANT", "SIZE", "WITH", "DOWNLOADED", "USED", "PATH"]);
        assert_eq!(lines[1], ["u/r:Q4_K_M", "Q4_K_M", "5.00 GiB", "MTP", "2 d ago", "5 min ago", "c/m.gguf"]);
        assert_eq!(lines[2], ["u/r:Q4_K_M", "Q4_K_M", "5.00 GiB", "-", "-", "c/m.gguf"]);
    }
}
