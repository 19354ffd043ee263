"""A small mixture of experts of random weights as a GGUF file of F32: the base of files of every type of weight. All rows are
whole super-blocks; what it predicts means nothing and depends on every weight."""
import numpy as np

N_VOCAB, N_EMBD, N_FF, N_HEAD, N_HEAD_KV, D_HEAD, N_EXPERT, N_USED = 272, 256, 256, 4, 2, 64, 3, 2


def letters():
    """The byte-level alphabet: a letter for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b if b in printable else 256 + others.index(b)) for b in range(256)]


def write(path):
    """Writes the file; the numbers are the same every time."""
    import gguf
    w, rng = gguf.GGUFWriter(str(path), "qwen3moe"), np.random.default_rng(5)
    w.add_block_count(1)
    w.add_context_length(1024)
    w.add_embedding_length(N_EMBD)
    w.add_feed_forward_length(N_FF)
    w.add_expert_count(N_EXPERT)
    w.add_expert_used_count(N_USED)
    w.add_expert_feed_forward_length(N_FF)
    w.add_head_count(N_HEAD)
    w.add_head_count_kv(N_HEAD_KV)
    w.add_key_length(D_HEAD)
    w.add_value_length(D_HEAD)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(1e5)
    tokens = letters() + ["<|endoftext|>"] + [f"[PAD{i}]" for i in range(N_VOCAB - 257)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types([1] * 256 + [3] + [5] * (N_VOCAB - 257))
    w.add_token_merges(["t h", "i n"])
    w.add_eos_token_id(256)
    w.add_add_bos_token(False)

    def matrix(name, *shape, scale=1.0):
        w.add_tensor(name, (rng.standard_normal(shape) * scale / np.sqrt(shape[-1])).astype(np.float32))

    def norm(name, n):
        w.add_tensor(name, (1 + 0.1 * rng.standard_normal(n)).astype(np.float32))

    matrix("token_embd.weight", N_VOCAB, N_EMBD, scale=16)
    matrix("output.weight", N_VOCAB, N_EMBD, scale=3)
    norm("output_norm.weight", N_EMBD)
    for name in ("attn_norm", "ffn_norm"):
        norm(f"blk.0.{name}.weight", N_EMBD)
    for name in ("attn_q_norm", "attn_k_norm"):
        norm(f"blk.0.{name}.weight", D_HEAD)
    for name, n in (("attn_q", N_HEAD), ("attn_k", N_HEAD_KV), ("attn_v", N_HEAD_KV)):
        matrix(f"blk.0.{name}.weight", n * D_HEAD, N_EMBD)
    matrix("blk.0.attn_output.weight", N_EMBD, N_HEAD * D_HEAD)
    matrix("blk.0.ffn_gate_inp.weight", N_EXPERT, N_EMBD)
    for name, (n_out, n_in) in (("gate", (N_FF, N_EMBD)), ("up", (N_FF, N_EMBD)), ("down", (N_EMBD, N_FF))):
        matrix(f"blk.0.ffn_{name}_exps.weight", N_EXPERT, n_out, n_in, scale=2)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
