#!/usr/bin/env python3
"""Gradients of one training step of a small head, by a plain reference in PyTorch.

  scripts/head_gradients.py src/tune/head_gradients.json.z      needs the Python package torch

One position at a time: a draft's row sees the cells of the text up to its own place and those of the drafts before it. The cases:
gated attention; a window, sinks, a gate for each head and a factor on values, with experts; latent attention, with experts of
corrected sigmoids in groups. The loss is
the divergence from the target's words and, times PULL, less the chance that a draft is accepted; autograd does the rest, in F64.
Numbers come from `wave`, which the test computes likewise.
"""
import json
import math
import sys
import zlib

import torch
import torch.nn.functional as F

N_EMBD, N_HEAD, N_KV, D, N_ROT, N_VOCAB, N, N_WORDS, DEPTH, PULL = 8, 4, 2, 6, 4, 11, 7, 3, 3, 0.5
EPS, BASE, SCALE = 1e-5, 100.0, 0.4
Q_LORA, KV_LORA, WINDOW, VALUE_SCALE, WEIGHT_SCALE = 5, 7, 3, 0.7, 1.5


def wave(n, by):
    return torch.tensor([math.sin(i * by + by) for i in range(n)], dtype=torch.float64)


def attention_shapes(case):
    d, h = N_EMBD, N_HEAD
    if case["latent"]:
        return [("attn_q_a.weight", (Q_LORA, d)), ("attn_q_a_norm.weight", (Q_LORA,)), ("attn_q_b.weight", (h * D, Q_LORA)),
                ("attn_kv_a_mqa.weight", (KV_LORA + N_ROT, d)), ("attn_kv_a_norm.weight", (KV_LORA,)),
                ("attn_k_b.weight", (h, KV_LORA, D - N_ROT)), ("attn_v_b.weight", (h, D, KV_LORA))]
    out = [("attn_q.weight", (h * D * (2 if case["gate"] else 1), d)), ("attn_k.weight", (N_KV * D, d)), ("attn_v.weight", (N_KV * D, d))]
    if case["sinks"]:
        out += [("attn_sinks.weight", (h,)), ("attn_gate.weight", (h, d))]
    if case["qk_norm"]:
        out += [("attn_q_norm.weight", (D,)), ("attn_k_norm.weight", (D,))]
    return out


def shapes(case):
    d = N_EMBD
    out = [("nextn.eh_proj.weight", (d, 2 * d)), ("nextn.enorm.weight", (d,)), ("nextn.hnorm.weight", (d,)), ("attn_norm.weight", (d,))]
    out += attention_shapes(case) + [("attn_output.weight", (d, N_HEAD * D)), ("ffn_norm.weight", (d,)), ("nextn.shared_head_norm.weight", (d,))]
    if case["experts"]:
        e, f, s = (6 if case["latent"] else 4), 5, 3
        choice = ("exp_probs_b.bias", (e,)) if case["latent"] else ("ffn_gate_inp_shexp.weight", (d,))
        return out + [("ffn_gate_inp.weight", (e, d)), ("ffn_gate_exps.weight", (e, f, d)), ("ffn_up_exps.weight", (e, f, d)),
                      ("ffn_down_exps.weight", (e, d, f)), choice,
                      ("ffn_gate_shexp.weight", (s, d)), ("ffn_up_shexp.weight", (s, d)), ("ffn_down_shexp.weight", (d, s))]
    return out + [("ffn_gate.weight", (9, d)), ("ffn_up.weight", (9, d)), ("ffn_down.weight", (d, 9))]


def rms(x, w):
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * w


def rope(x, at, neox):
    """[heads, D] at one position."""
    half = N_ROT // 2
    out = x.clone()
    for i in range(half):
        angle = at * BASE ** (-2 * i / N_ROT)
        a, b = (i, i + half) if neox else (2 * i, 2 * i + 1)
        out[:, a] = x[:, a] * math.cos(angle) - x[:, b] * math.sin(angle)
        out[:, b] = x[:, b] * math.cos(angle) + x[:, a] * math.sin(angle)
    return out


def swiglu(w, suffix, x):
    return w[f"ffn_down{suffix}.weight"] @ (F.silu(w[f"ffn_gate{suffix}.weight"] @ x) * (w[f"ffn_up{suffix}.weight"] @ x))


def ffn(case, w, x):
    if not case["experts"]:
        return swiglu(w, "", x)
    scores = w["ffn_gate_inp.weight"] @ x
    if case["latent"]:
        # The two best of three groups, by sigmoids and a correction that only chooses.
        scores = torch.sigmoid(scores)
        choosing = (scores + w["exp_probs_b.bias"]).detach().view(3, 2)
        worst = choosing.sum(1).argmin()
        choosing[worst] = -math.inf
        ids = choosing.view(-1).topk(2).indices
        factor = WEIGHT_SCALE
    else:
        scores = torch.softmax(scores, 0)
        ids, factor = scores.topk(2).indices, 1.0
    top = scores[ids]
    sum_ = torch.zeros_like(x)
    for share, e in zip(factor * top / top.sum(), ids.tolist()):
        inner = F.silu(w["ffn_gate_exps.weight"][e] @ x) * (w["ffn_up_exps.weight"][e] @ x)
        sum_ = sum_ + share * (w["ffn_down_exps.weight"][e] @ inner)
    gate = 1.0 if case["latent"] else torch.sigmoid(w["ffn_gate_inp_shexp.weight"] @ x)
    return sum_ + gate * swiglu(w, "_shexp", x)


def latent(w, y, at):
    """Queries [N_HEAD, D], keys and values of every head, of a normed row; the rotated part comes last."""
    q = (w["attn_q_b.weight"] @ rms(w["attn_q_a.weight"] @ y, w["attn_q_a_norm.weight"])).view(N_HEAD, D)
    row = w["attn_kv_a_mqa.weight"] @ y
    c, rotated = rms(row[:KV_LORA], w["attn_kv_a_norm.weight"]), rope(row[KV_LORA:].view(1, N_ROT), at, False)
    q = torch.cat([q[:, :-N_ROT], rope(q[:, -N_ROT:], at, False)], 1)
    k = torch.stack([torch.cat([c @ w["attn_k_b.weight"][h], rotated[0]]) for h in range(N_HEAD)])
    return q, k, torch.stack([w["attn_v_b.weight"][h] @ c for h in range(N_HEAD)])


def enter(case, w, token, hidden, at):
    """The stream, its queries, its gate, and its cell with its place."""
    x = w["nextn.eh_proj.weight"] @ torch.cat([rms(token, w["nextn.enorm.weight"]), rms(hidden, w["nextn.hnorm.weight"])])
    y = rms(x, w["attn_norm.weight"])
    if case["latent"]:
        q, k, v = latent(w, y, at)
        return x, q, None, (k, v, at)
    q, gate = (w["attn_q.weight"] @ y), None
    if case["gate"]:
        both = q.view(N_HEAD, 2 * D)
        q, gate = both[:, :D], both[:, D:]
    if case["sinks"]:
        gate = (w["attn_gate.weight"] @ y).view(N_HEAD, 1)
    q, k = q.reshape(N_HEAD, D), (w["attn_k.weight"] @ y).view(N_KV, D)
    if case["qk_norm"]:
        q, k = rms(q, w["attn_q_norm.weight"]), rms(k, w["attn_k_norm.weight"])
    v = (w["attn_v.weight"] @ y).view(N_KV, D)
    return x, rope(q, at, case["neox"]), gate, (rope(k, at, case["neox"]), v, at)


def leave(case, w, x, q, gate, cells):
    at = cells[-1][2]
    if case["sinks"]:
        cells = [cell for cell in cells if at - cell[2] < WINDOW]
    mixed = []
    for h in range(N_HEAD):
        kv = h if case["latent"] else h // (N_HEAD // N_KV)
        scores = [q[h] @ k[kv] * SCALE for k, _, _ in cells]
        if case["sinks"]:
            scores.append(w["attn_sinks.weight"][h])
        shares = torch.softmax(torch.stack(scores), 0)
        mixed.append(sum(p * v[kv] for p, (_, v, _) in zip(shares, cells)))
    mixed = torch.stack(mixed)
    if case["sinks"]:
        mixed = VALUE_SCALE * mixed
    if gate is not None:
        mixed = mixed * torch.sigmoid(gate)
    x = x + w["attn_output.weight"] @ mixed.reshape(-1)
    return x + ffn(case, w, rms(x, w["ffn_norm.weight"]))


def loss_of(case, w):
    output = wave(N_VOCAB * N_EMBD, 0.71).view(N_VOCAB, N_EMBD)
    total = 0.0
    for text in range(2):
        part = slice(text * N, (text + 1) * N)
        tokens = wave(2 * N * N_EMBD, 0.9).view(2 * N, N_EMBD)[part]
        hidden = wave(2 * N * N_EMBD, 1.7).view(2 * N, N_EMBD)[part]
        first = [enter(case, w, tokens[t + 1], hidden[t], t) for t in range(N - 2)]
        for t in range(N - 2):
            before, chain = None, []
            for k in range(min(DEPTH, N - 2 - t)):
                if k == 0:
                    x, q, gate, _ = first[t]
                    cells = [cell for _, _, _, cell in first[: t + 1]]
                else:
                    x, q, gate, cell = enter(case, w, tokens[t + 1 + k], before, t + k)
                    chain.append(cell)
                    cells = [cell for _, _, _, cell in first[: t + 1]] + chain
                stream = leave(case, w, x, q, gate, cells)
                out = rms(stream, w["nextn.shared_head_norm.weight"])
                before = stream if case["pre_norm"] else out
                # Every third token is not the assistant's.
                if (t + k + 2) % 3 == 0:
                    continue
                logq = torch.log_softmax(output @ out, 0)
                at = text * N + t + k + 1
                ids = [(at * 2 + 3 * i) % N_VOCAB for i in range(N_WORDS)]
                p = torch.tensor([0.5, 0.375, 0.125], dtype=torch.float64)
                total = total + (p * (p.log() - logq[ids])).sum() - PULL * torch.minimum(p, logq[ids].exp()).sum()
    return total


def main():
    cases = [dict(neox=True, gate=True, qk_norm=True, pre_norm=False, experts=False, sinks=False, latent=False),
             dict(neox=False, gate=False, qk_norm=False, pre_norm=True, experts=True, sinks=True, latent=False),
             dict(neox=False, gate=False, qk_norm=False, pre_norm=True, experts=True, sinks=False, latent=True)]
    made = []
    for case in cases:
        w = {}
        for i, (name, shape) in enumerate(shapes(case)):
            w[name] = wave(math.prod(shape), 0.11 + i * 0.37).view(shape).requires_grad_()
        loss = loss_of(case, w)
        loss.backward()
        grads = {name: [float(f"{g:.6g}") for g in x.grad.reshape(-1).tolist()] for name, x in w.items() if x.grad is not None}
        made.append({"case": case, "loss": loss.item(), "gradients": grads})
    text = json.dumps(made, separators=(",", ":")) + "\n"
    with open(sys.argv[1], "wb") as f:
        f.write(zlib.compress(text.encode(), 9))


if __name__ == "__main__":
    main()
