//! Settings put into a file of JSON: what is set is replaced or added where it stands, everything else stays as it was written.

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::{Map, Value};

/// Whether the program that reads the file takes comments.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Comments {
    Kept,
    Refused,
}

/// The text of a file with these settings; objects are merged with those that are there.
///
/// # Errors
/// The file is no JSON object.
pub(super) fn edited(old: Option<&str>, settings: &Map<String, Value>, comments: Comments) -> Result<String, String> {
    let old = old.filter(|text| !text.trim().is_empty()).unwrap_or("{}\n");
    if comments == Comments::Refused {
        serde_json::from_str::<Value>(old).map_err(|error| format!("this is no JSON: {error}"))?;
    }
    let options = ParseOptions {
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        ..ParseOptions::default()
    };
    let root = CstRootNode::parse(old, &options).map_err(|error| format!("this is no JSON: {error}"))?;
    let object = root.object_value().ok_or("a JSON object is expected")?;
    merge(&object, settings);
    let text = root.to_string();
    // The program reads what is written, or it is not written.
    match root.to_serde_value().or_else(|| serde_json::from_str(&text).ok()) {
        Some(Value::Object(_)) => Ok(if text.ends_with('\n') { text } else { text + "\n" }),
        _ => Err("the settings cannot be put into this file".into()),
    }
}

fn merge(object: &CstObject, settings: &Map<String, Value>) {
    for (name, value) in settings {
        let Some(there) = object.get(name) else {
            object.append(name, input(value));
            continue;
        };
        match (there.object_value(), value) {
            (Some(inner), Value::Object(settings)) => merge(&inner, settings),
            _ if there.to_serde_value().is_some_and(|found| found == *value) => {}
            _ => there.set_value(input(value)),
        }
    }
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(on) => CstInputValue::Bool(*on),
        Value::Number(n) => CstInputValue::Number(n.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(all) => CstInputValue::Array(all.iter().map(input).collect()),
        Value::Object(all) => {
            CstInputValue::Object(all.iter().map(|(name, value)| (name.clone(), input(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clients::Client;
    use super::super::clients::tests::facts;

    #[test]
    fn what_others_have_set_stays_with_its_comments() {
        let old = "{\n  // mine\n  \"theme\": \"dark\",\n  \"provider\": {\n    \"other\": {\"npm\": \"x\"}, // kept\n  },\n}\n";
        let new = Client::Opencode.edited(Some(old), &facts(None, Some(4096))).unwrap();
        for part in ["// mine\n  \"theme\": \"dark\"", "\"other\": {\"npm\": \"x\"}, // kept", "\"nextn/pocket\""] {
            assert!(new.contains(part), "{part}: {new}");
        }
        let old = "{\n    \"permissions\": {\"allow\": [\"Bash(ls)\"]},\n    \"env\": {\"MINE\": \"1\", \"ANTHROPIC_MODEL\": \"x\"}\n}\n";
        let new = Client::Claude.edited(Some(old), &facts(None, Some(4096))).unwrap();
        let read: serde_json::Value = serde_json::from_str(&new).unwrap();
        assert_eq!((&read["env"]["MINE"], &read["env"]["ANTHROPIC_MODEL"]), (&"1".into(), &"pocket".into()), "{new}");
        assert!(new.starts_with("{\n    \"permissions\": {\"allow\": [\"Bash(ls)\"]},\n"), "{new}");
    }

    #[test]
    fn broken_files_are_left_alone() {
        for old in ["{", "[]", "7", "{\"a\": 1,}", "{\"env\": {}} // c", "{'a': 1}"] {
            assert!(Client::Claude.edited(Some(old), &facts(None, None)).is_err(), "{old}");
        }
        assert!(Client::Opencode.edited(Some("{\"a\" 1}"), &facts(None, None)).is_err());
    }
}
