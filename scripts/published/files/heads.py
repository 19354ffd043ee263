#!/usr/bin/env python3
"""Small EAGLE-3 and DFlash heads with random weights in checkpoints of their own, as they are published: what scripts/published/conversions.py converts.

  heads.py OUT_DIR NAME        needs torch and safetensors

OUT_DIR/NAME is a folder with a configuration and tensors alone; the model that it drafts for is one of files/checkpoints.py, named in `target.txt`.
"""
import json, math, sys
from pathlib import Path

N_VOCAB, N_EMBD = 512, 256

SIZES = dict(vocab_size=N_VOCAB, hidden_size=N_EMBD, num_attention_heads=4, num_key_value_heads=2, intermediate_size=512, rms_norm_eps=1e-5,
             max_position_embeddings=2048)
ROPE3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
BLOCK = dict(block_size=8, dflash_config=dict(mask_token_id=3, target_layer_ids=[0, 1, 2]))
# Kind, target, configuration beside SIZES; `words`: rows of an output matrix for part of the vocabulary.
HEADS = {
    "eagle3": ("eagle3", "llama", dict(architectures=["LlamaForCausalLMEagle3"], num_hidden_layers=1, rope_theta=1e4, draft_vocab_size=384)),
    # As the first ones were published: Llama's class, another width, an embedding of its own, rotation as Llama 3.1's.
    "eagle3-wide": ("eagle3", "qwen2", dict(architectures=["LlamaForCausalLM"], num_hidden_layers=1, hidden_size=512, head_dim=96, rope_theta=5e5,
                                            rope_scaling=ROPE3, draft_vocab_size=320, target_hidden_size=N_EMBD)),
    # Its sizes within, all words, norms in other places.
    "eagle3-speculator": ("eagle3", "qwen3", dict(architectures=["Eagle3Speculator"], draft_vocab_size=N_VOCAB, norm_before_residual=True,
                                                  norm_before_fc=True, eagle_aux_hidden_state_layer_ids=[1, 2, 4])),
    "dflash": ("dflash", "qwen3_5", dict(num_hidden_layers=2, head_dim=64, rope_theta=1e6, **BLOCK)),
    "dflash-window": ("dflash", "qwen2", dict(num_hidden_layers=3, head_dim=64, rope_theta=1e6, use_sliding_window=True, sliding_window=16, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"], **BLOCK)),
}


def tensors(kind, config, d_target):
    """By name and shape."""
    d, n_head, n_kv, n_ff = (config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"))
    d_head = config.get("head_dim") or d // n_head
    n_in = 2 * d if kind == "eagle3" else d
    layer = {"self_attn.q_proj": (n_head * d_head, n_in), "self_attn.k_proj": (n_kv * d_head, n_in), "self_attn.v_proj": (n_kv * d_head, n_in),
             "self_attn.o_proj": (d, n_head * d_head), "mlp.gate_proj": (n_ff, d), "mlp.up_proj": (n_ff, d), "mlp.down_proj": (d, n_ff),
             "input_layernorm": (d,), "post_attention_layernorm": (d,)}
    if kind == "dflash":
        layer |= {"self_attn.q_norm": (d_head,), "self_attn.k_norm": (d_head,)}
        n_read = len(config["dflash_config"]["target_layer_ids"])
        all = {"fc": (d, n_read * d_target), "hidden_norm": (d,), "norm": (d,)}
        return all | {f"layers.{il}.{name}": shape for il in range(config["num_hidden_layers"]) for name, shape in layer.items()}
    layer["hidden_norm"] = (d,)
    all = {"fc": (d, 3 * d_target), "norm": (d,), "lm_head": (config["draft_vocab_size"], d)}
    if config.get("norm_before_fc"):
        all["input_norm"] = (3 * d_target,)
    if d != d_target:
        all["embed_tokens"] = (config["vocab_size"], d)
    before = "layers.0" if config["architectures"] == ["Eagle3Speculator"] else "midlayer"
    return all | {f"{before}.{name}": shape for name, shape in layer.items()}


def write(out, name):
    import torch
    from safetensors.torch import save_file
    kind, target, config = HEADS[name]
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    config = SIZES | config
    g = torch.Generator().manual_seed(4)
    weights = {}
    for key, shape in tensors(kind, config, N_EMBD).items():
        noise = torch.randn(shape, generator=g)
        weights[f"{key}.weight"] = (1 + 0.15 * noise if len(shape) == 1 else noise / math.sqrt(shape[-1])).bfloat16()
    if kind == "eagle3" and config["draft_vocab_size"] < N_VOCAB:
        words = torch.randperm(N_VOCAB, generator=g)[:config["draft_vocab_size"]].sort().values
        weights["d2t"] = words - torch.arange(len(words))
        weights["t2d"] = torch.zeros(N_VOCAB, dtype=torch.bool).index_fill(0, words, True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if kind == "dflash":
        config |= dict(architectures=["DFlashDraftModel"], model_type="qwen3")
    elif config["architectures"] == ["Eagle3Speculator"]:
        inner = {key: config.pop(key) for key in SIZES} | dict(num_hidden_layers=1, head_dim=64, rope_theta=1e4, model_type="llama")
        config["transformer_layer_config"] = inner
    else:
        config["model_type"] = "llama"
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "target.txt").write_text(target)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write(Path(sys.argv[1]), sys.argv[2])
