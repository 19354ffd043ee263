//! Boundaries of prompts, over whole conversations: what lies before one is repeated by the turns that follow.

use proptest::prelude::*;
use serde_json::{Value, json};
use text::template::{Chat, ChatTemplate, Prompt};

const POCKET: &str = include_str!("data/template_pocket.jinja");
const SMALL: &str = include_str!("data/template_small.jinja");
/// Refuses a conversation without a question, as Qwen's own templates do.
const STRICT: &str = "{%- set ns = namespace(asked=false) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}\
    {%- set ns.asked = true -%}{%- endif -%}{%- endfor -%}\
    {%- if not ns.asked -%}{{- raise_exception('no question') -}}{%- endif -%}\
    {%- for m in messages -%}{{- '[' + m.role + ']' + (m.content | trim) + '[end]' -}}{%- endfor -%}\
    {%- if add_generation_prompt -%}{{- '[assistant]<think>\n' -}}{%- endif -%}";

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn later_turns_repeat_what_lies_before_a_boundary(messages in conversation(), with_tools in any::<bool>(), which in 0_usize..3) {
        let template = ChatTemplate::new([POCKET, SMALL, STRICT][which]).unwrap();
        let asks = |m: &Value| m["role"] == "user" || m["role"] == "tool";
        // Every point at which a client asks for a reply.
        let turns: Vec<usize> = (1..=messages.len())
            .filter(|&n| asks(&messages[n - 1]) && messages.get(n).is_none_or(|next| next["role"] == "assistant"))
            .collect();
        let prompts: Vec<Prompt> = turns.iter().map(|&n| render(&template, &messages[..n], with_tools)).collect();
        for (i, prompt) in prompts.iter().enumerate() {
            let text = &prompt.text;
            prop_assert!(prompt.boundaries.is_sorted_by(|a, b| a < b));
            prop_assert!(prompt.boundaries.iter().all(|&at| at > 0 && text.is_char_boundary(at)));
            for (j, later) in prompts.iter().enumerate().skip(i + 1) {
                let asked = messages[turns[i]..turns[j]].iter().any(|m| m["role"] == "user");
                let n = if asked { prompt.n_lasting } else { prompt.boundaries.len() };
                for &at in &prompt.boundaries[..n] {
                    prop_assert!(later.text.starts_with(&text[..at]), "{at} in {text:?}\n{:?}", later.text);
                }
            }
            // The place before the reply is always one; after a question it holds for good.
            let mut chat = chat(&messages[..turns[i]], with_tools);
            chat.add_generation_prompt = false;
            let before_reply = template.render(&chat).unwrap().text.len();
            prop_assert_eq!(prompt.boundaries.last(), Some(&before_reply));
            if messages[turns[i] - 1]["role"] == "user" {
                prop_assert_eq!(prompt.n_lasting, prompt.boundaries.len());
            }
        }
    }
}

#[test]
fn a_long_loop_of_tool_calls_keeps_the_boundary_after_its_question() {
    let mut messages = vec![json!({"role": "system", "content": "s"}), json!({"role": "user", "content": "question"})];
    let asked = render(&ChatTemplate::new(SMALL).unwrap(), &messages, true);
    for _ in 0..40 {
        messages.extend([assistant("", "why", true), json!({"role": "tool", "content": "result"})]);
    }
    let prompt = render(&ChatTemplate::new(SMALL).unwrap(), &messages, true);
    assert_eq!(prompt.boundaries[..prompt.n_lasting], asked.boundaries);
    assert!(prompt.boundaries.len() > prompt.n_lasting, "{:?}", prompt.boundaries);
}

#[test]
fn the_opening_is_a_boundary_even_where_a_template_refuses_it_alone() {
    let template = ChatTemplate::new(STRICT).unwrap();
    let messages = [json!({"role": "system", "content": "s"}), json!({"role": "user", "content": "0"})];
    let prompt = render(&template, &messages, false);
    let text = &prompt.text;
    assert_eq!(&text[..prompt.boundaries[0]], "[system]s[end][user]");
    assert_eq!(&text[..prompt.boundaries[1]], "[system]s[end][user]0[end]");
    assert_eq!(prompt.boundaries.len(), 2);
}

#[test]
fn the_last_question_can_be_edited_where_a_template_drops_the_thinking_before_it() {
    let question = |content: &str| json!({"role": "user", "content": content});
    let messages = [question("first"), assistant("answer", "why", false), question("second")];
    let prompt = render(&ChatTemplate::new(POCKET).unwrap(), &messages, false);
    let at = prompt.text.find("second").unwrap();
    assert!(prompt.boundaries[..prompt.n_lasting].contains(&at), "{:?} of {}", prompt.boundaries, prompt.text);
}

#[test]
fn a_conversation_is_rendered_a_few_times_whatever_its_length() {
    let n_renderings = |template: &str, messages: &[Value], with_tools| {
        let n = std::sync::atomic::AtomicUsize::new(0);
        let count = || n.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < usize::MAX;
        ChatTemplate::new(template).unwrap().render_while(&chat(messages, with_tools), &count).unwrap();
        n.into_inner()
    };
    let question = json!({"role": "user", "content": "question"});
    let (mut talk, mut work) = (vec![json!({"role": "system", "content": "s"})], Vec::new());
    for n_turns in 1..20 {
        talk.push(question.clone());
        for template in [POCKET, SMALL] {
            assert!(n_renderings(template, &talk, false) <= 8, "turn {n_turns}");
            assert!(n_renderings(template, &talk, true) <= 8, "turn {n_turns}, with tools");
        }
        talk.push(assistant("answer", "why", false));
        work.push(question.clone());
        for _ in 0..n_turns {
            work.extend([assistant("", "why", true), json!({"role": "tool", "content": "result"})]);
        }
        for template in [POCKET, SMALL] {
            let n = n_renderings(template, &work, true);
            assert!(n <= 11, "{n_turns} calls: {n}");
        }
        work.push(assistant("answer", "why", false));
    }
    // This one refuses what has no question, so that the end of the system message has to be found in another way.
    assert!(n_renderings(STRICT, &talk[..talk.len() - 1], false) <= 8);
}

#[test]
fn a_rendering_that_nobody_wants_is_given_up() {
    let messages = [json!({"role": "system", "content": "s"}), json!({"role": "user", "content": "0"})];
    for n_wanted in 0..4 {
        let n = std::sync::atomic::AtomicUsize::new(0);
        let wanted = || n.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < n_wanted;
        let given_up = ChatTemplate::new(POCKET).unwrap().render_while(&chat(&messages, false), &wanted);
        assert!(matches!(given_up, Err(text::template::TemplateError::GivenUp)), "{given_up:?}");
        assert_eq!(n.into_inner(), n_wanted + 1, "nothing is rendered after that");
    }
}

/// Questions, each with some tool calls and an answer.
fn conversation() -> impl Strategy<Value = Vec<Value>> {
    let words = || prop::sample::select(vec!["0", "a", " hi <b>\n", "<think>x</think>y", "\u{e9}\u{1F600}", "a\n\nb"]);
    let turn = (words(), prop::collection::vec(words(), 0..4), words(), words());
    (prop::option::of(words()), prop::collection::vec(turn, 1..4)).prop_map(|(system, turns)| {
        let mut messages: Vec<Value> = system.map(|s| json!({"role": "system", "content": s})).into_iter().collect();
        for (question, results, thought, text) in turns {
            messages.push(json!({"role": "user", "content": question}));
            for result in results {
                messages.push(assistant("", thought, true));
                messages.push(json!({"role": "tool", "content": result}));
                // Two calls at once.
                if result == "0" {
                    messages.push(json!({"role": "tool", "content": "second"}));
                }
            }
            messages.push(assistant(text, thought, false));
        }
        messages
    })
}

fn assistant(content: &str, thought: &str, calls: bool) -> Value {
    let call = json!({"type": "function", "function": {"name": "f", "arguments": {"s": content}}});
    let mut message = json!({"role": "assistant", "content": content, "reasoning_content": thought});
    if calls {
        message["tool_calls"] = json!([call]);
    }
    message
}

fn render(template: &ChatTemplate, messages: &[Value], with_tools: bool) -> Prompt {
    template.render(&chat(messages, with_tools)).unwrap()
}

fn chat(messages: &[Value], with_tools: bool) -> Chat {
    Chat {
        messages: messages.to_vec(),
        tools: with_tools.then(tool).into_iter().collect(),
        add_generation_prompt: true,
        ..Chat::default()
    }
}

fn tool() -> Value {
    json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"s": {"type": "string"}}}}})
}
