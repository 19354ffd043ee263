//! `/openapi.json`: the endpoints as a document, its schemas derived from the types that are read and written.
//! Owns the list of what is documented. A test holds it to the routes.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use crate::anthropic::AnthropicError;
use crate::anthropic::types::{MessageBody, MessagesRequest, TokenCount};
use crate::control::{ControlRequest, ControlResponse};
use crate::error::ErrorBody;
use crate::health::Health;
use crate::native::completion::{NativeRequest, NativeResponse};
use crate::native::infill::InfillRequest;
use crate::native::lora::{LoraAdapter, LoraSet};
use crate::native::props::Props;
use crate::native::rerank::{RerankRequest, RerankResponse};
use crate::native::tokens::{
    DetokenizeRequest, DetokenizeResponse, TemplateResponse, TokenizeRequest, TokenizeResponse,
};
use crate::ollama::OllamaError;
use crate::ollama::embed::{OllamaEmbedReply, OllamaEmbedRequest, OllamaEmbeddingsReply, OllamaEmbeddingsRequest};
use crate::ollama::models::{OllamaModels, OllamaName, OllamaShow, OllamaVersion};
use crate::ollama::pull::{OllamaProgress, OllamaPullRequest};
use crate::ollama::types::{Counts, OllamaChatRequest, OllamaFields, OllamaGenerateRequest, OllamaReply};
use crate::openai::chat_types::{ChatRequest, ChatResponse, Choice};
use crate::openai::completions::{CompletionChoice, CompletionRequest, CompletionResponse};
use crate::openai::downloads::{RemovedBody, Started};
use crate::openai::embeddings::{EmbeddingRequest, EmbeddingResponse, NativeEmbedding};
use crate::openai::models::{Done, ModelBody, ModelList, ModelName};
use crate::openai::responses::fetch::{DeletedResponse, ItemList};
use crate::openai::responses::types::{ResponseBody, ResponsesRequest};
use crate::params::{LoraScale, Params};
use crate::wire::InputTokens;

/// `GET /openapi.json`.
pub(crate) async fn openapi() -> Response {
    // The same for everybody, and a work of milliseconds.
    static TEXT: LazyLock<Bytes> = LazyLock::new(|| document().to_string().into());
    ([(CONTENT_TYPE, "application/json")], TEXT.clone()).into_response()
}

/// All endpoints, and the schemas of what they take and give.
pub fn document() -> Value {
    let mut doc = Document::default();
    let (chat, params) = (doc.of::<ChatRequest>(), doc.of::<Params>());
    for (field, schema) in session::options::request_schema() {
        doc.schemas["Params"]["properties"][field] = schema;
    }
    // What stands for a type's parameter is not taken in with it.
    doc.of::<Choice>();
    doc.of::<CompletionChoice>();
    let response = doc.named::<ChatResponse>("ChatResponse");
    doc.post("/v1/chat/completions", "Answer a conversation", both(&chat, &params), streamed(response));
    let (text, response) = (doc.of::<CompletionRequest>(), doc.named::<CompletionResponse>("CompletionResponse"));
    doc.post("/v1/completions", "Continue texts", both(&text, &params), streamed(response));
    let (request, response) = (doc.of::<ResponsesRequest>(), doc.of::<ResponseBody>());
    doc.post("/v1/responses", "Answer a conversation, in items", both(&request, &params), streamed(response));
    let (count, response) = (doc.of::<InputTokens>(), doc.of::<ResponseBody>());
    doc.post(
        "/v1/responses/input_tokens",
        "Count the tokens of a conversation, in items",
        request,
        whole(count.clone()),
    );
    doc.post("/v1/chat/completions/input_tokens", "Count the tokens of a conversation", chat.clone(), whole(count));
    doc.get("/v1/responses/{id}", "A response that is kept", whole(response), &[("id", "path")]);
    let response = doc.of::<DeletedResponse>();
    doc.delete("/v1/responses/{id}", "Keep a response no longer", whole(response), &[("id", "path")]);
    let response = doc.of::<ItemList>();
    let of_items = [("id", "path"), ("after", "query"), ("limit", "query"), ("order", "query")];
    doc.get("/v1/responses/{id}/input_items", "The conversation that led to a response", whole(response), &of_items);
    let (messages, response) = (doc.of::<MessagesRequest>(), doc.of::<MessageBody>());
    doc.of::<AnthropicError>();
    doc.post(
        "/v1/messages",
        "Answer a conversation, in Anthropic's form",
        both(&messages, &params),
        streamed(response),
    );
    let count = doc.of::<TokenCount>();
    doc.post("/v1/messages/count_tokens", "Count the tokens of a conversation", messages, whole(count));
    doc.errors("AnthropicError", &["/v1/messages", "/v1/messages/count_tokens"]);
    let (native, response) = (doc.of::<NativeRequest>(), doc.of::<NativeResponse>());
    let one_or_many = json!({ "oneOf": [response, { "type": "array", "items": response }] });
    doc.post(
        "/completion",
        "Continue texts, in llama.cpp's form",
        both(&native, &params),
        streamed(one_or_many.clone()),
    );
    let (request, response) = (doc.of::<ControlRequest>(), doc.of::<ControlResponse>());
    doc.post("/v1/chat/completions/control", "End a response under way, or its thinking", request, whole(response));
    let (nothing, response) = (json!({ "type": "object" }), doc.of::<ResponseBody>());
    doc.post("/v1/responses/{id}/cancel", "End a response under way", nothing, whole(response));
    doc.parameters("/v1/responses/{id}/cancel", "post", &[("id", "path")]);
    let (request, response) = (doc.of::<EmbeddingRequest>(), doc.of::<EmbeddingResponse>());
    doc.post("/v1/embeddings", "Embed texts", request.clone(), whole(response));
    let response = json!({ "type": "array", "items": doc.of::<NativeEmbedding>() });
    doc.post("/embedding", "Embed texts, in llama.cpp's form", request, whole(response));
    let (request, response) = (doc.of::<RerankRequest>(), doc.of::<RerankResponse>());
    doc.post("/v1/rerank", "Order documents by how they answer a query", request, whole(response));
    let infill = doc.of::<InfillRequest>();
    doc.post("/infill", "Fill a gap in a text", both(&infill, &params), streamed(one_or_many));
    let (request, response) = (doc.of::<TokenizeRequest>(), doc.of::<TokenizeResponse>());
    doc.post("/tokenize", "Cut a text into tokens", request, whole(response));
    let (request, response) = (doc.of::<DetokenizeRequest>(), doc.of::<DetokenizeResponse>());
    doc.post("/detokenize", "Join tokens into a text", request, whole(response));
    let response = doc.of::<TemplateResponse>();
    doc.post("/apply-template", "The prompt of a conversation", chat, whole(response));
    let response = doc.of::<ModelList>();
    doc.get("/v1/models", "All models", whole(response), &[]);
    let response = doc.of::<ModelBody>();
    doc.get("/v1/models/{id}", "One model", whole(response), &[("id", "path")]);
    for (path, summary) in [("/models/load", "Load a model"), ("/models/unload", "Unload a model")] {
        let (request, response) = (doc.of::<ModelName>(), doc.of::<Done>());
        doc.post(path, summary, request, whole(response));
    }
    // `/models/sse` is left out: its events have no end, and tools that try every path would wait for it.
    let (request, response) = (doc.of::<ModelName>(), doc.of::<Started>());
    doc.post("/models", "Download a model", request, whole(response));
    let response = doc.of::<RemovedBody>();
    doc.delete("/models", "Stop a download, or remove a downloaded model", whole(response), &[("model", "query")]);
    let response = doc.of::<Health>();
    doc.get("/health", "Whether requests are taken", whole(response), &[]);
    let response = doc.of::<Props>();
    doc.get("/props", "What the server runs", whole(response), &[("model", "query")]);
    let (adapter, set) = (doc.of::<LoraAdapter>(), doc.of::<LoraSet>());
    let list = json!({ "type": "array", "items": adapter });
    doc.get("/lora-adapters", "The LoRA adapters of a model", whole(list), &[("model", "query")]);
    let scales = json!({ "type": "array", "items": doc.of::<LoraScale>() });
    doc.post("/lora-adapters", "Set the factors of LoRA adapters", scales, whole(set));
    doc.parameters("/lora-adapters", "post", &[("model", "query")]);
    let slots = json!({ "type": "array", "items": { "type": "object" } });
    doc.get(
        "/slots",
        "What the engine's sequences do",
        whole(slots),
        &[("model", "query"), ("fail_on_no_slot", "query")],
    );
    let file = json!({ "type": "object", "properties": { "filename": { "type": "string" } } });
    doc.post("/slots/{id}", "Save, restore or erase a slot's state", file, whole(json!({ "type": "object" })));
    doc.parameters("/slots/{id}", "post", &[("id", "path"), ("action", "query"), ("model", "query")]);
    ollama(&mut doc);
    let text = json!({ "schema": { "type": "string" } });
    let text = json!({ "text/plain": text, "application/openmetrics-text": text });
    doc.get("/metrics", "Metrics for Prometheus", text, &[("names", "query")]);
    doc.finish()
}

/// Ollama's interface.
fn ollama(doc: &mut Document) {
    let (fields, reply) = (doc.of::<OllamaFields>(), doc.of::<OllamaReply>());
    doc.of::<Counts>();
    let (chat, generate) = (doc.of::<OllamaChatRequest>(), doc.of::<OllamaGenerateRequest>());
    doc.post("/api/chat", "Answer a conversation, in Ollama's form", both(&chat, &fields), in_lines(reply.clone()));
    doc.post("/api/generate", "Answer a prompt, in Ollama's form", both(&generate, &fields), in_lines(reply));
    let (request, response) = (doc.of::<OllamaEmbedRequest>(), doc.of::<OllamaEmbedReply>());
    doc.post("/api/embed", "Embed texts, in Ollama's form", request, whole(response));
    let (request, response) = (doc.of::<OllamaEmbeddingsRequest>(), doc.of::<OllamaEmbeddingsReply>());
    doc.post("/api/embeddings", "Embed a text, in Ollama's older form", request, whole(response));
    let response = doc.of::<OllamaModels>();
    doc.get("/api/tags", "All models, in Ollama's form", whole(response.clone()), &[]);
    doc.get("/api/ps", "The models in memory, in Ollama's form", whole(response), &[]);
    let response = doc.of::<OllamaVersion>();
    doc.get("/api/version", "The version of Ollama whose interface this is", whole(response), &[]);
    let (name, response) = (doc.of::<OllamaName>(), doc.of::<OllamaShow>());
    doc.post("/api/show", "What is known of a model, in Ollama's form", name.clone(), whole(response));
    let (request, response) = (doc.of::<OllamaPullRequest>(), doc.of::<OllamaProgress>());
    doc.post("/api/pull", "Download a model, in Ollama's form", request, in_lines(response));
    doc.delete("/api/delete", "Remove a downloaded model, in Ollama's form", json!({}), &[]);
    doc.paths["/api/delete"]["delete"]["requestBody"] = json!({ "required": true, "content": whole(name) });
    doc.of::<OllamaError>();
    let paths = ["chat", "generate", "embed", "embeddings", "tags", "ps", "version", "show", "pull", "delete"];
    doc.errors("OllamaError", &paths.map(|name| format!("/api/{name}")));
}

#[derive(Default)]
struct Document {
    paths: Map<String, Value>,
    schemas: Map<String, Value>,
}

impl Document {
    /// A reference to a type's schema, which is taken in with all that it uses.
    fn of<T: ToSchema>(&mut self) -> Value {
        self.named::<T>(&T::name())
    }

    /// The same under a name that is not the type's: all forms of a generic type have one name.
    fn named<T: ToSchema>(&mut self, name: &str) -> Value {
        let mut used: Vec<(String, RefOr<Schema>)> = Vec::new();
        T::schemas(&mut used);
        used.push((name.to_owned(), T::schema()));
        for (name, schema) in used {
            // Our own types have a JSON form.
            let schema = serde_json::to_value(schema).unwrap_or_default();
            let other = self.schemas.insert(name.clone(), schema.clone());
            debug_assert!(other.is_none_or(|other| other == schema), "two schemas are called {name}");
        }
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }

    fn post(&mut self, path: &str, summary: &str, body: Value, content: Value) {
        let request = json!({ "required": true, "content": { "application/json": { "schema": body } } });
        let errors = [
            ("400", "The request cannot be served as it stands"),
            ("404", "No such model or slot"),
            ("408", "The body took too long"),
            ("409", "The slot is busy, or the model is there"),
            ("413", "The body is too large, or has too many values"),
            ("415", "A browser sent a body that is not declared as JSON"),
            ("501", "This server was not started for that"),
            ("504", "The reply took too long"),
        ];
        let mut post = operation(summary, content, &errors);
        post["requestBody"] = request;
        self.path(path)["post"] = post;
    }

    fn get(&mut self, path: &str, summary: &str, content: Value, parameters: &[(&str, &str)]) {
        let errors = [
            ("400", "The query cannot be read"),
            ("404", "No such model"),
            ("501", "This server was not started for that"),
        ];
        self.path(path)["get"] = operation(summary, content, &errors);
        self.parameters(path, "get", parameters);
    }

    /// The operations of a path, by their methods.
    fn path(&mut self, path: &str) -> &mut Value {
        self.paths.entry(path).or_insert_with(|| json!({}))
    }

    /// Beside what is documented at the path.
    fn delete(&mut self, path: &str, summary: &str, content: Value, parameters: &[(&str, &str)]) {
        let errors = [
            ("400", "The query cannot be read, or the model is part of the configuration"),
            ("404", "No such model"),
            ("408", "The body took too long"),
            ("409", "The model is loading, or its files are in use"),
            ("413", "The body is too large, or has too many values"),
            ("415", "A browser sent a body that is not declared as JSON"),
            ("501", "This server was not started for that"),
        ];
        self.path(path)["delete"] = operation(summary, content, &errors);
        self.parameters(path, "delete", parameters);
    }

    fn parameters(&mut self, path: &str, method: &str, parameters: &[(&str, &str)]) {
        let one = |&(name, place): &(&str, &str)| json!({ "name": name, "in": place, "required": place == "path", "schema": { "type": "string" } });
        self.paths[path][method]["parameters"] = parameters.iter().map(one).collect();
    }

    /// Errors at these paths have another shape.
    fn errors(&mut self, name: &str, paths: &[impl AsRef<str>]) {
        for path in paths {
            let operations = self.paths[path.as_ref()].as_object_mut().into_iter().flatten();
            for responses in operations.filter_map(|(_, operation)| operation["responses"].as_object_mut()) {
                for (_, response) in responses.iter_mut().filter(|(status, _)| *status != "200") {
                    response["content"] = whole(json!({ "$ref": format!("#/components/schemas/{name}") }));
                }
            }
        }
    }

    fn finish(mut self) -> Value {
        self.of::<ErrorBody>();
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "nextn-server",
                "description": "OpenAI's, Anthropic's, Ollama's and llama.cpp's interfaces to a GGUF model",
                "version": env!("CARGO_PKG_VERSION"),
                "license": { "name": "MIT", "identifier": "MIT" },
            },
            "paths": self.paths,
            "components": {
                "schemas": self.schemas,
                "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
            },
            "security": [{}, { "key": [] }],
        })
    }
}

/// What every operation has: its response, and the errors that any of them may give.
fn operation(summary: &str, content: Value, errors: &[(&str, &str)]) -> Value {
    let mut responses = Map::new();
    responses.insert("200".into(), json!({ "description": "The response", "content": content }));
    let all = [
        ("401", "No key, or not one of this server's"),
        ("403", "A host or an origin that is not let in"),
        ("405", "Another method"),
        ("429", "Too many requests from this client"),
        ("500", "A mistake of the server"),
        ("503", "The queue is full, the model is loading or not loaded, or the server is shutting down"),
    ];
    for &(status, description) in errors.iter().chain(&all) {
        let schema = json!({ "$ref": "#/components/schemas/ErrorBody" });
        let body = json!({ "description": description, "content": { "application/json": { "schema": schema } } });
        responses.insert(status.into(), body);
    }
    json!({ "summary": summary, "responses": responses })
}

fn both(own: &Value, params: &Value) -> Value {
    json!({ "allOf": [own, params] })
}

fn whole(schema: Value) -> Value {
    json!({ "application/json": { "schema": schema } })
}

/// One response, or lines of a stream.
fn in_lines(schema: Value) -> Value {
    json!({ "application/json": { "schema": schema }, "application/x-ndjson": { "schema": { "type": "string" } } })
}

/// One response, or events in a stream.
fn streamed(schema: Value) -> Value {
    json!({ "application/json": { "schema": schema }, "text/event-stream": { "schema": { "type": "string" } } })
}
