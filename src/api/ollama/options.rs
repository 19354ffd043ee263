//! `options`, `keep_alive`, `think` and `format`: Ollama's fields in the server's own terms.
//! Owns which options are served; the others are passed over, and the log says so.

use engine::sample::{Kind as Of, PARAMETERS};
use serde_json::{Map, Value, json};
use session::{Form, Kind, Reasoning};

use crate::error::{ApiError, shortened};
use crate::form;
use crate::json::parse;
use crate::params::Params;

/// The fields of `options` as those of any generating endpoint.
///
/// # Errors
/// 400 with the option that cannot be read.
pub(super) fn params(options: Option<&Map<String, Value>>) -> Result<Params, ApiError> {
    let (mut fields, mut passed_over) = (Map::new(), Vec::new());
    for (name, value) in options.into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        let (name, value) = (name.clone(), value.clone());
        match name.as_str() {
            "num_predict" => {
                let n = whole(value);
                // Without a limit by any number below 1.
                if n.as_i64().is_none_or(|n| n > 0) {
                    fields.insert("n_predict".into(), n);
                }
            }
            "stop" => _ = fields.insert(name, stops(value)),
            // No options of Ollama's, but the only way to say it here.
            "cache_prompt" | "store" => _ = fields.insert(name, value),
            _ => match PARAMETERS.iter().find(|parameter| parameter.fields.contains(&name.as_str())) {
                Some(parameter) if matches!(parameter.kind, Of::Integer | Of::Seed) => {
                    fields.insert(name, whole(value));
                }
                Some(parameter) if parameter.kind != Of::Biases => _ = fields.insert(name, value),
                _ => passed_over.push(name),
            },
        }
    }
    if !passed_over.is_empty() {
        let options = shortened(&passed_over.join(", "));
        tracing::info!(%options, "options of the request are passed over: they are set when the server starts, or not served");
    }
    let text = Value::Object(fields).to_string();
    let read = parse::<Params>(text.as_bytes());
    let read = read.and_then(|fields| Ok(Params { sampling: parse(text.as_bytes())?, ..fields }));
    read.map_err(|error| ApiError { message: format!("options.{}", error.message), ..error })
}

/// Ollama cuts fractions off where it expects whole numbers; clients write 40.0.
fn whole(value: Value) -> Value {
    match value.as_f64().filter(|x| !value.is_i64() && x.is_finite() && x.abs() < i64::MAX as f64) {
        Some(x) => json!(x as i64),
        None => value,
    }
}

/// Empty texts end nothing.
fn stops(value: Value) -> Value {
    let list = if value.is_string() { json!([value]) } else { value };
    match list {
        Value::Array(texts) => texts.into_iter().filter(|text| *text != "").collect(),
        other => other,
    }
}

/// Whether `keep_alive` asks for the model to be unloaded after the reply.
///
/// # Errors
/// 400 for what is no time.
pub(super) fn unloads(keep_alive: Option<&Value>) -> Result<bool, ApiError> {
    let seconds = match keep_alive {
        None | Some(Value::Null) => return Ok(false),
        Some(Value::String(text)) => duration(text),
        Some(value) => value.as_f64(),
    };
    let wrong = || ApiError::field("keep_alive", "keep_alive: seconds, or a time such as `5m`, expected");
    Ok(seconds.ok_or_else(wrong)? == 0.0)
}

/// Seconds of a text such as `1h30m`; a number without a unit is seconds.
fn duration(text: &str) -> Option<f64> {
    let (sign, mut rest) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    if let Ok(seconds) = rest.parse::<f64>() {
        return Some(sign * seconds).filter(|seconds| seconds.is_finite());
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let at = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let number: f64 = rest[..at].parse().ok()?;
        let (unit, length) =
            UNITS.iter().find_map(|(unit, s)| rest[at..].strip_prefix(unit).map(|_| (*s, unit.len())))?;
        seconds += number * unit;
        rest = &rest[at + length..];
    }
    (!text.is_empty()).then_some(sign * seconds)
}

/// Longer names before those that they begin with.
const UNITS: [(&str, f64); 7] =
    [("ns", 1e-9), ("us", 1e-6), ("\u{b5}s", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// What `think` makes of the server's default.
///
/// # Errors
/// 400 for anything but true, false and an effort.
pub(super) fn reasoning(defaults: &Reasoning, think: Option<&Value>) -> Result<Reasoning, ApiError> {
    let mut reasoning = defaults.clone();
    match think {
        None | Some(Value::Null) => return Ok(reasoning),
        Some(Value::Bool(on)) => reasoning.enable = Some(*on),
        Some(Value::String(effort)) => form::effort(&mut reasoning, "think", effort)?,
        Some(_) => return Err(ApiError::field("think", "think: true, false, `low`, `medium` or `high` expected")),
    }
    // Who asks for it knows where to look for it.
    reasoning.in_content = false;
    Ok(reasoning)
}

/// The form that `format` asks for.
///
/// # Errors
/// 400 for what is neither `json` nor a schema.
pub(super) fn form(format: Option<&Value>) -> Result<Option<Form>, ApiError> {
    let kind = match format {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(word)) if word.is_empty() => return Ok(None),
        Some(Value::String(word)) if word == "json" => Kind::JsonObject,
        Some(schema @ Value::Object(_)) => Kind::JsonSchema(schema.clone()),
        Some(_) => return Err(ApiError::field("format", "format: `json` or a JSON schema expected")),
    };
    Ok(Some(Form { kind, field: "format" }))
}

#[cfg(test)]
mod tests {
    use engine::sample::Setting;

    use super::*;

    fn of(options: Value) -> Result<Params, ApiError> {
        params(options.as_object())
    }

    #[test]
    fn options_become_the_servers_own_fields() {
        let options = json!({
            "num_predict": 12, "temperature": 1, "top_k": 40.0, "seed": 7, "repeat_last_n": -1, "stop": ["a", ""],
            "num_ctx": 4096, "num_gpu": 99, "tfs_z": 1.0, "mirostat_tau": 5.0, "min_p": null,
            "store": false, "cache_prompt": false,
        });
        let read = of(options).unwrap();
        assert_eq!((read.n_predict, read.store, read.cache_prompt), (Some(12), Some(false), Some(false)));
        assert!(matches!(&read.stop, Some(crate::OneOrMany::Many(texts)) if *texts == ["a"]));
        let get = |name: &str| read.sampling.get(name).cloned();
        assert_eq!(get("temperature"), Some(Setting::Number(1.0)));
        assert_eq!((get("top_k"), get("penalty_last_n")), (Some(Setting::Integer(40)), Some(Setting::Integer(-1))));
        assert_eq!((get("seed"), get("min_p")), (Some(Setting::Seed(Some(7))), None));
        for n in [json!(-1), json!(-2), json!(0)] {
            assert_eq!(of(json!({ "num_predict": n })).unwrap().n_predict, None);
        }
        for (wrong, name) in [
            (json!({ "temperature": "hot" }), "options.temperature"),
            (json!({ "num_predict": "many" }), "options.n_predict"),
            (json!({ "stop": [1] }), "options.stop"),
        ] {
            let error = of(wrong).unwrap_err();
            assert!(error.status.as_u16() == 400 && error.message.starts_with(name), "{error}");
        }
    }

    #[test]
    fn times_are_numbers_or_texts_with_units() {
        for (given, unloaded) in [
            (json!(0), true),
            (json!("0"), true),
            (json!("0s"), true),
            (json!("0h0m"), true),
            (json!(300), false),
            (json!(-1), false),
            (json!("5m"), false),
            (json!("-1m"), false),
            (json!("1h30m"), false),
            (json!("10ms"), false),
            (Value::Null, false),
        ] {
            assert_eq!(unloads(Some(&given)).ok(), Some(unloaded), "{given}");
        }
        for wrong in
            [json!(""), json!("soon"), json!("5 minutes"), json!("m"), json!([0]), json!("1e999"), json!("nan")]
        {
            assert_eq!(unloads(Some(&wrong)).map_err(|error| error.param), Err(Some("keep_alive".into())), "{wrong}");
        }
    }

    #[test]
    fn thinking_is_a_switch_or_an_effort() {
        let defaults = Reasoning { in_content: true, ..Reasoning::default() };
        let of = |think: Value| reasoning(&defaults, Some(&think));
        assert!(of(Value::Null).unwrap().in_content, "the server's default");
        assert!(!of(json!(true)).unwrap().in_content && of(json!(true)).unwrap().enable == Some(true));
        assert_eq!(of(json!(false)).unwrap().enable, Some(false));
        assert_eq!(of(json!("low")).unwrap().effort_budget, Some(1024));
        assert!(of(json!("much")).is_err() && of(json!(3)).is_err());
    }
}
