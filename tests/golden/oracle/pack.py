#!/usr/bin/env python3
"""Packs models and references of the oracle for the tests: pack.py ORACLE_PUBLIC_DIR OUT_DIR

Standard library only. Files end in .z (zlib), in .z2 (zlib of the bytes at even places, then of those at odd ones: the exponents
of 16-bit floats lie together, which saves an eighth more), or in .z4 (likewise of every fourth byte, for floats of 32 bits). Of a reference, this is kept: token ids, the top 8 of every position, full
logits of the last one, hidden rows, greedy text, and the NextN drafts without their full rows. The .f32 files are cut accordingly.
"""
import array, hashlib, json, os, struct, sys, zlib

MODELS = {"dense-a.bf16": 2, "moe-a.bf16": 2, "dense-k.Q4_K_M": 1}
STRICT, OTHERS = ["dense-a", "moe-a"], ["dense-a.bf16", "moe-a.bf16", "dense-k.Q4_K_M"]
HF = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]
KEEP = {"name", "ids", "hidden_rows", "positions", "greedy", "greedy_margin", "mtp", "spec", "exact", "exact_drafts"}

# Weights that no GGUF file has to the bit: those that the converter computes with, all of them small, and the pictures' tower.
SMALL, TOWER = 4096, ".visual."
MANIFEST = "moe-a.Q4_K_M"


def weights(public, name):
    """Of a checkpoint's safetensors files: names, checksums, headers, and the bytes that the tests cannot make."""
    folder, files, small = os.path.join(public, "hf-" + name), [], b""
    for file in sorted(f for f in os.listdir(folder) if f.endswith(".safetensors")):
        data = open(os.path.join(folder, file), "rb").read()
        end = 8 + struct.unpack("<Q", data[:8])[0]
        header = data[8:end].decode()
        for tensor, t in json.loads(header).items():
            at, to = t.get("data_offsets", (0, 0))
            if TOWER in tensor or to - at <= SMALL:
                small += data[end + at:end + to]
        files.append({"file": file, "sha256": hashlib.sha256(data).hexdigest(), "header": header})
    return files, small


def manifest(path):
    """A GGUF file's keys, and its tensors with the checksums of their data; long arrays as the checksum of their JSON."""
    data, at = open(path, "rb").read(), 0

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return value[0]

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode()

    def value(kind):
        if kind == 9:
            inner, n = take("I"), take("Q")
            return [value(inner) for _ in range(n)]
        return text() if kind == 8 else take("BbHhIif?xxQqd"[kind])

    assert data[:4] == b"GGUF"
    at = 8
    n_tensors, n_keys = take("Q"), take("Q")
    keys, tensors = [], []
    for _ in range(n_keys):
        key, v = text(), value(take("I"))
        if isinstance(v, list) and len(v) > 64:
            v = "sha256 " + hashlib.sha256(json.dumps(v, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()
        keys.append([key, v])
    for _ in range(n_tensors):
        name, dims = text(), [take("Q") for _ in range(take("I"))]
        tensors.append([name, take("I"), dims, take("Q")])
    start = -(-at // 32) * 32
    ends = sorted(t[3] for t in tensors)[1:] + [len(data) - start]
    for t, end in zip(sorted(tensors, key=lambda t: t[3]), ends):
        t[3] = hashlib.sha256(data[start + t[3]:start + end]).hexdigest()
    return {"keys": keys, "tensors": tensors}


def main(public, out):
    def put(name, data, stride=1):
        with open(os.path.join(out, name + {1: ".z", 2: ".z2", 4: ".z4"}[stride]), "wb") as f:
            f.write(zlib.compress(b"".join(data[i::stride] for i in range(stride)), 9))

    for name, stride in MODELS.items():
        put(name + ".gguf", open(os.path.join(public, name + ".gguf"), "rb").read(), stride)
    # What the checkpoints have besides weights, which the tests make from the GGUF files; both have the same tokenizer.
    text = lambda name, file: open(os.path.join(public, "hf-" + name, file), encoding="utf-8").read()
    hf = {file: text("dense-a", file) for file in HF}
    hf.update({name + "/config.json": text(name, "config.json") for name in STRICT})
    put("hf.json", json.dumps(hf, separators=(",", ":"), ensure_ascii=False).encode())
    found = {name: weights(public, name) for name in STRICT}
    lists = {name: {"weights": files} for name, (files, _) in found.items()}
    index = "model.safetensors.index.json"
    for name, lists_of in lists.items():
        if os.path.exists(os.path.join(public, "hf-" + name, index)):
            lists_of["index"] = text(name, index)
        sums = [HF + ["config.json"], ["../" + name + ".bf16.gguf"]]
        path = lambda file: os.path.join(public, "hf-" + name, file)
        lists_of["sha256"] = {file: hashlib.sha256(open(path(file), "rb").read()).hexdigest() for file in sum(sums, [])}
    put("hf-weights.json", json.dumps(lists, separators=(",", ":")).encode())
    put("hf-small", b"".join(small for _, small in found.values()), 2)
    put(MANIFEST + ".manifest.json", json.dumps(manifest(os.path.join(public, MANIFEST + ".gguf")), separators=(",", ":")).encode())
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
        put(name + ".f32", kept.tobytes(), 4)


if __name__ == "__main__":
    main(*sys.argv[1:])
