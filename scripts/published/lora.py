#!/usr/bin/env python3
"""Compares logits with LoRA adapters between nextn and llama.cpp, and writes docs/measurements/lora.md.

    scripts/published/llamacpp.sh FOLDER --build --torch
    cargo build --release
    FOLDER/venv/bin/python scripts/published/lora.py FOLDER [--bin target/release] [--out docs/measurements/lora.md]

FOLDER is that of llamacpp.sh. Base models are those of this repository: tiny random ones of tests/golden, and the trained ones of
models/. Random adapters for all of their matrices are written with gguf-py, and one is made from tensors as PEFT names them by
llama.cpp's convert_lora_to_gguf.py. Each is used alone and with a second one, with several factors, by both programs.
"""

import argparse
import ctypes
import importlib
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import types
import zlib

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
N_TOKENS = 40

# Label, file, and whether both programs get its weights as F32: products with others are rounded differently in each.
BASES = [
    ("llama", "tests/golden/llama/llama.gguf", False),
    ("qwen3", "tests/golden/qwen3/qwen3.gguf", False),
    ("qwen3moe", "tests/golden/qwen3moe/qwen3moe.gguf", False),
    ("glm4, as F32", "tests/golden/glm4/glm4.gguf", True),
    ("qwen35, as F32", "models/pocket-q4_k_m.gguf", True),
    ("qwen35moe, as F32", "models/pocket-moe-q8_0.gguf", True),
    ("qwen35, Q4_K_M", "models/pocket-q4_k_m.gguf", False),
    ("qwen35moe, Q8_0", "models/pocket-moe-q8_0.gguf", False),
]


def unpacked(path, work):
    """A file of the repository, which may be packed as tests/golden/oracle/pack.py does it."""
    for end in ("", ".z", ".z2", ".z4"):
        packed = path.with_name(path.name + end)
        if not packed.exists():
            continue
        if not end:
            return packed
        data = zlib.decompress(packed.read_bytes())
        if end > ".z":
            stride, at, whole = int(end[2:]), 0, bytearray(len(data))
            for first in range(stride):
                n = len(range(first, len(data), stride))
                whole[first::stride] = data[at:at + n]
                at += n
            data = bytes(whole)
        (work / path.name).write_bytes(data)
        return work / path.name
    raise FileNotFoundError(path)


def matrices(reader, embedding):
    """Names and shapes (fastest dimension first) of the matrices that adapters may update."""
    tied = not any(t.name == "output.weight" for t in reader.tensors)
    n_block = next(int(f.parts[f.data[0]][0]) for k, f in reader.fields.items() if k.endswith(".block_count"))
    nextn = [int(f.parts[f.data[0]][0]) for k, f in reader.fields.items() if k.endswith(".nextn_predict_layers")]
    last = n_block - (nextn[0] if nextn else 0)
    for t in reader.tensors:
        shape = [int(n) for n in t.shape]
        if t.name.startswith("blk.") and int(t.name.split(".")[1]) >= last:
            continue  # the MTP layer, which llama.cpp's plain decoding leaves alone
        if not t.name.endswith(".weight") or len(shape) < 2 or "conv1d" in t.name or "norm" in t.name:
            continue
        # llama.cpp aborts where a tied embedding has an update.
        if t.name != "token_embd.weight" or (embedding and not tied):
            yield t.name, shape


def write_adapter(gguf, path, arch, tensors, rank, alpha, seed, kind):
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    if alpha is not None:
        writer.add_float32("adapter.lora.alpha", alpha)
    for name, shape in tensors:
        n_in, n_out, rest = shape[0], shape[1], shape[2:]
        if name == "token_embd.weight":
            a, b = (n_out, rank), (n_in, rank)
        else:
            a, b = (*rest, rank, n_in), (*rest, n_out, rank)
        size = 0.2 / np.sqrt(rank * (1 if name == "token_embd.weight" else n_in))
        for ending, dims, size in (("lora_a", a, 1.0), ("lora_b", b, size)):
            data = (rng.standard_normal(dims) * size).astype(np.float32)
            quant = getattr(gguf.GGMLQuantizationType, kind)
            if kind == "F32" or dims[-1] % 32:
                writer.add_tensor(f"{name}.{ending}", data)
            else:
                packed = gguf.quants.quantize(data, quant)
                writer.add_tensor(f"{name}.{ending}", packed, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """llama.cpp's library by ctypes: logits of all tokens, F32 cache, no flash attention."""

    def __init__(self, folder, base):
        os.environ.setdefault("LLAMA_CPP_LIB_PATH", str(folder / "build/bin"))
        # The library's functions alone: the rest of the package asks for more packages.
        package = types.ModuleType("llama_cpp")
        package.__path__ = [str(sorted(folder.glob("llama_cpp_python-*/"))[-1] / "llama_cpp")]
        sys.modules.setdefault("llama_cpp", package)
        l = importlib.import_module("llama_cpp.llama_cpp")
        self.l = l
        self.log = l.llama_log_callback(lambda *_: None)
        l.llama_log_set(self.log, ctypes.c_void_p(0))
        l.llama_backend_init()
        self.model = l.llama_model_load_from_file(str(base).encode(), l.llama_model_default_params())
        assert self.model, f"llama.cpp does not load {base}"
        self.n_vocab = l.llama_vocab_n_tokens(l.llama_model_get_vocab(self.model))
        self.adapters = {}

    def adapter(self, path):
        if path not in self.adapters:
            self.adapters[path] = self.l.llama_adapter_lora_init(self.model, str(path).encode())
            assert self.adapters[path], f"llama.cpp does not load {path}"
        return self.adapters[path]

    def logits(self, ids, scaled):
        l = self.l
        params = l.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = 256, 256, 256, 2, 2
        params.type_k = params.type_v = 0
        params.flash_attn_type = 0
        context = l.llama_init_from_model(self.model, params)
        loaded = [self.adapter(path) for path, _ in scaled]
        n = len(loaded)
        pointers = (ctypes.POINTER(ctypes.c_void_p) * n)(*(ctypes.cast(p, ctypes.POINTER(ctypes.c_void_p)) for p in loaded))
        assert l.llama_set_adapters_lora(context, pointers, n, (ctypes.c_float * n)(*(scale for _, scale in scaled))) == 0
        batch = l.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
        assert l.llama_decode(context, batch) == 0
        rows = [np.ctypeslib.as_array(l.llama_get_logits_ith(context, i), (self.n_vocab,)).copy() for i in range(len(ids))]
        l.llama_batch_free(batch)
        l.llama_free(context)
        return np.array(rows)


def ours(bench, base, ids, scaled, work):
    out = work / "logits.npy"
    command = [bench, "logits", "-m", base, "--tokens", ",".join(map(str, ids)), "--full", out, "--hidden", work / "hidden.npy"]
    command += ["--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off", "-t", "2", "--device", "none"]
    for path, scale in scaled:
        command += ["--lora-scaled", f"{path}:{scale}"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return np.load(out)


def peft(folder, reader, work, gguf):
    """An adapter as PEFT names its tensors, for the tiny Llama model, through llama.cpp's converter."""
    from safetensors.numpy import save_file

    fields = {k.removeprefix("llama."): f.parts[f.data[0]] for k, f in reader.fields.items() if f.data}
    number = lambda key: int(fields[key][0])
    shapes = {t.name: [int(n) for n in t.shape] for t in reader.tensors}
    d_head = shapes["blk.0.attn_q.weight"][1] // number("attention.head_count")
    base = work / "base"
    lora = work / "peft"
    base.mkdir()
    lora.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "num_hidden_layers": number("block_count"),
        "head_dim": d_head,
        "vocab_size": shapes["token_embd.weight"][1],
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": 1e-5,
    }
    (base / "config.json").write_text(json.dumps(config))
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }
    rng, rank, tensors = np.random.default_rng(9), 8, {}
    for il in range(number("block_count")):
        for theirs, name in names.items():
            n_in, n_out = shapes[f"blk.{il}.{name}.weight"]
            prefix = f"base_model.model.model.layers.{il}.{theirs}"
            tensors[f"{prefix}.lora_A.weight"] = rng.standard_normal((rank, n_in)).astype(np.float32)
            size = 0.2 / np.sqrt(rank * n_in)
            tensors[f"{prefix}.lora_B.weight"] = (rng.standard_normal((n_out, rank)) * size).astype(np.float32)
    save_file(tensors, lora / "adapter_model.safetensors")
    (lora / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": 16, "base_model_name_or_path": str(base)}))
    out = work / "converted.gguf"
    converter = folder / "llama.cpp/convert_lora_to_gguf.py"
    command = [sys.executable, converter, "--base", base, "--outfile", out, "--outtype", "f32", lora]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def compare(theirs, mine):
    size = np.abs(theirs).max()
    off = np.abs(theirs - mine).max() / size
    return off, (theirs.argmax(1) == mine.argmax(1)).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "target/release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/measurements/lora.md")
    args = parser.parse_args()
    folder, bench = args.folder.resolve(), args.bin.resolve() / "nextn-bench"
    import gguf

    rows, worst = [], 0.0
    for label, base, widen in BASES:
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            base = unpacked(ROOT / base, work)
            if widen:
                wide = work / "wide.gguf"
                command = [folder / "build/bin/llama-quantize", "--allow-requantize", base, wide, "F32"]
                done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                base = wide
            reader = gguf.GGUFReader(base)
            arch = str(bytes(reader.fields["general.architecture"].parts[-1]), "utf-8")
            theirs = LlamaCpp(folder, base)
            rng = np.random.default_rng(1)
            ids = [int(i) for i in rng.integers(0, min(theirs.n_vocab, 250), N_TOKENS)]
            tensors = list(matrices(reader, True))
            files = {}
            for seed, (kind, rank, alpha) in enumerate([("F32", 8, 16.0), ("F16", 32, 16.0), ("BF16", 32, None), ("Q8_0", 32, 64.0)]):
                files[kind] = work / f"{kind}.gguf"
                write_adapter(gguf, files[kind], arch, tensors, rank, alpha, seed, kind)
            one, other = files["F32"], files["F16"]
            cases = [("none", [])]
            cases += [(f"F32, rank 8, {scale:+g}", [(one, scale)]) for scale in (1.0, 0.5, -1.0)]
            cases += [("F16, rank 32, +1", [(other, 1.0)]), ("BF16, no alpha, +0.5", [(files["BF16"], 0.5)])]
            cases += [("Q8_0, rank 32, +0.5", [(files["Q8_0"], 0.5)])]
            cases += [("F32 +1 and F16 -0.5", [(one, 1.0), (other, -0.5)])]
            if arch == "llama":
                cases += [("of PEFT, converted, +1", [(peft(folder, reader, work, gguf), 1.0)])]
            if "Q" in label:
                cases = cases[:2]
            plain = theirs.logits(ids, [])
            for words, scaled in cases:
                expected = theirs.logits(ids, scaled)
                off, same = compare(expected, ours(bench, base, ids, scaled, work))
                moved, _ = compare(plain, expected)
                if "Q" not in label and not any(kind in words for kind in ("16", "Q8")):
                    worst = max(worst, off)
                rows.append(f"| {label} | {words} | {moved:.2g} | {off:.1e} | {100 * same:.0f} % |")
                print(rows[-1], flush=True)
    version = (folder / "llama.cpp/src").resolve().parent.parent.parent.name
    text = f"""# LoRA adapters beside llama.cpp

Logits of {N_TOKENS} tokens in one forward pass, by `nextn-bench logits --lora-scaled` and by libllama of {version}, on a CPU ({platform.machine()}), both
with an F32 cache and without flash attention. Adapters are random, on every matrix of the model, router, experts, delta nets and embedding
included. *Moved* is how far the adapter moves llama.cpp's own logits, and *off* how far ours are from llama.cpp's, both as a share of the largest logit;
*same* is how often the likeliest token is the same one. The rows without an adapter tell what the two programs differ by anyway.

Largest difference with F32 weights and F32 adapters: {worst:.1e}. The other rows tell how each program rounds activations to a matrix's type.

Command: `FOLDER/venv/bin/python scripts/published/lora.py FOLDER`.

| model | adapters | moved | off | same |
|---|---|---|---|---|
""" + "\n".join(rows) + "\n"
    args.out.write_text(text)


if __name__ == "__main__":
    main()
