#!/usr/bin/env python3
"""Renders conversations with Python's Jinja, set up as transformers does, as goldens for src/text.

    pip install jinja2==3.1.6
    scripts/chat_goldens.py src/text/tests/data/template_pocket.jinja src/text/tests/data/template_pocket.chats.json.z

The output is JSON, packed by zlib. Each chat of it has the input of a rendering and either `text` or `error` (the template's own message).

    scripts/chat_goldens.py src/text/tests/data/template_traits.jinja src/text/tests/data/template_traits.json --lines

takes every line of the first file for a template of its own, and renders one conversation with each.
"""
import datetime
import json
import sys
import zlib

import jinja2
import jinja2.nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city: <b>\"now\"</b> & later",
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1},
                          "wind": {"type": "boolean"}}, "required": ["city"]}}}
WRITE = {"type": "function", "function": {"name": "write_file", "parameters": {"type": "object", "properties": {
    "path": {"type": "string"}, "text": {"type": "string"}, "modes": {"type": "array", "items": {"type": "string"}},
    "limits": {"type": "object"}, "ratio": {"type": "number"}, "none": {"type": "null"}}}}}
ODD = {"type": "function", "function": {"name": "odd-name_1.x", "description": "snowman \u2603, 'quotes', back\\slash, tab\t, \u0001, \u2028",
       "parameters": {"type": "object", "properties": {"a": {"type": ["string", "null"], "default": None},
                      "big": {"type": "number", "maximum": 1e300, "minimum": -1e-7, "multipleOf": 0.1},
                      "n": {"enum": [1, 1.0, 1e16, 123456789012345678, -0.0, True, None, 1e15, 0.0001, 0.00001]}}}}}


def user(content): return {"role": "user", "content": content}
def system(content): return {"role": "system", "content": content}
def tool(content): return {"role": "tool", "content": content}
def call(name, arguments): return {"type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(content, reasoning=None, calls=None):
    message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls is not None:
        message["tool_calls"] = calls
    return message


def conversations():
    q, a = user("What is 2+2?"), assistant("4.", "easy")
    for thinking in (None, True, False):
        for prompt in (True, False):
            yield dict(messages=[q], enable_thinking=thinking, add_generation_prompt=prompt)
            yield dict(messages=[system("Be brief."), q, a, user("And 3+3?")], enable_thinking=thinking, add_generation_prompt=prompt)
    yield dict(messages=[system("  \n\u00a0Be brief.\u3000\n\x1f "), user("\u2003 spaces \x1c\n"), assistant(" \u2028x\u2029 ", "\u00a0r\u00a0")])
    yield dict(messages=[system(""), user("")])
    yield dict(messages=[system(""), user("hi")], tools=[WEATHER])
    yield dict(messages=[q, a])
    yield dict(messages=[q, assistant("4.")])
    yield dict(messages=[q, assistant("<think>\nhm\n</think>\n\n4."), user("thanks")])
    yield dict(messages=[q, assistant("<think>\nhm\n</think>\n\n4.")])
    yield dict(messages=[q, assistant("a </think> b </think> c"), user("x"), assistant("a </think> b </think> c")])
    yield dict(messages=[q, assistant("4.", "two\n\nparagraphs\n"), user("why?"), assistant("Because.", ""), user("ok")])
    yield dict(messages=[user([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]), assistant([{"type": "text", "text": "three"}])])
    yield dict(messages=[user([{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "see"}])])
    yield dict(messages=[user(None)])
    yield dict(messages=[q, assistant(None, None, [call("get_weather", {"city": "Paris"})])], tools=[WEATHER])
    yield dict(messages=[user("<tool_response>\nx\n</tool_response>"), q, a])
    yield dict(messages=[q, a, user("<tool_response>\nx\n</tool_response>"), assistant("y", "z")])
    yield dict(messages=[user("<|im_start|> & <b> 'q' \"d\" {{ x }} {% y %} {# z #}")])
    yield dict(messages=[user("\u00e9\U0001f600 e\u0301 \u05d0\u200f")], tools=[ODD])
    yield dict(messages=[user("x")], tools=[WEATHER, WRITE, ODD])
    yield dict(messages=[system("Use tools."), user("x")], tools=[WRITE])
    one = assistant("", "need it", [call("get_weather", {"city": "Paris", "days": 2, "wind": True})])
    yield dict(messages=[q, one], tools=[WEATHER])
    yield dict(messages=[q, one, tool("{\"t\": 21}")], tools=[WEATHER])
    yield dict(messages=[q, one, tool("{\"t\": 21}"), assistant("21 degrees.", "done")], tools=[WEATHER])
    yield dict(messages=[q, one, tool("{\"t\": 21}"), assistant("21 degrees.", "done"), user("And Rome?")], tools=[WEATHER])
    two = assistant("Let me see.", None, [call("get_weather", {"city": "Paris"}), call("get_weather", {"city": "Rome"})])
    yield dict(messages=[q, two, tool("1"), tool(" 2 ")], tools=[WEATHER])
    yield dict(messages=[q, two, tool("1"), tool("2"), two, tool("3"), tool("4"), assistant("x", "y"), user("z")], tools=[WEATHER])
    three = assistant(" text ", "r", [call("write_file", {"path": "a/b.c", "text": "int main() {\n  return '<' & 1;\n}\n", "modes": ["r", "w<>"],
                      "limits": {"a": 1, "b": [1.5, None, True], "c": {}}, "ratio": 1e-7, "none": None})])
    yield dict(messages=[q, three, tool([{"type": "text", "text": "ok"}])], tools=[WRITE])
    yield dict(messages=[q, assistant("", None, [call("odd-name_1.x", {"n": n}) for n in
               (0, -1, 1.0, 1e16, 1e15, 0.1, 1e-5, 0.0001, 123456789012345678, 1.7976931348623157e308, True, False, None, [], {}, "", " s ",
                "</parameter>", [[1], {"k": "<&>'\""}], "\u00e9\u2028")])], tools=[ODD])
    yield dict(messages=[q, assistant("", None, [call("f", {})])])
    yield dict(messages=[q, assistant("", None, [{"name": "f", "arguments": {"x": 1}}])])
    yield dict(messages=[q, assistant("x", None, [])])
    yield dict(messages=[tool("alone")])
    yield dict(messages=[q, tool("1"), user("x"), tool("2")])
    # Errors.
    yield dict(messages=[])
    yield dict(messages=[q, system("late")])
    yield dict(messages=[{"role": "developer", "content": "x"}])
    yield dict(messages=[q, {"role": "function", "content": "x"}])
    yield dict(messages=[system("only")])
    yield dict(messages=[system("only")], tools=[WEATHER])
    yield dict(messages=[], tools=[WEATHER])


class Generation(Extension):
    """transformers' `{% generation %}` marks the assistant's part; it renders its body, in a scope of its own."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now(datetime.timezone.utc).strftime(form)
    return env


def lines(source, target):
    """Every line is a template."""
    messages = [user("Hi\nyou"), assistant("4.")]
    variables = dict(messages=messages, tools=None, documents=None, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    rows = []
    for line in open(source, encoding="utf-8").read().rstrip("\n").split("\n"):
        try:
            rows.append({"text": environment().from_string(line).render(**variables)})
        except Exception as error:  # Whatever Python has against it.
            rows.append({"error": f"{type(error).__name__}: {error}"})
    with open(target, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows) + "\n]\n")
    print(f"{len(rows)} lines, {sum('error' in row for row in rows)} of them refused")


def main():
    if sys.argv[3:] == ["--lines"]:
        return lines(*sys.argv[1:3])
    source, target = sys.argv[1:]
    template = environment().from_string(open(source, encoding="utf-8").read())
    chats = []
    for chat in conversations():
        chat.setdefault("add_generation_prompt", True)
        variables = dict(chat, tools=chat.get("tools"), documents=None)
        if chat.get("enable_thinking") is None:
            chat.pop("enable_thinking", None)
            variables.pop("enable_thinking", None)
        try:
            chat["text"] = template.render(**variables)
        except jinja2.exceptions.TemplateError as error:
            chat["error"] = str(error)
        chats.append(chat)
    text = "[\n" + ",\n".join(json.dumps(chat, ensure_ascii=False, separators=(",", ":")) for chat in chats) + "\n]\n"
    with open(target, "wb") as file:
        file.write(zlib.compress(text.encode(), 9))
    print(f"{len(chats)} chats, {sum('error' in c for c in chats)} of them refused by the template")


if __name__ == "__main__":
    main()
