//! Muse: replies are messages to somebody; a message to a function holds the call between tags.

use super::family::{Arguments, BASE, Calls, Family, Form, Messages, Reasoning, Tagged};

pub(super) const FAMILY: Family = Family {
    name: "muse",
    signs: &[&["<atem:function_calls>"], &["<|eom|>", "<|message|>"]],
    reasoning: Reasoning {
        open: " to=self<|message|>",
        token: " to=self<|message|>",
        close: "<|eom|>",
        shown_by: "to=self",
        around: ["", "<|start|>assistant to=user<|message|>"],
    },
    messages: Some(Messages {
        start: "<|start|>assistant",
        channel: "",
        recipient: " to=",
        body: "<|message|>",
        ends: &["<|eom|>", "<|eot|>"],
        reasoning: "self",
        user: "user",
        functions: "",
    }),
    calls: Some(Calls {
        forms: &[Form {
            // Calls cannot be forced: the header of their message names the function too.
            shown_by: &["\0"],
            opening: "<atem:function_calls>",
            first: "",
            before: "\n<atem:invoke name=\"",
            after: "\">\n",
            arguments: Arguments::Tagged(Tagged {
                open: "<atem:parameter name=\"",
                named: "\">",
                types: ("", &[]),
                value: "",
                close: "</atem:parameter>",
                end: Some("</atem:invoke>"),
                gap: "\n",
                own_lines: false,
            }),
            end: "</atem:invoke>",
            between: Some(""),
            closing: "\n</atem:function_calls>",
        }],
        openings: &[],
        unopened: false,
        end_reasoning: false,
        skips: &["</atem:function_calls>"],
        ends: &["<|eot|>", "<|eom|>"],
    }),
    ..BASE
};
