"""Checkpoints in the form of Mistral's own files: what checkpoints.py makes of those that transformers saved."""
import base64, json
from pathlib import Path

NAMES = [("model.embed_tokens.", "tok_embeddings."), ("lm_head.", "output."), ("model.", ""), ("input_layernorm", "attention_norm"),
         ("post_attention_layernorm", "ffn_norm"), ("self_attn.q_proj", "attention.wq"), ("self_attn.k_proj", "attention.wk"),
         ("self_attn.v_proj", "attention.wv"), ("self_attn.o_proj", "attention.wo"), ("mlp.gate_proj", "feed_forward.w1"),
         ("mlp.down_proj", "feed_forward.w2"), ("mlp.up_proj", "feed_forward.w3")]
FIELDS = dict(hidden_size="dim", num_hidden_layers="n_layers", num_attention_heads="n_heads", num_key_value_heads="n_kv_heads", head_dim="head_dim",
              intermediate_size="hidden_dim", vocab_size="vocab_size", rms_norm_eps="norm_eps", max_position_embeddings="max_position_embeddings",
              tie_word_embeddings="tied_embeddings")
# Without a list in tekken.json the package mistral-common takes twenty.
N_SPECIAL = 24
# What its instruction formats ask for.
CONTROLS = ["[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]


def rewrite(folder):
    """config.json and model.safetensors become params.json and consolidated.safetensors."""
    from safetensors.torch import load_file, save_file
    config = json.loads((folder / "config.json").read_text())
    rope = config["rope_parameters"]
    params = {own: config[theirs] for theirs, own in FIELDS.items()} | dict(rope_theta=rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        n = rope["original_max_position_embeddings"]
        params["yarn"] = dict(factor=rope["factor"], original_max_position_embeddings=n, beta=rope["beta_fast"], alpha=rope["beta_slow"], apply_scale=False)
        params["llama_4_scaling"] = dict(original_max_position_embeddings=n, beta=rope["llama_4_scaling_beta"])
    tensors = {}
    for name, t in load_file(folder / "model.safetensors").items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):       # neighbours turn together
            t = t.reshape(-1, 2, config["head_dim"] // 2, t.shape[-1]).transpose(1, 2).reshape(t.shape).contiguous()
        for theirs, own in NAMES:
            name = name.replace(theirs, own)
        tensors[name] = t
    save_file(tensors, folder / "consolidated.safetensors")
    (folder / "params.json").write_text(json.dumps(params, indent=1))
    for file in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink(missing_ok=True)


class Tekken:
    """A byte-level BPE of so many tokens with special ones in front: `tekken.json`."""
    def __init__(self, pattern, text, n_vocab):
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        t.train_from_iterator([text], trainers.BpeTrainer(vocab_size=n_vocab - N_SPECIAL, initial_alphabet=alphabet, show_progress=False))
        self.fast, self.pattern, self.n_vocab = t, pattern, n_vocab
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        byte_of = {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
        spelled = sorted(t.get_vocab().items(), key=lambda item: item[1])
        tokens = [(bytes(byte_of[c] for c in text), id) for text, id in spelled]
        # Single bytes are the first ranks, in their order.
        self.by_rank = sorted(tokens, key=lambda token: (len(token[0]) > 1, token[0] if len(token[0]) == 1 else b"", token[1]))
        self.rank_of = {id: rank for rank, (_, id) in enumerate(self.by_rank)}

    def save_pretrained(self, folder):
        vocab = [dict(rank=rank, token_bytes=base64.b64encode(token).decode(), token_str=None) for rank, (token, _) in enumerate(self.by_rank)]
        config = dict(pattern=self.pattern, num_vocab_tokens=len(vocab), default_vocab_size=self.n_vocab, default_num_special_tokens=N_SPECIAL, version="v3")
        (Path(folder) / "tekken.json").write_text(json.dumps(dict(config=config, vocab=vocab)))

    def __call__(self, text):
        return {"input_ids": [self.rank_of[id] + N_SPECIAL for id in self.fast.encode(text).ids]}

    def decode(self, ids):
        return self.fast.decode([self.by_rank[id - N_SPECIAL][1] for id in ids])
