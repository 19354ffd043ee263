#!/usr/bin/env python3
"""Compares embeddings and rankings with llama.cpp's server, and writes a table as in docs/measurements/embeddings.md.

    scripts/published/llamacpp.sh FOLDER --build
    cargo build
    FOLDER/venv/bin/python scripts/published/embeddings.py FOLDER [--server target/debug/nextn-server] [--port 21600] [--default-cells] [--table FILE]

It makes small models of random weights over published vocabularies (FOLDER/llama.cpp/models), one as each kind of published model
is converted: Qwen3-Embedding (pooling by the last token, end-of-sequence token), Qwen3-Reranker (rank head, template), e5-mistral
(llama, last token), llama by the mean, and files that do not say. Each is served by both programs, which embed and rank the same
texts over HTTP; the table has the largest differences. Nothing is downloaded.
"""

import argparse
import base64
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

import gguf
import numpy as np

TEMPLATE = "<|im_start|>system\nIs the Document an answer to the Query? Say yes or no.<|im_end|>\n<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n"
# Cells that are not rounded, and attention in its plain form: what differs is the order of sums.
EXACT = ["-ctk", "f32", "-ctv", "f32", "-fa", "off"]
TEXTS = [
    "a",
    "A red apple lies on the table.",
    "Ein roter Apfel liegt auf dem Tisch.",
    "\u7ea2\u82f9\u679c\u5728\u684c\u5b50\u4e0a\u3002",
    "fn main() { println!(\"{}\", 20 + 15); }\n",
    "  spaces   and\ttabs\n\nand lines  ",
    "\U0001f600 caf\u00e9 na\u00efve \u0430\u0431\u0432 12345 6,789.01",
    "<|im_end|> a special token by its text",
    "The quick brown fox jumps over the lazy dog. " * 20,
    "word " * 300,
]
QUERIES = ["What is a panda?", "How do I list files in a folder?", "2 + 2"]
DOCUMENTS = [
    "hi",
    "It is a bear.",
    "The giant panda is a bear species endemic to China.",
    "Use `ls -la` to list the files of a folder.",
    "\u56db",
    "4",
    "An apple a day keeps the doctor away. " * 20,
    "{query} {document}",
]


def model(vocab, path, arch, pooling, seed, eos=False, rank=False):
    """Writes a model of three layers over the vocabulary of another file."""
    n_embd, n_head, n_head_kv, d_head, n_ff, n_layer = 64, 4, 2, 32, 160, 3
    source = gguf.GGUFReader(vocab)
    writer = gguf.GGUFWriter(path, arch)
    for name, field in source.fields.items():
        if name.startswith("tokenizer.") and name != "tokenizer.ggml.add_eos_token":
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type)
    n_vocab = len(source.fields["tokenizer.ggml.tokens"].data)
    writer.add_block_count(n_layer)
    writer.add_context_length(4096)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head_kv)
    writer.add_key_length(d_head)
    writer.add_value_length(d_head)
    writer.add_rope_dimension_count(d_head)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    if eos:
        writer.add_add_eos_token(True)
    rng = np.random.default_rng(seed)

    def tensor(name, *shape, around=0.0, spread=None):
        spread = spread if spread is not None else shape[-1] ** -0.5
        writer.add_tensor(name, (around + spread * rng.standard_normal(shape)).astype(np.float32))

    tensor("token_embd.weight", n_vocab, n_embd, spread=1.0)
    tensor("output_norm.weight", n_embd, around=1.0, spread=0.2)
    if rank:
        writer.add_classifier_output_labels(["yes", "no"])
        writer.add_string("tokenizer.chat_template.rerank", TEMPLATE)
        tensor("cls.output.weight", 2, n_embd, spread=0.2)
    for i in range(n_layer):
        tensor(f"blk.{i}.attn_norm.weight", n_embd, around=1.0, spread=0.2)
        tensor(f"blk.{i}.attn_q.weight", n_head * d_head, n_embd)
        tensor(f"blk.{i}.attn_k.weight", n_head_kv * d_head, n_embd)
        tensor(f"blk.{i}.attn_v.weight", n_head_kv * d_head, n_embd)
        tensor(f"blk.{i}.attn_output.weight", n_embd, n_head * d_head)
        if arch == "qwen3":
            tensor(f"blk.{i}.attn_q_norm.weight", d_head, around=1.0, spread=0.2)
            tensor(f"blk.{i}.attn_k_norm.weight", d_head, around=1.0, spread=0.2)
        tensor(f"blk.{i}.ffn_norm.weight", n_embd, around=1.0, spread=0.2)
        tensor(f"blk.{i}.ffn_gate.weight", n_ff, n_embd)
        tensor(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        tensor(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Server:
    """A server that runs until the block ends."""

    def __init__(self, command, port, log):
        self.url, self.log = f"http://127.0.0.1:{port}", open(log, "w")
        self.process = subprocess.Popen([str(word) for word in command], stdout=self.log, stderr=self.log)

    def __enter__(self):
        for _ in range(600):
            if self.process.poll() is not None:
                sys.exit(f"a server ended: see {self.log.name}")
            try:
                urllib.request.urlopen(self.url + "/health", timeout=2).read()
                return self
            except OSError:
                time.sleep(0.2)
        sys.exit(f"a server did not start: see {self.log.name}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.log.close()

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=300))

    def vectors(self, pooling):
        """All texts, each alone: a list of vectors for each, and the tokens that were counted."""
        if pooling == "none":
            native = [self.post("/embedding", {"content": text})[0]["embedding"] for text in TEXTS]
            return native, sum(map(len, native))
        one = [self.post("/v1/embeddings", {"input": text}) for text in TEXTS]
        return [[r["data"][0]["embedding"]] for r in one], sum(r["usage"]["prompt_tokens"] for r in one)


def distance(a, b):
    """Cosine distance."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return 1.0 - float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def embeddings(ours, theirs, pooling):
    (a, n_a), (b, n_b) = ours.vectors(pooling), theirs.vectors(pooling)
    assert [len(x) for x in a] == [len(x) for x in b], "vectors of each text"
    pairs = [(x, y) for xs, ys in zip(a, b) for x, y in zip(xs, ys)]
    largest = max(float(np.max(np.abs(np.subtract(x, y)))) for x, y in pairs)
    if pooling != "none":
        # In one request, and in base64, they are the same.
        all_at_once = ours.post("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"})
        for one, (vector, ) in zip(all_at_once["data"], a):
            raw = base64.b64decode(one["embedding"])
            assert distance(struct.unpack(f"<{len(raw) // 4}f", raw), vector) < 1e-5
    return len(pairs), max(distance(x, y) for x, y in pairs), largest, n_a == n_b


def rankings(ours, theirs):
    largest, same_order, same_tokens, n = 0.0, True, True, 0
    for query in QUERIES:
        body = {"query": query, "documents": DOCUMENTS}
        a, b = ours.post("/v1/rerank", body), theirs.post("/v1/rerank", body)
        scores = [{r["index"]: r["relevance_score"] for r in x["results"]} for x in (a, b)]
        largest = max(largest, max(abs(scores[0][i] - scores[1][i]) for i in scores[0]))
        same_order &= [r["index"] for r in a["results"]] == [r["index"] for r in b["results"]]
        same_tokens &= a["usage"] == b["usage"]
        n += len(scores[0])
    return n, largest, same_order, same_tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--server", type=pathlib.Path, default=pathlib.Path("target/debug/nextn-server"))
    parser.add_argument("--port", type=int, default=21600)
    parser.add_argument("--default-cells", action="store_true", help="cache types and attention as both programs choose them")
    parser.add_argument("--table", type=pathlib.Path, default=pathlib.Path("embeddings.md"))
    args = parser.parse_args()
    vocabularies = args.folder / "llama.cpp/models"
    qwen, llama = vocabularies / "ggml-vocab-qwen2.gguf", vocabularies / "ggml-vocab-llama-bpe.gguf"
    kinds = [
        # name, vocabulary, architecture, pooling of the file, more, poolings to try
        ("as Qwen3-Embedding", qwen, "qwen3", gguf.PoolingType.LAST, {"eos": True}, [None, "mean"]),
        ("as Qwen3-Embedding, Q8_0", qwen, "qwen3", gguf.PoolingType.LAST, {"eos": True}, [None]),
        ("as e5-mistral", llama, "llama", gguf.PoolingType.LAST, {"eos": True}, [None]),
        ("llama by the mean", llama, "llama", gguf.PoolingType.MEAN, {}, [None, "cls", "none"]),
        ("qwen3 that does not say", qwen, "qwen3", None, {}, ["mean", "last"]),
        ("as Qwen3-Reranker", qwen, "qwen3", gguf.PoolingType.RANK, {"rank": True}, ["rank"]),
        ("as Qwen3-Reranker, Q8_0", qwen, "qwen3", gguf.PoolingType.RANK, {"rank": True}, ["rank"]),
    ]
    rows, ranks, bad = [], [], []
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for seed, (name, vocab, arch, pooling, more, tried) in enumerate(kinds):
            path = work / "model.gguf"
            path.unlink(missing_ok=True)
            model(vocab, path, arch, pooling, seed, **more)
            if name.endswith("Q8_0"):
                plain, path = path, work / "q8_0.gguf"
                quantize = [args.folder / "build/bin/llama-quantize", plain, path, "Q8_0", "2"]
                subprocess.run([str(word) for word in quantize], check=True, capture_output=True)
            for way in tried:
                flags = ["--pooling", way] if way else []
                common = ["-m", path, "--embeddings", *flags, "-c", "4096", "-np", "1", "-t", "1", *([] if args.default_cells else EXACT)]
                ours = [args.server, *common, "--port", args.port]
                theirs = [args.folder / "build/bin/llama-server", *common, "-b", "4096", "-ub", "4096", "--port", args.port + 1]
                with Server(ours, args.port, work / "ours.log") as a, Server(theirs, args.port + 1, work / "theirs.log") as b:
                    if way == "rank":
                        n, largest, same_order, same_tokens = rankings(a, b)
                        ranks.append((name, n, f"{largest:.1e}", "yes" if same_order else "no", "yes" if same_tokens else "no"))
                        good = largest < (1e-3 if args.default_cells else 1e-4) and same_order and same_tokens
                    else:
                        shown = way or f"the file's ({pooling.name.lower()})"
                        n, cosine, largest, same_tokens = embeddings(a, b, way)
                        rows.append((name, shown, n, f"{max(cosine, 0):.1e}", f"{largest:.1e}", "yes" if same_tokens else "no"))
                        good = cosine < (1e-3 if name.endswith("Q8_0") else 1e-5) and same_tokens
                print((ranks if way == "rank" else rows)[-1], flush=True)
                if not good:
                    bad.append((name, way))
    table = f"""# Embeddings and rankings against llama.cpp

`scripts/published/embeddings.py FOLDER` made these tables on {time.strftime("%Y-%m-%d")}: models of three layers with random weights over published vocabularies, {len(TEXTS)} texts (of 1 to some 300 tokens; one kind of white space, scripts, code, special tokens by their text), each embedded alone by `llama-server` and by `nextn-server` with the same flags.

| model | pooling | vectors | largest cosine distance | largest difference of a number | the same tokens |
|---|---|---|---|---|---|
""" + "".join("| " + " | ".join(map(str, row)) + " |\n" for row in rows) + f"""
{len(QUERIES)} queries with {len(DOCUMENTS)} documents each; scores are probabilities.

| model | documents | largest difference of a score | the same order | the same tokens |
|---|---|---|---|---|
""" + "".join("| " + " | ".join(map(str, row)) + " |\n" for row in ranks)
    args.table.write_text(table)
    print(table)
    if bad:
        sys.exit(f"too far apart: {bad}")


main()
