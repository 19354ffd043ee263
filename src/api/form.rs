//! What a request demands of the form of its reply: `response_format`, grammars, `tool_choice`.
//! The one place that reads these fields; what cannot be forced is refused, never left out in silence.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value, json};
use session::{Form, Kind, Reasoning, ToolChoice};

use crate::error::ApiError;
use crate::json::Input;

/// Which tools may be called, and which must.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Calls {
    pub(crate) choice: ToolChoice,
    /// Only these may; `None`: all.
    pub(crate) allowed: Option<Vec<String>>,
}

/// Reads `tool_choice` in OpenAI's forms. `called` gives the name by which a model calls the tool of a namespace, if it is in one,
/// and of this name.
///
/// # Errors
/// 400 for another form.
pub(crate) fn tool_choice(
    value: Option<&Value>,
    called: impl Fn(Option<&str>, &str) -> String,
) -> Result<Calls, ApiError> {
    let wrong = || {
        let expected = "`none`, `auto`, `required`, {\"type\": \"function\", \"function\": {\"name\": ...}} or \
                        {\"type\": \"allowed_tools\", ...}";
        ApiError::field("tool_choice", format!("tool_choice: {expected} expected"))
    };
    let mode = |word: &str| match word {
        "none" => Ok(ToolChoice::None),
        "auto" => Ok(ToolChoice::Auto),
        "required" | "any" => Ok(ToolChoice::Required),
        _ => Err(wrong()),
    };
    let name_in = |tool: &Value| {
        let inner = tool.get("function").or(tool.get("custom")).unwrap_or(tool);
        let namespace = tool.get("namespace").and_then(Value::as_str);
        Some(called(namespace, inner.get("name")?.as_str()?))
    };
    let object = match value {
        None | Some(Value::Null) => return Ok(Calls::default()),
        Some(Value::String(word)) => return Ok(Calls { choice: mode(word)?, allowed: None }),
        Some(object) => object,
    };
    if object.get("type").and_then(Value::as_str) != Some("allowed_tools") {
        return Ok(Calls { choice: ToolChoice::Named(name_in(object).ok_or_else(wrong)?), allowed: None });
    }
    // Chat completions have the list in an object of its own.
    let list = object.get("allowed_tools").unwrap_or(object);
    let choice = mode(list.get("mode").and_then(Value::as_str).unwrap_or("auto"))?;
    let tools = list.get("tools").and_then(Value::as_array).ok_or_else(wrong)?;
    // Those that a server brings have no names, and are left out wherever they are offered.
    let allowed: Vec<String> = tools.iter().filter_map(name_in).collect();
    match (allowed.is_empty(), &choice) {
        (true, ToolChoice::Auto) => Ok(Calls { choice: ToolChoice::None, allowed: None }),
        (true, ToolChoice::Required) => {
            Err(ApiError::field("tool_choice", "tool_choice: none of the allowed tools can be called here"))
        }
        _ => Ok(Calls { choice, allowed: Some(allowed) }),
    }
}

/// Takes a reasoning effort, given by `field`.
///
/// # Errors
/// 400 for a word that is none.
pub(crate) fn effort(reasoning: &mut Reasoning, field: &str, effort: &str) -> Result<(), ApiError> {
    reasoning.with_effort(effort).ok_or_else(|| {
        let found = crate::error::shortened(effort);
        ApiError::field(field, format!("{field}: {} expected, `{found}` found", Reasoning::EFFORTS))
    })
}

/// What stands in a conversation for a part that this server does not read, of this type.
pub(crate) fn left_out(kind: &str) -> String {
    format!("[{} left out]", crate::error::shortened(kind))
}

/// The form that a request asks for.
///
/// # Errors
/// As [`form`].
pub(crate) async fn form_of(input: &Input) -> Result<Option<Form>, ApiError> {
    form(&input.read::<FormFields>().await?.0)
}

/// The fields of a body that [`form`] looks at. The others, long as they may be, are passed over.
#[derive(Debug)]
struct FormFields(Value);

impl<'de> Deserialize<'de> for FormFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = FormFields;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut body: A) -> Result<FormFields, A::Error> {
                let mut fields = Map::new();
                while let Some(name) = body.next_key::<String>()? {
                    let known = FIELDS.iter().flat_map(|(.., names)| *names).chain(WHOLE);
                    if known.into_iter().any(|known| *known == name) {
                        fields.insert(name, body.next_value()?);
                    } else {
                        body.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(FormFields(Value::Object(fields)))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// The form that a request asks for: OpenAI's `response_format`, llama.cpp's `grammar` and `json_schema`, vLLM's
/// `structured_outputs` and `guided_*`, and `regex`, `choice`, `lark`. `None` is any text.
///
/// # Errors
/// 400 for a field that cannot be read, and for more than one form.
fn form(body: &Value) -> Result<Option<Form>, ApiError> {
    let mut found: Option<Form> = None;
    let mut take = |field: &'static str, kind: Option<Kind>| match (&found, kind) {
        (_, None) => Ok(()),
        (None, Some(kind)) => {
            found = Some(Form { kind, field });
            Ok(())
        }
        (Some(first), Some(_)) => {
            let message = format!("{field}: the answer has a form already, by {}: give one of them", first.field);
            Err(ApiError::field(field, message))
        }
    };
    take("response_format", format_of("response_format", given(body, "response_format"))?.map(|form| form.kind))?;
    let outputs = given(body, "structured_outputs");
    if outputs.is_some_and(|outputs| !outputs.is_object()) {
        return Err(ApiError::field("structured_outputs", "structured_outputs: an object is expected"));
    }
    for (field, inner, plain) in FIELDS {
        let plain = plain.iter().find_map(|name| Some((*name, given(body, name)?)));
        let within = outputs.and_then(|outputs| given(outputs, inner)).map(|value| ("structured_outputs", value));
        for (name, value) in plain.into_iter().chain(within) {
            take(name, read(*field, name, value)?)?;
        }
    }
    Ok(found)
}

/// Fields with a form inside.
const WHOLE: &[&str] = &["response_format", "structured_outputs"];

/// What a field holds.
#[derive(Clone, Copy)]
enum Field {
    Schema,
    Object,
    Regex,
    Choice,
    Grammar,
    Lark,
}

/// Each kind of field, its name in `structured_outputs`, and its other names.
const FIELDS: &[(Field, &str, &[&str])] = &[
    (Field::Schema, "json", &["json_schema", "guided_json"]),
    (Field::Object, "json_object", &["guided_json_object"]),
    (Field::Regex, "regex", &["regex", "guided_regex"]),
    (Field::Choice, "choice", &["choice", "guided_choice"]),
    (Field::Grammar, "grammar", &["grammar", "guided_grammar"]),
    (Field::Lark, "lark", &["lark"]),
];

/// A field that is there and says something: clients send null and empty texts for none.
fn given<'v>(body: &'v Value, name: &str) -> Option<&'v Value> {
    body.get(name).filter(|value| !value.is_null() && *value != "" && **value != json!([]))
}

fn read(field: Field, name: &'static str, value: &Value) -> Result<Option<Kind>, ApiError> {
    let wrong = |expected: &str| ApiError::field(name, format!("{name}: {expected} expected"));
    let text = |expected: &str| value.as_str().map(str::to_owned).ok_or_else(|| wrong(expected));
    Ok(Some(match field {
        Field::Schema => Kind::JsonSchema(match value {
            Value::String(text) => serde_json::from_str(text).map_err(|_| wrong("a schema, or one as JSON text"))?,
            Value::Object(_) | Value::Bool(_) => value.clone(),
            _ => return Err(wrong("a schema, or one as JSON text")),
        }),
        Field::Object => match value {
            Value::Bool(true) => Kind::JsonObject,
            Value::Bool(false) => return Ok(None),
            _ => return Err(wrong("true or false")),
        },
        Field::Regex => Kind::Regex(text("a regular expression as text")?),
        Field::Choice => {
            let list = value.as_array().ok_or_else(|| wrong("a list of texts"))?;
            let texts = list.iter().map(|text| text.as_str().map(str::to_owned));
            Kind::Choice(texts.collect::<Option<_>>().ok_or_else(|| wrong("a list of texts"))?)
        }
        Field::Grammar => {
            let source = text("a grammar as text")?;
            // GBNF defines its rules with ::=, Lark with a colon.
            let is_lark = source.trim_start().starts_with("%llguidance") || !source.contains("::=");
            if is_lark { Kind::Lark(source) } else { Kind::Gbnf(source) }
        }
        Field::Lark => Kind::Lark(text("a Lark grammar as text")?),
    }))
}

/// `response_format`, or what other interfaces have in its place under the name `field`: the schema lies in
/// `json_schema`, or beside the type.
///
/// # Errors
/// 400 for another type, or a schema that is missing.
pub(crate) fn format_of(field: &'static str, format: Option<&Value>) -> Result<Option<Form>, ApiError> {
    let Some(format) = format.filter(|format| !format.is_null()) else { return Ok(None) };
    let wrong = |message: &str| ApiError::field(field, format!("{field}: {message}"));
    let schema = format.get("json_schema").and_then(|s| s.get("schema")).or(format.get("schema"));
    let schema = schema.filter(|schema| !schema.is_null());
    let kind = match (format.get("type").and_then(Value::as_str), schema) {
        (Some("text"), _) => return Ok(None),
        (Some("json_object"), None) => Kind::JsonObject,
        (Some("json_object" | "json_schema"), Some(schema)) => Kind::JsonSchema(schema.clone()),
        (Some("json_schema"), None) => return Err(wrong("a schema is expected with the type `json_schema`")),
        _ => return Err(wrong("the type `text`, `json_object` or `json_schema` is expected")),
    };
    Ok(Some(Form { kind, field }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(body: &Value) -> Kind {
        form(body).expect("it can be read").expect("a form").kind
    }

    #[test]
    fn forms_are_read_as_every_family_of_clients_writes_them() {
        let schema = json!({"type": "object"});
        let by_schema = Kind::JsonSchema(schema.clone());
        for body in [
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
            json!({"response_format": {"type": "json_schema", "schema": schema}}),
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            json!({"json_schema": schema, "grammar": ""}),
            json!({"guided_json": schema.to_string()}),
            json!({"structured_outputs": {"json": schema}}),
        ] {
            assert_eq!(kind(&body), by_schema, "{body}");
        }
        assert_eq!(kind(&json!({"response_format": {"type": "json_object"}})), Kind::JsonObject);
        assert_eq!(kind(&json!({"grammar": "root ::= \"x\""})), Kind::Gbnf("root ::= \"x\"".into()));
        assert_eq!(kind(&json!({"guided_grammar": "start: \"x\""})), Kind::Lark("start: \"x\"".into()));
        assert_eq!(
            kind(&json!({"structured_outputs": {"choice": ["a", "b"]}})),
            Kind::Choice(vec!["a".into(), "b".into()])
        );
        assert_eq!(kind(&json!({"regex": "a+"})), Kind::Regex("a+".into()));
        for body in [
            json!({}),
            json!({"response_format": {"type": "text"}, "grammar": null, "choice": []}),
            json!({"structured_outputs": {"json_object": false}}),
        ] {
            assert_eq!(form(&body).expect("it can be read"), None, "{body}");
        }
    }

    #[test]
    fn tools_are_allowed_in_both_forms_of_the_list() {
        let named = |space: Option<&str>, name: &str| format!("{}{name}", space.unwrap_or_default());
        let read = |value: Value| tool_choice(Some(&value), named);
        let tools = json!([
            {"type": "function", "name": "a"}, {"type": "function", "namespace": "s_", "name": "b"}, {"type": "web_search"}
        ]);
        let nested =
            json!([{"type": "function", "function": {"name": "a"}}, {"type": "custom", "custom": {"name": "s_b"}}]);
        let expected = Calls { choice: ToolChoice::Required, allowed: Some(vec!["a".into(), "s_b".into()]) };
        assert_eq!(read(json!({"type": "allowed_tools", "mode": "required", "tools": tools})).unwrap(), expected);
        let of_chat = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": nested}});
        assert_eq!(read(of_chat).unwrap(), expected);
        let nothing = |mode: &str| json!({"type": "allowed_tools", "mode": mode, "tools": [{"type": "mcp"}]});
        assert_eq!(read(nothing("auto")).unwrap().choice, ToolChoice::None);
        for wrong in
            [nothing("required"), nothing("x"), json!({"type": "allowed_tools"}), json!({"type": "mcp"}), json!(1)]
        {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
        let named = read(json!({"type": "function", "namespace": "s_", "name": "b"})).unwrap();
        assert_eq!(named, Calls { choice: ToolChoice::Named("s_b".into()), allowed: None });
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_field() {
        for (body, field) in [
            (json!({"response_format": {"type": "xml"}}), "response_format"),
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format"),
            (json!({"grammar": 7}), "grammar"),
            (json!({"json_schema": [1]}), "json_schema"),
            (json!({"guided_json": "{"}), "guided_json"),
            (json!({"choice": [1]}), "choice"),
            (json!({"structured_outputs": "x"}), "structured_outputs"),
            (json!({"structured_outputs": {"regex": 1}}), "structured_outputs"),
            (json!({"grammar": "root ::= \"x\"", "regex": "a"}), "grammar"),
            (json!({"response_format": {"type": "json_object"}, "json_schema": {}}), "json_schema"),
        ] {
            let error = form(&body).expect_err(&body.to_string());
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(field)), "{body}: {error}");
        }
    }
}
