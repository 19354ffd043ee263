//! Conversations as agents hold them: what they repeat comes from the cache.

use engine::EngineConfig;
use serde_json::{Value, json};

use crate::support::App;

/// A turn of Claude Code's: the first system block says something else each time, tools come with every request.
fn request(turn: usize, messages: &[Value]) -> Value {
    let text = |text: String| json!({ "type": "text", "text": text });
    let header =
        format!("x-anthropic-billing-header: cc_version=2.1.{turn}.abc; cc_entrypoint=cli; cch={:05x};", turn * 7919);
    let path = json!({ "type": "object", "properties": { "path": { "type": "string", "maxLength": 12 } }, "required": ["path"] });
    json!({
        "model": "any",
        "max_tokens": 90,
        "temperature": 0,
        "thinking": { "type": "enabled", "budget_tokens": 40 },
        "system": [
            text(header),
            text("You are an agent for software. You are brief, and you ask nothing back.".into()),
            text("Answer with what you know; read a file only where you are asked to.".into()),
        ],
        "tools": [
            { "name": "Read", "description": "Reads a file.", "input_schema": path },
            { "type": "web_search_20250305", "name": "web_search", "max_uses": 5 },
        ],
        "metadata": { "user_id": "u" },
        "timings_per_token": true,
        "messages": messages,
    })
}

#[tokio::test]
async fn ten_turns_of_an_agent_take_what_they_repeat_from_the_cache() {
    let app = App::over(
        EngineConfig { n_sequences: 1, n_ctx: Some(2048), ..EngineConfig::default() },
        api::Settings::default(),
    );
    let questions = [
        "What is 20 + 15?",
        "Double it.",
        "What is in the file a.txt?",
        "What is the capital of France?",
        "Who are you?",
        "What is 7 + 8?",
        "Tell me a joke.",
        "List three planets.",
        "What is 412 - 187?",
        "Thank you.",
    ];
    let mut messages: Vec<Value> = Vec::new();
    let (mut n_before, mut n_repeated, mut n_again, mut n_requests, mut n_drafted) = (0u64, 0, 0, 0, 0);
    for (turn, question) in questions.iter().enumerate() {
        if turn % 3 == 2 {
            // A reminder in mid-conversation, which strict templates refuse.
            messages.push(json!({ "role": "system", "content": "The list of tasks is empty." }));
        }
        messages.push(json!({ "role": "user", "content": [{ "type": "text", "text": question }] }));
        // What a tool gave goes back at once; a second round of it is left alone.
        for round in 0..2 {
            let mut body = request(turn + round, &messages);
            if turn == 2 && round == 0 {
                (body["tool_choice"], body["thinking"]) =
                    (json!({ "type": "tool", "name": "Read" }), json!({ "type": "disabled" }));
            }
            let reply = app.ok("/v1/messages", &body).await;
            let usage = |name: &str| reply["usage"][name].as_u64().unwrap();
            let (n_cached, n_prompt) =
                (usage("cache_read_input_tokens"), usage("input_tokens") + usage("cache_read_input_tokens"));
            n_repeated += n_before;
            n_again += n_before.saturating_sub(n_cached);
            (n_before, n_requests) = (n_prompt, n_requests + 1);
            n_drafted += reply["timings"]["draft_n"].as_u64().unwrap();
            messages.push(json!({ "role": "assistant", "content": reply["content"] }));
            let blocks = reply["content"].as_array().unwrap();
            let calls = blocks.iter().filter(|block| block["type"] == "tool_use");
            let result = |call: &Value| json!({ "type": "tool_result", "tool_use_id": call["id"], "content": [{ "type": "text", "text": "apples 3" }] });
            let results: Vec<Value> = calls.map(result).collect();
            if results.is_empty() {
                break;
            }
            messages.push(json!({ "role": "user", "content": results }));
        }
    }
    assert!(n_requests > 10 && n_drafted > 100, "a tool was called and drafts were made: {n_requests} {n_drafted}");
    assert!(20 * n_again <= n_repeated, "computed again: {n_again} of {n_repeated} tokens");
    // Of each prompt the opening of the reply, which the next turn writes in another way, and once the loop of calls, whose
    // thinking the template drops when it is over.
    assert!(n_again <= 4 * n_requests + 100, "{n_again} tokens in {n_requests} requests");
}
