#!/usr/bin/env python3
"""Counts of drafted and accepted tokens with a draft file: ours beside llama.cpp's, on the same files.

    scripts/published/draft_models.py LLAMA_SERVER NEXTN_BENCH TARGET.gguf DRAFT.gguf [-o docs/measurements/draft-models.md]

Both continue the same prompts greedily, for N tokens each, at several draft lengths: llama-server with `--spec-type` of the
kind of the file (a model, or a head that scripts/published/feature_heads.py made), nextn-bench with
`generate --draft-model`. A row of the table is one draft length over all prompts.
Give files of F32 weights where counts are to be equal: with others the sums differ, and a near tie changes a token.
The exit status is 1 where tokens differ or a count does.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

PROMPTS = [
    "Once upon a time, there was a little girl named Lily.",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):",
    "What is 17 + 25? Let me think.",
    "1, 2, 3, 4, 5, 6, 7, 8,",
]


def ask(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


def theirs(args, depth, prompts):
    command = [args.llama_server, "-m", args.target, "-md", args.draft, "--spec-type", f"draft-{args.kind}",
               "--spec-draft-n-max", str(depth), "--spec-draft-n-min", "0", "--spec-draft-p-min", "0",
               "-c", "1024", "-np", "1", "-t", "1", "-td", "1", "-fa", "off",
               *[word for flag in ("-ctk", "-ctv", "-ctkd", "-ctvd") for word in (flag, args.cache)], "--port", str(args.port), "--no-webui", "-ngl", "0",
               "--no-warmup"]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{args.port}"
            for _ in range(200):
                try:
                    urllib.request.urlopen(url + "/health", timeout=5)
                    break
                except OSError:
                    if server.poll() is not None:
                        break
                    time.sleep(0.3)
            if server.poll() is not None:
                log.seek(0)
                sys.exit(log.read().decode(errors="replace")[-3000:])
            for ids in prompts:
                body = {"prompt": ids, "n_predict": args.n, "temperature": 0, "ignore_eos": True,
                        "cache_prompt": False, "return_tokens": True, "samplers": ["temperature"]}
                got = ask(url + "/completion", body)
                timings = got["timings"]
                yield got["tokens"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
        finally:
            server.terminate()
            server.wait()


def ours(args, depth, prompts):
    for ids in prompts:
        words = [args.nextn_bench, "generate", "-m", args.target, "--draft-model", args.draft, "--draft", f"draft:{depth}" if args.kind == "simple" else str(depth),
                 "-n", str(args.n), "-t", "1", "--cache-type-k", args.cache, "--cache-type-v", args.cache,
                 "--flash-attn", "off", "--tokens", ",".join(map(str, ids))]
        got = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        yield got["tokens"], got["drafted"], got["accepted"]


def encode(args, text):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        words = [args.nextn_bench, "tokenize", "-m", args.target, "--text-file", file.name]
        return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_server")
    parser.add_argument("nextn_bench")
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("-n", type=int, default=96, help="tokens of each reply")
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3, 5])
    parser.add_argument("--kind", choices=["simple", "eagle3", "dflash"], default="simple", help="kind of the draft file")
    parser.add_argument("--cache", default="f32", help="type of the KV caches of both models")
    parser.add_argument("--ids", action="store_true", help="prompts of arbitrary token ids, for models without words")
    parser.add_argument("--port", type=int, default=8210)
    parser.add_argument("-o", "--out", type=pathlib.Path, help="write the table here, or its rows behind those that are there")
    args = parser.parse_args()
    ids = [[(i * 37 + j * j * 11 + 5) % 900 + 20 for j in range(12 + 5 * i)] for i in range(5)]
    prompts = ids if args.ids else [encode(args, text) for text in PROMPTS]
    name = lambda path: pathlib.Path(path).name
    lines = ["| target | draft model | `--draft-max` | tokens | drafted, accepted: llama.cpp | nextn | tokens equal |",
             "|---|---|---|---|---|---|---|"]
    alike = True
    for depth in args.depths:
        a, b = list(theirs(args, depth, prompts)), list(ours(args, depth, prompts))
        counts = [tuple(sum(reply[i] for reply in replies) for i in (1, 2)) for replies in (a, b)]
        equal = sum(x[0] == y[0] for x, y in zip(a, b))
        alike &= counts[0] == counts[1] and equal == len(prompts)
        if counts[0] != counts[1]:
            print([x[1:] for x in a], [x[1:] for x in b], file=sys.stderr)
        tokens = sum(len(reply[0]) for reply in b)
        row = f"| {name(args.target)} | {name(args.draft)} | {depth} | {tokens} | {counts[0][0]}, {counts[0][1]} "
        lines.append(row + f"| {counts[1][0]}, {counts[1][1]} | {equal} of {len(prompts)} |")
    print("\n".join(lines))
    if args.out:
        is_new = not args.out.exists()
        with args.out.open("a") as out:
            out.write("\n".join(lines if is_new else lines[2:]) + "\n")
    return 0 if alike else 1


if __name__ == "__main__":
    sys.exit(main())
