#!/usr/bin/env python3
"""Golden of tiny models that see, by transformers: Gemma 3 with pictures, Qwen3.5 with a video.

  NEXTN_WRITE_TINY=FOLDER cargo test -p nextn-model --test all seen
  scripts/pictures_golden.py FOLDER tests/golden/pictures/pictures.json.z    needs the Python packages torch, transformers and gguf

Made with transformers 5.23 on a CPU, in F32. The weights of our files are put into transformers' models; pictures, prompts,
positions, logits and greedy text are theirs. The text before each two frames is that of transformers' processor.
"""
import json, sys, zlib

import numpy as np
import torch
from PIL import Image
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Qwen3_5Config, Qwen3_5ForConditionalGeneration
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from gemma4_golden import File

N_GREEDY = 12
# Of tokens that the tiny vocabulary fills up with: a row of a picture, of a frame, before and after either.
ROW, FRAME, BEGIN, END = 265, 266, 267, 268


def picture(width, height, i):
    at = np.arange(width * height * 3, dtype=np.int64)
    return Image.fromarray((at * at % 251 + (i + 1) * at % (5 + i)).astype(np.uint8).reshape(height, width, 3))


def vision_config(mmproj, **more):
    v = lambda key: mmproj.keys[f"clip.vision.{key}"]
    return {"hidden_size": v("embedding_length"), "intermediate_size": v("feed_forward_length"), "patch_size": v("patch_size"), **more}


def gemma3(text, mmproj):
    v = lambda key: mmproj.keys[f"clip.vision.{key}"]
    n_layer, side = text["block_count"], v("image_size") // v("patch_size") // v("projector.scale_factor")
    period = text["attention.sliding_window_pattern"]
    config = Gemma3Config(
        text_config={
            "vocab_size": 272, "hidden_size": text["embedding_length"], "intermediate_size": text["feed_forward_length"],
            "num_hidden_layers": n_layer, "num_attention_heads": text["attention.head_count"],
            "num_key_value_heads": text["attention.head_count_kv"], "head_dim": text["attention.key_length"],
            "query_pre_attn_scalar": text["attention.key_length"], "sliding_window": text["attention.sliding_window"],
            "layer_types": ["sliding_attention" if (il + 1) % period else "full_attention" for il in range(n_layer)],
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": text["rope.freq_base"]},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}},
            "final_logit_softcapping": text["final_logit_softcapping"], "rms_norm_eps": 1e-6},
        vision_config=vision_config(mmproj, num_hidden_layers=v("block_count"), num_attention_heads=v("attention.head_count"),
                                    image_size=v("image_size"), vision_use_head=False, layer_norm_eps=1e-6),
        mm_tokens_per_image=side * side, image_token_index=ROW, boi_token_index=BEGIN, eoi_token_index=END, tie_word_embeddings=False)
    config._attn_implementation = "eager"
    model = Gemma3ForConditionalGeneration(config).float().eval()
    w, state = text.w, {"model.language_model.embed_tokens.weight": text.w["token_embd.weight"], "lm_head.weight": text.w["output.weight"],
                        "model.language_model.norm.weight": text.w["output_norm.weight"] - 1}
    for il in range(n_layer):
        to, of = f"model.language_model.layers.{il}.", f"blk.{il}."
        for hf, ours in (("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"),
                         ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down")):
            state[f"{to}{hf}.weight"] = w[f"{of}{ours}.weight"]
        for hf, ours in (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attention_norm"), ("pre_feedforward_layernorm", "ffn_norm"),
                         ("post_feedforward_layernorm", "post_ffw_norm"), ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm")):
            state[f"{to}{hf}.weight"] = w[f"{of}{ours}.weight"] - 1
    w, tower = mmproj.w, "model.vision_tower." if "model.vision_tower.post_layernorm.weight" in model.state_dict() else "model.vision_tower.vision_model."
    for hf, ours in (("embeddings.patch_embedding.weight", "patch_embd.weight"), ("embeddings.patch_embedding.bias", "patch_embd.bias"),
                     ("embeddings.position_embedding.weight", "position_embd.weight"), ("post_layernorm.weight", "post_ln.weight"),
                     ("post_layernorm.bias", "post_ln.bias")):
        state[tower + hf] = w["v." + ours]
    for il in range(v("block_count")):
        for hf, ours in (("layer_norm1", "ln1"), ("layer_norm2", "ln2"), ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"),
                         ("self_attn.v_proj", "attn_v"), ("self_attn.out_proj", "attn_out"), ("mlp.fc1", "ffn_up"), ("mlp.fc2", "ffn_down")):
            for kind in ("weight", "bias"):
                state[f"{tower}encoder.layers.{il}.{hf}.{kind}"] = w[f"v.blk.{il}.{ours}.{kind}"]
    state["model.multi_modal_projector.mm_input_projection_weight"] = w["mm.input_projection.weight"]
    state["model.multi_modal_projector.mm_soft_emb_norm.weight"] = w["mm.soft_emb_norm.weight"] - 1
    fill(model, state)
    size = v("image_size")
    processor = Gemma3ImageProcessorPil(size={"height": size, "width": size}, image_mean=v("image_mean"), image_std=v("image_std"), do_pan_and_scan=False)
    # As large as the tower wants it; one that is scaled across first, as Pillow 13 does where that is cheaper.
    for name, sizes in (("gemma3", (size, size)), ("gemma3 scaled", (71, 40))):
        images = [picture(*sizes, i) for i in range(2)]
        pixels = torch.cat([processor(images=[image], return_tensors="pt")["pixel_values"] for image in images]).float()
        n = side * side
        ids = [*b"See ", BEGIN, *[ROW] * n, END, *b" and ", BEGIN, *[ROW] * n, END, *b": what?"]
        x = torch.tensor([ids])
        rows = model.model.get_image_features(pixels, return_dict=True).pooler_output.reshape(-1)
        # The class with pictures has no cap, that of text alone has it.
        cap = text["final_logit_softcapping"]
        logits = lambda x: model(input_ids=x, pixel_values=pixels, token_type_ids=(x == ROW).long(), use_cache=False).logits[0, -1]
        run = lambda x: cap * torch.tanh(logits(x) / cap)
        yield result(name, sizes, None, ids, ROW, n, rows, None, x, run)


def qwen35(text, mmproj):
    v = lambda key: mmproj.keys[f"clip.vision.{key}"]
    n_layer, n_k, n_v, d = text["block_count"], text["ssm.group_count"], text["ssm.time_step_rank"], text["ssm.state_size"]
    period, d_head = text["full_attention_interval"], text["attention.key_length"]
    config = Qwen3_5Config(
        text_config={
            "vocab_size": 272, "hidden_size": text["embedding_length"], "intermediate_size": text["feed_forward_length"],
            "num_hidden_layers": n_layer, "num_attention_heads": text["attention.head_count"],
            "num_key_value_heads": text["attention.head_count_kv"], "head_dim": d_head, "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_type": "default", "rope_theta": text["rope.freq_base"], "mrope_interleaved": True,
                                "partial_rotary_factor": text["rope.dimension_count"] / d_head, "mrope_section": text["rope.dimension_sections"][:3]},
            "linear_num_key_heads": n_k, "linear_num_value_heads": n_v, "linear_key_head_dim": d, "linear_value_head_dim": d,
            "linear_conv_kernel_dim": text["ssm.conv_kernel"],
            "layer_types": ["linear_attention" if (il + 1) % period else "full_attention" for il in range(n_layer)]},
        vision_config=vision_config(mmproj, depth=v("block_count"), num_heads=v("attention.head_count"), spatial_merge_size=2, temporal_patch_size=2,
                                    num_position_embeddings=mmproj.w["v.position_embd.weight"].shape[0], out_hidden_size=v("projection_dim"),
                                    deepstack_visual_indexes=[]),
        image_token_id=ROW, video_token_id=FRAME, vision_start_token_id=BEGIN, vision_end_token_id=END, tie_word_embeddings=False)
    config._attn_implementation = "eager"
    model = Qwen3_5ForConditionalGeneration(config).float().eval()
    w, state = text.w, {"model.language_model.embed_tokens.weight": text.w["token_embd.weight"], "lm_head.weight": text.w["output.weight"],
                        "model.language_model.norm.weight": text.w["output_norm.weight"] - 1}
    # Value heads stand by their place under a key head in our files, and by key head in theirs.
    theirs = [(i % (n_v // n_k)) * n_k + i // (n_v // n_k) for i in range(n_v)]
    by_head = lambda x, n: x.reshape(n_v, n, *x.shape[1:])[theirs].reshape(x.shape)
    values_last = lambda x: torch.cat([x[:2 * n_k * d], by_head(x[2 * n_k * d:], d)])
    for il in range(n_layer):
        to, t = f"model.language_model.layers.{il}.", lambda name: w[f"blk.{il}.{name}"]
        state[f"{to}input_layernorm.weight"] = t("attn_norm.weight") - 1
        state[f"{to}post_attention_layernorm.weight"] = t("post_attention_norm.weight") - 1
        for hf, ours in (("gate_proj", "ffn_gate"), ("up_proj", "ffn_up"), ("down_proj", "ffn_down")):
            state[f"{to}mlp.{hf}.weight"] = t(f"{ours}.weight")
        if (il + 1) % period == 0:
            for hf, ours in (("q_proj", "attn_q"), ("k_proj", "attn_k"), ("v_proj", "attn_v"), ("o_proj", "attn_output")):
                state[f"{to}self_attn.{hf}.weight"] = t(f"{ours}.weight")
            for x in "qk":
                state[f"{to}self_attn.{x}_norm.weight"] = t(f"attn_{x}_norm.weight") - 1
            continue
        to += "linear_attn."
        state[f"{to}in_proj_qkv.weight"] = values_last(t("attn_qkv.weight"))
        state[f"{to}in_proj_z.weight"] = by_head(t("attn_gate.weight"), d)
        state[f"{to}in_proj_b.weight"] = by_head(t("ssm_beta.weight"), 1)
        state[f"{to}in_proj_a.weight"] = by_head(t("ssm_alpha.weight"), 1)
        state[f"{to}conv1d.weight"] = values_last(t("ssm_conv1d.weight"))[:, None]
        state[f"{to}A_log"] = by_head((-t("ssm_a")).log(), 1)
        state[f"{to}dt_bias"] = by_head(t("ssm_dt.bias"), 1)
        state[f"{to}norm.weight"] = t("ssm_norm.weight")
        state[f"{to}out_proj.weight"] = by_head(t("ssm_out.weight").T, d).T
    w, to = mmproj.w, "model.visual."
    state[f"{to}patch_embed.proj.weight"] = torch.stack([w["v.patch_embd.weight"], w["v.patch_embd.weight.1"]], 2)
    state[f"{to}patch_embed.proj.bias"] = w["v.patch_embd.bias"]
    state[f"{to}pos_embed.weight"] = w["v.position_embd.weight"]
    for kind in ("weight", "bias"):
        for hf, ours in (("norm", "v.post_ln"), ("linear_fc1", "mm.0"), ("linear_fc2", "mm.2")):
            state[f"{to}merger.{hf}.{kind}"] = w[f"{ours}.{kind}"]
        for il in range(v("block_count")):
            for hf, ours in (("norm1", "ln1"), ("norm2", "ln2"), ("attn.qkv", "attn_qkv"), ("attn.proj", "attn_out"), ("mlp.linear_fc1", "ffn_up"),
                             ("mlp.linear_fc2", "ffn_down")):
                state[f"{to}blocks.{il}.{hf}.{kind}"] = w[f"v.blk.{il}.{ours}.{kind}"]
    fill(model, state)
    size, n_frames, fps = (32, 24), 6, 2.0
    patch = v("patch_size")
    processor = Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, temporal_patch_size=2, image_mean=v("image_mean"), image_std=v("image_std"),
                                         do_resize=False)
    # A picture stands twice in its patches: of two frames each is once there.
    frames = [processor(images=[picture(*size, i)], return_tensors="pt") for i in range(n_frames)]
    one = [frame["pixel_values"].float().view(-1, 3, 2, patch, patch)[:, :, 0] for frame in frames]
    pixels = torch.cat([torch.stack([one[i], one[i + 1]], 2).flatten(1) for i in range(0, n_frames, 2)])
    grid = frames[0]["image_grid_thw"][0].clone()
    grid[0] = n_frames // 2
    n = int(grid[1] * grid[2]) // 4
    times = Qwen3VLProcessor._calculate_timestamps(None, list(range(n_frames)), fps, 2)
    shown = [f"<{time:.1f} seconds>" for time in times]
    ids = [*b"See "]
    for time in shown:
        ids += [*time.encode(), BEGIN, *[FRAME] * n, END]
    ids += b": what?"
    x, grids = torch.tensor([ids]), grid[None]
    kinds = lambda x: (x == FRAME).int() * 2
    positions, _ = model.model.get_rope_index(x, kinds(x), video_grid_thw=grids)
    rows = torch.cat([part.reshape(-1) for part in model.model.get_video_features(pixels, grids, return_dict=True).pooler_output])
    run = lambda x: model(input_ids=x, pixel_values_videos=pixels, video_grid_thw=grids, mm_token_type_ids=kinds(x), use_cache=False).logits[0, -1]
    yield {**result("qwen35 video", size, n_frames // 2, ids, FRAME, n, rows, positions[:, 0].tolist(), x, run), "fps": fps, "times": shown}


def fill(model, state):
    state = {k: x.float() for k, x in state.items()}
    missing, extra = model.load_state_dict(state, strict=False)
    if missing or extra:
        sys.exit(f"missing {missing}, extra {extra}")


def result(name, size, pairs, ids, row, n, rows, positions, x, run):
    starts = [i for i, id in enumerate(ids) if id == row and ids[i - 1] == BEGIN]
    first, greedy, margins = run(x), [], []
    for _ in range(N_GREEDY):
        logits = run(x)
        best = logits.topk(2)
        greedy.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        x = torch.cat([x, best.indices[None, :1]], 1)
    print(f"{name}: {len(ids)} tokens, greedy margins from {min(margins):.3f}, rms of rows {float(rows.pow(2).mean().sqrt()):.3f}")
    return {"name": name, "size": size, "pairs": pairs, "ids": ids, "firsts": starts, "rows": numbers(rows), "positions": positions,
            "logits": numbers(first), "greedy": greedy}


def numbers(x):
    return [float(f"{v:.5g}") for v in x.tolist()]


@torch.no_grad()
def main(folder, out):
    golden = []
    for name, make in (("gemma3", gemma3), ("qwen35", qwen35)):
        golden += make(File(f"{folder}/{name}.gguf"), File(f"{folder}/{name}.mmproj.gguf"))
    lines = "[\n" + ",\n".join(json.dumps(s, separators=(",", ":")) for s in golden) + "\n]\n"
    with open(out, "wb") as f:
        f.write(zlib.compress(lines.encode(), 9))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
