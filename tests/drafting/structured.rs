//! Structured output with the MTP layer drafting and without: the same tokens, fewer forward passes.

use std::sync::Arc;

use constrain::{Compiler, Kind, Limits, Spec};
use engine::sample::SamplingParams;
use engine::{EngineConfig, EngineHandle, FinishReason, FlashAttention, Grammar, Proposer, RequestOptions, Summary};
use memory::CacheType;
use model::Model;
use serde_json::{Value, json};
use session::dialect::{Dialect, Thinking, Tool, ToolChoice, Tools};
use speculate::{Depth, DraftVocabSize};
use test_support::{config, generate, head, pocket, question, spawn};

/// One thread and plain arithmetic: tokens that verify a draft have the bits that they have alone.
fn engine(model: &Arc<Model>, depth: Option<usize>) -> EngineHandle {
    let config = EngineConfig {
        cache_type_k: CacheType::F32,
        cache_type_v: CacheType::F32,
        flash_attention: FlashAttention::Off,
        ..config(512, 1)
    };
    let mtp =
        |depth| Box::new(head(model, &config, Depth::Fixed(depth), DraftVocabSize::default())) as Box<dyn Proposer>;
    spawn(model, config.clone(), depth.map(mtp))
}

fn ask(
    engine: &EngineHandle,
    text: &str,
    grammar: &Arc<dyn Grammar>,
    options: RequestOptions,
) -> (Vec<u32>, String, Summary) {
    let options = RequestOptions { grammar: Some(Arc::clone(grammar)), max_tokens: Some(120), ..options };
    let completion = generate(engine, &question(engine.model(), text), options);
    let tokens = completion.tokens.iter().map(|id| id.0).collect();
    (tokens, completion.text(), completion.summary().clone())
}

fn kinds(model: &Model) -> Vec<Kind> {
    let person = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150}, "likes": {"type": "array", "maxItems": 3,
        "items": {"enum": ["apples", "books", "the sea"]}}}, "required": ["name", "age", "likes"],
        "additionalProperties": false});
    let weather =
        Tool::from_json(&json!({"name": "get_weather", "parameters": {"type": "object", "required": ["city"],
        "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}}}}));
    let tools =
        Tools { tools: vec![weather.expect("a tool")], choice: ToolChoice::Required, parallel: false, allowed: None };
    let dialect = Dialect::detect(model.chat_template(), model.vocab());
    let calls = dialect.tool_spec(tools, None, Thinking::Done, &Limits::default());
    vec![
        Kind::JsonSchema(person),
        Kind::Regex("It is [0-9]{1,4}\\.( And [a-z ]{4,40}\\.){0,2}".into()),
        Kind::Gbnf("root ::= line{2,4}\nline ::= \"- \" [A-Za-z ]{3,20} \"\\n\"".into()),
        calls.expect("tools").expect("a form of calls").kind,
    ]
}

#[test]
fn drafting_leaves_an_answer_in_its_form_as_it_is() {
    let model = pocket();
    let compiler = Compiler::new(model.shared_vocab(), Limits::default());
    let grammars: Vec<_> = kinds(&model)
        .into_iter()
        .map(|kind| compiler.compile(&Spec::new(kind)).expect("a form that can be had"))
        .collect();
    let random = SamplingParams { seed: Some(11), temperature: 0.9, ..SamplingParams::default() };
    let options =
        [SamplingParams::greedy(), random].map(|sampling| RequestOptions { sampling, ..RequestOptions::default() });
    let question = "My name is Clara and I am 31 years old. What is 412 - 187?";
    let mut plain = Vec::new();
    {
        let engine = engine(&model, None);
        for grammar in &grammars {
            plain.push(options.clone().map(|options| ask(&engine, question, grammar, options)));
        }
    }
    let value: Value = serde_json::from_str(&plain[0][0].1).expect("JSON by its schema");
    assert!(value["age"].is_u64() && value["likes"].is_array(), "{value}");
    assert!(plain[3][0].1.starts_with("<tool_call>\n<function=get_weather>\n<parameter=city>\n"), "{}", plain[3][0].1);
    let mut n_accepted = 0;
    for depth in [1, 3] {
        let engine = engine(&model, Some(depth));
        for (grammar, plain) in grammars.iter().zip(&plain) {
            for (options, (tokens, text, summary)) in options.clone().into_iter().zip(plain) {
                let drafted = ask(&engine, question, grammar, options);
                assert_eq!(drafted.0, *tokens, "depth {depth}: {:?} drafted, {text:?} plain", drafted.1);
                assert_eq!(drafted.2.reason, summary.reason);
                n_accepted += drafted.2.timings.accepted;
            }
        }
    }
    assert!(n_accepted > 20, "{n_accepted} drafts were right: drafting was not on");
}

#[test]
fn a_form_that_is_complete_ends_the_answer() {
    let model = pocket();
    let compiler = Compiler::new(model.shared_vocab(), Limits::default());
    let engine = engine(&model, Some(2));
    let choice = Kind::Choice(vec!["yes".into(), "no".into()]);
    let grammar = compiler.compile(&Spec::new(choice)).expect("choices");
    let (_, text, summary) = ask(&engine, "Is the sea blue?", &grammar, RequestOptions::default());
    assert!(text == "yes" || text == "no", "{text}");
    assert_eq!(summary.reason, FinishReason::Complete);
}
