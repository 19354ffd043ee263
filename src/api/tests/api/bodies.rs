//! Bodies that are nearly right, for every endpoint that reads one: each is an answer, or an error with its reason. Good bodies
//! are changed at random places, from a seed.

use serde_json::{Value, json};

use crate::support::App;

/// A random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// A good body of each endpoint, with as many fields as fit together.
fn bodies() -> Vec<(&'static str, Value)> {
    let sampling = json!({"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "stop": ["x", "y"],
        "logit_bias": {"5": -1.0}, "repeat_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1,
        "stream": false, "samplers": ["top_k"], "dry_multiplier": 0.5, "mirostat": 0, "model": "pocket"});
    let with = |fields: Value| {
        let mut body = sampling.clone();
        let fields = fields.as_object().expect("fields").clone();
        body.as_object_mut().expect("a body").extend(fields);
        body
    };
    let tool = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object",
        "properties": {"x": {"type": "string"}}, "required": ["x"]}}});
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [{"id": "c", "type": "function",
            "function": {"name": "f", "arguments": "{\"x\": \"y\"}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "z"}, {"role": "user", "content": "again"}]);
    let schema = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}});
    let blocks = json!([{"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"x": "y"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "z", "is_error": false}]}]);
    let items = json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "z"}]);
    vec![
        (
            "/v1/chat/completions",
            with(json!({"messages": messages, "tools": [tool], "tool_choice": "auto", "max_tokens": 1,
            "parallel_tool_calls": true, "logprobs": true, "top_logprobs": 2, "reasoning_effort": "low",
            "stream_options": {"include_usage": true}, "chat_template_kwargs": {"enable_thinking": false}})),
        ),
        (
            "/v1/chat/completions",
            with(json!({"messages": [{"role": "user", "content": "q"}], "response_format": schema,
            "max_tokens": 1})),
        ),
        (
            "/v1/completions",
            with(json!({"prompt": ["a", "b"], "max_tokens": 1, "echo": true, "logprobs": 1, "suffix": ""})),
        ),
        (
            "/completion",
            with(json!({"prompt": [1, "a", 2], "n_predict": 1, "n_probs": 1, "cache_prompt": true, "id_slot": 0,
            "grammar": "root ::= [a-z]+", "t_max_predict_ms": 0, "return_tokens": true})),
        ),
        (
            "/infill",
            json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f", "text": "t"}],
            "prompt": "", "n_predict": 1}),
        ),
        (
            "/v1/messages",
            json!({"model": "m", "max_tokens": 1, "system": [{"type": "text", "text": "s"}], "messages": blocks,
            "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "stop_sequences": ["x"], "metadata": {"user_id": "u"}}),
        ),
        ("/v1/messages/count_tokens", json!({"model": "m", "messages": blocks})),
        (
            "/v1/responses",
            json!({"model": "m", "input": items, "instructions": "i", "max_output_tokens": 1,
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}], "tool_choice": "auto",
            "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "store": false}),
        ),
        ("/v1/embeddings", json!({"input": ["a", [1, 2]], "encoding_format": "float", "dimensions": 4})),
        ("/tokenize", json!({"content": "a b", "add_special": true, "parse_special": true, "with_pieces": true})),
        ("/detokenize", json!({"tokens": [1, 2, 3]})),
        ("/apply-template", json!({"messages": messages, "tools": [tool]})),
        ("/models/load", json!({"model": "pocket"})),
    ]
}

/// Changes a value somewhere: another value, a member more or less. How many tokens are wanted stays, or this would take long.
fn change(value: &mut Value, random: &mut Random) {
    let long = "\u{e9}\u{0}\u{202e}".repeat(300);
    let strange = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(1e308),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(0.1),
        json!(""),
        json!("x"),
        json!(long),
        json!([]),
        json!([[[]]]),
        json!({}),
        json!({"": {"type": []}}),
        json!([null, 1, "a"]),
    ];
    let other = strange[random.below(strange.len())].clone();
    let deeper = random.below(4) > 0;
    match value {
        Value::Object(map) if !map.is_empty() => {
            let names: Vec<String> = map.keys().filter(|name| !COUNTS.contains(&name.as_str())).cloned().collect();
            let Some(name) = names.get(random.below(names.len().max(1))) else { return };
            match random.below(6) {
                0 => drop(map.remove(name)),
                1 => drop(map.insert(name.clone(), other)),
                _ => change(&mut map[name.as_str()], random),
            }
        }
        Value::Array(list) if !list.is_empty() && deeper => {
            let at = random.below(list.len());
            match random.below(6) {
                0 => drop(list.remove(at)),
                1 => list.insert(at, list[at].clone()),
                _ => change(&mut list[at], random),
            }
        }
        value => *value = other,
    }
}

#[tokio::test]
async fn bodies_that_are_nearly_right_are_answered_or_refused_with_a_reason() {
    let app = App::new();
    let seed = std::env::var("BODIES_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_122);
    println!("BODIES_SEED={seed}");
    let mut random = Random(seed);
    for (path, good) in bodies() {
        for i in 0..40 {
            let mut body = good.clone();
            (0..1 + random.below(3) * usize::from(i > 0)).for_each(|_| {
                if i > 0 {
                    change(&mut body, &mut random)
                }
            });
            let (status, answer) = app.raw(path, body.to_string()).await;
            // Some servers do not embed or fill in; none may break.
            let shown = String::from_utf8_lossy(&answer);
            assert!(!status.is_server_error() || status == 501, "{path} {body}: {status} {shown}");
            if status.is_client_error() {
                let error: Value =
                    serde_json::from_slice(&answer).unwrap_or_else(|e| panic!("{path} {body}: {e}: {shown}"));
                assert!(
                    error["error"]["message"].as_str().is_some_and(|text| !text.is_empty()),
                    "{path} {body}: {shown}"
                );
            }
        }
    }
}

/// Fields that say how much is to be computed.
const COUNTS: &[&str] = &["max_tokens", "n_predict", "max_output_tokens", "n"];
