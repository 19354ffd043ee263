#!/usr/bin/env python3
"""Packs models and references of the oracle for the tests: pack.py ORACLE_PUBLIC_DIR OUT_DIR

Standard library only. Files end in .z (zlib), or in .z2 (zlib of the bytes at even places, then of those at odd ones: the exponents
of 16-bit floats lie together, which saves an eighth more). Of a reference, this is kept: token ids, the top 8 of every position, full
logits of the last one, hidden rows, greedy text, and the NextN drafts without their full rows. The .f32 files are cut accordingly.
"""
import array, json, os, sys, zlib

MODELS = {"dense-a.bf16": 2, "moe-a.bf16": 2, "dense-k.Q4_K_M": 1}
STRICT, OTHERS = ["dense-a", "moe-a"], ["dense-a.bf16", "moe-a.bf16", "dense-k.Q4_K_M"]
HF = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]
KEEP = {"name", "ids", "hidden_rows", "positions", "greedy", "greedy_margin", "mtp", "spec", "exact", "exact_drafts"}


def main(public, out):
    def put(name, data, stride=1):
        with open(os.path.join(out, name + (".z" if stride == 1 else ".z2")), "wb") as f:
            f.write(zlib.compress(b"".join(data[i::stride] for i in range(stride)), 9))

    for name, stride in MODELS.items():
        put(name + ".gguf", open(os.path.join(public, name + ".gguf"), "rb").read(), stride)
    # What the checkpoints have besides weights, which the tests make from the GGUF files; both have the same tokenizer.
    text = lambda name, file: open(os.path.join(public, "hf-" + name, file), encoding="utf-8").read()
    hf = {file: text("dense-a", file) for file in HF}
    hf.update({name + "/config.json": text(name, "config.json") for name in STRICT})
    put("hf.json", json.dumps(hf, separators=(",", ":"), ensure_ascii=False).encode())
    for name in STRICT + OTHERS:
        path = os.path.join(public, "goldens", name)
        j = json.load(open(path + ".json"))
        blob, kept = array.array("f"), array.array("f")
        blob.frombytes(open(path + ".f32", "rb").read())
        refs = ["last_logits", "hidden"] if name in STRICT else ["exact_last"]
        for s in j["sequences"]:
            rows = {}
            for ref in refs:
                at, n = s[ref]
                rows[ref] = [len(kept), n]
                kept.extend(blob[at:at + n])
            for key in set(s) - KEEP:
                del s[key]
            for chain in s.get("mtp", {}).values():
                for draft in chain if isinstance(chain, list) else []:
                    for key in {"logits", "hidden"} & set(draft) if "token" in draft else ():
                        del draft[key]
            s.update(rows)
        j["blob_floats"] = len(kept)
        j.pop("layers", None)
        put(name + ".json", json.dumps(j, separators=(",", ":")).encode())
        put(name + ".f32", kept.tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
