//! Which template a model file gives: one for all, another for tools, or none.

use std::sync::Arc;

use gguf::{Header, Value, Writer};
use model::{LoadOptions, Model};
use serde_json::json;
use session::{ALWAYS, Conversation, ModelOptions, ModelSource, PrepareError};
use text::template::{Chat, ChatTemplate};

const POCKET: &[u8] = include_bytes!("../../../models/pocket-q4_k_m.gguf");
const TEMPLATE: &str = "tokenizer.chat_template";
const TOOL_USE: &str = "tokenizer.chat_template.tool_use";

#[test]
fn a_file_without_a_template_is_written_as_chatml_where_its_vocabulary_has_the_marks() {
    let template = template(&open(&[(TEMPLATE, None)])).expect("its vocabulary has <|im_start|>");
    let messages = ["system", "user"].map(|role| json!({"role": role, "content": "x"})).to_vec();
    let chat = Chat { messages, add_generation_prompt: true, ..Chat::default() };
    let expected = "<|im_start|>system\nx<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(template.render(&chat).unwrap().text, expected);
}

#[test]
fn templates_see_the_special_tokens_of_the_vocabulary() {
    let model = open(&[(TEMPLATE, Some("{{ bos_token + '|' + eos_token + '|' }}{{ unk_token is defined }}"))]);
    let text = |id| String::from_utf8(model.vocab().bytes(id).unwrap().to_vec()).unwrap();
    let (bos, eos) = (model.vocab().bos().map(text), model.vocab().eos().map(text));
    let expected = format!("{}|{}|False", bos.unwrap_or_default(), eos.expect("it has one"));
    let chat = Chat { messages: vec![json!({"role": "user", "content": "x"})], ..Chat::default() };
    assert_eq!(template(&model).unwrap().render(&chat).unwrap().text, expected);
}

#[test]
fn the_template_for_tools_of_a_file_is_used_for_tools_and_shows_the_dialect() {
    let plain = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    let calls = "tools:{{ tools | length }} <tool_call>\n<function=";
    let bytes = with(&[(TEMPLATE, Some(plain)), (TOOL_USE, Some(calls))]);
    let model = session::open(ModelSource::Embedded(bytes.leak()), &ModelOptions::default()).unwrap();
    assert_eq!((model.template_source(), model.tool_use_source()), (plain, Some(calls)));
    assert!(model.dialect().has_calls());
    let mut conversation = Conversation::of("x");
    conversation.messages.insert(0, json!({"role": "developer", "content": "y"}));
    assert_eq!(model.render(conversation.clone(), ALWAYS).unwrap().text, "system:y;user:x;");
    conversation.tools = vec![json!({"type": "function", "function": {"name": "f"}})];
    assert_eq!(model.render(conversation, ALWAYS).unwrap().text, "tools:1 <tool_call>\n<function=");
}

#[test]
fn developers_are_developers_where_the_template_knows_them() {
    let knows =
        "{% for m in messages %}{{ m.role if m.role in ['user', 'developer'] else '?' }}:{{ m.content }};{% endfor %}";
    let bytes = with(&[(TEMPLATE, Some(knows))]);
    let model = session::open(ModelSource::Embedded(bytes.leak()), &ModelOptions::default()).unwrap();
    let mut conversation = Conversation::of("x");
    conversation.messages.insert(0, json!({"role": "developer", "content": "y"}));
    assert_eq!(model.render(conversation, ALWAYS).unwrap().text, "developer:y;user:x;");
    let error = model.render(Conversation { messages: vec![json!({"role": 1})], ..Conversation::default() }, ALWAYS);
    assert!(matches!(error, Err(PrepareError::Given { .. })), "{error:?}");
}

/// What a template of this source makes of a conversation.
fn rendered(source: &str, change: impl Fn(&mut Conversation)) -> String {
    let model =
        session::open(ModelSource::Embedded(with(&[(TEMPLATE, Some(source))]).leak()), &ModelOptions::default());
    let mut conversation = Conversation::of("x");
    change(&mut conversation);
    model.unwrap().render(conversation, ALWAYS).unwrap().text
}

fn with_effort(effort: &'static str) -> impl Fn(&mut Conversation) {
    move |conversation| conversation.reasoning.with_effort(effort).expect("an effort")
}

#[test]
fn templates_that_know_efforts_are_told_them_and_refused_ones_become_the_next_that_is_taken() {
    let prints = "{{ reasoning_effort | default('none') }} {{ enable_thinking }}";
    for (effort, text) in
        [("auto", "none True"), ("minimal", "minimal True"), ("xhigh", "xhigh True"), ("none", "none False")]
    {
        assert_eq!(rendered(prints, with_effort(effort)), text);
    }
    let strict = "{% if reasoning_effort is defined and reasoning_effort not in ['low', 'medium', 'xhigh'] %}\
                  {{ raise_exception('no such effort') }}{% endif %}{{ reasoning_effort | default('none') }}";
    for (effort, told) in
        [("minimal", "low"), ("medium", "medium"), ("high", "xhigh"), ("max", "xhigh"), ("auto", "none")]
    {
        assert_eq!(rendered(strict, with_effort(effort)), told, "{effort}");
    }
    assert_eq!(rendered("{{ reasoning_strength }}", with_effort("low")), "low");
    let given = rendered(prints, |conversation| {
        conversation.reasoning.with_effort("low").expect("an effort");
        conversation.kwargs.insert("reasoning_effort".into(), json!("own"));
    });
    assert_eq!(given, "own True", "what a request gives itself goes first");
}

#[test]
fn thinking_is_on_where_nothing_is_said_and_earlier_thinking_stays_where_that_is_asked() {
    let knows = "{{ enable_thinking }} {{ preserve_thinking | default('-') }} {{ clear_thinking | default('-') }}";
    assert_eq!(rendered(knows, |_| ()), "True - -");
    assert_eq!(rendered(knows, |conversation| conversation.reasoning.enable = Some(false)), "False - -");
    for (keep, text) in [(true, "True True False"), (false, "True False True")] {
        let told = rendered(knows, |conversation| {
            conversation.kwargs.insert(session::PRESERVE_THINKING.into(), json!(keep));
        });
        assert_eq!(told, text);
    }
}

#[test]
fn a_day_is_today_by_the_clock_of_this_machine() {
    let llama = "{% if date_string is not defined %}{% set date_string = '26 Jul 2024' %}{% endif %}{{ date_string }}";
    let today = || text::template::today("%d %b %Y").expect("these letters");
    let (before, told, after) = (today(), rendered(llama, |_| ()), today());
    assert!([before, after].contains(&told), "{told}");
    let own = rendered(llama, |conversation| {
        conversation.kwargs.insert("date_string".into(), json!("1 Jan 2000"));
    });
    assert_eq!(own, "1 Jan 2000");
    // Its tools are a text, and none are an empty list of them.
    let firefunction = "{{ 'Today is ' + datetime + '.' }}{% if functions != '[]' %}functools[{% endif %}";
    let today = || format!("Today is {}.", text::template::today("%b %d %Y").expect("these letters"));
    let (before, told, after) = (today(), rendered(firefunction, |_| ()), today());
    assert!([before, after].contains(&told), "{told}");
}

fn open(changes: &[(&str, Option<&str>)]) -> Arc<Model> {
    session::open_weights(&ModelSource::Embedded(with(changes).leak()), &LoadOptions::default()).unwrap()
}

fn template(model: &Model) -> Option<ChatTemplate> {
    session::template_of(model).unwrap()
}

/// The small model with other texts in its metadata, or without them.
fn with(changes: &[(&str, Option<&str>)]) -> Vec<u8> {
    let header = Header::parse(POCKET).unwrap();
    let mut writer = Writer::in_memory();
    for (key, value) in header.metadata().iter() {
        if !changes.iter().any(|(changed, _)| *changed == key) {
            writer.add(key, *value).unwrap();
        }
    }
    for (key, value) in changes {
        if let Some(value) = value {
            writer.add(key, Value::from(*value)).unwrap();
        }
    }
    for tensor in header.tensors() {
        writer.tensor(tensor.name, tensor.dims(), tensor.dtype).unwrap();
    }
    let mut data = writer.begin().unwrap();
    for tensor in header.tensors() {
        data.write_tensor(tensor.name, &POCKET[tensor.range()]).unwrap();
    }
    data.finish().unwrap()
}
