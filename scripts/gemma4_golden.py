#!/usr/bin/env python3
"""Golden of a tiny Gemma 4 with its assistant, by a plain reference in PyTorch.

  NEXTN_WRITE_TINY=FOLDER cargo test -p nextn-model --test all gemma4
  scripts/gemma4_golden.py FOLDER tests/golden/gemma4/gemma4.json.z      needs the Python packages torch and gguf

The reference follows the models' published description and reads nothing of ours but the two files. On the project's larger
Gemma 4 models it agrees with transformers 5.23 to 3e-5, target and head.
"""
import json, sys, zlib

import torch
import torch.nn.functional as F
from gguf import GGUFReader


class File:
    def __init__(self, path):
        r = GGUFReader(path)
        self.keys = {k: f.contents() for k, f in r.fields.items() if "tokenizer" not in k}
        self.w = {t.name: torch.tensor(t.data.copy()) for t in r.tensors}
        self.arch = self.keys["general.architecture"]

    def __getitem__(self, key):
        return self.keys[f"{self.arch}.{key}"]

    def per_layer(self, key):
        v = self[key]
        return v if isinstance(v, list) else [v] * self["block_count"]


def rms(x, w, eps=1e-6):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if w is None else y * w


def rope(x, pos, base, n, factors=None):                     # x [tokens, heads, d]; the first n elements turn, pairs n / 2 apart
    f = base ** (-torch.arange(0, n, 2).float() / n)
    f = f if factors is None else f / factors[: n // 2]
    a = pos[:, None].float() * f[None]
    c, s = a.cos()[:, None], a.sin()[:, None]
    u, v = x[..., : n // 2], x[..., n // 2 : n]
    return torch.cat([u * c - v * s, v * c + u * s, x[..., n:]], -1)


def attend(q, k, v, mask):
    r = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
    s = torch.einsum("nhd,mhd->hnm", q, k).masked_fill(~mask[None], float("-inf")).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", s, v).reshape(q.shape[0], -1)


def gelu(x):
    return F.gelu(x, approximate="tanh")


class Layers:
    """What target and assistant have in common."""

    def __init__(self, f):
        self.f, self.w = f, f.w
        self.slides = f["attention.sliding_window_pattern"]

    def t(self, il, name):
        return self.w.get(f"blk.{il}.{name}")

    def heads(self, x, il, pos, norm):
        d = self.f["attention.key_length_swa" if self.slides[il] else "attention.key_length"]
        x = x.view(x.shape[0], -1, d)
        x = rms(x, self.t(il, norm)) if norm else rms(x, None)
        if norm is None:
            return x
        if self.slides[il]:
            return rope(x, pos, self.f["rope.freq_base_swa"], self.f["rope.dimension_count_swa"])
        return rope(x, pos, self.f["rope.freq_base"], self.f["rope.dimension_count"], self.w["rope_freqs.weight"])

    def rest(self, il, x, a, ple=None):
        t = lambda name: self.t(il, name + ".weight")
        x = x + rms(a @ t("attn_output").T, t("post_attention_norm"))
        y = rms(x, t("ffn_norm"))
        y = (gelu(y @ t("ffn_gate").T) * (y @ t("ffn_up").T)) @ t("ffn_down").T
        if t("ffn_gate_inp") is not None:
            y = rms(y, t("post_ffw_norm_1")) + rms(self.experts(il, x), t("post_ffw_norm_2"))
        x = x + rms(y, t("post_ffw_norm"))
        if ple is not None:
            x = x + rms((gelu(x @ t("inp_gate").T) * ple[:, il]) @ t("proj").T, t("post_norm"))
        return x * t("layer_output_scale")

    def experts(self, il, r):
        t, k = lambda name: self.t(il, name), self.f["expert_used_count"]
        z = rms(r, t("pre_ffw_norm_2.weight"))
        p = ((rms(r, None) * t("ffn_gate_inp.scale") * r.shape[1] ** -0.5) @ t("ffn_gate_inp.weight").T).softmax(-1)
        top, ids = p.topk(k, -1)
        top = top / top.sum(-1, keepdim=True) * t("ffn_down_exps.scale")[ids]
        out = torch.zeros_like(z)
        for n in range(z.shape[0]):
            for j in range(k):
                e = ids[n, j]
                gate, up = t("ffn_gate_exps.weight")[e] @ z[n], t("ffn_up_exps.weight")[e] @ z[n]
                out[n] += top[n, j] * (t("ffn_down_exps.weight")[e] @ (gelu(gate) * up))
        return out


class Target(Layers):
    def forward(self, ids):
        f, w, n, n_layer = self.f, self.w, len(ids), self.f["block_count"]
        pos = torch.arange(n)
        x = w["token_embd.weight"][ids] * f["embedding_length"] ** 0.5
        p = f["embedding_length_per_layer_input"]
        a = rms((x @ w["per_layer_model_proj.weight"].T * f["embedding_length"] ** -0.5).view(n, n_layer, p), w["per_layer_proj_norm.weight"])
        ple = (a + w["per_layer_token_embd.weight"][ids].view(n, n_layer, p) * p**0.5) * 2**-0.5
        self.kv, own = {}, n_layer - f["attention.shared_kv_layers"]
        for il in range(n_layer):
            h = rms(x, self.t(il, "attn_norm.weight"))
            q = self.heads(h @ self.t(il, "attn_q.weight").T, il, pos, "attn_q_norm.weight")
            src = il if il < own else max(j for j in range(own) if self.slides[j] == self.slides[il])
            if src == il:
                k = h @ self.t(il, "attn_k.weight").T
                v = k if self.t(il, "attn_v.weight") is None else h @ self.t(il, "attn_v.weight").T
                self.kv[il] = self.heads(k, il, pos, "attn_k_norm.weight"), self.heads(v, il, pos, None)
            mask = pos[None] <= pos[:, None]
            if self.slides[il]:
                mask = mask & (pos[None] > pos[:, None] - f["attention.sliding_window"])
            x = self.rest(il, x, attend(q, *self.kv[src], mask), ple)
        hidden, cap = rms(x, w["output_norm.weight"]), f["final_logit_softcapping"]
        return cap * torch.tanh(hidden @ w["output.weight"].T / cap), hidden


class Assistant(Layers):
    def drafts(self, target, n, token, hidden, depth):
        f, w, out = self.f, self.w, []
        pos, keys = torch.tensor([n]), torch.arange(n)
        for _ in range(depth):
            e = target.w["token_embd.weight"][token] * target.f["embedding_length"] ** 0.5
            x = (torch.cat([e, hidden]) @ w["nextn.pre_projection.weight"].T)[None]
            for il in range(f["block_count"]):
                h = rms(x, self.t(il, "attn_norm.weight"))
                q = self.heads(h @ self.t(il, "attn_q.weight").T, il, pos, "attn_q_norm.weight")
                k, v = target.kv[max(j for j in target.kv if target.slides[j] == self.slides[il])]
                mask = (keys > n - f["attention.sliding_window"])[None] if self.slides[il] else torch.ones(1, n, dtype=torch.bool)
                x = self.rest(il, x, attend(q, k, v, mask))
            g = rms(x, w["output_norm.weight"])[0]
            logits, hidden = w["token_embd.weight"] @ g, w["nextn.post_projection.weight"] @ g
            token = int(logits.argmax())
            out.append({"token": token, "logits": numbers(logits)})
        return out


def numbers(x):
    return [float(f"{v:.6g}") for v in x.tolist()]


@torch.no_grad()
def main(folder, out):
    target, assistant = Target(File(f"{folder}/gemma4.gguf")), Assistant(File(f"{folder}/gemma4-assistant.gguf"))
    golden = []
    for n in (1, 8, 9, 10, 37):                              # the window is 9
        ids = [(7 * i * i + 3 * i + 5) % 256 for i in range(n)]
        logits, hidden = target.forward(torch.tensor(ids))
        drafts = assistant.drafts(target, n, int(logits[-1].argmax()), hidden[-1], 3)
        golden.append({"ids": ids, "logits": numbers(logits[-1]), "hidden": numbers(hidden[-1]), "drafts": drafts})
    lines = "[\n" + ",\n".join(json.dumps(s, separators=(",", ":")) for s in golden) + "\n]\n"
    with open(out, "wb") as f:
        f.write(zlib.compress(lines.encode(), 9))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
