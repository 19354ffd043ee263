//! Templates and dialects together: what a reply was taken apart into renders as it was, and a prompt tells how its reply begins.

use proptest::prelude::*;
use serde_json::{Value, json};
use session::dialect::{ReplyOptions, ToolSchema};
use text::template::{Chat, ChatTemplate};

use super::support::*;

const POCKET: &str = include_str!("../../../text/tests/data/template_pocket.jinja");
const SMALL: &str = include_str!("../../../text/tests/data/template_small.jinja");

#[test]
fn a_reply_starts_in_reasoning_when_the_prompt_opens_it() {
    for source in [POCKET, SMALL] {
        let template = ChatTemplate::new(source).unwrap();
        let starts = |text: &str, prompt: bool, thinking: Option<bool>| {
            let mut chat = chat(&[json!({"role": "user", "content": text})]);
            chat.add_generation_prompt = prompt;
            chat.enable_thinking = thinking;
            world("qwen").dialect.starts_in_reasoning(&template.render(&chat).unwrap())
        };
        assert!(starts("x", true, None));
        assert!(starts("x", true, Some(true)));
        assert!(!starts("x", true, Some(false)));
        assert!(!starts("<think>", true, Some(false)));
        assert!(!starts("<think>", false, None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_reply_taken_apart_and_sent_back_renders_as_it_was(
        thought in "[a-z</>]{1,3}[a-z</>\n]{0,12}[a-z]", text in "([a-z<>][a-z <>\n]{0,12}[a-z])?",
        calls in prop::collection::vec("[a-z<>/\n ]{0,12}", 0..3), which in 0_usize..2,
    ) {
        prop_assume!(!text.is_empty() || !calls.is_empty());
        let template = ChatTemplate::new([POCKET, SMALL][which]).unwrap();
        let prompt = template.render(&chat(&[json!({"role": "user", "content": "x"})])).unwrap();
        prop_assert!(world("qwen").dialect.starts_in_reasoning(&prompt));
        let mut reply = format!("{thought}\n</think>\n\n{text}");
        for (i, value) in calls.iter().enumerate() {
            reply += if i > 0 { "\n" } else if text.is_empty() { "" } else { "\n\n" };
            reply += &format!("<tool_call>\n<function=f>\n<parameter=s>\n{value}\n</parameter>\n</function>\n</tool_call>");
        }
        let message = message_of(&reply);
        let chat = Chat { add_generation_prompt: false, ..chat(&[json!({"role": "user", "content": "x"}), message]) };
        prop_assert_eq!(template.render(&chat).unwrap().text, format!("{}{reply}<|im_end|>\n", prompt.text));
    }
}

fn message_of(reply: &str) -> Value {
    let tool_schemas = ToolSchema::from_tool(&tool()).into_iter().collect();
    let options = ReplyOptions {
        starts_in_reasoning: true,
        continues: false,
        reasoning: true,
        tools: true,
        forced: false,
        either: false,
        tool_schemas,
    };
    let Read { thought, text, calls } = read(&world("qwen").dialect, &options, reply);
    let calls: Vec<Value> = calls
        .iter()
        .map(|(name, arguments)| json!({"type": "function", "function": {"name": name, "arguments": arguments}}))
        .collect();
    json!({"role": "assistant", "content": text, "reasoning_content": thought, "tool_calls": calls})
}

fn chat(messages: &[Value]) -> Chat {
    Chat { messages: messages.to_vec(), tools: vec![tool()], add_generation_prompt: true, ..Chat::default() }
}

fn tool() -> Value {
    json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"s": {"type": "string"}}}}})
}
