#!/usr/bin/env python3
"""Compares our tokenizer with llama.cpp's and with the `tokenizers` library on the vocabularies that llama.cpp publishes.

    scripts/published/llamacpp.sh FOLDER --build
    FOLDER/venv/bin/python scripts/published/vocabularies.py FOLDER [--strings N] [--library FOLDER/build/bin] [--write] [NAME ..]

prints the tables of docs/measurements/vocabularies.md and, with --write, writes them there. Of each vocabulary: the ids
published beside it (.inp, .out), N random strings with special tokens found and not found, 100 kB of mixed text and back,
the tokens with a role, the speed of both in turns. Of each name of a split rule: N random strings with a vocabulary whose
file is changed to name that rule. Every difference is counted; --show prints the first strings that differ.
"""

import argparse
import ctypes
import datetime
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "docs/measurements/vocabularies.md"
SEED = 20261122


# ---- text ----


def ranges(*pairs):
    return [chr(c) for a, b in pairs for c in range(a, b + 1)]


ALPHABETS = {
    "latin": ranges((0x61, 0x7A), (0x41, 0x5A), (0xC0, 0xD6), (0xD8, 0xF6), (0x100, 0x17E)),
    "greek": ranges((0x391, 0x3A1), (0x3B1, 0x3C9)),
    "cyrillic": ranges((0x410, 0x44F)),
    "hebrew": ranges((0x5D0, 0x5EA), (0x5B0, 0x5BD)),
    "arabic": ranges((0x627, 0x63A), (0x641, 0x652), (0x660, 0x669)),
    "devanagari": ranges((0x905, 0x939), (0x93E, 0x94D), (0x966, 0x96F)),
    "bengali": ranges((0x985, 0x98C), (0x9BE, 0x9C4)),
    "tamil": ranges((0xB85, 0xB8A), (0xBBE, 0xBC2)),
    "thai": ranges((0xE01, 0xE3A), (0xE40, 0xE5B)),
    "khmer": ranges((0x1780, 0x17B3), (0x17B6, 0x17D3)),
    "han": ranges((0x4E00, 0x4E80), (0x3400, 0x3410), (0x20000, 0x20010), (0xF900, 0xF910)),
    "kana": ranges((0x3041, 0x3096), (0x30A1, 0x30FA)),
    "hangul": ranges((0xAC00, 0xAC80), (0x1100, 0x1112), (0x3131, 0x3140)),
    "georgian": ranges((0x10D0, 0x10F0), (0x1C90, 0x1CA0)),
    "cherokee": ranges((0x13A0, 0x13B0), (0xAB70, 0xAB80)),
    "mathematical": ranges((0x1D400, 0x1D420), (0x2200, 0x2220), (0x2100, 0x2120)),
    "emoji": ranges((0x1F600, 0x1F64F), (0x1F3FB, 0x1F3FF), (0x1F1E6, 0x1F1FF)) + ["\u200d", "\ufe0f", "\U0001F468\u200d\U0001F469\u200d\U0001F467"],
    "digits": list("0123456789"),
    "other digits": ranges((0x660, 0x669), (0x966, 0x96F), (0x2160, 0x2169), (0xB2, 0xB3), (0xBC, 0xBE), (0xFF10, 0xFF19)),
    "ascii punctuation": list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
    "punctuation": ranges((0x2010, 0x2027), (0x3001, 0x3003), (0xFF01, 0xFF0F), (0x20A0, 0x20B0), (0xA1, 0xBF)),
    "marks": ranges((0x300, 0x323), (0x20D0, 0x20D5)),
    "spaces": list(" \t\n\r\x0b\x0c") + ["\u0085", "\u00a0", "\u2003", "\u2028", "\u3000"],
    "controls": ranges((1, 8), (14, 31), (127, 132)) + ["\u200b", "\ufeff", "\u00ad", "\u2060"],
    "odd": ["\ue000", "\U0010FFFD", "\u0378", "\ufffd", "\ufffe", "\U0002FFFF", "\u017f", "\u212a", "\u0130"],
}
WORDS = "the return function def class import hello World don't I'm WE'RE they'll it's x=1; for(i=0;i<10;++i){} // path/to/file.rs http://a.b/c?d=e#f user@host <b>bold</b> 3.14159 1,234,567 0xDEADBEEF camelCaseWord SCREAMING_CASE ÉCOLE straße HTTPServer iPhone".split()


def piece(rng):
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(WORDS)
    if kind < 0.40:
        return rng.choice([" ", "  ", "\n", "\n\n", "\t", " \n", "\r\n", "   \n\n  ", " " * rng.randint(1, 40), "\n" * rng.randint(1, 9), "\u00a0", "\u3000"])
    if kind < 0.50:
        return rng.choice(["'", "'s", "'T", "'re", "'LL", "'d", "''", "n't"])
    if kind < 0.55:
        return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12)))
    alphabet = ALPHABETS[rng.choice(list(ALPHABETS))]
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 9)))


def strings(n, seed, specials=()):
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        parts = []
        for _ in range(rng.randint(1, 14)):
            if specials and rng.random() < 0.15:
                text = rng.choice(specials)
                parts.append(text if rng.random() < 0.8 else text[: rng.randint(1, len(text))])
            else:
                parts.append(piece(rng))
            if rng.random() < 0.35:
                parts.append(" ")
        out.append("".join(parts))
    return out


def mixed(n_bytes, seed):
    rng = random.Random(seed)
    text = ""
    while len(text.encode()) < n_bytes:
        text += "".join(piece(rng) + rng.choice(["", " ", " "]) for _ in range(400))
    return text


def speed_texts():
    """Texts of the repository, and of one script each."""
    rng = random.Random(SEED + 7)
    words = lambda name, n: " ".join("".join(rng.choice(ALPHABETS[name]) for _ in range(rng.randint(2, 8))) for _ in range(n))
    docs = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    code = "".join(path.read_text() for path in sorted((ROOT / "src/engine").rglob("*.rs")))
    return {"prose": docs[:400_000], "code": code[:400_000], "Cyrillic": words("cyrillic", 30_000), "Chinese": "".join(rng.choice(ALPHABETS["han"][:129]) if rng.random() < 0.9 else "\u3002\n" for _ in range(60_000)), "mixed": mixed(200_000, SEED + 8)}


# ---- the two sides ----


class Theirs:
    """libllama with a vocabulary only."""

    def __init__(self, lib, path):
        self.lib = lib
        params = lib.llama_model_default_params()
        params.vocab_only = True
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise ValueError("refused")
        self.vocab = lib.llama_model_get_vocab(self.model)

    def encode(self, text, special):
        data = text.encode()
        room = len(data) + 8
        ids = (ctypes.c_int32 * room)()
        n = self.lib.llama_tokenize(self.vocab, data, len(data), ids, room, False, special)
        assert n >= 0
        return list(ids[:n])

    def time(self, text, rounds):
        data = text.encode()
        room = len(data) + 8
        ids = (ctypes.c_int32 * room)()
        best = float("inf")
        for _ in range(rounds):
            start = time.perf_counter()
            self.lib.llama_tokenize(self.vocab, data, len(data), ids, room, False, False)
            best = min(best, time.perf_counter() - start)
        return best

    def roles(self):
        lib, v = self.lib, self.vocab
        n = lib.llama_vocab_n_tokens(v)
        id_of = lambda f: None if (i := f(v)) < 0 else i
        return {
            "n_tokens": n, "bos": id_of(lib.llama_vocab_bos), "eos": id_of(lib.llama_vocab_eos), "eot": id_of(lib.llama_vocab_eot),
            "pad": id_of(lib.llama_vocab_pad), "sep": id_of(lib.llama_vocab_sep), "add_bos": lib.llama_vocab_get_add_bos(v),
            "add_eos": lib.llama_vocab_get_add_eos(v), "eog": [i for i in range(n) if lib.llama_vocab_is_eog(v, i)],
            "fim": [id_of(lib.llama_vocab_fim_pre), id_of(lib.llama_vocab_fim_suf), id_of(lib.llama_vocab_fim_mid)],
        }

    def close(self):
        self.lib.llama_model_free(self.model)


class Ours:
    """src/text/examples/vocabulary.rs with a file."""

    def __init__(self, path):
        self.process = subprocess.Popen([PROGRAM, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ask(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        if not line:
            raise ValueError(self.process.stderr.read().strip()[:160])
        return json.loads(line)

    def encode(self, text, special):
        return self.ask(encode=text, special=special)["ids"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


PROGRAM = str(ROOT / "target/debug/examples/vocabulary")


def load_library(folder, bin_folder):
    os.environ["LLAMA_CPP_LIB_PATH"] = str(bin_folder)
    sys.path[:0] = [str(folder / "llama.cpp/gguf-py")]
    # Only the bindings: the package itself wants libraries that we do not need.
    package = types.ModuleType("llama_cpp")
    package.__path__ = [str(next(path for path in folder.glob("llama_cpp_python-*/llama_cpp") if path.is_dir()))]
    sys.modules["llama_cpp"] = package
    from llama_cpp import llama_cpp as lib

    silent = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(silent, None)
    lib.keep = silent
    lib.llama_backend_init()
    return lib


# ---- files ----


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def renamed(data, **keys):
    """A file of metadata with other values for keys that are strings; absent keys are added."""
    for name, value in keys.items():
        key = string("tokenizer.ggml." + name)
        at = data.find(key)
        if at < 0:
            n_keys = struct.unpack_from("<Q", data, 16)[0]
            data = data[:16] + struct.pack("<Q", n_keys + 1) + key + struct.pack("<I", 8) + string(value) + data[24:]
            continue
        at += len(key) + 4
        n = struct.unpack_from("<Q", data, at)[0]
        data = data[:at] + string(value) + data[at + 8 + n :]
    return data


def read_vocabulary(path):
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    value = lambda key: fields["tokenizer.ggml." + key].contents() if "tokenizer.ggml." + key in fields else None
    tokens, types, merges = value("tokens"), value("token_type"), value("merges")
    types = types or [1] * len(tokens)
    return {"model": value("model"), "pre": value("pre"), "tokens": tokens, "types": types, "merges": merges}


# ---- tables ----


def compare(ours, theirs, texts, special, show):
    equal = 0
    for text in texts:
        a, b = ours.encode(text, special), theirs(text)
        equal += a == b
        if a != b and show > 0:
            show -= 1
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            print(f"  {text!r}\n    from token {at}: ours {a[at:at+8]}, theirs {b[at:at+8]}", file=sys.stderr)
    return equal


def vocabulary_row(lib, path, args):
    name = path.name.removeprefix("ggml-vocab-").removesuffix(".gguf")
    facts = read_vocabulary(path)
    kind = facts["model"] + (f", {facts['pre']}" if facts["pre"] else "")
    ours = Ours(path)
    try:
        our_roles = ours.ask(roles=True)
    except ValueError as error:
        return f"| {name} | {kind} | refused: {error.args[0].split('; known')[0]} | | | | | |", []
    theirs = Theirs(lib, path)
    published = "-"
    if (inp := Path(str(path) + ".inp")).exists():
        texts = inp.read_text().split("\n__ggml_vocab_test__\n")
        expected = [[int(i) for i in line.split()] for line in Path(str(path) + ".out").read_text().splitlines()]
        expected += [[]] * (len(texts) - len(expected))
        right = sum(ours.encode(text, False) == ids for text, ids in zip(texts, expected))
        published = f"{right}/{len(texts)}"
    specials = [t for t, k in zip(facts["tokens"], facts["types"]) if k in (2, 3, 4)]
    plain = compare(ours, lambda t: theirs.encode(t, False), strings(args.strings, SEED, specials), False, args.show)
    parsed = compare(ours, lambda t: theirs.encode(t, True), strings(args.strings, SEED + 1, specials), True, args.show)
    text = mixed(100_000, SEED + 2)
    back = ours.ask(encode=text, special=False)
    whole = back["back"] or back["text"] == " " + text
    their_roles = theirs.roles()
    differing = [f"{name}: {key} is {our_roles[key]}, llama.cpp has {their_roles[key]}" for key in ROLES if our_roles[key] != their_roles[key] and not (key == "fim" and None in their_roles[key])]
    speeds = []
    for text in speed_texts().values():
        a, b = [], []
        for _ in range(3):
            a.append(ours.ask(time=text, rounds=2)["seconds"])
            b.append(theirs.time(text, 2))
        mb = len(text.encode()) / 1e6
        speeds.append((mb / min(a), mb / min(b)))
    ours.close()
    theirs.close()
    speed = "; ".join(f"{a:.1f} / {b:.1f}" for a, b in speeds)
    roles = "equal" if not differing else f"{len(differing)} differ"
    return f"| {name} | {kind} | {published} | {plain}/{args.strings} | {parsed}/{args.strings} | {'yes' if whole else 'NO'} | {roles} | {speed} |", differing


ROLES = ["n_tokens", "bos", "eos", "eot", "pad", "sep", "add_bos", "add_eos", "eog", "fim"]


def reference(facts, rule):
    """The same vocabulary in the `tokenizers` library, with the published patterns."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    vocab = {t: i for i, (t, k) in enumerate(zip(facts["tokens"], facts["types"])) if k == 1}
    merges = [tuple(m.split(" ", 1)) for m in facts["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=rule["whole_words"]))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule["patterns"]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return tokenizer


def rule_rows(lib, models, args, folder):
    rules = [json.loads(line) for line in subprocess.check_output([PROGRAM, "--rules"], text=True).splitlines()]
    bpe, gemma = models / "ggml-vocab-llama-bpe.gguf", models / "ggml-vocab-gemma-4.gguf"
    facts = read_vocabulary(bpe)
    texts = strings(args.strings, SEED + 3)
    rows, references = [], {}
    for rule in rules:
        name = rule["name"]
        if args.names and name not in args.names:
            continue
        by_characters = name in BY_CHARACTERS
        data = renamed((gemma if by_characters else bpe).read_bytes(), model="gpt2", pre=name)
        path = folder / f"{name.replace('/', '_')}.gguf"
        path.write_bytes(data)
        ours, theirs = Ours(path), Theirs(lib, path)
        # llama.cpp aborts at white space under this rule.
        own = ["".join(text.split()) for text in texts] if name == "whitespace" else texts
        equal = compare(ours, lambda t: theirs.encode(t, False), own, False, args.show)
        library = "-"
        if not by_characters:
            key = json.dumps([rule["patterns"], rule["whole_words"]])
            if key not in references:
                references[key] = reference(facts, rule)
            same = compare(ours, lambda t: references[key].encode(t, add_special_tokens=False).ids, texts, False, args.show)
            library = f"{same}/{len(texts)}"
        ours.close()
        theirs.close()
        path.unlink()
        reason = "" if equal == len(texts) else REASONS.get(name, "")
        rows.append(f"| {name} | {equal}/{len(texts)} | {library} | {reason} |")
        print(rows[-1], flush=True)
    return rows


BY_CHARACTERS = ["gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"]
CASES = "the published pattern tells cases beyond ASCII and takes marks into words; llama.cpp runs one that does not"
DIGITS = "llama.cpp leaves the text before digits in one piece with their first group"
LISTED = "the published pattern lists characters, white space beyond ASCII among them, which llama.cpp takes out of the text before"
REASONS = {name: CASES for name in ["tekken", "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m", "youtu", "kimi-k2"]}
REASONS |= {name: CASES + "; " + DIGITS + ", and groups them also before letters" for name in ["tiny_aya", "cohere2moe"]}
REASONS |= {"superbpe": "the digits of the published pattern are those of all scripts, llama.cpp's those of ASCII"}
REASONS |= {"afmoe": DIGITS, "deepseek-llm": LISTED, "deepseek-coder": LISTED}


def write(name, lines):
    """Replaces the part of the page between its two marks."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    text = TABLE.read_text()
    before, rest = text.split(start)
    TABLE.write_text("\n".join([before + start, "", *lines, "", end]) + rest.split(end)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--strings", type=int, default=2000)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--show", type=int, default=0, help="print so many differing strings of each comparison")
    parser.add_argument("--only", choices=["vocabularies", "rules"])
    parser.add_argument("names", nargs="*")
    args = parser.parse_intermixed_args()
    subprocess.check_call(["cargo", "build", "--quiet", "--package", "nextn-text", "--example", "vocabulary"], cwd=ROOT)
    lib = load_library(args.folder, args.library or args.folder / "build/bin")
    models = args.folder / "llama.cpp/models"
    head = ["| vocabulary | kind | published strings | random, plain | random, special | 100 kB back | roles | MB/s, ours / llama.cpp: " + "; ".join(speed_texts()) + " |", "|---|---|---|---|---|---|---|---|"]
    print("\n".join(head))
    rows, differing = [], []
    for path in sorted(models.glob("ggml-vocab-*.gguf")) if args.only != "rules" else []:
        if args.names and not any(path.name == f"ggml-vocab-{name}.gguf" for name in args.names):
            continue
        row, roles = vocabulary_row(lib, path, args)
        rows.append(row)
        differing += roles
        print("\n".join([row, *roles]), flush=True)
    rule_head = ["| `tokenizer.ggml.pre` | equal to llama.cpp | equal to `tokenizers` | reason |", "|---|---|---|---|"]
    print("\n".join(rule_head))
    with tempfile.TemporaryDirectory() as folder:
        rules = rule_rows(lib, models, args, Path(folder)) if args.only != "vocabularies" else []
    made = f"Made {datetime.date.today()}, {args.strings} random strings a column."
    if args.write and rows:
        listed = ["", "Roles that differ:", "", *[f"- {line}" for line in differing]] if differing else []
        write("vocabularies", [made, "", *head, *rows, *listed])
    if args.write and rules:
        write("rules", [made, "", *rule_head, *rules])


if __name__ == "__main__":
    main()
