#!/usr/bin/env python3
"""Compares what our reply parser reads with what llama.cpp's tests/test-chat.cpp expects, and writes docs/measurements/replies.md.

    scripts/published/llamacpp.sh FOLDER
    scripts/published/replies.py FOLDER [--table FILE] [--show [WORD]]

Takes the cases out of the C++ source (a template, options, a reply, the message expected), gives each to
`cargo run -p nextn-session --example parse_reply`, whole and in single characters, and compares as that test does: contents and
reasoning without the spaces at their ends, arguments as JSON. `--show` prints every difference instead, or those of templates with
WORD in their name.
"""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys

import cxx_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path, default=ROOT / "docs/measurements/replies.md")
    parser.add_argument("--show", nargs="?", const="")
    args = parser.parse_args()
    llama = args.folder / "llama.cpp"
    cases, unread = cxx_cases.cases_of(llama / "tests/test-chat.cpp")
    for case, got in zip(cases, ours(cases, llama / "models/templates"), strict=True):
        case["got"] = got
        case["why"] = difference(case)
    if args.show is not None:
        return show(cases, args.show)
    package = next((path.name for path in args.folder.glob("llama_cpp_python-*") if path.is_dir()), "an unknown version")
    args.table.write_text(table(cases, unread, f"{datetime.date.today():%d %B %Y}, llama.cpp of {package}"))


def ours(cases, templates):
    """What our parser makes of the cases."""
    lines = []
    for case in cases:
        messages = [
            {"role": m["role"] or "user", "content": m["content"],
             **({"reasoning_content": m["reasoning"]} if m["reasoning"] else {}),
             **({"tool_calls": [call_of(c) for c in m["calls"]]} if m["calls"] else {})}
            for m in case["messages"]]
        kind = case.get("continue_final_message", "")
        request = {
            "template": str(templates / case["template"]), "reply": case["reply"], "tools": [tool_of(t) for t in case["tools"]],
            "messages": messages or [{"role": "user", "content": "Hey there!"}], "enable_thinking": case["enable_thinking"],
            "add_generation_prompt": case["add_generation_prompt"], "reasoning": not case["reasoning_format"].endswith("NONE")}
        if kind:
            request |= {"in_reasoning": kind.endswith("REASONING"), "continues": True}
        lines.append(json.dumps(request))
    command = ["cargo", "run", "-q", "-p", "nextn-session", "--example", "parse_reply"]
    run = subprocess.run(command, input="\n".join(lines), text=True, stdout=subprocess.PIPE, cwd=ROOT, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def tool_of(tool):
    return {"type": "function", "function": {**tool, "parameters": json.loads(tool["parameters"] or "{}")}}


def call_of(call):
    return {"type": "function", "id": call[2], "function": {"name": call[0], "arguments": json.loads(call[1] or "{}")}}


def difference(case):
    """What differs; empty where nothing does."""
    got, expected = case["got"], case["expect"]
    content, reasoning = got["content"], got["reasoning"]
    kind = case.get("continue_final_message", "")
    if kind:
        # Their parser reads the message from its beginning, ours what is new of it.
        last = case["messages"][-1]
        reads = not case["reasoning_format"].endswith("NONE")
        reasoning = last["reasoning"] + reasoning if reads else reasoning
        content = last["content"] + content
    parts = []
    if content.strip() != expected["content"].strip():
        parts.append("content")
    if reasoning.strip() != expected["reasoning"].strip():
        parts.append("reasoning")
    if [(name, parsed(json_text)) for name, json_text in got["calls"]] != [(c[0], parsed(c[1])) for c in expected["calls"]]:
        parts.append("calls")
    if not got["cut_alike"]:
        parts.append("CUTS")
    return ", ".join(parts)


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def show(cases, word):
    n = 0
    for case in cases:
        if case["why"] and not case["partial"] and word in case["template"]:
            n += 1
            print(f"== {case['template']}:{case['line']} ({case['got']['family']}) {case['why']}"
                  f" thinking={case['enable_thinking']} {case['reasoning_format'].rsplit('_', 1)[1]} tools={[t['name'] for t in case['tools']]}"
                  f" {case.get('continue_final_message', '')}")
            print("  reply   ", json.dumps(case["reply"], ensure_ascii=False))
            expected = {"content": case["expect"]["content"], "reasoning": case["expect"]["reasoning"], "calls": [c[:2] for c in case["expect"]["calls"]]}
            print("  expected", json.dumps(expected, ensure_ascii=False))
            print("  ours    ", json.dumps(case["got"], ensure_ascii=False))
    whole = [c for c in cases if not c["partial"]]
    print(f"{n} differ of those shown; in all {sum(not c['why'] for c in whole)} of {len(whole)} are equal")


# Why a case differs: the template (its beginning) and, where that is not enough, a text of the reply or a reasoning format.
REASONS = [
    ("", "COMMON_REASONING_FORMAT_NONE", "</think>", "Their text begins with the tag that the prompt opened; ours has what the model wrote."),
    ("Cohere2MoE", "COMMON_REASONING_FORMAT_NONE", "", "Their text begins with the tag that the prompt opened; ours has what the model wrote."),
    ("Qwen3.5", "", "<think>\n\n</think>", "The model repeats the tag that the prompt opened: theirs keeps it as reasoning, ours drops it."),
    ("mistralai-Ministral", "", "```json", "Theirs takes a fence off a reply with a schema; our grammar lets none be written."),
    ("meta-llama", "", "```json", "Theirs takes a fence off a reply with a schema; our grammar lets none be written."),
    ("moonshotai-Kimi-K2", "", "</think>", "The template shows no tags of reasoning, so there is none to go on with."),
    ("MiniMax-M3", "", "invoke", "Its calls nest tags named after parameters: not read, they stay text."),
    ("meetkai-functionary-medium-v3.2", "", "", "Its messages begin with a bare name and a line break: not read."),
    ("Apriel-1.6", "", "", "Theirs counts the sentence of the prompt that opens the reasoning as reasoning."),
    ("openbmb-MiniCPM5", "", "CDATA", "Theirs takes `<![CDATA[` off a value; ours keeps it."),
]


def reason(case):
    """Why it differs, in words."""
    for template, reasoning_format, text, words in REASONS:
        if case["template"].startswith(template) and reasoning_format in case["reasoning_format"] and text in case["reply"]:
            return words
    if case["got"]["unrendered"]:
        return "The template does not render here: " + case["got"]["unrendered"]
    return "No reason known."


def table(cases, unread, when):
    rows, whole = {}, [case for case in cases if not case["partial"]]
    for case in cases:
        rows.setdefault(case["template"], []).append(case)
    n_equal = sum(not case["why"] for case in whole)
    lines = [
        "# Replies: llama.cpp's expectations and ours", "",
        f"{n_equal} of {len(whole)} whole replies ({100 * n_equal / len(whole):.1f} %) are read as `tests/test-chat.cpp` of llama.cpp expects: content, "
        "reasoning, names and arguments of calls. Each comes out alike in single characters and at once."
        if all(case["got"]["cut_alike"] for case in cases) else "CUTS DIFFER", "",
        f"{when}.", "", "```sh", "scripts/published/llamacpp.sh FOLDER", "scripts/published/replies.py FOLDER", "```", "",
        f"The source of that test has {len(cases) + len(unread)} cases, of which the script reads {len(cases)}; "
        f"{len(cases) - len(whole)} are replies that are not over and are left out. Compared as that test does: contents and reasoning "
        "without spaces at their ends, arguments as JSON. Ids of calls are not compared: here the interface makes them.", "",
        "| Template | family | cases | equal | different |", "| --- | --- | ---: | ---: | ---: |"]
    differing = []
    for template, of in sorted(rows.items()):
        of = [case for case in of if not case["partial"]]
        n = sum(not case["why"] for case in of)
        lines.append(f"| {template.removesuffix('.jinja')} | `{of[0]['got']['family']}` | {len(of)} | {n} | {len(of) - n or ''} |")
        differing += [case for case in of if case["why"]]
    lines += ["", "## Differences", "", "| Template, line of the case | what differs | why |", "| --- | --- | --- |"]
    groups = {}
    for case in differing:
        groups.setdefault((case["template"], case["why"], reason(case)), []).append(str(case["line"]))
    for (template, what, why), at in groups.items():
        lines.append(f"| {template.removesuffix('.jinja')}: {', '.join(at)} | {what} | {why} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
