#!/usr/bin/env python3
"""Every published type of weight, against llama.cpp on the same files. Writes docs/measurements/quantisations.md.

  scripts/published/llamacpp.sh FOLDER --build                 once: llama.cpp's tools and library
  cargo build --release
  FOLDER/venv/bin/python scripts/published/quantisations.py FOLDER [options]

  --bin DIR        our programs [target/release]
  --work DIR       where model files go, some 600 MB [FOLDER/quantisations]
  --only WORD,..   rows whose name has one of these words
  --out FILE       the table [docs/measurements/quantisations.md]
  --models NAME,.. of pocket, pocket-moe, random-moe [all]

Rows that were measured before are taken from DIR of --work; delete it to measure again.

Three models are the base of all files: `models/pocket-q4_k_m.gguf` (dense) and `models/pocket-moe-q8_0.gguf` (16 experts),
both trained, with a NextN head, and a mixture of 3 experts of random weights (random_moe.py) whose rows are whole
super-blocks, all as F32. llama-quantize makes the files: of one type, with token embeddings and output matrix too, and mixtures. Where a type
needs an importance matrix, all columns count alike. Each file is compared with llama.cpp, and with its twin, whose weights
are those that the file's stand for (gguf-py) as F32: what is left is how activations are rounded.
"""
import argparse
import datetime
import importlib
import json
import os
import pathlib
import subprocess
import sys
import types

import numpy as np

import random_moe

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
THREADS = 1  # the results are those of any number; threads that wait for each other are slow on a busy machine
TEXTS = [
    "<|im_start|>user\nTell me a short story about a dragon.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nOnce upon a "
    "time there was a clever dragon called Wendy. She lived in a small village. Wendy wanted to find a lost key more than "
    "anything else. One day Wendy set out. She waved goodbye and did not look back.",
    "<|im_start|>user\nWhat is 412 - 187?<|im_end|>\n<|im_start|>assistant\n<think>\nLet me work from right to left. 2 is less than "
    "7, borrow: 12 - 7 = 5; 1 - 1 is less than 8, borrow: 10 - 8 = 2; 4 - 1 - 1 = 2. So 412 - 187 = 225.\n</think>\n\n412",
]
# Batch widths in which logits may have the bits of one token at a time: a draft's, the most of a draft's, several sequences'.
WIDTHS = [2, 7, 32]
# Types of tensors, as llama-quantize and gguf-py name them; those that exist as a file type too are made with `--pure`.
TYPES = [
    "f32", "f16", "bf16", "q8_0", "q6_K", "q5_K", "q5_1", "q5_0", "q4_K", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "q3_K", "iq3_s",
    "iq3_xxs", "q2_K", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s", "tq2_0", "tq1_0", "mxfp4", "nvfp4",
]
MIXTURES = ["Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_M", "Q5_K_M", "IQ1_M", "IQ2_XXS", "IQ2_M", "IQ3_XS", "IQ4_XS", "TQ1_0", "MXFP4_MOE"]
# What is made of each model. Rows of `pocket-moe`'s experts are no whole super-blocks: llama-quantize gives them other types.
ROWS = {
    "pocket": TYPES + MIXTURES + ["UD", "NVFP4+scales"],
    "pocket-moe": ["Q2_K", "Q3_K_M", "Q4_K_M", "IQ2_XXS", "IQ4_XS", "MXFP4_MOE", "UD"],
    "random-moe": TYPES + ["UD", "NVFP4+scales"],
}
# As the published "UD" files are: low types for experts and the middle of the model, more bits elsewhere, BF16 embeddings.
UD = [
    "token_embd=bf16", "output=q6_K", "attn_q=q8_0", "attn_k=q8_0", "attn_v=q8_0", "attn_output=q5_K", "attn_qkv=q6_K", "attn_gate=q5_K",
    "ssm_out=q6_K", "ssm_alpha=f32", "ssm_beta=f32", "ffn_gate_exps=iq2_xxs", "ffn_up_exps=iq2_xs", "ffn_down_exps=iq3_s", "shexp=q8_0",
    r"blk\.[0-3]\.ffn_down=q4_K", r"blk\.[4-9]\.ffn_down=iq4_xs", r"blk\.1[01]\.ffn_down=iq3_xxs", "ffn_gate=iq2_s", "ffn_up=iq3_xxs", "nextn=q8_0",
]
NO_FILE_TYPE = {"nvfp4", "mxfp4", "f32"}


# --- files ---------------------------------------------------------------------------------------------------------------

class Reader:
    """The parts of a GGUF file, as far as rewriting it asks."""

    SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def __init__(self, path):
        self.data = np.fromfile(path, dtype=np.uint8)
        self.at = 8
        n_tensors, n_keys, align = self.number(8), self.number(8), 32
        for _ in range(n_keys):
            key, kind = self.text(), self.number(4)
            value = self.value(kind)
            if key == b"general.alignment":
                align = value
        self.keys_end, self.tensors = self.at, []
        for _ in range(n_tensors):
            name, n_dims = self.text(), self.number(4)
            dims = [self.number(8) for _ in range(n_dims)]
            self.tensors.append((name, dims, self.number(4), self.number(8)))
        self.align, self.start = align, -(-self.at // align) * align

    def number(self, n):
        self.at += n
        return int.from_bytes(self.data[self.at - n:self.at].tobytes(), "little")

    def text(self):
        n = self.number(8)
        self.at += n
        return self.data[self.at - n:self.at].tobytes()

    def value(self, kind):
        if kind in self.SCALARS:
            return self.number(self.SCALARS[kind])
        if kind == 8:
            return self.text()
        of, n = self.number(4), self.number(8)
        for _ in range(n):
            self.value(of)

    def size(self, dims, kind):
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        return int(np.prod(dims)) // block * size

    def floats(self, dims, kind, offset):
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
        raw = self.data[self.start + offset:][:self.size(dims, kind)]
        n, kind = int(np.prod(dims)), GGMLQuantizationType(kind)
        if kind == GGMLQuantizationType.F32:
            return raw.view("<f4")
        if kind == GGMLQuantizationType.F16:
            return raw.view("<f2").astype("<f4")
        return dequantize(raw.reshape(n // dims[0], -1), kind).astype("<f4")


def write_f32(like, tensors, to):
    """A file with the keys of `like` and these tensors, (name, dimensions, function that gives F32 numbers)."""
    table, offset = b"", 0
    for name, dims, _ in tensors:
        table += len(name).to_bytes(8, "little") + name + len(dims).to_bytes(4, "little")
        table += b"".join(d.to_bytes(8, "little") for d in dims) + (0).to_bytes(4, "little") + offset.to_bytes(8, "little")
        offset += -(-4 * int(np.prod(dims)) // like.align) * like.align
    with open(to, "wb") as out:
        head = like.data[:8].tobytes() + len(tensors).to_bytes(8, "little") + like.data[16:like.keys_end].tobytes() + table
        out.write(head + b"\0" * (-len(head) % like.align))
        for _, _, numbers in tensors:
            data = np.ascontiguousarray(numbers(), dtype="<f4").tobytes()
            out.write(data + b"\0" * (-len(data) % like.align))


def as_f32(source, to):
    """The same file with every tensor as the F32 numbers that it stands for."""
    r = Reader(source)
    write_f32(r, [(name, dims, lambda t=(dims, kind, at): r.floats(*t)) for name, dims, kind, at in r.tensors], to)


def with_scales(source, to):
    """A file of F32 whose matrices have factors beside them, as published NVFP4 files do: `.scale`, one for each expert, such
    that the largest number is the largest of NVFP4, and `.input_scale`, which is for rounded activations alone."""
    r, tensors = Reader(source), []
    # llama.cpp reads no scales in the block of a NextN head that it does not use.
    kept = {b"blk." + name.split(b".")[1] + b"." for name, *_ in r.tensors if b".nextn." in name}
    for name, dims, kind, at in r.tensors:
        plain = len(dims) < 2 or b"conv1d" in name or b"gate_inp" in name or name.startswith(tuple(kept))
        if plain or not name.startswith(b"blk.") or not name.endswith(b".weight"):
            tensors.append((name, dims, lambda t=(dims, kind, at): r.floats(*t)))
            continue
        n = dims[2] if len(dims) > 2 else 1
        numbers = r.floats(dims, kind, at).reshape(n, -1)
        scales = np.abs(numbers).max(1, keepdims=True) / (6 * 448)
        stem = name[:-len(b"weight")]
        tensors.append((name, dims, lambda x=numbers / scales: x))
        tensors += [(stem + b"scale", [n], lambda x=scales: x), (stem + b"input_scale", [n], lambda n=n: np.full(n, 0.5))]
    write_f32(r, tensors, to)


def flat_importance(base, to):
    """An importance matrix for every matrix of a file: all columns count alike."""
    import gguf
    w = gguf.GGUFWriter(to, "")
    w.add_type("imatrix")
    w.add_array("imatrix.datasets", ["flat"])
    w.add_uint32("imatrix.chunk_count", 1)
    w.add_uint32("imatrix.chunk_size", 512)
    for name, dims, _, _ in Reader(base).tensors:
        if len(dims) >= 2:
            n = dims[2] if len(dims) > 2 else 1
            w.add_tensor(name.decode() + ".in_sum2", np.ones((n, dims[0]), np.float32))
            w.add_tensor(name.decode() + ".counts", np.ones((n, 1), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def run(*command, **kw):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **kw)
    if done.returncode != 0:
        raise RuntimeError(f"{pathlib.Path(command[0]).name} ({done.returncode}): {done.stderr.decode(errors='replace').strip()[-600:]}")
    return done.stdout


def quantise(a, base, imatrix, name, to):
    """Makes the file of a row; `name` is a type in small letters, or a mixture."""
    tool = [pathlib.Path(a.folder) / "build/bin/llama-quantize", "--imatrix", imatrix]
    if name == "UD":
        wishes = [word for wish in UD for word in ("--tensor-type", wish)]
        return run(*tool, *wishes, base, to, "Q4_K_M", THREADS)
    if name in MIXTURES:
        return run(*tool, base, to, name, THREADS)
    if name == "NVFP4+scales":
        with_scales(base, a.work / "scaled.gguf")
        return quantise(a, a.work / "scaled.gguf", imatrix, "nvfp4", to)
    every = ["--token-embedding-type", name, "--output-tensor-type", name]
    if name in NO_FILE_TYPE:
        return run(*tool, "--tensor-type", f".*weight={name}", *every, base, to, "Q8_0", THREADS)
    kind = {"q3_K": "Q3_K_S", "q2_K": "Q2_K_S", "q4_K": "Q4_K_S", "q5_K": "Q5_K_S"}.get(name, name.upper())
    return run(*tool, "--pure", *every, base, to, kind, THREADS)


# --- llama.cpp -----------------------------------------------------------------------------------------------------------

def peer(folder, model, ids_file, width, to):
    """Logits of every position by libllama in this process: F32 cells, no flash attention, `width` tokens at a time."""
    package = next(pathlib.Path(folder).glob("llama_cpp_python-*/llama_cpp"))
    os.environ["LLAMA_CPP_LIB_PATH"] = str(pathlib.Path(folder) / "build/bin")
    # Only its declarations of the C functions: the package itself needs more packages.
    sys.modules["llama_cpp"] = types.ModuleType("llama_cpp")
    sys.modules["llama_cpp"].__path__ = [str(package)]
    c = importlib.import_module("llama_cpp.llama_cpp")
    silent = c.llama_log_callback(lambda *_: None)  # kept: the library calls it
    c.llama_log_set(silent, None)
    c.llama_backend_init()
    options = c.llama_model_default_params()
    options.n_gpu_layers = 0
    loaded = c.llama_model_load_from_file(str(model).encode(), options)
    if not loaded:
        sys.exit("llama.cpp does not open the file")
    all_ids = json.loads(pathlib.Path(ids_file).read_text())
    rows = []
    for ids in all_ids:
        options = c.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = 1024, 512, 512
        options.n_threads = options.n_threads_batch = THREADS
        options.flash_attn_type = 0
        options.type_k = options.type_v = 0
        context = c.llama_init_from_model(loaded, options)
        n_vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(loaded))
        for first in range(0, len(ids), width):
            part = ids[first:first + width]
            batch = c.llama_batch_init(len(part), 0, 1)
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, first + i, 1, 1
                batch.seq_id[i][0] = 0
            if c.llama_decode(context, batch) != 0:
                sys.exit("llama_decode")
            for i in range(len(part)):
                rows.append(np.ctypeslib.as_array(c.llama_get_logits_ith(context, i), (n_vocab,)).copy())
            c.llama_batch_free(batch)
        c.llama_free(context)
    np.save(to, np.stack(rows))


# --- figures -------------------------------------------------------------------------------------------------------------

def theirs(a, model, width):
    out = a.work / "theirs.npy"
    run(sys.executable, __file__, "--peer", a.folder, model, a.ids_file, width, out)
    return np.load(out)


def ours(a, model, width):
    rows = []
    for i in range(len(a.ids)):
        ids, out = a.work / "one.json", a.work / "ours.npy"
        ids.write_text(json.dumps(a.ids[i]))
        run(a.bin / "nextn-bench", "logits", "-m", model, "-t", THREADS, "--device", "cpu", "--cache-type-k", "f32", "--cache-type-v", "f32",
            "--ids-file", ids, "--batch-size", width, "--full", out)
        rows.append(np.load(out))
    return np.concatenate(rows)


def greedy(a, model, depth):
    tokens = []
    for ids in a.ids[:1]:
        ids = ",".join(map(str, ids[:40]))
        out = run(a.bin / "nextn-bench", "generate", "-m", model, "-t", THREADS, "--device", "cpu", "--tokens", ids, "-n", 32, "--draft", depth)
        tokens.append(json.loads(out)["tokens"])
    return tokens


class Distance:
    """Of logits from others: the largest difference, the mean KL divergence, the share of equal first choices."""

    def __init__(self, of, others):
        def logs(x):
            x = x.astype(np.float64)
            x = x - x.max(-1, keepdims=True)
            return x - np.log(np.exp(x).sum(-1, keepdims=True))
        if not (np.isfinite(of).all() and np.isfinite(others).all()):
            raise RuntimeError("logits are not finite")
        p, q = logs(others), logs(of)
        self.most = float(np.abs(of - others).max())
        self.kl = float((np.exp(p) * (p - q)).sum(-1).mean())
        self.argmax = float((of.argmax(-1) == others.argmax(-1)).mean())


def measure(a, base, imatrix, name):
    file, twin = a.work / f"{base.stem}.{name}.gguf", a.work / "twin.gguf"
    if not file.exists():
        quantise(a, base, imatrix, name, file)
    inspected = json.loads(run(a.bin / "extract-nextn", "inspect", "--json", file))
    row = {"name": name, "bytes": file.stat().st_size, "promise": inspected["batch_invariant"],
           "types": ", ".join(t["name"] for t in inspected["types"] if t["name"] != "f32")}
    as_f32(file, twin)
    mine, peers = ours(a, file, 512), theirs(a, file, 512)
    exact, exact_peers = ours(a, twin, 512), theirs(a, twin, 512)
    row["peer"], row["step"] = Distance(mine, peers), None
    row["twin"], row["peer_twin"] = Distance(mine, exact), Distance(peers, exact_peers)
    one = ours(a, file, 1)
    row["step"] = Distance(one, theirs(a, file, 1))
    row["alike"] = [n for n in WIDTHS if np.array_equal(one, ours(a, file, n))]
    row["greedy"] = greedy(a, file, 0) == greedy(a, file, 3) if "random" not in base.stem else None
    row["loss"] = Distance(exact, a.base_logits).kl
    return row


def line(row):
    name = row["name"] if row["name"] in TYPES else f"{row['name']}: {row['types']}"
    p, s, t, u = row["peer"], row["step"], row["twin"], row["peer_twin"]
    alike = "none" if not row["alike"] else ", ".join(map(str, row["alike"]))
    return (f"| {name} | {row['bytes'] / 1e6:.1f} | {row['loss']:.1e} | {t.kl:.1e}, {t.argmax:.3f} | {u.kl:.1e}, {u.argmax:.3f} | {p.most:.3f} | {p.kl:.1e}, {p.argmax:.3f} "
            f"| {s.kl:.1e}, {s.argmax:.3f} | {row['promise']} | {alike} | {'-' if row['greedy'] is None else 'yes' if row['greedy'] else '**no**'} |")


HEAD = """| file | MB | loss | ours, twin | llama.cpp, twin | most | ours, llama.cpp | one token at a time | promised | equal | drafts |
|---|---|---|---|---|---|---|---|---|---|---|"""

HEADING = """# 2026-11, every published type of weight

| | |
|---|---|
| Date | {day} |
| Processor | {processor}; one thread |
| Peer | llama.cpp as in llama-cpp-python 0.3.36 (ggml 0.25.3), CPU, F32 cells, no flash attention |
| Command | `scripts/published/quantisations.py FOLDER` |

Three models in every type: `pocket` (dense) and `pocket-moe`, both trained and with a NextN head, over 173 positions of two texts, and `random-moe`, three experts of random weights, over 128 positions of ids by chance. llama-quantize made the files, with a flat importance matrix; names in capitals are its mixtures, with the types that they came out as, and `UD` is one of ours with BF16 embeddings and experts in low types. Files of `f32` have no rounding: what is left there is the order of sums. Two numbers in a cell are the mean KL divergence and the share of positions with the same first choice.

- **loss**: of the type itself, the twin from the F32 base (KL). A file's *twin* has the numbers that its weights stand for, by gguf-py, as F32.
- **ours, twin**: our logits from ours of the twin; **llama.cpp, twin**: the same of llama.cpp. Each rounds activations in its own way: a type is right where the two are of one size.
- **most**: the largest difference of a logit on the same file; **ours, llama.cpp**: the distance; both with the prompt in one batch. **one token at a time**: as when it generates.
- **promised**: what `extract-nextn inspect` says of the file: batches in which a token has the bits that it has alone.
- **equal**: widths of batches, of 2, 7 and 32, in which all logits had the bits of one token at a time.
- **drafts**: greedy output of 32 tokens is the same without drafts and with drafts of 3 (`random-moe` has no head).

`NVFP4+scales` has `.scale` and `.input_scale` beside its matrices, one for each expert, as published files have them. Ternary types and IQ1 lose most of what such small models know; what counts here is that both programs lose the same.

"""


def processor():
    """The name that Linux has for it."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines() if pathlib.Path("/proc/cpuinfo").exists() else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    flags = next((line for line in lines if line.startswith("flags")), "")
    return name + (" (AVX-512)" if "avx512_vnni" in flags else " (AVX2)" if "avx2" in flags else "")


def prepare(a):
    """The bases as F32, by name, with the ids that they are asked with."""
    bases = {name: a.work / f"{name}.f32.gguf" for name in ROWS}
    for name, source in [("pocket", "pocket-q4_k_m"), ("pocket-moe", "pocket-moe-q8_0")]:
        if not bases[name].exists():
            as_f32(REPOSITORY / f"models/{source}.gguf", bases[name])
    random_moe.write(bases["random-moe"])
    text, ids = a.work / "text.txt", []
    for words in TEXTS:
        text.write_text(words)
        ids.append(json.loads(run(a.bin / "nextn-bench", "tokenize", "-m", bases["pocket"], "--text-file", text)))
    chance = np.random.default_rng(17).integers(0, 256, size=(2, 64)).tolist()
    return {name: (path, ids if name != "random-moe" else chance) for name, path in bases.items()}


def lines_of(a, name, path):
    """The table of a model, a line for each row that is wanted; those that were measured before are kept in a folder."""
    imatrix, kept = a.work / f"{name}.imatrix.gguf", a.work / "rows" / name
    kept.mkdir(parents=True, exist_ok=True)
    flat_importance(path, imatrix)
    a.base_logits = ours(a, path, 512)
    for row in [n for n in ROWS[name] if not a.only or n in a.only.split(",")]:
        # Mixtures and types differ by case alone in some names.
        file = kept / (row + (".mixture" if row in MIXTURES else ""))
        if not file.exists():
            try:
                file.write_text(line(measure(a, path, imatrix, row)))
            except RuntimeError as error:
                print(f"{row}: {error}", file=sys.stderr)
                yield f"| {row} | {' '.join(str(error).split())[-200:]} |" + " |" * 9
                continue
        yield file.read_text()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--bin", type=pathlib.Path, default=REPOSITORY / "target/release")
    p.add_argument("--work", type=pathlib.Path)
    p.add_argument("--only", default="")
    p.add_argument("--models", default=",".join(ROWS))
    p.add_argument("--out", type=pathlib.Path, default=REPOSITORY / "docs/measurements/quantisations.md")
    a = p.parse_args()
    a.work = a.work or pathlib.Path(a.folder) / "quantisations"
    a.work.mkdir(parents=True, exist_ok=True)
    parts = []
    for name, (path, ids) in prepare(a).items():
        if name not in a.models.split(","):
            continue
        a.ids, a.ids_file = ids, a.work / "ids.json"
        a.ids_file.write_text(json.dumps(ids))
        table = [f"## {name}", "", HEAD]
        for row in lines_of(a, name, path):
            table.append(row)
            print(row, flush=True)
        parts += table + [""]
    a.out.write_text(HEADING.format(processor=processor(), day=datetime.date.today().strftime("%-d %B %Y")) + "\n".join(parts))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "--peer":
        folder, model, ids, width, out = sys.argv[2:]
        peer(folder, model, ids, int(width), out)
    else:
        main()
