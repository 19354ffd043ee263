#!/usr/bin/env python3
"""Small checkpoints with random weights, as transformers saves them: what scripts/published/files.py converts.

  checkpoints.py OUT_DIR [NAME ...]        needs torch, transformers and tokenizers

OUT_DIR/NAME is a checkpoint folder with a tokenizer of 512 tokens, trained on this repository's documents, and `reference.npz`: the ids of
a prompt and what transformers computes for it (`logits`, F32). `pre.txt` is the name of the tokenizer's pre-tokenizer in GGUF files.
Widths are multiples of 256, so that every quantised type fits, and differ from each other where they may.
"""
import json, math, sys
from pathlib import Path

import mistral_own

N_VOCAB, N_PROMPT = 512, 200
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
LETTERS = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (LETTERS + r"*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|" + LETTERS + r"+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PRE = {"qwen2": QWEN2, "qwen35": QWEN35, "llama-bpe": LLAMA, "glm4": LLAMA}

SIZES = dict(vocab_size=N_VOCAB, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=512,
             max_position_embeddings=4096, rms_norm_eps=1e-5)
DELTA = dict(head_dim=128, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128,
             rms_norm_eps=1e-6)
PLAIN = dict(rope_type="default", rope_theta=1e6)
# The original context is short, so that the prompt goes beyond it.
YARN = dict(rope_type="yarn", rope_theta=1e6, factor=8.0, original_max_position_embeddings=64)
SECTIONS = dict(mrope_interleaved=True, mrope_section=[6, 5, 5], partial_rotary_factor=0.25)
MOE = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=256, norm_topk_prob=True)
ROUTED = dict(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=256, n_shared_experts=1, n_group=1, topk_group=1,
              first_k_dense_replace=1, routed_scaling_factor=1.5, norm_topk_prob=True)
LATENT = dict(num_key_value_heads=4, q_lora_rank=256, kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=128)
OSS = dict(head_dim=64, num_local_experts=8, num_experts_per_tok=2, sliding_window=32, intermediate_size=256)
# Layer 5 is the one without a window.
GEMMA = dict(head_dim=64, query_pre_attn_scalar=64, num_hidden_layers=6, sliding_window=32, tie_word_embeddings=True)
GEMMA_ROPE = dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6), sliding_attention=dict(rope_type="default", rope_theta=1e4))
# Transformers holds time steps above the smallest that a model begins with, which neither the model's own code nor llama.cpp does.
STEPS = dict(layer_norm_epsilon=1e-5, conv_kernel=4, time_step_min=1e-9)
SIGLIP = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2, image_size=56, patch_size=14)
# One line a checkpoint: transformers' class, pre-tokenizer, what its configuration says beside SIZES.
MODELS = {
    "qwen3": ("Qwen3", "qwen2", dict(head_dim=128, tie_word_embeddings=True, rope_parameters=PLAIN)),
    "qwen3_moe": ("Qwen3Moe", "qwen2", dict(head_dim=128, rope_parameters=PLAIN, decoder_sparse_step=1, mlp_only_layers=[], **MOE)),
    "qwen3_5": ("Qwen3_5", "qwen35", dict(tie_word_embeddings=True, rope_parameters=PLAIN | SECTIONS, **DELTA)),
    "qwen3_5_moe": ("Qwen3_5Moe", "qwen35", dict(rope_parameters=PLAIN | SECTIONS, shared_expert_intermediate_size=512, **DELTA, **MOE)),
    "qwen3_next": ("Qwen3Next", "qwen2", dict(rope_parameters=PLAIN | dict(partial_rotary_factor=0.25), shared_expert_intermediate_size=512,
                                              **DELTA, **MOE)),
    "qwen2": ("Qwen2", "qwen2", dict(rope_parameters=PLAIN)),
    "llama": ("Llama", "llama-bpe", dict(rope_parameters=PLAIN)),
    "mistral": ("Mistral", "llama-bpe", dict(head_dim=128, sliding_window=None, rope_parameters=PLAIN)),
    "mixtral": ("Mixtral", "llama-bpe", dict(num_local_experts=4, num_experts_per_tok=2, rope_parameters=PLAIN)),
    "ministral3": ("Ministral3", "llama-bpe", dict(head_dim=128, rope_parameters=YARN | dict(
        mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1, beta_fast=32.0, beta_slow=1.0))),
    "glm4": ("Glm4", "glm4", dict(head_dim=128, attention_bias=True, rope_parameters=PLAIN | dict(partial_rotary_factor=0.5))),
    # Keys that few files have.
    "qwen2-tied": ("Qwen2", "qwen2", dict(tie_word_embeddings=True, rope_parameters=PLAIN)),
    "llama-biased": ("Llama", "llama-bpe", dict(head_dim=128, attention_bias=True, mlp_bias=True, rope_parameters=PLAIN)),
    "llama-mha": ("Llama", "llama-bpe", dict(num_key_value_heads=4, tie_word_embeddings=True, rope_parameters=PLAIN)),
    "llama-rope3": ("Llama", "llama-bpe", dict(tie_word_embeddings=True, rope_parameters=dict(
        rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64))),
    "llama-linear": ("Llama", "llama-bpe", dict(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0))),
    "qwen3-yarn": ("Qwen3", "qwen2", dict(head_dim=128, rope_parameters=YARN)),
    "qwen3-yarn-betas": ("Qwen3", "qwen2", dict(head_dim=128, rope_parameters=YARN | dict(beta_fast=8.0, beta_slow=2.0))),
    "qwen2-yarn-factor": ("Qwen2", "qwen2", dict(rope_parameters=YARN | dict(attention_factor=1.0))),
    "qwen3_5-yarn": ("Qwen3_5", "qwen35", dict(rope_parameters=YARN | SECTIONS, **DELTA)),
    "granite": ("Granite", "llama-bpe", dict(rope_parameters=PLAIN, embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.1,
                                             logits_scaling=2.0)),
    "phi3": ("Phi3", "llama-bpe", dict(sliding_window=None, original_max_position_embeddings=4096, rope_parameters=PLAIN | dict(
        partial_rotary_factor=0.75))),
    "phi3-long": ("Phi3", "llama-bpe", dict(sliding_window=None, original_max_position_embeddings=1024, rope_parameters=dict(
        rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=1024, long_factor=[1.0 + i / 8 for i in range(32)],
        short_factor=[1.0 + i / 64 for i in range(32)]))),
    # With pieces; the heads of one do not divide its width.
    "llama-pieces": ("Llama", "default", dict(num_attention_heads=8, num_key_value_heads=1, head_dim=96, rope_parameters=dict(
        rope_type="default", rope_theta=1e4))),
    "llama-merges": ("Llama", "default", dict(tie_word_embeddings=True, rope_parameters=PLAIN)),
    "mistral-pieces": ("Mistral", "default", dict(head_dim=128, sliding_window=4096, rope_parameters=PLAIN)),
    "mixtral-pieces": ("Mixtral", "default", dict(num_local_experts=4, num_experts_per_tok=2, rope_parameters=PLAIN)),
    "phi3-pieces": ("Phi3", "default", dict(sliding_window=33, original_max_position_embeddings=4096, rope_parameters=dict(
        rope_type="default", rope_theta=1e4))),
    "phi3-pieces-long": ("Phi3", "default", dict(num_key_value_heads=4, sliding_window=4096, original_max_position_embeddings=128, rope_parameters=dict(
        rope_type="longrope", rope_theta=1e4, original_max_position_embeddings=128, long_factor=[1.0 + i / 8 for i in range(32)],
        short_factor=[1.0 + i / 64 for i in range(32)]))),
    # In the form of Mistral's own files.
    "mistral-own": ("Mistral", "tekken", dict(head_dim=96, sliding_window=None, rope_parameters=PLAIN)),
    "mistral-own-pieces": ("Mistral", "default", dict(head_dim=128, sliding_window=None, tie_word_embeddings=True, rope_parameters=PLAIN)),
    "ministral3-own": ("Ministral3", "tekken", dict(head_dim=128, rope_parameters=YARN | dict(
        mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1, beta_fast=32.0, beta_slow=1.0))),
    "lfm2": ("Lfm2", "llama-bpe", dict(rope_parameters=PLAIN, conv_L_cache=3, norm_eps=1e-5, block_auto_adjust_ff_dim=False, block_ff_dim=512,
                                       tie_word_embeddings=True, layer_types=["conv", "full_attention", "conv", "full_attention"])),
    # Keys and values of one head for four of queries; layers by letters, as published.
    "nemotron_h": ("NemotronH", "llama-bpe", dict(num_key_value_heads=1, head_dim=96, attention_head_dim=96, **STEPS,
                                                  mamba_num_heads=8, mamba_head_dim=64, n_groups=2, ssm_state_size=32, chunk_size=64,
                                                  layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"])),
    "nemotron_h-biased": ("NemotronH", "llama-bpe", dict(head_dim=64, **STEPS, attention_bias=True,
                                                         tie_word_embeddings=True, mamba_num_heads=4, mamba_head_dim=64, n_groups=1, ssm_state_size=64,
                                                         chunk_size=64, layers_block_type=["mlp", "linear_attention", "full_attention", "linear_attention"])),
    "glm4_moe": ("Glm4Moe", "glm4", dict(head_dim=128, attention_bias=True, use_qk_norm=True, num_nextn_predict_layers=1,
                                         rope_parameters=PLAIN | dict(partial_rotary_factor=0.5), **ROUTED)),
    "deepseek_v3": ("DeepseekV3", "llama-bpe", dict(rope_parameters=YARN | dict(mscale=1.0, mscale_all_dim=1.0), rope_interleave=True,
                                                    scoring_func="sigmoid", **LATENT, **ROUTED)),
    "gpt_oss": ("GptOss", "qwen2", dict(rope_parameters=YARN | dict(beta_fast=32.0, beta_slow=1.0, truncate=False), **OSS)),
    "gpt_oss-mxfp4": ("GptOss", "qwen2", dict(rope_parameters=YARN | dict(beta_fast=32.0, beta_slow=1.0, truncate=False), **OSS)),
    "gemma2": ("Gemma2", "default", dict(head_dim=64, query_pre_attn_scalar=64, sliding_window=32, tie_word_embeddings=True, rope_parameters=dict(
        rope_type="default", rope_theta=1e4), attn_logit_softcapping=50.0, final_logit_softcapping=30.0)),
    "gemma3": ("Gemma3", "default", dict(rope_parameters=GEMMA_ROPE, **GEMMA)),
    "gemma3-seeing": ("Gemma3", "default", dict(rope_parameters=GEMMA_ROPE, **GEMMA)),
    "glm4_moe_lite": ("Glm4MoeLite", "glm4", dict(num_nextn_predict_layers=1, rope_parameters=PLAIN, scoring_func="sigmoid", **LATENT, **ROUTED)),
}
VISION = dict(depth=2, hidden_size=128, intermediate_size=256, num_heads=2, out_hidden_size=256, num_position_embeddings=64, patch_size=16)


def documents():
    """This repository's documents: text to train tokenizers on, and prompts."""
    root = Path(__file__).resolve().parents[3]
    return "\n".join(path.read_text() for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))])


def tokenizer(pre, text):
    """A byte-level BPE tokenizer of N_VOCAB tokens with the pattern of a published family."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
    t = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PRE[pre]), behavior="isolated")
    t.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|user|>", "[gMASK]", "<|observation|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator([text], trainers.BpeTrainer(vocab_size=N_VOCAB - len(specials), initial_alphabet=alphabet, show_progress=False))
    t.add_special_tokens(specials)
    assert t.get_vocab_size() == N_VOCAB
    return PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token="<|endoftext|>")


class Pieces:
    """A SentencePiece vocabulary of N_VOCAB pieces with a token for each byte, as Gemma's, or Llama's with a space before a text:
    `tokenizer.model`. `merges`: `tokenizer.json` in its place. `phi`: added tokens as Phi-3's. `own`: Mistral's own file, of all tokens."""
    def __init__(self, text, gemma=True, merges=False, phi=False, own=False):
        import io, sentencepiece
        out = io.BytesIO()
        ids = dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3) if gemma else dict(unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text.splitlines()), model_writer=out, vocab_size=N_VOCAB - (0 if own else 2), model_type="bpe", byte_fallback=True,
            control_symbols=mistral_own.CONTROLS if own else [],
            add_dummy_prefix=not gemma, remove_extra_whitespaces=False, normalization_rule_name="identity",
            user_defined_symbols=["\n\n", "<unused0>"] if gemma else [], max_sentence_length=100000, minloglevel=2, **ids)
        self.gemma, self.merges, self.phi, self.own = gemma, merges, phi, own
        self.bytes = out.getvalue()
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=self.bytes)

    def save_pretrained(self, folder):
        if self.own:
            (folder / "tokenizer.model.v3").write_bytes(self.bytes)
            return
        piece = lambda id: self.processor.id_to_piece(id)
        token = lambda content, special: dict(content=content, lstrip=False, normalized=False, rstrip=self.phi and content == "<|end|>",
                                              single_word=False, special=special)
        if self.gemma:
            added = {i: token(piece(i), True) for i in range(4)} | {i: token(piece(i), False) for i in (4, 5)}
            added |= {N_VOCAB - 2: token("<start_of_turn>", True), N_VOCAB - 1: token("\u2581\u2581a", False)}
            config = dict(tokenizer_class="GemmaTokenizer", bos_token=piece(2), eos_token=piece(1), pad_token=piece(0), unk_token=piece(3))
        else:
            added = {i: token(piece(i), True) for i in range(3)} | {N_VOCAB - 2: token("<|end|>", True), N_VOCAB - 1: token("[user]", False)}
            config = dict(tokenizer_class="LlamaTokenizer", bos_token="<s>", eos_token="</s>", unk_token="<unk>", legacy=True)
            config |= {} if self.phi or self.merges else dict(add_prefix_space=True)
        config |= dict(add_bos_token=True, add_eos_token=False, added_tokens_decoder={str(id): t for id, t in added.items()})
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
        if not self.merges:
            (folder / "tokenizer.model").write_bytes(self.bytes)
        if self.gemma:
            beside = dict(added_tokens=[dict(id=id) | t for id, t in added.items()], model=dict(type="BPE", vocab={}, merges=[]))
            (folder / "tokenizer.json").write_text(json.dumps(beside, indent=1))
        else:
            self.fast([dict(id=id) | t for id, t in added.items()], str(folder / "tokenizer.json"))

    def fast(self, added, file):
        """`tokenizer.json` of these pieces, as transformers converts Llama's."""
        n = self.processor.get_piece_size()
        vocab = {self.processor.id_to_piece(id): id for id in range(n)}
        merges = []
        for whole in sorted((p for p in vocab if len(p) > 1 and vocab[p] > 258), key=lambda p: -self.processor.get_score(vocab[p])):
            halves = [(whole[:i], whole[i:]) for i in range(1, len(whole)) if whole[:i] in vocab and whole[i:] in vocab]
            merges += sorted(halves, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        space = "\u2581"
        normalizer = dict(type="Sequence", normalizers=[dict(type="Prepend", prepend=space),
                                                        dict(type="Replace", pattern=dict(String=" "), content=space)])
        strip = dict(type="Strip", content=" ", start=1, stop=0)
        decoder = dict(type="Sequence", decoders=[dict(type="Replace", pattern=dict(String=space), content=" "), dict(type="ByteFallback"),
                                                  dict(type="Fuse"), strip])
        first = dict(SpecialToken=dict(id="<s>", type_id=0))
        template = dict(type="TemplateProcessing", single=[first, dict(Sequence=dict(id="A", type_id=0))],
                        pair=[first, dict(Sequence=dict(id="A", type_id=0)), dict(Sequence=dict(id="B", type_id=1))],
                        special_tokens={"<s>": dict(id="<s>", ids=[1], tokens=["<s>"])})
        model = dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=True,
                     byte_fallback=True, ignore_merges=False, vocab=vocab, merges=merges)
        whole = dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=normalizer, pre_tokenizer=None,
                     post_processor=template, decoder=decoder, model=model)
        Path(file).write_text(json.dumps(whole, indent=1, ensure_ascii=False))

    def __call__(self, text):
        return {"input_ids": self.processor.encode(text)}

    def decode(self, ids):
        return self.processor.decode(ids)


def pack_experts(folder, m):
    """Puts experts in blocks of MXFP4 into the model, and into its file in place of floats."""
    import torch
    from safetensors.torch import load_file, save_file
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.cat([values, -values])
    g = torch.Generator().manual_seed(5)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, p in sorted(m.named_parameters()):
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        n_expert, n_in, n_out = p.shape
        blocks = torch.randint(0, 256, (n_expert, n_out, n_in // 32, 16), generator=g, dtype=torch.uint8)
        scales = torch.randint(120, 124, (n_expert, n_out, n_in // 32), generator=g, dtype=torch.uint8)
        numbers = torch.stack([values[(blocks & 15).long()], values[(blocks >> 4).long()]], dim=-1).flatten(-2)
        numbers = numbers * torch.exp2(scales.float() - 127).unsqueeze(-1)
        with torch.no_grad():
            p.copy_(numbers.flatten(-2).transpose(1, 2))
        del tensors[name]
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router"])
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def model(family, config, sees=False):
    """A transformers model with weights that let every part move the logits."""
    import torch, transformers
    delta = family.startswith("Qwen3_5")
    text = getattr(transformers, f"{family}TextConfig" if delta or family == "Gemma3" else f"{family}Config")
    config = SIZES | config
    if family == "Mixtral":
        config["intermediate_size"] = 256
    tied = config.pop("tie_word_embeddings", False)
    ids = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
    if sees:
        text = text(**config, tie_word_embeddings=tied, **ids).to_dict()
        config = transformers.Gemma3Config(text_config=text, vision_config=SIGLIP, mm_tokens_per_image=4, tie_word_embeddings=tied)
        m = transformers.Gemma3ForConditionalGeneration
    elif delta:
        whole = getattr(transformers, f"{family}Config")
        config = whole(text_config=text(**config, tie_word_embeddings=tied, **ids).to_dict(), vision_config=VISION, tie_word_embeddings=tied)
        m = getattr(transformers, f"{family}ForConditionalGeneration")
    else:
        config = text(**config, tie_word_embeddings=tied, **ids)
        m = getattr(transformers, f"{family}ForCausalLM")
    config._attn_implementation = "eager"
    m = m._from_config(config).float().eval()
    randomize(m.named_parameters(), 1, tied)
    return m


def randomize(parameters, seed, tied=False):
    """Rows that see unit input give unit output; norms, biases and decays keep their mean and vary about it. An embedding that is
    the output matrix, too, is small beside the branches: such models would repeat the last token."""
    import torch
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(parameters):
            noise = torch.randn(p.shape, generator=g)
            if "visual" in name or "vision_tower" in name:
                p.copy_(noise * 0.02)
            elif p.ndim == 1 or "conv1d" in name:
                sharp = 0.3 if name.endswith(("q_norm.weight", "k_norm.weight")) else 0.0
                p.add_(noise * (0.3 if name.endswith(".bias") else 0.15) + sharp)
            elif "embed_tokens" in name and not tied:
                p.copy_(noise * 0.5)
            else:
                p.copy_(noise / math.sqrt(p.shape[-1]))
            p.copy_(p.bfloat16().float())       # survives a file of bf16


def nextn_layer(m):
    """The tensors of a NextN (MTP) layer for a model of Qwen3.5's family or Qwen3-Next: those of its last layer of attention, with other weights."""
    import torch
    layers = getattr(m.model, "language_model", m.model).layers
    il = max(i for i, layer in enumerate(layers) if hasattr(layer, "self_attn"))
    d = m.config.get_text_config().hidden_size
    like = {f"mtp.layers.0.{name}": torch.nn.Parameter(p.detach().clone()) for name, p in layers[il].named_parameters()}
    like["mtp.fc.weight"] = torch.nn.Parameter(torch.zeros(d, 2 * d))
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        like[f"mtp.{name}.weight"] = torch.nn.Parameter(torch.zeros(d))
    randomize(like.items(), 2)
    return {name: p.detach() for name, p in like.items()}


def appended_layer(m):
    """The tensors of a NextN layer behind the last one of a GLM: those of the last, with other weights."""
    import torch
    n, d = len(m.model.layers), m.config.hidden_size
    like = {f"model.layers.{n}.{name}": p.detach().clone() for name, p in m.model.layers[n - 1].named_parameters()}
    like |= {f"model.layers.{n}.{name}": p.detach().clone() for name, p in m.model.layers[n - 1].named_buffers()
             if name.endswith("e_score_correction_bias")}
    stacks = [name for name in like if ".mlp.experts." in name]
    like[f"model.layers.{n}.eh_proj.weight"] = torch.zeros(d, 2 * d)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        like[f"model.layers.{n}.{name}.weight"] = torch.ones(d)
    like = {name: torch.nn.Parameter(p) for name, p in like.items()}
    randomize(like.items(), 3)
    like = {name: p.detach() for name, p in like.items()}
    for name in stacks:                             # experts one by one, as transformers writes those of the other layers
        stack, base = like.pop(name), name.rpartition(".")[0]
        for e, matrix in enumerate(stack):
            parts = {"down_proj": matrix} if name.endswith("down_proj") else dict(zip(("gate_proj", "up_proj"), matrix.chunk(2)))
            like |= {f"{base}.{e}.{part}.weight": x.contiguous() for part, x in parts.items()}
    return like


def write(out, name):
    import numpy, torch
    from safetensors.torch import load_file, save_file
    family, pre, config = MODELS[name]
    folder = out / name
    text = documents()
    m = model(family, dict(config), name.endswith("-seeing"))
    own = "-own" in name
    if pre == "default":
        tok = Pieces(text, family.startswith("Gemma"), name.endswith("-merges"), family == "Phi3", own)
    elif pre == "tekken":
        tok = mistral_own.Tekken(TEKKEN, text, N_VOCAB)
    else:
        tok = tokenizer(pre, text)
    m.save_pretrained(folder)
    if name.endswith("-mxfp4"):
        pack_experts(folder, m)
    tok.save_pretrained(folder)
    if own:
        mistral_own.rewrite(folder)
    if family == "Qwen3Next":
        file = folder / "model.safetensors"
        save_file(load_file(file) | nextn_layer(m), file, metadata={"format": "pt"})
    if config.get("num_nextn_predict_layers"):
        file = folder / "model.safetensors"
        save_file(load_file(file) | appended_layer(m), file, metadata={"format": "pt"})
    if family == "Phi3" and pre != "default":       # the name by which llama.cpp's converter knows byte-level vocabularies
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"tokenizer_class": "GPT2Tokenizer"}))
    if family == "NemotronH":
        file = folder / "config.json"
        written = json.loads(file.read_text())
        kinds = written.pop("layers_block_type")
        for key in [key for key in written if "expert" in key or "moe" in key or key in ("n_group", "topk_group")]:
            del written[key]
        letters = dict(linear_attention="M", mlp="-", full_attention="*")
        written |= dict(num_hidden_layers=len(kinds), hybrid_override_pattern="".join(letters[kind] for kind in kinds))
        file.write_text(json.dumps(written, indent=1))
    if family.startswith("Qwen3_5"):
        file = folder / "model.safetensors"
        save_file(load_file(file) | nextn_layer(m), file, metadata={"format": "pt"})
        written = json.loads((folder / "config.json").read_text())
        written["text_config"]["mtp_num_hidden_layers"] = 1
        (folder / "config.json").write_text(json.dumps(written, indent=1))
        images = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"longest_edge": 16384, "shortest_edge": 1024}}
        (folder / "preprocessor_config.json").write_text(json.dumps(images))
    (folder / "pre.txt").write_text(pre)
    n_prompt = 300 if name == "phi3-pieces-long" else N_PROMPT       # contexts are of 256 positions: beyond the first its long factors hold
    ids = tok(text[1000:3000])["input_ids"][:n_prompt]
    with torch.no_grad():
        logits = m(input_ids=torch.tensor([ids])).logits[0].numpy()
    numpy.savez(folder / "reference.npz", ids=numpy.array(ids, dtype=numpy.int32), logits=logits, text=tok.decode(ids))
    print(name, f"{sum(p.numel() for p in m.parameters()):,} parameters, logits of spread {logits.std():.2f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for name in sys.argv[2:] or MODELS:
        write(Path(sys.argv[1]), name)
