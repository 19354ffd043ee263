//! What a template may not do, what it tells when it stops, and where the boundaries of a prompt are.

use serde_json::{Value, json};
use text::template::{Chat, ChatTemplate, Prompt, TemplateError};

const POCKET: &str = include_str!("data/template_pocket.jinja");

#[test]
fn hostile_templates_end_in_an_error() {
    let deep = format!("{}x{}", "(".repeat(5000), ")".repeat(5000));
    let folded = format!("{{{{ {} 'x' }}}}", "'x' * 99999999 ~ ".repeat(1000));
    for source in [
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{% set y = ns.x | string %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{% set y = ns.x ~ '' %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | join }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
        "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('x') }}",
        "{% macro m() %}{% for i in range(100000) %}{% for j in range(100000) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}{% endmacro %}{% set y = m() %}",
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
        "{% set x = 'x' * 100000 %}{% set y = x | replace('x', x) %}",
        "{% set x = 'x' * 100000 %}{% set y = x.replace('x', x) %}",
        "{% set x = 'x' * 100000 %}{% set y = x.replace('', x) %}",
        "{% set x = 'x' * 100000 %}{% set y = x.join(x) %}",
        "{% set x = 'x' * 100000 %}{% set y = x | join(x) %}",
        "{% set x = 'x' * 100000 %}{% set y = ('{0}' * 10000).format(x) %}",
        "{% set x = 'x' * 100000 %}{% set y = ('%s' * 10000) | format(x) %}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '%*d' | format(999999999, 1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ ('\n' * 100000) | indent(100000) }}",
        "{{ ('\n' * 100000) | indent(width=100000) }}",
        "{{ [[1]] | tojson(indent=99999999) }}",
        "{{ [1] | batch(99999999, 1) | list }}",
        "{{ [1] | slice(99999999) | list }}",
        "{{ ['x' * 1000000] * 100000 | sum }}",
        "{{ (['x' * 1000000] * 1000) | sum }}",
        "{{ 'x' * 999999999999 }}",
        "{{ [0] * 999999999 }}",
        "{% set x = 'x' * 1000000 %}{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + [x[1:]] %}{% endfor %}",
        "{% set x = 'x' * 1000000 %}{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + [x | upper] %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l, range(99999) | list] %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = {'a': ns.l} %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = ns.l, 1 %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = namespace(l=ns.l) %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [[[[[[[[[[ns.l]]]]]]]]]] %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(49000) %}{% set ns.l = {'a': ns.l} %}{% endfor %}{{ ns.l }}{{ 1 + 'x' }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(49000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l == [ns.l] }}{{ ns.l | tojson }}",
        "{% include 'chat' %}",
        "{{ debug() }}",
        &format!("{{{{ {deep} }}}}"),
        &folded,
        &"{% if true %}".repeat(20_000),
        &"{{".repeat(100_000),
        &"x".repeat(300_000),
        "{{ [1, 2",
        "{% for x in y %}",
        "{% set x = ) %}",
        "{{ x[1:2:3:4] }}",
        "{{ x[ }}{{ : ] }}",
        "{{ '",
        "{{ [][::0] }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{% set x = 'x' * 100000 %}{% set y = ('%s' * 10000) % ((x,) * 10000) %}",
        "{{ 'x'.center(999999999) }}",
        "{{ 'x'.zfill(999999999999) }}",
        "{% set x = ('\n' * 1000000).splitlines() %}{% for i in range(99) %}{% set x = x + x %}{% endfor %}{{ 1 + 'x' }}",
        "{{ [[1]] | tojson(indent='x' * 100000) }}",
        "{{ [1, 2] | tojson(separators=('x' * 100000, '')) }}",
        "{{ ('\n' * 100000) | indent('x' * 100000) }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(2000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set x = ('<' * 1000000) | e %}{% set ns = namespace(x=x) %}{% for i in range(99) %}{% set ns.x = ns.x + '<' + ns.x %}{% endfor %}",
        "{% set x = ('<' * 30000000) | e %}{{ 'a' | safe + x + x }}{{ 'a' | safe + '<' * 30000000 }}",
        "{{ [['x' * 1000000] * 100000] | sum(start=[]) | sum(start=[]) | tojson }}",
        "{% generation %}{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}{% endgeneration %}",
        "{% generation %}x",
        "{% endgeneration %}",
    ] {
        let error = match ChatTemplate::new(source) {
            Ok(template) => template.render(&chat(json!([]))).map(|p| p.text.len()),
            Err(error) => Err(error),
        };
        let start: String = source.chars().take(150).collect();
        let error = error.expect_err(&start).to_string();
        assert!(error.contains("template"), "{error}");
        assert!(error.len() < 1000, "{error}");
    }
}

#[test]
fn errors_name_the_line_and_the_words_of_the_template() {
    let source = "one\n{% if true %}\n  {{- raise_exception('no ' ~ messages[0].role) }}\n{% endif %}";
    let error = render(source, json!([{"role": "user", "content": "x"}])).unwrap_err();
    assert!(matches!(&error, TemplateError::Raised { line: 3, message } if message == "no user"), "{error:?}");
    let error = render("{# two\nlines #}\n{{ messages[0].a\n  .b.c }}", json!([{"role": "user"}])).unwrap_err();
    assert!(matches!(&error, TemplateError::Render { line: 3 | 4, .. }), "{error:?}");
    let error = render("\n\n{{ 1 + 'x' }}", json!([])).unwrap_err();
    assert!(error.to_string().contains("line 3: "), "{error}");
    assert!(error.to_string().contains("`+` between number and string"), "{error}");
    let error = ChatTemplate::new("a\n{% bad %}").unwrap_err();
    assert!(matches!(error, TemplateError::Syntax { line: 2, .. }), "{error:?}");
    let macro_error = "{% macro m() %}\n{{ raise_exception('inside') }}\n{% endmacro %}\n\n{{ m() }}";
    let error = render(macro_error, json!([])).unwrap_err();
    assert!(matches!(&error, TemplateError::Raised { line: 2, message } if message == "inside"), "{error:?}");
}

#[test]
fn unusable_messages_are_named_by_their_index() {
    let user = json!({"role": "user", "content": "x"});
    let call = |arguments: &str| {
        json!({"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "f", "arguments": arguments}}]})
    };
    for (message, detail) in [
        (call("{\"a\": "), "tool_calls[1].function.arguments: the string is not JSON"),
        (call("[1]"), "tool_calls[1].function.arguments: a JSON object expected, a list found"),
        (json!("x"), "an object with `role` and `content` expected, a string found"),
        (json!({"content": "x"}), "`role` has to be a string"),
    ] {
        let error = render(POCKET, json!([user, message])).unwrap_err().to_string();
        assert!(error.starts_with(&format!("messages[1]: {detail}")), "{error}");
    }
}

#[test]
fn arguments_as_text_and_reasoning_under_its_other_name_render_alike() {
    let with = |reasoning: &str, arguments: Value| {
        let call = json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
        let message = json!({"role": "assistant", "content": "", reasoning: "why", "tool_calls": [call]});
        render(POCKET, json!([{"role": "user", "content": "x"}, message])).unwrap().text
    };
    let object = with("reasoning_content", json!({"b": [1, 2.5], "a": "<&>"}));
    assert_eq!(object, with("reasoning", json!("{\"b\": [1,2.5], \"a\":\"<&>\"}")));
    assert!(object.contains(
        "why\n</think>\n\n<tool_call>\n<function=f>\n<parameter=b>\n[1, 2.5]\n</parameter>\n<parameter=a>\n<&>\n"
    ));
    assert_eq!(with("reasoning", json!("")), with("reasoning", json!({})));
}

#[test]
fn special_tokens_and_extra_variables_reach_the_template() {
    let template =
        ChatTemplate::new("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}|{{ effort }}|{{ x is defined }}");
    let template = template.unwrap().with_special_tokens([("bos_token".into(), "<s>".into())]);
    let mut chat = chat(json!([{"role": "user", "content": "hi"}]));
    chat.kwargs.insert("effort".into(), json!("low"));
    chat.kwargs.insert("messages".into(), json!("not these"));
    assert_eq!(template.render(&chat).unwrap().text, "<s>hi|low|False");
    let year = ChatTemplate::new("{{ strftime_now('%Y') }}").unwrap().render(&chat).unwrap().text;
    assert!((2024..2500).contains(&year.parse::<u32>().unwrap()), "{year}");
}

#[test]
fn messages_are_handed_over_as_transformers_does() {
    let show = "{% for m in messages %}{{ m.keys() | list | tojson }}{{ m.thinking }}{{ m.reasoning_content }};{% endfor %}\
        {{ documents is none }} {{ tools is none }}";
    let messages = json!([
        {"role": "user", "content": null, "name": null},
        {"role": "assistant", "content": "x", "thinking": "hm", "tool_calls": null},
        {"role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b"}
    ]);
    assert_eq!(
        render(show, messages).unwrap().text,
        "[\"role\"];[\"role\", \"content\", \"thinking\", \"reasoning_content\"]hmhm;\
         [\"role\", \"content\", \"reasoning\", \"reasoning_content\", \"thinking\"]bb;True True"
    );
}

#[test]
fn arguments_have_the_form_that_the_template_reads() {
    let call = |arguments: Value| {
        let call = json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
        json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}])
    };
    let with = |part: &str| {
        format!("{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{part}{{% endfor %}}{{% endfor %}}")
    };
    let (object, text) = (json!({"a": [1, "\u{e9}"]}), json!("{\"a\":[1,\"\u{e9}\"]}"));
    for (part, of_object, of_text) in [
        ("{{ c.function.arguments | tojson }}", r#"{"a": [1, "é"]}"#, r#"{"a": [1, "é"]}"#),
        // It adds texts: an object is refused.
        ("{{ '<' + c.function.arguments + '>' }}", r#"<{"a": [1, "é"]}>"#, r#"<{"a":[1,"é"]}>"#),
        // Python would print an object as no model reads it.
        ("<{{ c.function.arguments }}>", r#"<{"a": [1, "é"]}>"#, r#"<{"a":[1,"é"]}>"#),
        ("{{ c.function.arguments if c.function.arguments is string else 'object' }}", "object", "object"),
    ] {
        assert_eq!(render(&with(part), call(object.clone())).unwrap().text, of_object, "{part}");
        assert_eq!(render(&with(part), call(text.clone())).unwrap().text, of_text, "{part}");
    }
    let looping = render(&with("{{ '<' + c.function.arguments + '>' }}"), call(json!(" "))).unwrap();
    assert_eq!(looping.text, "<{}>");
}

#[test]
fn contents_have_the_form_that_the_template_reads() {
    let part = |text: &str| json!({"type": "text", "text": text});
    let messages = json!([{"role": "user", "content": [part("a"), part("b")]}]);
    for (source, expected) in [
        ("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}", "<ab>"),
        ("{% for m in messages %}<{{ m.content }}>{% endfor %}", "<ab>"),
        ("{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}", "<a><b>"),
        (
            "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{{ m.content | map(attribute='text') | join('+') }}\
             {% endif %}{% endfor %}",
            "a+b",
        ),
    ] {
        assert_eq!(render(source, messages.clone()).unwrap().text, expected, "{source}");
    }
    // Clients leave out the content of a message with calls; some templates look for null, others add to it.
    let call = json!({"type": "function", "function": {"name": "f", "arguments": {}}});
    let messages =
        json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "tool_calls": [call]}]);
    for (source, expected) in [
        (
            "{% for m in messages %}{{ m.content if m.content is not none else '<call>' }}{{ 1 + 'x' if m.content is undefined }}{% endfor %}",
            "x<call>",
        ),
        ("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}", "<x><>"),
        ("{% for m in messages %}<{{ m.content }}>{% endfor %}", "<x><>"),
    ] {
        assert_eq!(render(source, messages.clone()).unwrap().text, expected, "{source}");
    }
    let error = render("{% for m in messages %}{{ '<' + m.content + m.nothing }}{% endfor %}", messages).unwrap_err();
    assert!(error.to_string().contains("`+` between string and undefined"), "{error}");
}

#[test]
fn the_template_for_tools_takes_its_place_when_there_are_tools() {
    let template = ChatTemplate::new("plain").unwrap().with_tool_use("{{ tools | length }} tools").unwrap();
    let mut chat = chat(json!([{"role": "user", "content": "x"}]));
    assert_eq!(template.render(&chat).unwrap().text, "plain");
    chat.tools.push(json!({"type": "function", "function": {"name": "f"}}));
    assert_eq!(template.render(&chat).unwrap().text, "1 tools");
    let error = ChatTemplate::new("plain").unwrap().with_tool_use("{% if %}").unwrap_err();
    assert!(matches!(error, TemplateError::Syntax { line: 1, .. }), "{error:?}");
}

fn render(source: &str, messages: Value) -> Result<Prompt, TemplateError> {
    ChatTemplate::new(source)?.render(&chat(messages))
}

fn chat(messages: Value) -> Chat {
    Chat { messages: messages.as_array().unwrap().clone(), add_generation_prompt: true, ..Chat::default() }
}
