#!/usr/bin/env python3
"""Makes src/text/tests/tokenizer/data/spm.json.z (zlib): two small vocabularies and the ids that llama.cpp gives.

    FOLDER/venv/bin/python scripts/published/vocabulary_goldens.py FOLDER

FOLDER is that of llamacpp.sh with --build. `sentencepiece` trains a BPE with byte fallback on this repository's pages; the
second vocabulary is the same with merges instead of scores, as Gemma 4's files have it.
"""

import json
import sys
import tempfile
import zlib
from pathlib import Path

sys.argv, folder = [sys.argv[0]], Path(sys.argv[1])
import vocabularies as v

TARGET = v.ROOT / "src/text/tests/tokenizer/data/spm.json.z"
SPECIAL = ["<|user|>", "<|end|>", "<pad>"]


def train(scratch):
    import sentencepiece as spm

    corpus = scratch / "corpus.txt"
    pages = "".join(path.read_text() for path in sorted((v.ROOT / "docs").glob("*.md")))
    lines = pages.split("\n") + [" ".join(v.piece(v.random.Random(i)) for _ in range(9)).replace("\n", " ") for i in range(400)]
    corpus.write_text("\n".join(lines))
    spm.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(scratch / "m"), vocab_size=900, model_type="bpe", byte_fallback=True, character_coverage=0.98, add_dummy_prefix=True, remove_extra_whitespaces=False, normalization_rule_name="identity", split_digits=True, user_defined_symbols=["<tool>", "<|plain|>"], minloglevel=2)
    model = spm.SentencePieceProcessor(model_file=str(scratch / "m.model"))
    kind = lambda i: 2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 4 if 259 <= i < 261 or model.id_to_piece(i) in ("<tool>", "<|plain|>") else 1
    n = model.get_piece_size()
    return [model.id_to_piece(i) for i in range(n)], [kind(i) for i in range(n)], [model.get_score(i) for i in range(n)]


def merges_of(tokens, types, scores):
    rank = {t: s for t, k, s in zip(tokens, types, scores) if k == 1}
    pairs = [(-scores[i], tokens[i][:c], tokens[i][c:]) for i in range(len(tokens)) if types[i] == 1 for c in range(1, len(tokens[i])) if tokens[i][:c] in rank and tokens[i][c:] in rank]
    return [f"{a} {b}" for _, a, b in sorted(pairs, key=lambda pair: pair[0])]


def file_of(path, model, lists):
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(lists["tokens"])
    writer.add_token_types(lists["types"])
    if model == "llama":
        writer.add_token_scores(lists["scores"])
    else:
        writer.add_token_merges(lists["merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main():
    lib = v.load_library(folder, folder / "build/bin")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        tokens, types, scores = train(scratch)
        tokens, types, scores = tokens + SPECIAL, types + [3] * len(SPECIAL), scores + [0.0] * len(SPECIAL)
        lists = {"tokens": tokens, "types": types, "scores": scores, "merges": merges_of(tokens, types, scores)}
        special = [t for t, k in zip(tokens, types) if k in (2, 3, 4)]
        texts = ["", " ", "  ", "\n", "a", " a", "\u2581", "The cat", "<s>The cat</s>", "<|user|> hi<|end|>\n", "<|user|>\n\n hi <|end|>", "\u4f60\u597d", "\U0001F600\u200d", "x\x00y", "tab\tand  two   spaces ", "<tool>a <tool> b", "<unk>"]
        texts += [text for text in v.strings(120, 5, special) if len(text) < 200]
        cases = [{"text": text} for text in texts]
        for model in ["llama", "gemma4"]:
            path = scratch / f"{model}.gguf"
            file_of(path, model, lists)
            theirs = v.Theirs(lib, path)
            for case in cases:
                case[model] = [theirs.encode(case["text"], False), theirs.encode(case["text"], True)]
            theirs.close()
    TARGET.write_bytes(zlib.compress((json.dumps({**lists, "cases": cases}, separators=(",", ":")) + "\n").encode(), 9))
    print(TARGET, len(tokens), "tokens,", len(cases), "strings")


main()
