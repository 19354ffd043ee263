#!/usr/bin/env python3
"""Cuts a small golden out of a large one: cut.py MODEL.bf16.gguf GOLDEN.json OUT_NAME

Standard library only. GOLDEN.json has the residual stream of one sequence as transformers computes it (`layers`). A model of the
first layer alone and of N_VOCAB tokens, renumbered so that those of the sequence are the first ones, ends with the stream after
that layer: its norm and its logits are computed here in 64 bits. Embeddings of other tokens are zeros, and output rows from
N_OUTPUT on. Writes OUT_NAME.gguf.z2 (tests/golden/oracle), .json and .f32.
"""
import json, math, struct, sys, zlib

N_VOCAB, N_OUTPUT, TOP, HIDDEN_ROWS = 272, 64, 8, 3
SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def main(gguf, golden, out):
    data, at = open(gguf, "rb").read(), 8

    def take(form):
        nonlocal at
        at += struct.calcsize("<" + form)
        return struct.unpack("<" + form, data[at - struct.calcsize("<" + form):at])[0]

    def text():
        return bytes(take("B") for _ in range(take("Q")))

    def value(kind):
        if kind == 9:
            inner = take("I")
            return inner, [value(inner) for _ in range(take("Q"))]
        return text() if kind == 8 else take(SIZES[kind])

    string = lambda s: struct.pack("<Q", len(s)) + s
    def encoded(kind, v):
        if kind == 9:
            return struct.pack("<IQ", v[0], len(v[1])) + b"".join(encoded(v[0], x) for x in v[1])
        return string(v) if kind == 8 else struct.pack("<" + SIZES[kind], v)

    n_tensors, n_keys = take("Q"), take("Q")
    keys = {}
    for _ in range(n_keys):
        key = text().decode()
        kind = take("I")
        keys[key] = (kind, value(kind))
    infos = [(text().decode(), [take("Q") for _ in range(take("I"))], take("I"), take("Q")) for _ in range(n_tensors)]
    start = -(-at // 32) * 32
    arch = keys["general.architecture"][1].decode()
    golden_floats = open(golden.removesuffix(".json") + ".f32", "rb").read()
    golden = json.load(open(golden))
    ids = next(s["ids"] for s in golden["sequences"] if s["name"] == golden["layers"]["sequence"])
    used = sorted(set(ids))
    old = used + [i for i in range(golden["vocab_size"]) if i not in used][:N_VOCAB - len(used)]

    n_block = keys[arch + ".block_count"][1]
    keys[arch + ".block_count"] = (4, 1)
    keys.pop(arch + ".nextn_predict_layers", None)
    for key, (kind, v) in keys.items():
        if key.startswith(arch) and kind == 9 and len(v[1]) == n_block:
            keys[key] = kind, (v[0], v[1][:1])
    for key, n in (("tokens", N_VOCAB), ("token_type", N_VOCAB), ("merges", N_VOCAB - 256)):
        kind, (inner, values) = keys["tokenizer.ggml." + key]
        keys["tokenizer.ggml." + key] = kind, (inner, values[:n])
    keys = {k: v for k, v in keys.items() if not k.endswith("_token_id") and not k.endswith("chat_template") and not k.endswith("vocab_size")}
    table, blobs, tensors = b"", b"", {}
    for name, ne, kind, offset in infos:
        if name.startswith("blk.") and not name.startswith("blk.0."):
            continue
        size = {0: 4, 30: 2}[kind]
        raw = data[start + offset:start + offset + size * math.prod(ne)]
        if name in ("token_embd.weight", "output.weight"):
            row = size * ne[0]
            n = N_OUTPUT if name == "output.weight" else len(used)
            raw, ne = b"".join(raw[i * row:][:row] for i in old[:n]) + bytes((N_VOCAB - n) * row), [ne[0], N_VOCAB]
        tensors[name] = kind, raw
        table += string(name.encode()) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, len(blobs))
        blobs += raw + b"\0" * (-len(raw) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(string(k.encode()) + struct.pack("<I", kind) + encoded(kind, v) for k, (kind, v) in keys.items()) + table
    file = head + b"\0" * (-len(head) % 32) + blobs
    open(out + ".gguf.z2", "wb").write(zlib.compress(file[0::2] + file[1::2], 9))

    def floats(name):
        kind, raw = tensors[name]
        raw = raw if kind == 0 else b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2))
        return struct.unpack(f"<{len(raw) // 4}f", raw)

    norm, matrix, eps = floats("output_norm.weight"), floats("output.weight"), keys[arch + ".attention.layer_norm_rms_epsilon"][1]
    n, (_, n_tokens, n_embd) = N_VOCAB, golden["layers"]["shape"]
    stream = struct.unpack_from(f"<{n_tokens * n_embd}f", golden_floats, 4 * (golden["layers"]["data"][0] + n_tokens * n_embd))
    positions, hidden, logits = [], [], []
    for t in range(n_tokens):
        x = stream[t * n_embd:][:n_embd]
        scale = 1 / math.sqrt(sum(v * v for v in x) / n_embd + eps)
        hidden.append([v * scale * w for v, w in zip(x, norm)])
        logits = [sum(a * b for a, b in zip(hidden[-1], matrix[i * n_embd:][:n_embd])) for i in range(n)]
        best = sorted(range(n), key=lambda i: -logits[i])[:TOP]
        positions.append({"ids": best, "logits": [round(logits[i], 5) for i in best]})
    last = [v for row in hidden[-HIDDEN_ROWS:] for v in row]
    open(out + ".f32", "wb").write(struct.pack(f"<{n + len(last)}f", *logits, *last))
    sequence = {"name": golden["layers"]["sequence"], "ids": [old.index(i) for i in ids], "hidden_rows": HIDDEN_ROWS,
                "positions": positions, "greedy": [], "last_logits": [0, n], "hidden": [n, len(last)]}
    json.dump({"model": golden["model"], "arch": arch, "dtype": golden["dtype"], "sequences": [sequence]}, open(out + ".json", "w"))


main(*sys.argv[1:])
