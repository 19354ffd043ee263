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
import datetime
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
from template_cases import SPECIAL_TOKENS, WEATHER, conversations, growing
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
            other, last_error = rendered(*form)
            if other is not None and not any(object in other for object in printed):
                return other, None, True
        error = error and last_error
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


OUTCOMES = ["equal", "equal in another form", "both refuse", "differ", "only transformers", "only we render"]
READ = {True: "yes", False: "no", None: "-"}
REASONS = [
    ("'NoneType' object is not iterable", "The template loops over tools or documents that are not given; a loop over none renders nothing here."),
    ("is not JSON serializable", "The template writes the result of `map` as JSON, which is a generator in Python and a list here."),
]


def dialects(program, files):
    """By file name, what our session makes of each template."""
    done = subprocess.run([program, *files], capture_output=True, text=True, check=True)
    return {pathlib.Path(row["template"]).name: row for row in map(json.loads, done.stdout.splitlines())}


def boundaries(program, sources):
    """Of each template, whether later turns repeat what lies before the boundaries of a prompt; None where it renders no turns."""
    for source in sources:
        turns = [(dict(messages=messages, tools=[WEATHER], add_generation_prompt=True), result) for messages, result in growing()]
        rendered = ours(program, [(source, case) for case, _ in turns])
        checks = []
        for (now, (_, result_follows)), following in zip(zip(rendered, turns), rendered[1:]):
            if "text" in now and "text" in following:
                begin, whole = now["text"].encode(), following["text"].encode()
                held = now["boundaries"] if result_follows else now["boundaries"][: now["n_lasting"]]
                checks.append(all(whole.startswith(begin[:at]) for at in held))
        yield all(checks) if checks else None


def write(path, rows, sums, others, found, held, n_cases):
    """The table of all templates, and the list of what is not equal."""
    equal, compared = sums["equal"] + sums["equal in another form"], sum(sums.values()) - sums["both refuse"] - sums["only we render"] - sums["only transformers"]
    lines = [
        "# Published chat templates",
        "",
        f"{len(rows)} templates of llama.cpp's `models/templates` (llama-cpp-python 0.3.36), rendered with {n_cases} conversations each by this repository and",
        f"by transformers {transformers.__version__} (jinja2 {jinja2.__version__}). {datetime.date.today()}, {equal} of {compared} renderings that both give are equal"
        f" ({100 * equal / compared:.2f} %).",
        "",
        "    scripts/published/llamacpp.sh FOLDER --torch",
        "    cargo build -p nextn-text --example render_template && cargo build -p nextn-session --example template_dialect",
        "    FOLDER/venv/bin/python scripts/published/templates.py FOLDER --write docs/measurements/templates.md",
        "",
        "transformers hands messages over as they come, and templates read them in different forms. We find the form that a template reads. The",
        "reference has arguments of calls as objects, and other forms where the template refuses these or prints them as Python does: arguments as",
        "JSON text, parts of text joined, an absent content as null or as an empty text. These are counted as *equal in another form*.",
        "",
        "*Call* and *reasoning* say whether our parser reads back what the template writes; `-`: it writes none. The dialect is found from the template",
        "alone; a model's vocabulary can show another one. *Boundaries*: the next turn's prompt repeats this one's up to the places that we told;",
        "where it does not, a checkpoint is not used again.",
        "",
        "| template | equal | equal in another form | both refuse | differ | only transformers | only we render | dialect | call | reasoning | boundaries |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, counts in rows:
        row = found[name + ".jinja"]
        cells = [str(counts.get(outcome, 0) or "") for outcome in OUTCOMES] + [row["dialect"], READ[row["call"]], READ[row["reasoning"]], READ[held[name]]]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["| **sum** | " + " | ".join(str(sums[outcome]) for outcome in OUTCOMES) + " | | | | |", "", "## What is not equal", ""]
    for (name, outcome, reason), cases in others.items():
        shown = ", ".join(cases[:6]) + (f" and {len(cases) - 6} more" if len(cases) > 6 else "")
        lines.append(f"- {name}, {outcome}, {len(cases)}: {shown}. {reason}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def reason_of(error):
    return next((reason for part, reason in REASONS if part in (error or "")), error or "")


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
    rows, sums, others = [], dict.fromkeys(OUTCOMES, 0), {}
    for file, source in zip(files, sources):
        counts = {}
        for name, case in cases:
            text, error, other_form = reference(tokenizer, source, case)
            result = next(results)
            if text is None:
                outcome = "both refuse" if "error" in result else "only we render"
            elif "error" in result:
                outcome = "only transformers"
            elif result["text"] != text:
                outcome = "differ"
            else:
                outcome = "equal in another form" if other_form else "equal"
            counts[outcome] = counts.get(outcome, 0) + 1
            sums[outcome] += 1
            if outcome in OUTCOMES[3:]:
                reason = reason_of(error if text is None else result.get("error"))
                others.setdefault((file.stem, outcome, reason), []).append(name)
                if options.show is not None and options.show in file.name:
                    print(f"--- {file.stem}: {name}: {outcome}\n  transformers: {text!r} {error or ''}\n  we:           {result.get('text')!r} {result.get('error', '')}")
        rows.append((file.stem, counts))
        print(f"{file.stem:55} {counts}")
    print(sums)
    if options.write:
        held = dict(zip((file.stem for file in files), boundaries(options.target / "examples" / "render_template", sources)))
        write(options.write, rows, sums, others, dialects(options.target / "examples" / "template_dialect", files), held, len(cases))


if __name__ == "__main__":
    main()
