#!/usr/bin/env python3
"""Takes some sequences out of a golden and packs its model: pick.py MODEL.bf16.gguf GOLDEN.json OUT_NAME SEQUENCE...

Standard library only. Writes OUT_NAME.gguf.z2 (tests/golden/oracle), .json and .f32, of each sequence its ids, the best
logits of every position, all of the last, the last hidden states, greedy text and the counts of drafts.
"""
import json, struct, sys, zlib

KEPT = ("name", "ids", "hidden_rows", "positions", "greedy")
HIDDEN_ROWS, TOP = 3, 4


def main(gguf, golden, out, *names):
    file = open(gguf, "rb").read()
    open(out + ".gguf.z2", "wb").write(zlib.compress(file[0::2] + file[1::2], 9))
    blob = open(golden.removesuffix(".json") + ".f32", "rb").read()
    golden = json.load(open(golden))
    floats, sequences = b"", []

    def take(first, n):
        nonlocal floats
        floats += blob[4 * first:4 * (first + n)]
        return [len(floats) // 4 - n, n]

    for s in golden["sequences"]:
        if s["name"] not in names:
            continue
        kept = {k: s[k] for k in KEPT if k in s}
        kept["positions"] = [{"ids": p["ids"][:TOP], "logits": p["logits"][:TOP]} for p in s["positions"]]
        kept["last_logits"] = take(*s["last_logits"])
        (first, n), n_rows = s["hidden"], s["hidden_rows"]
        n_kept = min(HIDDEN_ROWS, n_rows) * (n // n_rows)
        kept["hidden"], kept["hidden_rows"] = take(first + n - n_kept, n_kept), min(HIDDEN_ROWS, n_rows)
        kept["spec"] = {k: {"drafted": v["drafted"], "accepted": v["accepted"]} for k, v in s.get("spec", {}).items() if k.startswith("std")}
        sequences.append(kept)
    open(out + ".f32", "wb").write(floats)
    json.dump({"model": golden["model"], "dtype": golden["dtype"], "sequences": sequences}, open(out + ".json", "w"), separators=(",", ":"))


main(*sys.argv[1:])
