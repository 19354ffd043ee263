//! `/v1/chat/completions` and `/v1/completions`.

use api::Settings;
use axum::http::StatusCode;
use engine::EngineConfig;
use serde_json::{Value, json};

use crate::support::{App, DEPTH, question};

fn joined(events: &[Value], field: &str) -> String {
    events.iter().filter_map(|e| e["choices"][0]["delta"][field].as_str()).collect()
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    let app = App::new();
    let mut body = question("What is 20 + 15?");
    body["chat_template_kwargs"]["enable_thinking"] = json!(true);
    body["max_tokens"] = json!(150);
    let whole = app.ok("/v1/chat/completions", &body).await;
    let message = &whole["choices"][0]["message"];
    assert!(message["content"].as_str().unwrap().contains("35"), "{whole}");
    assert!(!message["reasoning_content"].as_str().unwrap().is_empty(), "{whole}");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");

    body["stream_options"] = json!({ "include_usage": true });
    let events = app.stream("/v1/chat/completions", &body).await;
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": null }));
    assert_eq!(joined(&events, "content"), message["content"].as_str().unwrap());
    assert_eq!(joined(&events, "reasoning_content"), message["reasoning_content"].as_str().unwrap());
    assert_eq!(events.last().unwrap(), "[DONE]");
    let usage = &events[events.len() - 2];
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    assert_eq!(usage["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    assert_eq!(usage["timings"]["predicted_n"], whole["usage"]["completion_tokens"]);
    let n = |field: &str| whole["usage"][field].as_u64().unwrap();
    assert_eq!(n("prompt_tokens") + n("completion_tokens"), n("total_tokens"));
    assert!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn seeds_repeat_and_choices_differ_by_theirs() {
    let app = App::new();
    let mut body = question("Tell me a short story about a dragon.");
    body["temperature"] = json!(1.5);
    body["top_p"] = json!(1.0);
    body["max_tokens"] = json!(16);
    body["seed"] = json!(7);
    body["n"] = json!(2);
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap();
        choices.iter().map(|c| c["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let first = texts(&app.ok("/v1/chat/completions", &body).await);
    let again = texts(&app.ok("/v1/chat/completions", &body).await);
    assert_eq!(first, again);
    assert_ne!(first[0], first[1]);
}

#[tokio::test]
async fn log_probabilities_come_with_every_token() {
    let app = App::new();
    let mut body = question("Hello");
    body["logprobs"] = json!(true);
    body["top_logprobs"] = json!(3);
    let answer = app.ok("/v1/chat/completions", &body).await;
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len() as u64, answer["usage"]["completion_tokens"].as_u64().unwrap());
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert_eq!(top[0]["logprob"], token["logprob"], "greedy takes the likeliest");
    }
}

#[tokio::test]
async fn stops_biases_and_limits_hold() {
    let app = App::new();
    let plain = app.ok("/v1/completions", &json!({ "prompt": "Once upon", "max_tokens": 8 })).await;
    let text = plain["choices"][0]["text"].as_str().unwrap();
    assert_eq!(
        (plain["usage"]["completion_tokens"].as_u64(), &plain["choices"][0]["finish_reason"]),
        (Some(8), &json!("length"))
    );
    let word = text.split_whitespace().nth(2).unwrap();
    let stopped = app.ok("/v1/completions", &json!({ "prompt": "Once upon", "max_tokens": 8, "stop": word })).await;
    let short = stopped["choices"][0]["text"].as_str().unwrap();
    assert!(text.starts_with(short) && !short.contains(word), "{short:?} of {text:?}");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let biased =
        json!({ "prompt": "Once upon", "max_tokens": 8, "logit_bias": [[word, false], [format!(" {word}"), false]] });
    let other = app.ok("/v1/completions", &biased).await;
    assert!(!other["choices"][0]["text"].as_str().unwrap().contains(&format!(" {word} ")), "{other}");
}

#[tokio::test]
async fn prompts_may_be_texts_tokens_or_lists_of_them() {
    let app = App::new();
    let ids = app.ok("/tokenize", &json!({ "content": "Once upon" })).await["tokens"].clone();
    let text = |answer: &Value, i: usize| answer["choices"][i]["text"].as_str().unwrap().to_owned();
    let one = text(&app.ok("/v1/completions", &json!({ "prompt": "Once upon", "max_tokens": 5 })).await, 0);
    let many = app.ok("/v1/completions", &json!({ "prompt": ["Once upon", ids], "max_tokens": 5, "echo": true })).await;
    assert_eq!(text(&many, 0), format!("Once upon{one}"));
    assert_eq!(text(&many, 1), format!("Once upon{one}"));
    let events = app.stream("/v1/completions", &json!({ "prompt": "Once upon", "max_tokens": 5 })).await;
    let streamed: String = events.iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    assert_eq!(streamed, one);
}

#[tokio::test]
async fn a_budget_ends_thinking_and_an_answer_follows() {
    let app = App::new();
    let mut body = question("What is 412 - 187?");
    body["chat_template_kwargs"] = json!({ "enable_thinking": true });
    body["thinking_budget_tokens"] = json!(5);
    let answer = app.ok("/v1/chat/completions", &body).await;
    let details = &answer["usage"]["completion_tokens_details"];
    // The limit, and up to three tokens that end the thinking.
    assert!((5..=8).contains(&details["reasoning_tokens"].as_u64().unwrap()), "{answer}");
    let message = &answer["choices"][0]["message"];
    assert!(!message["content"].as_str().unwrap().is_empty(), "{answer}");
    assert!(!message["reasoning_content"].as_str().unwrap().contains("think"), "{answer}");
}

#[tokio::test]
async fn a_partial_message_of_the_assistant_is_continued() {
    let app = App::new();
    let whole = app.ok("/v1/chat/completions", &question("What is 20 + 15?")).await;
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let (begun, rest) = text.split_at(text.find('=').unwrap());
    let mut body = question("What is 20 + 15?");
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({ "role": "assistant", "content": begun.trim_end() }));
    let continued = app.ok("/v1/chat/completions", &body).await;
    let more = continued["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(format!("{}{more}", begun.trim_end()), format!("{begun}{rest}"));
}

#[tokio::test]
async fn thinking_may_stay_in_the_text() {
    let app = App::new();
    let mut body = question("Hello");
    body["chat_template_kwargs"] = json!({});
    body["reasoning_format"] = json!("none");
    let answer = app.ok("/v1/chat/completions", &body).await;
    let message = &answer["choices"][0]["message"];
    assert!(
        message["reasoning_content"].is_null() && message["content"].as_str().unwrap().contains("</think>"),
        "{answer}"
    );
    body["reasoning_effort"] = json!("none");
    body["reasoning_format"] = json!("auto");
    let answer = app.ok("/v1/chat/completions", &body).await;
    assert!(answer["choices"][0]["message"]["reasoning_content"].is_null(), "{answer}");
}

#[tokio::test]
async fn progress_and_timings_are_told_when_asked_for() {
    let app = App::new();
    let mut body = question("Hello");
    body["return_progress"] = json!(true);
    body["timings_per_token"] = json!(true);
    let events = app.stream("/v1/chat/completions", &body).await;
    let progress: Vec<&Value> = events.iter().filter(|e| !e["prompt_progress"].is_null()).collect();
    let (first, last) = (progress[0], progress.last().unwrap());
    // Nothing is computed when the first is told.
    assert_eq!(first["prompt_progress"]["processed"], first["prompt_progress"]["cache"]);
    assert_eq!((&first["timings"]["prompt_n"], &first["timings"]["prompt_ms"]), (&json!(0), &json!(0.0)));
    assert_eq!(last["prompt_progress"]["processed"], last["prompt_progress"]["total"]);
    assert_eq!(last["timings"]["prompt_n"], last["prompt_progress"]["total"]);
    assert!(last["timings"]["prompt_ms"].as_f64() > Some(0.0), "{last}");
    let timed = events.iter().filter(|e| e["timings"]["predicted_n"].is_u64()).count();
    assert!(timed > 2, "{events:?}");
}

#[tokio::test]
async fn verbose_replies_tell_of_the_prompt_and_the_settings() {
    let app = App::new();
    for (path, mut body) in [
        ("/v1/chat/completions", question("What is 20 + 15?")),
        ("/v1/completions", json!({ "prompt": "Tell me of 20 + 15", "max_tokens": 4 })),
    ] {
        body["temperature"] = json!(0.0);
        let plain = app.ok(path, &body).await;
        assert!(plain["__verbose"].is_null(), "{plain}");
        body["verbose"] = json!(true);
        let whole = app.ok(path, &body).await;
        let told = &whole["__verbose"];
        assert!(told["prompt"].as_str().unwrap().contains("20 + 15"), "{told}");
        assert_eq!(told["tokens_predicted"], whole["usage"]["completion_tokens"]);
        assert_eq!(told["generation_settings"]["temperature"], 0.0);
        let choice = &whole["choices"][0];
        let text = choice["message"]["content"].as_str().or(choice["text"].as_str()).unwrap();
        assert_eq!(told["content"].as_str().unwrap().trim(), text.trim());
        let events = app.stream(path, &body).await;
        let telling: Vec<&Value> = events.iter().filter(|event| !event["__verbose"].is_null()).collect();
        assert_eq!(telling.len(), 1, "the last part of the reply tells");
        assert_eq!(telling[0]["__verbose"]["content"], told["content"]);
    }
    let app = App::with(Settings { verbose: true, ..Settings::default() });
    let mut body = question("Hello");
    assert!(app.ok("/v1/chat/completions", &body).await["__verbose"]["prompt"].is_string());
    body["verbose"] = json!(false);
    assert!(app.ok("/v1/chat/completions", &body).await["__verbose"].is_null());
}

/// Turns of conversations, one after the other; gives the tokens computed and those that were new.
async fn converse(app: &App, n_conversations: usize, n_turns: usize) -> (u64, u64) {
    let opening = app.ok("/tokenize", &json!({ "content": "<think>\n" })).await;
    let n_opening = opening["tokens"].as_array().unwrap().len() as u64;
    let system = |i: usize| json!({ "role": "system", "content": format!("You are helpful assistant number {i}.") });
    let mut talks: Vec<(Vec<Value>, u64)> = (0..n_conversations).map(|i| (vec![system(i)], 0)).collect();
    let (mut computed, mut new) = (0, 0);
    for turn in 0..n_turns {
        for (messages, before) in &mut talks {
            messages.push(json!({ "role": "user", "content": format!("What is {} + {}?", 10 + turn, 20 + 2 * turn) }));
            let body = json!({ "messages": messages, "max_tokens": 80 });
            let answer = app.ok("/v1/chat/completions", &body).await;
            let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
            computed += answer["timings"]["prompt_n"].as_u64().unwrap();
            new += prompt - *before;
            // What two prompts have in common: all of the first but the opening of its reply's thinking.
            *before = prompt - n_opening;
            messages.push(answer["choices"][0]["message"].clone());
        }
    }
    (computed, new)
}

#[tokio::test]
async fn ten_turns_with_thinking_compute_only_what_is_new() {
    let (computed, new) = converse(&App::new(), 1, 10).await;
    assert!(computed as f64 <= 1.05 * new as f64, "{computed} tokens computed, {new} were new");
}

#[tokio::test]
async fn two_conversations_on_one_sequence_do_not_cost_each_other_their_state() {
    let on_one = |store_bytes| App::over(EngineConfig { store_bytes, ..EngineConfig::default() }, Settings::default());
    let (computed, new) = converse(&on_one(64 << 20), 2, 6).await;
    assert!(computed as f64 <= 1.05 * new as f64, "{computed} tokens computed, {new} were new");
    let (without, _) = converse(&on_one(0), 2, 6).await;
    assert!(without as f64 > 1.5 * computed as f64, "{without} without a store, {computed} with one");
}

#[tokio::test]
async fn drafts_are_told_of_part_by_part() {
    let app = App::new();
    let mut body = question("What is 20 + 15?");
    body["chat_template_kwargs"]["enable_thinking"] = json!(true);
    body["max_tokens"] = json!(150);
    let plain = app.stream("/v1/chat/completions", &body).await;
    assert!(plain.iter().all(|event| event["drafts"].is_null()));
    body["return_drafts"] = json!(true);
    let events = app.stream("/v1/chat/completions", &body).await;
    for field in ["content", "reasoning_content"] {
        assert_eq!(joined(&events, field), joined(&plain, field));
    }
    let (mut cycle, mut deepest) = (0, 0);
    for event in events.iter().filter(|event| !event["drafts"].is_null()) {
        let drafts = &event["drafts"];
        let parts = drafts["parts"].as_array().unwrap();
        let text: String = parts.iter().map(|part| part["text"].as_str().unwrap()).collect();
        let delta = &event["choices"][0]["delta"];
        let whole = delta["content"].as_str().or(delta["reasoning_content"].as_str()).unwrap_or_default();
        assert_eq!(text, whole, "{event}");
        let figure = |name: &str| drafts[name].as_u64().unwrap();
        let depths: Vec<u64> = parts.iter().map(|part| part["depth"].as_u64().unwrap()).collect();
        // Accepted draft tokens stand at depths 1, 2, .., and what the model itself adds at 0.
        assert!(figure("n_accepted") <= figure("n_drafted") && figure("n_drafted") <= DEPTH as u64, "{drafts}");
        assert!(depths.iter().all(|&depth| depth <= figure("n_accepted")), "{drafts}");
        deepest = deepest.max(depths.into_iter().max().unwrap_or(0));
        assert!((cycle..=cycle + 1).contains(&drafts["cycle"].as_u64().unwrap()), "no cycle is left out: {drafts}");
        cycle = drafts["cycle"].as_u64().unwrap();
    }
    assert!(cycle > 10 && deepest == DEPTH as u64, "{cycle} {deepest}");
}

#[tokio::test]
async fn bad_conversations_are_refused_with_their_reason() {
    let app = App::new();
    let image = json!([{ "type": "image_url", "image_url": { "url": "x" } }]);
    for (body, word) in [
        (json!({ "messages": [] }), "at least one"),
        (json!({}), "messages"),
        (json!({ "messages": "hi" }), "messages"),
        (json!({ "messages": [{ "role": "user", "content": image }] }), "text only"),
        (json!({ "messages": [{ "role": "wizard", "content": "x" }] }), "wizard"),
        (json!({ "messages": [{ "role": "user", "content": 7 }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": "x" }], "tools": [{}] }), "tools[0]"),
        (json!({ "messages": [{ "role": "user", "content": "x" }], "stop": 7 }), "stop: a text or a list of texts"),
        (json!({ "messages": [{ "role": "user", "content": "x" }], "reasoning_effort": "much" }), "much"),
        (json!({ "messages": [{ "role": "user", "content": "x" }], "chat_template": "{{ 1 }}" }), "chat_template"),
    ] {
        let (status, answer) = app.post("/v1/chat/completions", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {answer}");
        assert_eq!(answer["error"]["type"], "invalid_request_error");
        let message = answer["error"]["message"].as_str().unwrap().to_lowercase();
        assert!(message.contains(word), "{body}: {message}");
    }
}

#[tokio::test]
async fn a_prompt_longer_than_the_context_is_told_apart() {
    let app = App::new();
    let (status, answer) = app.post("/v1/chat/completions", &question(&"word ".repeat(2000))).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("context_length_exceeded")));
}

#[tokio::test]
async fn tools_are_called_and_their_results_used() {
    let app = App::new();
    let tool = json!({ "type": "function", "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": { "type": "object", "properties": { "city": { "type": "string", "description": "The name of the city" } }, "required": ["city"] },
    } });
    let mut body = question("What is the weather in Paris?");
    body["tools"] = json!([tool]);
    let answer = app.ok("/v1/chat/completions", &body).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let call = &choice["message"]["tool_calls"][0];
    let arguments = call["function"]["arguments"].as_str().unwrap();
    assert_eq!(
        (call["function"]["name"].as_str(), arguments.contains("Paris")),
        (Some("get_weather"), true),
        "{answer}"
    );

    let events = app.stream("/v1/chat/completions", &body).await;
    let deltas: Vec<&Value> =
        events.iter().map(|e| &e["choices"][0]["delta"]["tool_calls"][0]).filter(|d| !d.is_null()).collect();
    assert_eq!(deltas[0]["function"]["name"], "get_weather");
    let streamed: String = deltas.iter().filter_map(|d| d["function"]["arguments"].as_str()).collect();
    assert_eq!(streamed, arguments);
    assert!(deltas.len() > 2, "arguments come in pieces: {deltas:?}");

    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(choice["message"].clone());
    messages.push(json!({ "role": "tool", "tool_call_id": call["id"], "content": "sunny, 21 degrees" }));
    let answer = app.ok("/v1/chat/completions", &body).await;
    assert!(answer["choices"][0]["message"]["content"].as_str().unwrap().contains("sunny"), "{answer}");
}
