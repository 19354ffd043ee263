//! `/rerank`: documents in the order of their scores, in every client's form.

use api::Settings;
use axum::http::StatusCode;
use engine::EngineConfig;
use gguf::TensorType;
use serde_json::{Value, json};
use session::ModelOptions;

use crate::support::App;
use crate::tiny::{Meta, Rng, Spec, Tensor};
use crate::tiny_served::served_tiny;

const TEMPLATE: &str = "<|im_start|>q: {query}\nd: {document}<|im_end|>";

/// A tiny model with a rank head; `template` is its file's.
fn app(template: Option<&str>) -> App {
    let spec = Spec::of("qwen3");
    let mut document = spec.document();
    document.set("qwen3.pooling_type", Meta::U32(4));
    document.set("qwen3.classifier.output_labels", Meta::Strs(vec!["yes".into(), "no".into()]));
    if let Some(template) = template {
        document.set("tokenizer.chat_template.rerank", Meta::Str(template.into()));
    }
    let mut rng = Rng::new(3);
    let data = (0..2 * spec.n_embd).flat_map(|_| (0.2 * rng.normal()).to_le_bytes()).collect();
    let (name, ne) = ("cls.output.weight".into(), vec![spec.n_embd as u64, 2]);
    document.tensors.push(Tensor { name, ne, dtype: TensorType::F32, data });
    let config = EngineConfig { n_sequences: 2, max_queue: 3, embeddings: true, ..EngineConfig::default() };
    let settings = Settings { embeddings: true, ..Settings::default() };
    App::serving(served_tiny(&document, config, &ModelOptions::default()), settings)
}

const DOCUMENTS: [&str; 5] = ["the rain", "an orange in the north", "or", "thin ink", "another"];

fn asked() -> Value {
    json!({ "query": "in the", "documents": DOCUMENTS })
}

fn order(results: &Value, score: &str) -> Vec<(u64, f64)> {
    let results = results.as_array().unwrap_or_else(|| panic!("{results}"));
    let all: Vec<_> = results.iter().map(|r| (r["index"].as_u64().unwrap(), r[score].as_f64().unwrap())).collect();
    assert!(all.windows(2).all(|w| w[0].1 >= w[1].1), "{all:?}");
    assert!(all.iter().all(|&(_, score)| (0.0..=1.0).contains(&score)), "probabilities: {all:?}");
    all
}

#[tokio::test]
async fn documents_come_best_first_with_every_clients_fields() {
    let app = app(Some(TEMPLATE));
    let whole = app.ok("/v1/rerank", &asked()).await;
    let all = order(&whole["results"], "relevance_score");
    assert_eq!((all.len(), &whole["object"], &whole["model"]), (5, &json!("list"), &json!("tiny")));
    assert!(whole["id"].is_string() && whole["results"][0].get("document").is_none());
    let mut n = 0;
    for document in DOCUMENTS {
        let text = TEMPLATE.replace("{query}", "in the").replace("{document}", document);
        n += app.ok("/tokenize", &json!({ "content": text })).await["tokens"].as_array().unwrap().len();
    }
    assert_eq!(whole["usage"], json!({ "prompt_tokens": n, "total_tokens": n }));
    let close = |found: &[(u64, f64)]| found.iter().zip(&all).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-3);
    for path in ["/rerank", "/reranking", "/v1/reranking", "/v2/rerank"] {
        let mut body = asked();
        (body["top_n"], body["return_documents"]) = (json!(2), json!(true));
        body["documents"][1] = json!({ "text": DOCUMENTS[1] });
        let best = app.ok(path, &body).await;
        let found = order(&best["results"], "relevance_score");
        assert!(found.len() == 2 && close(&found), "{path}: {found:?}, not {all:?}");
        for (i, (index, _)) in found.iter().enumerate() {
            assert_eq!(best["results"][i]["document"]["text"], DOCUMENTS[*index as usize]);
        }
    }
    let texts = json!({ "query": "in the", "texts": DOCUMENTS, "return_text": true, "top_n": 9 });
    let found = app.ok("/rerank", &texts).await;
    assert!(close(&order(&found, "score")));
    assert_eq!(found[0]["text"], DOCUMENTS[all[0].0 as usize]);
}

#[tokio::test]
async fn a_document_has_the_same_score_alone_and_among_many() {
    let app = app(None);
    let many: Vec<String> = (0..40).map(|i| format!("{} {i}", DOCUMENTS[i % 5])).collect();
    let all = app.ok("/rerank", &json!({ "query": "in the rain", "documents": many })).await;
    let all = order(&all["results"], "relevance_score");
    assert_eq!(all.len(), 40);
    for &(index, score) in all.iter().step_by(7) {
        let one = json!({ "query": "in the rain", "documents": [many[index as usize]] });
        let alone = order(&app.ok("/rerank", &one).await["results"], "relevance_score");
        assert!((alone[0].1 - score).abs() < 1e-3, "{index}: {score} and {}", alone[0].1);
    }
}

#[tokio::test]
async fn what_cannot_be_ranked_is_refused_with_its_place() {
    let app = app(Some(TEMPLATE));
    for (change, field, word) in [
        (json!({ "documents": [] }), "documents", "1 to 2048"),
        (
            json!({ "documents": ["x", "the ".repeat(2000)] }),
            "documents",
            "documents[1] with the query is too large and exceeds",
        ),
        (json!({ "documents": ["x", 7] }), "documents[1]", "a text"),
        (json!({ "documents": "x" }), "documents", "sequence"),
        (json!({ "query": 7 }), "query", "string"),
        (json!({ "query": null }), "query", "string"),
        (json!({ "top_n": 0 }), "top_n", "at least 1"),
        (json!({ "texts": [] }), "texts", "1 to 2048"),
    ] {
        let mut body = asked();
        change.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
        let (status, answer) = app.post("/v1/rerank", &body).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)), "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(word), "{answer}");
    }
    let plain = App::with(Settings { embeddings: true, ..Settings::default() });
    let (status, answer) = plain.post("/v1/rerank", &asked()).await;
    assert_eq!(status, StatusCode::NOT_IMPLEMENTED, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("rank head"), "{answer}");
}
