//! Continue's settings in its `config.yaml`: one more model, or ours anew. The file is edited as text, so that comments stay; what
//! comes of it is read again and compared with what was meant.

use std::ops::Range;

use saphyr::{LoadableYamlNode, Yaml};
use serde_json::json;

use super::ask::{Facts, PROVIDER};

/// The text of the file with a model for this server.
///
/// # Errors
/// The file is no YAML mapping, or its models are written in a way that is not edited.
pub(super) fn edited(old: Option<&str>, facts: &Facts) -> Result<String, String> {
    let text = old.filter(|text| !text.trim().is_empty()).unwrap_or(NEW);
    let before = read(text)?;
    let ours = models_of(&before)?.iter().position(is_ours);
    let new = with_model(text, ours, facts);
    let item = item(facts, "");
    let is_meant = new.as_deref().is_some_and(|new| read(new).is_ok_and(|after| is_only_ours(&before, &after, &item)));
    match new.filter(|_| is_meant) {
        Some(new) => Ok(new),
        None => {
            Err(format!("its `models` are written in a way that this program does not edit: add this to them\n{item}"))
        }
    }
}

/// The only document of the text.
fn read(text: &str) -> Result<Yaml<'_>, String> {
    let mut all = Yaml::load_from_str(text).map_err(|error| format!("this is no YAML: {error}"))?;
    match (all.pop(), all.is_empty()) {
        (Some(root), true) if root.as_mapping().is_some() => Ok(root),
        _ => Err("one YAML mapping is expected".into()),
    }
}

/// The models; without any the list is empty.
fn models_of<'y, 't>(root: &'y Yaml<'t>) -> Result<&'y [Yaml<'t>], String> {
    match root.as_mapping_get("models") {
        None => Ok(&[]),
        Some(models) if models.is_null() => Ok(&[]),
        Some(models) => models.as_sequence().map(Vec::as_slice).ok_or_else(|| "models: a list is expected".into()),
    }
}

fn is_ours(model: &Yaml<'_>) -> bool {
    model.as_mapping_get("name").and_then(Yaml::as_str) == Some(PROVIDER)
}

/// The two differ in our model and in nothing else, and that is as `item` has it.
fn is_only_ours(before: &Yaml<'_>, after: &Yaml<'_>, item: &str) -> bool {
    let list = format!("models:\n{item}");
    let Ok(meant) = read(&list) else { return false };
    let (Ok(was), Ok(is), Ok(meant)) = (models_of(before), models_of(after), models_of(&meant)) else { return false };
    let n_ours = is.iter().filter(|model| is_ours(model)).count();
    let others = |models: &[Yaml<'_>]| models.iter().filter(|model| !is_ours(model)).map(shown).collect::<Vec<_>>();
    let ours = is.iter().find(|model| is_ours(model)).map(shown) == meant.first().map(shown);
    let rest = |root: &Yaml<'_>| {
        root.as_mapping().map_or(0, |all| all.len()) - usize::from(root.contains_mapping_key("models"))
    };
    let kept = before.as_mapping().into_iter().flatten().all(|(name, value)| {
        let name = name.as_str();
        name == Some("models")
            || name.and_then(|name| after.as_mapping_get(name)).is_some_and(|found| shown(found) == shown(value))
    });
    n_ours == 1 && ours && others(was) == others(is) && kept && rest(before) == rest(after)
}

/// A value that does not depend on the text that it was read from.
fn shown(value: &Yaml<'_>) -> String {
    format!("{value:?}")
}

/// The text with our model as the one at `ours`, or as the last.
fn with_model(text: &str, ours: Option<usize>, facts: &Facts) -> Option<String> {
    let mut lines: Vec<&str> = text.lines().collect();
    let Some(head) =
        lines.iter().position(|line| line.split('#').next().unwrap_or_default().trim_end().starts_with("models:"))
    else {
        let gap = if text.ends_with('\n') { "" } else { "\n" };
        return Some(format!("{text}{gap}models:\n{}", item(facts, "  ")));
    };
    let value = lines[head].split('#').next().unwrap_or_default().trim_start_matches("models:").trim();
    match value {
        "" => {}
        "[]" => lines[head] = "models:",
        _ => return None,
    }
    let body = body(&lines, head);
    let starts: Vec<usize> = {
        let first = body.clone().find(|&i| is_item(lines[i]));
        let indent = first.map(|i| indent_of(lines[i]));
        body.clone().filter(|&i| is_item(lines[i]) && Some(indent_of(lines[i])) == indent).collect()
    };
    let indent = starts.first().map_or("  ", |&i| indent_of(lines[i]));
    let new = item(facts, indent);
    let range = match ours {
        Some(k) => *starts.get(k)?..end_of(&lines, starts.get(k + 1).copied().unwrap_or(body.end)),
        None => {
            let end = end_of(&lines, body.end);
            end..end
        }
    };
    let all = lines[..range.start].iter().copied().chain(new.lines()).chain(lines[range.end..].iter().copied());
    Some(all.map(|line| format!("{line}\n")).collect())
}

/// The lines below `head` that belong to it.
fn body(lines: &[&str], head: usize) -> Range<usize> {
    let is_next =
        |line: &&str| !line.trim().is_empty() && indent_of(line).is_empty() && !is_item(line) && !line.starts_with('#');
    let n = lines[head + 1..].iter().position(is_next);
    head + 1..n.map_or(lines.len(), |n| head + 1 + n)
}

/// Blank lines and comments before `end` belong to what follows.
fn end_of(lines: &[&str], end: usize) -> usize {
    let is_gap = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
    end - lines[..end].iter().rev().take_while(|line| is_gap(line)).count()
}

fn is_item(line: &str) -> bool {
    line.trim_start().starts_with("- ") || line.trim() == "-"
}

fn indent_of(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// Our model as an item of the list. Texts in JSON are texts in YAML.
fn item(facts: &Facts, indent: &str) -> String {
    let model = facts.model();
    let mut lines = vec![
        format!("- name: {PROVIDER}"),
        "  provider: openai".to_owned(),
        format!("  model: {}", json!(model.id)),
        format!("  apiBase: {}", json!(format!("{}/v1", facts.place.url))),
        format!("  apiKey: {}", json!(facts.key_or_word())),
        "  roles: [chat, edit, apply]".to_owned(),
        "  capabilities: [tool_use]".to_owned(),
    ];
    if let Some(n_ctx) = model.n_ctx {
        lines.push("  defaultCompletionOptions:".to_owned());
        lines.push(format!("    contextLength: {n_ctx}"));
    }
    lines.iter().map(|line| format!("{indent}{line}\n")).collect()
}

/// A file that has nothing else.
const NEW: &str = "name: Local Config\nversion: 1.0.0\nschema: v1\nmodels: []\n";

#[cfg(test)]
mod tests {
    use super::super::clients::tests::facts;
    use super::*;

    #[test]
    fn what_others_have_set_stays_with_its_comments() {
        let old = "# mine\nname: My\nversion: 1.0.0\nmodels: # all\n- name: a # first\n  provider: ollama\n\n# behind\ncontext:\n  - provider: file\n";
        let new = edited(Some(old), &facts(Some("k"), Some(4096))).unwrap();
        let expected = "# mine\nname: My\nversion: 1.0.0\nmodels: # all\n- name: a # first\n  provider: ollama\n- name: nextn\n  provider: openai\n  \
                        model: \"pocket\"\n  apiBase: \"http://127.0.0.1:8080/v1\"\n  apiKey: \"k\"\n  roles: [chat, edit, apply]\n  capabilities: [tool_use]\n  \
                        defaultCompletionOptions:\n    contextLength: 4096\n\n# behind\ncontext:\n  - provider: file\n";
        assert_eq!(new, expected);
        let again = edited(Some(&new), &facts(None, None)).unwrap();
        assert!(
            again.contains("apiKey: \"none\"") && !again.contains("4096") && again.contains("\n\n# behind\ncontext:"),
            "{again}"
        );
        let between = "models:\n    - name: nextn\n      model: x\n    - name: b\nrules: []\n";
        let new = edited(Some(between), &facts(None, None)).unwrap();
        assert!(
            new.starts_with("models:\n    - name: nextn\n      provider: openai\n")
                && new.ends_with("    - name: b\nrules: []\n"),
            "{new}"
        );
        let without = edited(Some("name: My\nversion: 1.0.0"), &facts(None, None)).unwrap();
        assert!(without.starts_with("name: My\nversion: 1.0.0\nmodels:\n  - name: nextn\n"), "{without}");
    }

    #[test]
    fn what_is_broken_or_written_otherwise_is_left_alone() {
        for old in [
            "a: [",
            "- 1",
            "text",
            "models: {a: 1}\n",
            "a: 1\n---\nb: 2\n",
            "models: [{name: a}]\n",
            "{models: []}\n",
            "a: 1\na: 2\n",
        ] {
            let told = edited(Some(old), &facts(None, None));
            assert!(told.is_err(), "{old}: {told:?}");
        }
    }
}
