//! Families: found by what their templates show, with their replies as tables.

use serde_json::{Map, Value, json};
use session::dialect::{Dialect, ReplyEvent, ReplyOptions, Thinking, ToolSchema};
use text::template::{Chat, ChatTemplate};

use super::support::*;
use super::vocab::vocab_of;

#[test]
fn every_form_is_of_its_family_and_can_be_forced() {
    for world in worlds() {
        let family = world.name.split(' ').next().expect("a word");
        assert_eq!(world.dialect.name(), family, "{}", world.name);
        world.required(&[now()], true);
    }
}

#[test]
fn a_template_is_what_it_shows_and_without_one_the_vocabulary_is() {
    let letters = vocab_of(&[]);
    for (template, family) in [
        ("<|im_start|>{{ messages }}", "plain"),
        ("<start_of_turn>model", "gemma"),
        ("<|turn>model\n<|channel>thought\n<channel|>", "gemma"),
        ("[INST][/INST]", "plain"),
        ("<|start_header_id|>x<|end_header_id|>", "plain"),
        ("<tools></tools> <tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}", "hermes"),
        ("You are Qwen. <tool_call>", "qwen"),
        ("<seed:tool_call>\n<function=f>\n<parameter=p>", "seed"),
        ("<tool_call>\n<function=f>\n<parameter=p>", "qwen"),
        ("<tool_call>{name}<arg_key>", "glm"),
        ("<｜User｜><｜Assistant｜>", "deepseek"),
    ] {
        assert_eq!(Dialect::detect(Some(template), &letters).name(), family, "{template}");
    }
    assert_eq!(Dialect::detect(None, &letters).name(), "plain");
    for (token, family) in [("<tool_call>", "qwen"), ("[TOOL_CALLS]", "mistral"), ("<|python_tag|>", "llama3")] {
        let vocab = vocab_of(&[(token, 3)]);
        for template in [None, Some("{{ messages }}")] {
            assert_eq!(Dialect::detect(template, &vocab).name(), family, "{token}");
        }
    }
}

#[test]
fn a_plain_model_reasons_by_the_tags_that_are_shown_and_makes_no_calls() {
    let letters = vocab_of(&[]);
    let text = "<think>a</think>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let plain = Dialect::detect(None, &letters);
    assert_eq!(events(&plain, &options(), &[text]), [said(text)]);
    assert!(!plain.has_calls() && plain.reasoning_end().is_none() && plain.after_call().is_none());
    let shown = Dialect::detect(Some("<think>\n</think>"), &letters);
    let tagged = Dialect::detect(None, &vocab_of(&[("<think>", 4), ("</think>", 4)]));
    for dialect in [shown, tagged] {
        let calls = text.split_once("</think>\n").expect("it is there").1;
        assert_eq!(events(&dialect, &options(), &[text]), [thought("a"), said(calls)]);
    }
}

/// The name of a form, a reply, what is said around its calls, and the calls.
type Row = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const REPLIES: &[Row] = &[
    (
        "hermes",
        "Well.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"a\"}}\n</tool_call>",
        "Well.",
        &[("f", r#"{"text":"a"}"#)],
    ),
    (
        "hermes",
        "<tool_call>\n<function=f>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n</function>\n</tool_call>",
        &[],
    ),
    ("llama3", "{\"name\": \"f\", \"parameters\": {\"text\": \"}\"}}", "", &[("f", r#"{"text":"}"}"#)]),
    ("llama3", "\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "", &[("f", "{}")]),
    (
        "llama3",
        "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
        "",
        &[("f", "{}"), ("g", "{}")],
    ),
    ("llama3", "<|python_tag|>f.call(a=1)", "<|python_tag|>f.call(a=1)", &[]),
    ("llama3", "{\"name\": \"f\", \"parameters\": {", "{\"name\": \"f\", \"parameters\": {", &[]),
    ("llama3", "{\"name\": \"f\"}", "{\"name\": \"f\"}", &[]),
    ("llama3", "{\"name\": \"unknown\", \"parameters\": {}} x", "{\"name\": \"unknown\", \"parameters\": {}} x", &[]),
    ("llama3", "{ \"n\": 1}", "{ \"n\": 1}", &[]),
    ("llama3", "So: {\"name\": \"f\", \"parameters\": {}}", "So: {\"name\": \"f\", \"parameters\": {}}", &[]),
    (
        "mistral",
        "Well.[TOOL_CALLS]f[ARGS]{\"n\": 1}[TOOL_CALLS]g[ARGS]{}",
        "Well.",
        &[("f", r#"{"n":1}"#), ("g", "{}")],
    ),
    ("mistral", "[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{\"n\": 1}", "", &[("f", r#"{"n":1}"#)]),
    (
        "mistral",
        "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"abcdefgh1\"}, {\"name\": \"g\", \"arguments\": {}}]",
        "",
        &[("f", r#"{"n":1}"#), ("g", "{}")],
    ),
    ("mistral", "[TOOL_CALLS] are what I could make", "[TOOL_CALLS] are what I could make", &[]),
    ("mistral", "[TOOL_CALLS]f[ARGS]{\"n\": ", "[TOOL_CALLS]f[ARGS]{\"n\": ", &[]),
    ("mistral", "a [TOOL] [b]", "a [TOOL] [b]", &[]),
    (
        "glm",
        "Well.\n<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>a\n</arg_value>\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
        "Well.",
        &[("f", r#"{"text": "a\n", "n": 1}"#)],
    ),
    (
        "glm",
        "<tool_call>f<arg_key>text</arg_key><arg_value>1</arg_value></tool_call><tool_call>g</tool_call>",
        "",
        &[("f", r#"{"text": "1"}"#), ("g", "{}")],
    ),
    (
        "glm",
        "<tool_call>f<arg_key>text</arg_key><arg_value>a</arg_value> b",
        "",
        &[("f", r#"{"text": "a</arg_value> b"}"#)],
    ),
    (
        "glm",
        "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>a </arg_value",
        "",
        &[("f", r#"{"text": "a </arg_value"}"#)],
    ),
    ("glm", "<tool_call>f\n<arg_key>text</arg_key>\n<arg_v", "", &[("f", "{}")]),
    ("glm", "<tool_call>this is text</tool_call>", "<tool_call>this is text</tool_call>", &[]),
    ("glm", "<tool_call>f\n", "<tool_call>f\n", &[]),
    (
        "gemma",
        "<|tool_call>call:f{text:<|\"|>a \"}<b<|\"|>,n:-1}<tool_call|><|tool_call>call:g{}<tool_call|>",
        "",
        &[("f", r#"{"text":"a \"}<b","n":-1}"#), ("g", "{}")],
    ),
    (
        "gemma",
        "Well.<|tool_call>call:f{any:{<|\"|>k<|\"|>:[true,null,0.5,<|\"|>x<|\"|>]},text:\"}\"}<tool_call|>",
        "Well.",
        &[("f", r#"{"any":{"k":[true,null,0.5,"x"]},"text":"}"}"#)],
    ),
    ("gemma", "<|tool_call>call:f{text:<|\"|>a <|\"", "", &[("f", r#"{"text":"a <|\""}"#)]),
    ("gemma", "<|tool_call>call:f{text:", "<|tool_call>call:f{text:", &[]),
    ("gemma", "a<channel|> b<|channel>thought\n<channel|>", "a b", &[]),
    ("gemma", "<|tool_call>f{}", "<|tool_call>f{}", &[]),
    ("gemma", "a <|tool b", "a <|tool b", &[]),
    (
        "deepseek",
        "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"n\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Well.",
        &[("f", r#"{"n":1}"#), ("g", "{}")],
    ),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        &[("f", r#"{"n":1}"#), ("g", "{}")],
    ),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{\"n\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        &[("function", r#"{"n":1}"#)],
    ),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"n\"",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"n\"",
        &[],
    ),
    ("deepseek", "<｜tool▁calls▁begin｜>none", "<｜tool▁calls▁begin｜>none", &[]),
    (
        "dsml",
        "Well.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"text\" string=\"true\">7 <b></｜DSML｜parameter>\n<｜DSML｜parameter name=\"any\" string=\"true\">7</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "Well.",
        &[("f", r#"{"text": "7 <b>", "any": "7", "n": 7}"#), ("g", "{}")],
    ),
    (
        "dsml",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" string=\"perhaps\">",
        "<｜DSML｜parameter name=\"n\" string=\"perhaps\">",
        &[("f", "{}")],
    ),
    (
        "kimi",
        "Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"n\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "Well.",
        &[("f", r#"{"n":1}"#), ("g", "{}")],
    ),
    (
        "kimi",
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"n\": 1}<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}",
        "",
        &[("f", r#"{"n":1}"#), ("g", "{}")],
    ),
    (
        "kimi",
        "<|tool_call_begin|>functions.other:0<|tool_call_argument_begin|>{}",
        "<|tool_call_begin|>functions.other:0<|tool_call_argument_begin|>{}",
        &[],
    ),
    (
        "kimi3",
        "<|open|>response<|sep|>Well.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"any\" type=\"string\"<|sep|>1<|close|>argument<|sep|><|open|>argument key=\"n\" type=\"number\"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        "Well.",
        &[("f", r#"{"any": "1", "n": 1}"#)],
    ),
    (
        "minimax",
        "Well.\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"text\">a\nb</parameter>\n<parameter name=\"n\">1</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
        "Well.",
        &[("f", r#"{"text": "a\nb", "n": 1}"#), ("g", "{}")],
    ),
    (
        "seed",
        "<seed:tool_call>\n<function=f>\n<parameter=text>a\n</parameter>\n</function>\n</seed:tool_call>",
        "",
        &[("f", r#"{"text": "a\n"}"#)],
    ),
    (
        "lfm2",
        "Well.<|tool_call_start|>[f(text='it\\'s \"(', n=1, any={'a': [True, None, 0.5,], \"b\": \"x\"}), g()]<|tool_call_end|>",
        "Well.",
        &[("f", r#"{"text": "it's \"(", "n": 1, "any": {"a": [true, null, 0.5], "b": "x"}}"#), ("g", "{}")],
    ),
    ("lfm2", "see [f](n=1)", "see [f](n=1)", &[]),
    ("lfm2", "<|tool_call_start|>[f(n=1, text=\"a", "", &[("f", r#"{"n": 1, "text": "a"}"#)]),
    (
        "command",
        "<|START_RESPONSE|>Well.<|END_RESPONSE|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"n\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
        "Well.",
        &[("f", r#"{"n":1}"#), ("g", "{}")],
    ),
    (
        "command+",
        "Action:\n```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": {\"n\": 1}\n    }\n]\n```",
        "",
        &[("f", r#"{"n":1}"#)],
    ),
    ("command+", "Action: none", "Action: none", &[]),
    (
        "nemotron",
        "Well.\n<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"g\", \"arguments\": {}}]</TOOLCALL>",
        "Well.",
        &[("f", r#"{"n":1}"#), ("g", "{}")],
    ),
    ("apriel", "<tool_calls>[{\"name\": \"g\", \"arguments\": {}}]</tool_calls>", "", &[("g", "{}")]),
    (
        "apertus",
        "Well.<|tools_prefix|>[{\"f\": {\"n\": 1}}, {\"g\": {}}]<|tools_suffix|>",
        "Well.",
        &[("f", r#"{"n":1}"#), ("g", "{}")],
    ),
    ("gigachat", "Well.<|function_call|>{\"name\": \"g\", \"arguments\": {}}", "Well.", &[("g", "{}")]),
    (
        "gigachat",
        "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"g\", \"arguments\": {}}",
        "",
        &[("g", "{}")],
    ),
    (
        "firefunction",
        " functools[{\"name\": \"f\", \"arguments\": {\"n\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
        "",
        &[("f", r#"{"n":1}"#), ("g", "{}")],
    ),
    (
        "functionary",
        "<function=f>{\"n\": 1}</function><function=g>{}</function>",
        "",
        &[("f", r#"{"n":1}"#), ("g", "{}")],
    ),
    (
        "minicpm",
        "<function name=\"f\"><param name=\"text\">a</param></function>\n<function name=\"g\"></function>",
        "",
        &[("f", r#"{"text": "a"}"#), ("g", "{}")],
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": 1}<|call|>",
        "",
        &[("f", r#"{"n":1}"#)],
    ),
    (
        "harmony",
        " to=functions.f<|channel|>analysis<|message|>{\"n\": 1}<|end|><|start|>assistant<|channel|>final<|message|>Well.",
        "Well.",
        &[("f", r#"{"n":1}"#)],
    ),
    (
        "harmony",
        "<|channel|>commentary to=browser<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>y",
        "y",
        &[],
    ),
    ("harmony", "<|channel|>final<|message|>a <|b <|end", "a <|b <|end", &[]),
    ("harmony", "{\"n\": 1}", "{\"n\": 1}", &[]),
];

/// Of these the tags around what is said are left out, whoever asks.
const MARKED: [&str; 5] = ["kimi3", "lfm2", "command", "command+", "harmony"];

#[test]
fn replies_are_taken_apart_as_their_family_writes_them_however_they_are_cut() {
    for (name, reply, text, calls) in REPLIES {
        let world = world(name);
        let (got, said) = world.read(&[tool(), now()], reply);
        let parse = |json: &str| serde_json::from_str::<Map<String, Value>>(json).expect("an object");
        let expected: Vec<Call> = calls.iter().map(|(name, json)| ((*name).to_owned(), parse(json))).collect();
        assert_eq!((got, said.as_str()), (expected, *text), "{name}: {reply}");
        every_cut(world, reply);
        // What nobody asked for is text.
        if !MARKED.contains(name) {
            assert_eq!(
                events(&world.dialect, &ReplyOptions::default(), &[reply]),
                [ReplyEvent::Text((*reply).to_owned())],
                "{name}"
            );
        }
    }
}

/// The same events for every cut into three, and letter by letter.
pub fn every_cut(world: &World, reply: &str) {
    every_cut_with(world, &options(), reply);
}

pub fn every_cut_with(world: &World, options: &ReplyOptions, reply: &str) {
    let whole = events(&world.dialect, options, &[reply]);
    let cuts: Vec<usize> = reply.char_indices().map(|(at, _)| at).collect();
    for &a in &cuts {
        for &b in cuts.iter().filter(|&&b| b >= a) {
            let got = events(&world.dialect, options, &[&reply[..a], &reply[a..b], &reply[b..]]);
            assert_eq!(got, whole, "{}: {reply:?} cut at {a} and {b}", world.name);
        }
    }
    let letters: Vec<String> = reply.chars().map(String::from).collect();
    let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
    assert_eq!(events(&world.dialect, options, &letters), whole, "{}", world.name);
}

#[test]
fn reasoning_has_the_tags_of_its_family() {
    for (name, reply, reasoning, text) in [
        ("qwen", "<think>\nhm\n</think>\n\nSunny.", "hm", "Sunny."),
        ("glm", "\n<think>hm</think>\nSunny.", "hm", "Sunny."),
        ("mistral", "[THINK]hm [x] [TOOL_CALLS]f[ARGS]{}[/THINK]Sunny.", "hm [x] [TOOL_CALLS]f[ARGS]{}", "Sunny."),
        ("gemma", "<|channel>thought\nhm\n<channel|>Sunny.", "hm", "Sunny."),
        ("deepseek", "<think>\nhm\n</think>\n\nSunny.", "hm", "Sunny."),
        ("seed", "<seed:think>hm</seed:think>\nSunny.", "hm", "Sunny."),
        (
            "harmony",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Sunny.",
            "hm",
            "Sunny.",
        ),
        ("command", "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Sunny.<|END_RESPONSE|>", "hm", "Sunny."),
        (
            "kimi3",
            "<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>Sunny.<|close|>response<|sep|>",
            "hm",
            "Sunny.",
        ),
    ] {
        let world = world(name);
        assert_eq!(events(&world.dialect, &options(), &[reply]), [thought(reasoning), said(text)], "{name}");
        every_cut(world, reply);
        let inside = ReplyOptions { starts_in_reasoning: true, ..options() };
        let end = world.dialect.reasoning_end().expect("tags");
        assert_eq!(events(&world.dialect, &inside, &[&format!("hm{end}Sunny.")]), [thought("hm"), said("Sunny.")]);
    }
    // An empty thought says nothing.
    assert_eq!(events(&world("gemma").dialect, &options(), &["<|channel>thought\n<channel|>Sunny."]), [said("Sunny.")]);
}

#[test]
fn what_a_prompt_leaves_open_is_where_the_reply_begins() {
    let template = |opening: &str| {
        format!(
            "{{%- for m in messages -%}}[{{{{ m.role }}}}]{{{{ m.content }}}}{{%- endfor -%}}{{%- if add_generation_prompt -%}}{opening}{{%- endif -%}}"
        )
    };
    for (name, opening, starts, thinking) in [
        ("qwen", "<think>\n", true, Thinking::Open),
        ("qwen", "<think>\n\n</think>\n\n", false, Thinking::Done),
        ("qwen", "[assistant]", false, Thinking::Possible),
        ("glm", "</think>", false, Thinking::Done),
        ("mistral", "[THINK]", true, Thinking::Open),
        ("gemma", "<|channel>thought\n<channel|>", false, Thinking::Done),
    ] {
        let world = world(name);
        let source = template(opening);
        let messages = vec![json!({"role": "user", "content": "a <think> [THINK] b"})];
        let chat = Chat { messages, add_generation_prompt: true, ..Chat::default() };
        let prompt = ChatTemplate::new(&source).expect("a template").render(&chat).expect("it renders");
        assert_eq!(world.dialect.starts_in_reasoning(&prompt), starts, "{name} {opening:?}");
        let tokens = world.vocab.encode(&prompt.text, text::Special::Parse);
        assert_eq!(world.dialect.thinking_after(starts, &tokens), thinking, "{name} {opening:?}");
    }
}

#[test]
fn a_limit_on_thinking_ends_it_as_the_family_does() {
    for (name, forced) in [("qwen", "\n</think>\n\n"), ("mistral", "[/THINK]"), ("gemma", "\n<channel|>")] {
        let world = world(name);
        let limit = world.dialect.thinking_limit(5, true).expect("tokens");
        let text: Vec<u8> =
            limit.forced.iter().flat_map(|&id| world.vocab.bytes(id).expect("a token").to_vec()).collect();
        assert_eq!(String::from_utf8_lossy(&text), forced, "{name}");
        assert!(limit.forced.contains(&limit.end) && limit.open && limit.max_tokens == 5, "{name}");
    }
    assert!(world("llama3").dialect.thinking_limit(5, true).is_none());
}

#[test]
fn time_grows_with_the_length_of_any_familys_reply_only() {
    let soups =
        ["<", "[", "{", "\"\\", "\n", "<|\"|>", "<｜tool▁call▁begin｜>", "[TOOL_CALLS]", "</arg_value>   ", "f"];
    let openings = [
        "",
        "{\"name\"",
        "[TOOL_CALLS]",
        "[TOOL_CALLS]f[ARGS]{",
        "<tool_call>f<arg_key>text</arg_key><arg_value>",
        "<|tool_call>call:f{",
        "<|tool_call>call:f{a:<|\"|>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{",
        "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"",
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": \"",
        "<|channel|>",
        "<|tool_call_start|>[f(a='",
        "<|tools_prefix|>[{\"f\": {\"a\": [",
    ];
    let names =
        ["llama3", "mistral", "glm", "gemma", "deepseek", "dsml", "kimi", "harmony", "lfm2", "apertus", "minicpm"];
    for name in names {
        for (opening, soup) in openings.iter().flat_map(|o| soups.iter().map(move |s| (o, s))) {
            let text = (*opening).to_owned() + &soup.repeat(60_000 / soup.len());
            let begin = std::time::Instant::now();
            events(&world(name).dialect, &options(), &[&text]);
            // Linear is far below a second; looking at everything again for each character would be minutes.
            assert!(begin.elapsed().as_secs() < 10, "{name}: {opening}{soup}");
        }
    }
}

pub fn tool() -> Value {
    json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object",
        "properties": {"text": {"type": "string"}, "n": {"type": "integer"}, "any": {}}}}})
}

pub fn now() -> Value {
    json!({"name": "g"})
}

pub fn options() -> ReplyOptions {
    let tool_schemas = [tool(), now()].iter().filter_map(ToolSchema::from_tool).collect();
    ReplyOptions {
        starts_in_reasoning: false,
        continues: false,
        reasoning: true,
        tools: true,
        forced: false,
        either: false,
        tool_schemas,
    }
}

pub fn thought(text: &str) -> ReplyEvent {
    ReplyEvent::Reasoning(text.to_owned())
}

pub fn said(text: &str) -> ReplyEvent {
    ReplyEvent::Text(text.to_owned())
}
