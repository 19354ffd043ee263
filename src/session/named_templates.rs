//! The chat templates that llama.cpp knows by name, for `--chat-template`: a row says what stands around the texts of each role.
//! Owns the rows and the Jinja that is made of them. Knows no model.

use crate::template::CHATML;

/// The source of the template of this name.
pub fn named_template(name: &str) -> Option<String> {
    match name {
        "chatml" => Some(CHATML.to_owned()),
        name => ROWS.iter().find(|row| row.name == name).map(Row::source),
    }
}

/// All names.
pub fn template_names() -> impl Iterator<Item = &'static str> {
    std::iter::once("chatml").chain(ROWS.iter().map(|row| row.name))
}

/// What stands before a text, and after it.
type Around = (&'static str, &'static str);

/// A form of conversations without tools and thinking.
struct Row {
    name: &'static str,
    system: System,
    user: Around,
    assistant: Around,
    /// What a reply begins with.
    opening: &'static str,
    /// Blanks at the ends of texts are left out.
    trims: bool,
}

/// Where the text of a system message goes.
enum System {
    /// A turn of its own.
    Turn(Around),
    /// Into the user's next turn, before its text.
    Within(Around),
}
use System::{Turn, Within};

impl Row {
    fn source(&self) -> String {
        let text = if self.trims { "(message.content | trim)" } else { "message.content" };
        let around = |(before, after): Around, text: &str| format!("{} + {text} + {}", quoted(before), quoted(after));
        let (system, within) = match self.system {
            Turn(turn) => (format!("{{{{ {} }}}}", around(turn, text)), String::new()),
            Within(turn) => {
                let held = format!("{{% set held.text = held.text + {} %}}", around(turn, text));
                (held, " + held.text".to_owned())
            }
        };
        let user = format!("{}{within} + {text} + {}", quoted(self.user.0), quoted(self.user.1));
        let assistant = around(self.assistant, text);
        let opening = quoted(self.opening);
        format!(
            "{{% set held = namespace(text='') %}}{{% for message in messages %}}\
             {{% if message.role == 'system' %}}{system}\
             {{% elif message.role == 'assistant' %}}{{{{ {assistant} }}}}\
             {{% else %}}{{{{ {user} }}}}{{% set held.text = '' %}}{{% endif %}}\
             {{% endfor %}}{{% if add_generation_prompt %}}{{{{ {opening} }}}}{{% endif %}}"
        )
    }
}

/// As a text of Jinja.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n"))
}

const fn row(
    name: &'static str,
    system: System,
    user: Around,
    assistant: Around,
    opening: &'static str,
    trims: bool,
) -> Row {
    Row { name, system, user, assistant, opening, trims }
}

#[rustfmt::skip]
const ROWS: [Row; 36] = [
    row("llama2", Within(("", "\n")), ("[INST] ", " [/INST]"), ("", "</s>"), "", false),
    row("llama2-sys", Within(("<<SYS>>\n", "\n<</SYS>>\n\n")), ("[INST] ", " [/INST]"), ("", "</s>"), "", false),
    row("llama2-sys-strip", Within(("<<SYS>>\n", "\n<</SYS>>\n\n")), ("[INST] ", " [/INST]"), ("", "</s>"), "", true),
    row("mistral-v1", Within(("", "\n\n")), (" [INST] ", " [/INST]"), (" ", "</s>"), "", false),
    row("mistral-v3", Within(("", "\n\n")), ("[INST] ", "[/INST]"), (" ", "</s>"), "", false),
    row("mistral-v3-tekken", Within(("", "\n\n")), ("[INST]", "[/INST]"), ("", "</s>"), "", false),
    row("mistral-v7", Turn(("[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]")), ("[INST] ", "[/INST]"), (" ", "</s>"), "", false),
    row("mistral-v7-tekken", Turn(("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")), ("[INST]", "[/INST]"), ("", "</s>"), "", false),
    row("phi3", Turn(("<|system|>\n", "<|end|>\n")), ("<|user|>\n", "<|end|>\n"), ("<|assistant|>\n", "<|end|>\n"), "<|assistant|>\n", false),
    row("phi4", Turn(("<|im_start|>system<|im_sep|>", "<|im_end|>")), ("<|im_start|>user<|im_sep|>", "<|im_end|>"), ("<|im_start|>assistant<|im_sep|>", "<|im_end|>"), "<|im_start|>assistant<|im_sep|>", false),
    row("falcon3", Turn(("<|system|>\n", "\n")), ("<|user|>\n", "\n"), ("<|assistant|>\n", "\n"), "<|assistant|>\n", false),
    row("zephyr", Turn(("<|system|>\n", "<|endoftext|>\n")), ("<|user|>\n", "<|endoftext|>\n"), ("<|assistant|>\n", "<|endoftext|>\n"), "<|assistant|>\n", false),
    row("gemma", Within(("", "\n\n")), ("<start_of_turn>user\n", "<end_of_turn>\n"), ("<start_of_turn>model\n", "<end_of_turn>\n"), "<start_of_turn>model\n", true),
    row("orion", Within(("", "\n\n")), ("Human: ", "\n\nAssistant: </s>"), ("", "</s>"), "", false),
    row("openchat", Turn(("", "<|end_of_turn|>")), ("GPT4 Correct User: ", "<|end_of_turn|>"), ("GPT4 Correct Assistant: ", "<|end_of_turn|>"), "GPT4 Correct Assistant:", false),
    row("vicuna", Turn(("", "\n\n")), ("USER: ", "\n"), ("ASSISTANT: ", "</s>\n"), "ASSISTANT:", false),
    row("vicuna-orca", Turn(("SYSTEM: ", "\n")), ("USER: ", "\n"), ("ASSISTANT: ", "</s>\n"), "ASSISTANT:", false),
    row("deepseek", Turn(("", "")), ("### Instruction:\n", "\n"), ("### Response:\n", "\n<|EOT|>\n"), "### Response:\n", false),
    row("deepseek2", Turn(("", "\n\n")), ("User: ", "\n\n"), ("Assistant: ", "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>"), "Assistant:", false),
    row("deepseek3", Turn(("", "\n\n")), ("<\u{ff5c}User\u{ff5c}>", ""), ("<\u{ff5c}Assistant\u{ff5c}>", "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>"), "<\u{ff5c}Assistant\u{ff5c}>", false),
    row("command-r", Turn(("<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>")), ("<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"), ("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"), "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", true),
    row("llama3", Turn(("<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>")), ("<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"), ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"), "<|start_header_id|>assistant<|end_header_id|>\n\n", true),
    row("llama4", Turn(("<|header_start|>system<|header_end|>\n\n", "<|eot|>")), ("<|header_start|>user<|header_end|>\n\n", "<|eot|>"), ("<|header_start|>assistant<|header_end|>\n\n", "<|eot|>"), "<|header_start|>assistant<|header_end|>\n\n", true),
    row("chatglm4", Turn(("<|system|>\n", "")), ("<|user|>\n", ""), ("<|assistant|>\n", ""), "<|assistant|>\n", false),
    row("glmedge", Turn(("<|system|>\n", "")), ("<|user|>\n", ""), ("<|assistant|>\n", ""), "<|assistant|>", false),
    row("minicpm", Turn(("", "")), ("<\u{7528}\u{6237}>", "<AI>"), ("", ""), "", true),
    row("exaone3", Turn(("[|system|]", "[|endofturn|]\n")), ("[|user|]", "\n"), ("[|assistant|]", "[|endofturn|]\n"), "[|assistant|]", true),
    row("exaone4", Turn(("[|system|]", "[|endofturn|]\n")), ("[|user|]", "\n"), ("[|assistant|]", "[|endofturn|]\n"), "[|assistant|]", true),
    row("exaone-moe", Turn(("<|system|>\n", "<|endofturn|>\n")), ("<|user|>\n", "<|endofturn|>\n"), ("<|assistant|>\n", "<|endofturn|>\n"), "<|assistant|>\n", true),
    row("granite", Turn(("<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n")), ("<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"), ("<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"), "<|start_of_role|>assistant<|end_of_role|>", false),
    row("granite-4.0", Turn(("<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n")), ("<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"), ("<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"), "<|start_of_role|>assistant<|end_of_role|>", false),
    row("megrez", Turn(("<|role_start|>system<|role_end|>", "<|turn_end|>")), ("<|role_start|>user<|role_end|>", "<|turn_end|>"), ("<|role_start|>assistant<|role_end|>", "<|turn_end|>"), "<|role_start|>assistant<|role_end|>", false),
    row("bailing", Turn(("<role>SYSTEM</role>", "")), ("<role>HUMAN</role>", ""), ("<role>ASSISTANT</role>", ""), "<role>ASSISTANT</role>", false),
    row("gpt-oss", Turn(("<|start|>system<|message|>", "<|end|>")), ("<|start|>user<|message|>", "<|end|>"), ("<|start|>assistant<|message|>", "<|return|>"), "<|start|>assistant", false),
    row("kimi-k2", Turn(("<|im_system|>system<|im_middle|>", "<|im_end|>")), ("<|im_user|>user<|im_middle|>", "<|im_end|>"), ("<|im_assistant|>assistant<|im_middle|>", "<|im_end|>"), "<|im_assistant|>assistant<|im_middle|>", false),
    row("seed_oss", Turn(("<seed:bos>system\n", "<seed:eos>")), ("<seed:bos>user\n", "<seed:eos>"), ("<seed:bos>assistant\n", "<seed:eos>"), "<seed:bos>assistant\n", false),
];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use text::template::{Chat, ChatTemplate};

    fn rendered(name: &str, messages: Value) -> String {
        let template =
            ChatTemplate::new(&named_template(name).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let messages = messages.as_array().unwrap().clone();
        template.render(&Chat { messages, add_generation_prompt: true, ..Chat::default() }).unwrap().text
    }

    #[test]
    fn a_name_is_its_form_of_a_conversation() {
        let talk = json!([
            { "role": "system", "content": "Be kind." }, { "role": "user", "content": " Hi" },
            { "role": "assistant", "content": "Yes?" }, { "role": "user", "content": "It's late" }
        ]);
        for (name, expected) in [
            (
                "chatml",
                "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n\
                 <|im_start|>user\nIt's late<|im_end|>\n<|im_start|>assistant\n",
            ),
            ("mistral-v3", "[INST] Be kind.\n\n Hi[/INST] Yes?</s>[INST] It's late[/INST]"),
            ("llama2-sys", "[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\n Hi [/INST]Yes?</s>[INST] It's late [/INST]"),
            (
                "gemma",
                "<start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n<start_of_turn>model\nYes?<end_of_turn>\n\
                 <start_of_turn>user\nIt's late<end_of_turn>\n<start_of_turn>model\n",
            ),
            (
                "llama3",
                "<|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n\
                 It's late<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            ("vicuna", "Be kind.\n\nUSER:  Hi\nASSISTANT: Yes?</s>\nUSER: It's late\nASSISTANT:"),
        ] {
            assert_eq!(rendered(name, talk.clone()), expected, "{name}");
        }
    }

    #[test]
    fn every_name_renders_every_text_once_and_in_order() {
        let talk = json!([
            { "role": "system", "content": "first" }, { "role": "user", "content": "second" },
            { "role": "assistant", "content": "third" }, { "role": "user", "content": "fourth" }
        ]);
        for name in template_names() {
            let text = rendered(name, talk.clone());
            let at = ["first", "second", "third", "fourth"].map(|word| text.find(word));
            assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{name}: {text}");
            assert_eq!(text.matches("first").count(), 1, "{name}: {text}");
        }
        assert_eq!(named_template("llama"), None);
    }
}
