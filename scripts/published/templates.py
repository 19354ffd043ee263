#!/usr/bin/env python3
"""Compares how our templates render with transformers' own apply_chat_template, on llama.cpp's collection of published templates.

    scripts/published/llamacpp.sh FOLDER --torch
    cargo build -p nextn-text --example render_template
    cargo build -p nextn-session --example template_dialect
    FOLDER/venv/bin/python scripts/published/templates.py FOLDER [--write docs/measurements/templates.md] [--show TEMPLATE] [--target DIR]

FOLDER/llama.cpp/models/templates/*.jinja are rendered with the conversations of template_cases.py. --show prints the differences of the
templates whose name holds this text. Without --write only the sums are printed.
"""
import argparse
import copy
import itertools
import json
import os
import pathlib
import subprocess
import sys

os.environ["TZ"] = "UTC"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import jinja2
import transformers
from template_cases import SPECIAL_TOKENS, conversations
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers.utils.chat_template_utils import render_jinja_template

ROOT = pathlib.Path(__file__).resolve().parents[2]


def adapted(messages, arguments, contents):
    """The messages with the arguments of calls and the contents in these forms."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls") or []:
            call["function"]["arguments"] = arguments(call["function"]["arguments"])
        contents(message)
    return messages


def as_object(arguments):
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def as_text(arguments):
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def as_given(message):
    pass


def joined(message):
    parts = message.get("content")
    if isinstance(parts, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
        if None not in texts:
            message["content"] = "".join(texts)


def nulls(message):
    message.setdefault("content", None)
    joined(message)


def texts(message):
    if message.get("content") is None:
        message["content"] = ""
    joined(message)


def reference(tokenizer, source, case):
    """What transformers renders: (text, None, adapted) or (None, error, False). It hands messages over as they come, so its users give
    them in the form that the template reads. Here arguments are objects and contents are as they come; where a template refuses that or
    prints an object as Python does, arguments are JSON text, parts of text are joined, and at last an absent content is empty."""
    options = {key: value for key, value in case.items() if key != "messages"}
    messages = case["messages"]
    objects = [as_object(call["function"]["arguments"]) for message in messages for call in message.get("tool_calls") or []]
    printed = [str(object) for object in objects if object]
    printed += [str(part) for message in messages if isinstance(message.get("content"), list) for part in message["content"] if isinstance(part, dict)]

    def rendered(arguments, contents):
        try:
            if contents is nulls:  # Which apply_chat_template leaves out.
                chats = [adapted(messages, arguments, contents)]
                variables = {"tools": None, "documents": None, **tokenizer.special_tokens_map, **options}
                return render_jinja_template(chats, chat_template=source, **variables)[0][0], None
            return tokenizer.apply_chat_template(adapted(messages, arguments, contents), chat_template=source, tokenize=False, **options), None
        except Exception as error:  # Whatever Python has against it.
            return None, f"{type(error).__name__}: {error}"

    text, error = rendered(as_object, as_given)
    if text is None or any(object in text for object in printed):
        for form in itertools.product((as_object, as_text), (as_given, joined, nulls, texts)):
            other, _ = rendered(*form)
            if other is not None and not any(object in other for object in printed):
                return other, None, True
    return text, error, False


def ours(program, cases):
    """What we render: a result for each case, in their order."""
    lines = []
    for source, case in cases:
        known = {"messages", "tools", "add_generation_prompt", "enable_thinking"}
        line = {key: value for key, value in case.items() if key in known}
        line["chat_template_kwargs"] = {key: value for key, value in case.items() if key not in known}
        lines.append(json.dumps(dict(line, template=source, special_tokens=SPECIAL_TOKENS)))
    done = subprocess.run([program], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    results = [json.loads(line) for line in done.stdout.rstrip("\n").split("\n")]
    assert len(results) == len(cases), done.stderr
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--show")
    parser.add_argument("--target", type=pathlib.Path, default=ROOT / "target" / "debug")
    options = parser.parse_args()
    files = sorted((options.folder / "llama.cpp" / "models" / "templates").glob("*.jinja"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"<unk>": 0}, "<unk>")), **SPECIAL_TOKENS)
    cases = list(conversations())
    sources = [file.read_text(encoding="utf-8") for file in files]
    results = iter(ours(options.target / "examples" / "render_template", [(source, case) for source in sources for _, case in cases]))
    total = {}
    for file, source in zip(files, sources):
        counts = {}
        for name, case in cases:
            text, error, other_form = reference(tokenizer, source, case)
            result = next(results)
            if text is None:
                outcome = "both refuse" if "error" in result else "only we render"
            else:
                outcome = "only transformers" if "error" in result else ("equal in another form" if other_form else "equal") if result["text"] == text else "differ"
            counts[outcome] = counts.get(outcome, 0) + 1
            if options.show is not None and options.show in file.name and outcome not in ("equal", "equal in another form", "both refuse"):
                print(f"--- {file.stem}: {name}: {outcome}\n  transformers: {text!r} {error or ''}\n  we:           {result.get('text')!r} {result.get('error', '')}")
        print(f"{file.stem:55} {counts}")
        for key, n in counts.items():
            total[key] = total.get(key, 0) + n
    print(total)


if __name__ == "__main__":
    main()
