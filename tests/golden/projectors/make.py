#!/usr/bin/env python3
"""Makes manifest.json.z (zlib): tiny checkpoints with a tower, and what llama.cpp's converter makes of them with --mmproj.

  scripts/published/llamacpp.sh FOLDER --torch
  FOLDER/venv/bin/python tests/golden/projectors/make.py FOLDER/llama.cpp tests/golden/projectors/manifest.json.z

For each checkpoint: its descriptions, its tensors (name, shape with the slowest dimension first), and for each type of file the
keys and the names, types, shapes and SHA-256 of all tensors. The numbers of a tensor follow from its name and their places
(`numbers`), and are stored as F32, but for those of every third name, which are BF16. Made with the source in the Python package
llama-cpp-python 0.3.36.
"""
import hashlib, json, subprocess, sys, tempfile, zlib
from pathlib import Path

import numpy
from gguf import GGUFReader

QWEN = {"depth": 2, "hidden_size": 40, "num_heads": 2, "intermediate_size": 64, "num_position_embeddings": 36, "patch_size": 4,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 48, "in_channels": 3, "deepstack_visual_indexes": []}
GEMMA = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 56, "position_embedding_size": 20, "patch_size": 4,
         "pooling_kernel_size": 3, "head_dim": 16}
GEMMA3 = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 56, "image_size": 36, "patch_size": 4,
          "layer_norm_eps": 3e-6}
N_TEXT = 48


def qwen(prefix):
    d, ff, n = QWEN["hidden_size"], QWEN["intermediate_size"], 4 * QWEN["hidden_size"]
    yield "patch_embed.proj.weight", [d, 3, 2, 4, 4]
    yield "patch_embed.proj.bias", [d]
    yield "pos_embed.weight", [36, d]
    for il in range(2):
        for name, shape in (("norm1", [d]), ("norm2", [d]), ("attn.qkv", [3 * d, d]), ("attn.proj", [d, d]), ("mlp.linear_fc1", [ff, d]),
                            ("mlp.linear_fc2", [d, ff])):
            yield f"blocks.{il}.{name}.weight", shape
            yield f"blocks.{il}.{name}.bias", shape[:1]
    for name, shape in (("norm", [d]), ("linear_fc1", [n, n]), ("linear_fc2", [N_TEXT, n])):
        yield f"merger.{name}.weight", shape
        yield f"merger.{name}.bias", shape[:1]


def gemma(clipped):
    d, ff = GEMMA["hidden_size"], GEMMA["intermediate_size"]
    yield "vision_tower.patch_embedder.input_proj.weight", [d, 48]
    yield "vision_tower.patch_embedder.position_embedding_table", [2, 20, d]
    yield "embed_vision.embedding_projection.weight", [N_TEXT, d]
    if not clipped:
        yield "vision_tower.std_bias", [d]
        yield "vision_tower.std_scale", [d]
    for il in range(2):
        at = f"vision_tower.encoder.layers.{il}."
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield f"{at}{name}_layernorm.weight", [d]
        for name in ("q", "k"):
            yield f"{at}self_attn.{name}_norm.weight", [16]
        for name, shape in [(f"self_attn.{x}_proj", [d, d]) for x in "qkvo"] + [("mlp.gate_proj", [ff, d]), ("mlp.up_proj", [ff, d]), ("mlp.down_proj", [d, ff])]:
            yield f"{at}{name}.linear.weight", shape
            for limit in ("input_min", "input_max", "output_min", "output_max") if clipped else ():
                yield f"{at}{name}.{limit}", []


def gemma3():
    d, ff = GEMMA3["hidden_size"], GEMMA3["intermediate_size"]
    at = "vision_tower.vision_model."
    yield f"{at}embeddings.patch_embedding.weight", [d, 3, 4, 4]
    yield f"{at}embeddings.patch_embedding.bias", [d]
    yield f"{at}embeddings.position_embedding.weight", [81, d]
    for il in range(2):
        for name, shape in [("layer_norm1", [d]), ("layer_norm2", [d]), ("mlp.fc1", [ff, d]), ("mlp.fc2", [d, ff])] + [
                (f"self_attn.{x}_proj", [d, d]) for x in ("q", "k", "v", "out")]:
            yield f"{at}encoder.layers.{il}.{name}.weight", shape
            yield f"{at}encoder.layers.{il}.{name}.bias", shape[:1]
    yield f"{at}post_layernorm.weight", [d]
    yield f"{at}post_layernorm.bias", [d]
    yield "multi_modal_projector.mm_input_projection_weight", [d, N_TEXT]
    yield "multi_modal_projector.mm_soft_emb_norm.weight", [d]


def checkpoints():
    text = {"hidden_size": N_TEXT, "rms_norm_eps": 2e-6}
    three = {"image_mean": [0.5, 0.4, 0.25], "image_std": [0.5, 0.25, 0.125]}
    sampling = {"temperature": 0.7, "top_k": 20, "top_p": 0.8}
    for name, kind in (("qwen3_5", "Qwen3_5"), ("qwen3_5_moe", "Qwen3_5Moe")):
        config = {"architectures": [f"{kind}ForConditionalGeneration"], "model_type": name, "text_config": text, "vision_config": QWEN}
        files = {"config.json": config, "preprocessor_config.json": three, "generation_config.json": sampling}
        # As transformers saves them, and as it did before.
        prefix = "model.visual." if name == "qwen3_5" else "visual."
        yield name, files, [(prefix + n, shape) for n, shape in qwen(prefix)]
    for name, clipped in (("gemma4", False), ("gemma4-clipped", True)):
        config = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": text, "audio_config": None,
                  "vision_config": {**GEMMA, "use_clipped_linears": clipped, "standardize": not clipped}}
        files = {"config.json": config, "processor_config.json": {"image_seq_length": 70, "image_processor": three}}
        yield name, files, [("model." + n, shape) for n, shape in gemma(clipped)]
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text, "mm_tokens_per_image": 9,
              "vision_config": GEMMA3}
    yield "gemma3", {"config.json": config, "preprocessor_config.json": {**three, "image_seq_length": 9}}, list(gemma3())


def numbers(name, shape):
    n, seed = int(numpy.prod(shape, dtype=int)), 7
    for byte in name.encode():
        seed = (seed * 31 + byte) % 2**32
    # Multiples of 2^-17 between -1/2 and 1/2, which no type but F32 holds.
    return ((seed + numpy.arange(n, dtype=numpy.uint64) * 7919) % 131071).astype(numpy.float32) / numpy.float32(131072) - numpy.float32(0.5)


def bf16(x):
    bits = x.view(numpy.uint32).astype(numpy.uint64)
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def safetensors(tensors):
    header, data = {}, b""
    for i, (name, shape) in enumerate(tensors):
        x = numbers(name, shape)
        of = bf16(x).tobytes() if i % 3 == 2 else x.tobytes()
        header[name] = {"dtype": "BF16" if i % 3 == 2 else "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(of)]}
        data += of
    header = json.dumps(header).encode()
    return len(header).to_bytes(8, "little") + header + data


def main():
    llama, out = Path(sys.argv[1]), Path(sys.argv[2])
    all = []
    for name, files, tensors in checkpoints():
        entry = {"name": name, "files": files, "tensors": tensors, "made": {}}
        for kind in ("f32", "f16", "bf16", "q8_0"):
            with tempfile.TemporaryDirectory() as folder:
                folder = Path(folder) / name
                folder.mkdir()
                for file, content in files.items():
                    (folder / file).write_text(json.dumps(content))
                (folder / "model.safetensors").write_bytes(safetensors(tensors))
                made = folder / "mmproj.gguf"
                subprocess.run([sys.executable, llama / "convert_hf_to_gguf.py", folder, "--mmproj", "--outtype", kind, "--outfile", made],
                               check=True, capture_output=True)
                reader = GGUFReader(made)
                keys = [[key, field.contents()] for key, field in reader.fields.items() if not key.startswith("GGUF.")]
                of = [[t.name, int(t.tensor_type), [int(n) for n in t.shape], hashlib.sha256(t.data.tobytes()).hexdigest()] for t in reader.tensors]
                entry["made"][kind] = {"keys": keys, "tensors": of}
        all.append(entry)
    lines = ",\n".join(json.dumps(entry) for entry in all)
    out.write_bytes(zlib.compress(f"[\n{lines}\n]\n".encode(), 9))


if __name__ == "__main__":
    main()
