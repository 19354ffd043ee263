#!/usr/bin/env python3
"""Small checkpoints with a tower and random weights, as transformers saves them: what conversions.py makes projectors of.

  towers.py OUT_DIR [NAME ...]        needs torch and transformers

OUT_DIR/NAME is a checkpoint folder without a tokenizer: `config.json`, the weights in BF16 and the processor's configuration.
"""
import json, sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3ForConditionalGeneration, Gemma4ForConditionalGeneration, Qwen3_5ForConditionalGeneration

TEXT = dict(vocab_size=64, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=160, head_dim=32)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=32, linear_value_head_dim=32,
             layer_types=["linear_attention", "full_attention"])
TOWERS = {
    "qwen3_5": (Qwen3_5ForConditionalGeneration, TEXT | DELTA, dict(
        depth=3, hidden_size=72, num_heads=3, intermediate_size=140, num_position_embeddings=100, patch_size=16, out_hidden_size=96,
        deepstack_visual_indexes=[]), {}, {}),
    "gemma4": (Gemma4ForConditionalGeneration, TEXT | dict(layer_types=["sliding_attention", "full_attention"]), dict(
        num_hidden_layers=3, hidden_size=96, num_attention_heads=3, num_key_value_heads=3, head_dim=32, intermediate_size=160, patch_size=16,
        position_embedding_size=40, standardize=True), {}, dict(image_mean=[0.0] * 3, image_std=[1.0] * 3)),
    "gemma3": (Gemma3ForConditionalGeneration, TEXT | dict(layer_types=["sliding_attention", "full_attention"]), dict(
        num_hidden_layers=3, hidden_size=72, num_attention_heads=3, intermediate_size=140, image_size=96, patch_size=16),
        dict(mm_tokens_per_image=4), dict(image_seq_length=4)),
}


def write(out, name):
    kind, text, vision, more, processor = TOWERS[name]
    torch.manual_seed(1)
    config = kind.config_class(text_config=text, vision_config=vision, audio_config=None, **more) if name == "gemma4" else \
        kind.config_class(text_config=text, vision_config=vision, **more)
    model = kind(config)
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    folder = Path(out) / name
    model.to(torch.bfloat16).save_pretrained(folder)
    if name == "gemma3":
        # As the published ones have it: llama.cpp's converter does not know what transformers 5 calls the tower.
        path = folder / "model.safetensors"
        renamed = {k.replace("vision_tower.", "vision_tower.vision_model."): x for k, x in load_file(path).items()}
        save_file(renamed, path, metadata={"format": "pt"})
    processor = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3) | processor
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


if __name__ == "__main__":
    for name in sys.argv[2:] or TOWERS:
        write(sys.argv[1], name)
