#!/usr/bin/env python3
"""A tiny EAGLE-3 or DFlash head with random weights for a target model, as llama.cpp's converter would write its file.

    scripts/published/feature_heads.py TARGET.gguf HEAD.gguf eagle3|eagle3-own|dflash|dflash-window

`eagle3` shares embedding and output matrix with the target; `eagle3-own` has its own of another width for part of the
vocabulary (d2t), a norm before the projection and one before the residual; `dflash-window` sees a few tokens only, in its
first layer. Attention hands on the embedding of the token that it looks at, so that in a model whose output matrix
prefers the successor of a token some drafts are right. Needs numpy and gguf. What comes of it is compared with llama.cpp by
scripts/published/draft_models.py.
"""

import argparse

import gguf
import numpy as np
from gguf.quants import dequantize


def text(field):
    return field.parts[field.data[0]].tobytes().decode()


class Target:
    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.arch = text(self.reader.fields["general.architecture"])
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.n_layer = self.number("block_count") - (self.number("nextn_predict_layers") or 0)
        self.n_embd = self.number("embedding_length")
        self.embed = self.tensor("token_embd.weight")
        self.output = self.tensor("output.weight" if "output.weight" in self.tensors else "token_embd.weight")

    def number(self, key):
        field = self.reader.fields.get(f"{self.arch}.{key}")
        return None if field is None else int(field.parts[field.data[0]][0])

    def tensor(self, name):
        t = self.tensors[name]
        return dequantize(t.data, t.tensor_type).astype(np.float32).reshape(tuple(reversed([int(n) for n in t.shape])))

    def copy_tokenizer(self, writer):
        for name, field in self.reader.fields.items():
            if not name.startswith("tokenizer.") or name == "tokenizer.ggml.mask_token_id":
                continue
            kind = field.types[0]
            if kind == gguf.GGUFValueType.ARRAY:
                writer.add_array(name, field.contents())
            else:
                writer.add_key_value(name, field.contents(), kind)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("out")
    parser.add_argument("kind", choices=["eagle3", "eagle3-own", "dflash", "dflash-window"])
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    target = Target(args.target)
    own, dflash = args.kind == "eagle3-own", args.kind.startswith("dflash")
    n_vocab, d = target.embed.shape
    if own:
        d = 3 * d // 2
    n_head, n_kv, d_head, n_ff, n_block = 4, 2, 32, 80, 2 if dflash else 1
    arch = "dflash" if dflash else "eagle3"
    w = gguf.GGUFWriter(args.out, arch)
    target.copy_tokenizer(w)
    w.add_block_count(n_block)
    w.add_context_length(4096)
    w.add_embedding_length(d)
    w.add_feed_forward_length(n_ff)
    w.add_head_count(n_head)
    w.add_head_count_kv(n_kv)
    w.add_key_length(d_head)
    w.add_value_length(d_head)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(20000.0)
    w.add_vocab_size(n_vocab)
    layers = [1, target.n_layer // 2, target.n_layer - 1]
    w.add_array(f"{arch}.target_layers", layers)
    norm = lambda n: (1 + 0.1 * rng.standard_normal(n)).astype(np.float32)
    matrix = lambda n_out, n_in, gain=1.0: (gain / np.sqrt(n_in) * rng.standard_normal((n_out, n_in))).astype(np.float32)
    add = lambda name, x: w.add_tensor(name, np.ascontiguousarray(x))
    if dflash:
        w.add_uint32("dflash.block_size", 8)
        w.add_mask_token_id(n_vocab - 1)
        if args.kind == "dflash-window":
            w.add_sliding_window(3)
            w.add_array("dflash.attention.sliding_window_pattern", [True, False])
        add("enc.output_norm.weight", norm(d))
    else:
        w.add_uint32("eagle3.target_hidden_size", target.n_embd)
        w.add_bool("eagle3.norm_before_residual", own)
        w.add_bool("eagle3.norm_before_fc", own)
        w.add_rope_dimension_count(d_head)
    if own:
        add("enc.output_norm.weight", norm(3 * target.n_embd))
        wide = np.linalg.qr(rng.standard_normal((d, target.n_embd)))[0].astype(np.float32)  # [d, n_embd]
        rows = np.sort(rng.permutation(n_vocab)[: 3 * n_vocab // 4])
        w.add_tensor("d2t", rows.astype(np.int64), raw_dtype=gguf.GGMLQuantizationType.I64)
        add("token_embd.weight", target.embed @ wide.T)
        add("output.weight", target.output[rows] @ wide.T)
    add("fc.weight", matrix(d, len(layers) * target.n_embd, 0.3))
    add("output_norm.weight", norm(d))
    for il in range(n_block):
        n_in = d if dflash else 2 * d
        # The value of each head is a part of the embedding, which the output matrix puts back.
        basis = np.linalg.qr(rng.standard_normal((d, d)))[0].astype(np.float32)[: n_kv * d_head]
        back = np.zeros((d, n_head * d_head), np.float32)
        for head in range(n_head):
            kv = head // (n_head // n_kv)
            back[:, head * d_head:][:, :d_head] = basis[kv * d_head:][:d_head].T[:, :d_head]
        v = np.zeros((n_kv * d_head, n_in), np.float32)
        v[:basis.shape[0], :d] = basis
        attn_norm = norm(d)
        if dflash:
            # Masks hand on nothing, and all tokens are looked at alike.
            mask = target.embed[n_vocab - 1] * attn_norm
            v[:, :d] -= np.outer(v[:, :d] @ mask, mask) / (mask @ mask)
            v *= 1 if il == 0 else 0.3
        sharp = matrix(n_kv * d_head, n_in, 2.0)
        q = np.concatenate([np.tile(sharp[kv * d_head:][:d_head], (n_head // n_kv, 1)) for kv in range(n_kv)])
        block = {
            "attn_norm": attn_norm, "ffn_norm": norm(d), "attn_q": q + matrix(n_head * d_head, n_in, 0.2), "attn_k": sharp,
            "attn_v": v + matrix(*v.shape, 0.1), "attn_output": (6 if dflash else 2) * back + matrix(*back.shape, 0.1),
            "ffn_gate": matrix(n_ff, d), "ffn_up": matrix(n_ff, d), "ffn_down": matrix(d, n_ff, 0.5),
        }
        block.update({"attn_q_norm": 0.1 * norm(d_head), "attn_k_norm": norm(d_head)} if dflash else {"attn_norm_2": norm(d)})
        for name, x in block.items():
            add(f"blk.{il}.{name}.weight", x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
