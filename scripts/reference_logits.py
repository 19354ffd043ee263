#!/usr/bin/env python3
"""Tiny random models of the plain transformer architectures, and what transformers answers for them.

  reference_logits.py make --tokenizer TOKENIZER.json OUT_DIR [name ...]
  reference_logits.py verify --server LLAMA_SERVER OUT_DIR [name ...]

`make` writes OUT_DIR/<arch>/<name>.gguf, .json and .f32 for every name (all by default: qwen3, qwen3moe, llama, llama3-rope);
the model is packed (.gguf.z4: zlib of every fourth byte, then of those behind them, and so on).
`verify` starts llama.cpp's server on every file, unpacked in a folder of its own, asks for the greedy text of each sequence, and compares tokens and probabilities.

Needs the Python packages torch, transformers, numpy and gguf (`verify`: none). The same versions give the same files.
TOKENIZER.json is a byte-level BPE tokenizer whose token 256+i is made by merge i; its first 480 tokens are used.

The reference is transformers in float32 with eager attention. All matrices are representable in bf16 but stored as f32, so that
a runtime computes with the very same numbers and a strict tolerance holds: 1e-3 on a logit, equal greedy tokens.

The JSON: `sequences[]`, each with `ids`; `last_logits` and `hidden` as [offset, count] in floats into the little-endian .f32 file
(`hidden`: after the final norm, last `hidden_rows` positions); `positions[]`: top-8 ids and logits, and logsumexp, per position;
`greedy`: 24 tokens, `greedy_margin`: distance to the second best of each; `router_margin_min` for experts: the smallest distance
between the last chosen and the first rejected expert's probability. `layers`: the residual stream of one sequence,
[n_layer + 1, n_tokens, n_embd], to find the layer where a runtime goes wrong. `mtp` is empty: these models have no draft head.
"""
import argparse, json, math, os, socket, struct, subprocess, sys, tempfile, time, urllib.error, urllib.request, zlib

N_VOCAB, N_BPE, N_GREEDY, TOP = 512, 480, 24, 8
SEQUENCES = {"rand1": 1, "rand5": 5, "rand33": 33, "rand80": 80}
MIN_MARGIN, MIN_ROUTER_MARGIN, MIN_DISTINCT = 4e-3, 5e-4, 10

# n_embd_head differs from n_embd / n_head everywhere but in "llama". eps is large on purpose: a runtime that ignores the key is seen.
MODELS = {
    "qwen3": dict(arch="qwen3", seed=31, tied=True, n_embd=64, n_layer=3, n_head=4, n_head_kv=2, n_embd_head=32, n_ff=96, eps=1e-3,
                  theta=1e6),
    "qwen3moe": dict(arch="qwen3moe", seed=32, tied=False, n_embd=64, n_layer=2, n_head=4, n_head_kv=1, n_embd_head=32, n_ff=32,
                     n_expert=8, n_expert_used=2, eps=1e-3, theta=1e6),
    "llama": dict(arch="llama", seed=33, tied=False, n_embd=64, n_layer=3, n_head=4, n_head_kv=2, n_embd_head=16, n_ff=96, eps=1e-3,
                  theta=5e5),
    # n_ctx_orig is small, so that short prompts already reach the scaled wavelengths
    "llama3-rope": dict(arch="llama", seed=34, tied=True, n_embd=64, n_layer=2, n_head=4, n_head_kv=2, n_embd_head=32, n_ff=96,
                        eps=1e-3, theta=5e5, rope=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, n_ctx_orig=64)),
}
SPECIALS = {"qwen3": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "llama": ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]}
EOG = {N_BPE, N_BPE + 1, N_BPE + 2}           # never in greedy text: a runtime would stop there


def config(s):
    """The transformers config of a model."""
    from transformers import LlamaConfig, Qwen3Config, Qwen3MoeConfig
    rope = {"rope_type": "default", "rope_theta": s["theta"]}
    if "rope" in s:
        r = dict(s["rope"])
        rope |= {"rope_type": "llama3", "original_max_position_embeddings": r.pop("n_ctx_orig"), **r}
    c = dict(vocab_size=N_VOCAB, hidden_size=s["n_embd"], num_hidden_layers=s["n_layer"], num_attention_heads=s["n_head"],
             num_key_value_heads=s["n_head_kv"], head_dim=s["n_embd_head"], intermediate_size=s["n_ff"], rms_norm_eps=s["eps"],
             tie_word_embeddings=s["tied"], max_position_embeddings=2048, rope_parameters=rope, attention_bias=False,
             bos_token_id=None, eos_token_id=None, pad_token_id=None)
    if s["arch"] == "llama":
        return LlamaConfig(**c, mlp_bias=False)
    if s["arch"] == "qwen3":
        return Qwen3Config(**c)
    return Qwen3MoeConfig(**c, moe_intermediate_size=s["n_ff"], num_experts=s["n_expert"], num_experts_per_tok=s["n_expert_used"],
                          norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])


def model(s):
    """A transformers model with weights that let every part move the logits; the matrices survive a trip through bf16."""
    import torch
    from transformers import AutoModelForCausalLM
    g = torch.Generator().manual_seed(s["seed"])
    normal = lambda t, std, mean=0.0: torch.randn(t.shape, generator=g) * std + mean
    m = AutoModelForCausalLM.from_config(config(s), attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, p in sorted(m.named_parameters()):
            if p.ndim == 1:                             # norms; sharper heads make attention depend on positions
                head = name.endswith(("q_norm.weight", "k_norm.weight"))
                p.copy_(normal(p, 0.25, 1.3 if head else 1.0))
                continue
            gain = 1.0 / math.sqrt(p.shape[-1])         # rows see unit input
            if "embed_tokens" in name or "lm_head" in name:
                gain = 0.5                              # small beside the branches: tied models would repeat the last token
            elif name.endswith("mlp.gate.weight"):
                gain *= 1.5
            elif name.endswith(("q_proj.weight", "k_proj.weight")):
                gain *= 1.4
            elif name.endswith(("o_proj.weight", "down_proj.weight", "down_proj")):
                gain *= 2.5
            p.copy_(normal(p, gain).to(torch.bfloat16).float())
    return m


def to_llama_rope(w, n_head):
    """Rows of Q or K, per head, from halves (x_i with x_{i + n/2}) to neighbours (x_{2i} with x_{2i+1}): llama's rotary pairs in GGUF."""
    n = w.shape[0] // n_head
    return w.reshape(n_head, 2, n // 2, -1).swapaxes(1, 2).reshape(w.shape)


def rope_factors(s):
    """One divisor per rotary pair, as in Llama 3.1: 1 for short wavelengths, `factor` for long ones, a ramp in inverse wavelength between."""
    r, n = s["rope"], s["n_embd_head"]
    for i in range(n // 2):
        turns = r["n_ctx_orig"] * s["theta"] ** (-2 * i / n) / (2 * math.pi)      # within the original context
        ramp = (turns - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
        ramp = min(1.0, max(0.0, ramp))
        yield 1.0 / (ramp + (1.0 - ramp) / r["factor"])


def tensors(s, sd):
    """(GGUF name, array) pairs in the order of the file."""
    import numpy as np
    a = {k.removeprefix("model."): v.numpy() for k, v in sd.items()}
    yield "token_embd.weight", a["embed_tokens.weight"]
    yield "output_norm.weight", a["norm.weight"]
    if not s["tied"]:
        yield "output.weight", a["lm_head.weight"]
    if "rope" in s:
        yield "rope_freqs.weight", np.array(list(rope_factors(s)), dtype=np.float32)
    for i in range(s["n_layer"]):
        p, b = f"layers.{i}.", f"blk.{i}."
        yield b + "attn_norm.weight", a[p + "input_layernorm.weight"]
        for ours, theirs, n_head in (("attn_q", "q", s["n_head"]), ("attn_k", "k", s["n_head_kv"]), ("attn_v", "v", 0)):
            w = a[p + f"self_attn.{theirs}_proj.weight"]
            yield b + ours + ".weight", to_llama_rope(w, n_head) if s["arch"] == "llama" and n_head else w
        yield b + "attn_output.weight", a[p + "self_attn.o_proj.weight"]
        if s["arch"] != "llama":
            yield b + "attn_q_norm.weight", a[p + "self_attn.q_norm.weight"]
            yield b + "attn_k_norm.weight", a[p + "self_attn.k_norm.weight"]
        yield b + "ffn_norm.weight", a[p + "post_attention_layernorm.weight"]
        if "n_expert" in s:
            up = a[p + "mlp.experts.gate_up_proj"]          # [expert, gate rows then up rows, n_embd]
            yield b + "ffn_gate_inp.weight", a[p + "mlp.gate.weight"]
            yield b + "ffn_gate_exps.weight", up[:, :s["n_ff"]]
            yield b + "ffn_up_exps.weight", up[:, s["n_ff"]:]
            yield b + "ffn_down_exps.weight", a[p + "mlp.experts.down_proj"]
        else:
            for w in ("gate", "up", "down"):
                yield b + f"ffn_{w}.weight", a[p + f"mlp.{w}_proj.weight"]


def write_gguf(path, name, s, sd, tokenizer):
    import gguf
    import numpy as np
    w = gguf.GGUFWriter(path, s["arch"])
    w.add_type("model")
    w.add_name(name)
    w.add_block_count(s["n_layer"])
    w.add_context_length(2048)
    w.add_embedding_length(s["n_embd"])
    w.add_feed_forward_length(s["n_ff"])
    w.add_head_count(s["n_head"])
    w.add_head_count_kv(s["n_head_kv"])
    w.add_key_length(s["n_embd_head"])
    w.add_value_length(s["n_embd_head"])
    w.add_layer_norm_rms_eps(s["eps"])
    w.add_rope_freq_base(s["theta"])
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    if "n_expert" in s:
        w.add_expert_count(s["n_expert"])
        w.add_expert_used_count(s["n_expert_used"])
        w.add_expert_feed_forward_length(s["n_ff"])
    llama = s["arch"] == "llama"
    if llama:
        w.add_vocab_size(N_VOCAB)
        w.add_rope_dimension_count(s["n_embd_head"])
    specials = SPECIALS["llama" if llama else "qwen3"]
    bpe = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)[:N_BPE]
    pad = [f"[PAD{i}]" for i in range(N_BPE + len(specials), N_VOCAB)]
    T = gguf.TokenType
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe" if llama else "qwen2")
    w.add_token_list(bpe + specials + pad)
    w.add_token_types([T.NORMAL] * N_BPE + [T.CONTROL] * len(specials) + [T.UNUSED] * len(pad))
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["merges"]][:N_BPE - 256])
    if llama:
        w.add_bos_token_id(N_BPE)
    else:
        w.add_pad_token_id(N_BPE)
    w.add_eos_token_id(N_BPE + 2)
    w.add_add_bos_token(llama)
    for tensor, a in tensors(s, sd):
        w.add_tensor(tensor, np.ascontiguousarray(a))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Blob:
    """Collects float arrays; gives [offset, count] for each."""
    def __init__(self):
        self.parts, self.n = [], 0

    def put(self, t):
        self.parts.append(t.detach().numpy().astype("<f4").ravel())
        self.n += self.parts[-1].size
        return [self.n - self.parts[-1].size, self.parts[-1].size]


def rounded(values, digits=5):
    return [round(float(v), digits) for v in values]


def greedy(m, ids):
    """(tokens, margins) of greedy decoding, one token at a time with the cache."""
    import torch
    x, margins, cache = list(ids), [], None
    for _ in range(N_GREEDY):
        o = m(torch.tensor([x if cache is None else x[-1:]]), past_key_values=cache, use_cache=True)
        cache, top = o.past_key_values, o.logits[0, -1].topk(2)
        x.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
    return x[len(ids):], margins


def sequence(m, name, n, seed, plain, router_margins):
    """Random ids of length `n`, drawn again until nothing about the answer is a near tie: (entry without blob fields, logits, hidden).

    The first token of the answer is one of `plain`: llama-server gives no probabilities for a part of a character.
    """
    import torch
    for variant in range(400):
        g = torch.Generator().manual_seed(seed * 100_000 + n * 1000 + variant)
        ids = torch.randint(0, N_VOCAB, (n,), generator=g).tolist()
        router_margins.clear()
        tokens, margins = greedy(m, ids)
        near_tie = min(margins) < MIN_MARGIN or min(router_margins, default=1) < MIN_ROUTER_MARGIN
        if near_tie or tokens[0] not in plain or EOG & set(tokens) or len(set(tokens)) < MIN_DISTINCT:
            continue
        all_logits = m(torch.tensor([ids + tokens])).logits[0]
        assert all_logits[n - 1:-1].argmax(-1).tolist() == tokens, f"{name}: one pass and token by token differ"
        hidden = m.model(torch.tensor([ids])).last_hidden_state[0]
        logits = m.lm_head(hidden)
        top = logits.topk(TOP, -1)
        entry = {"name": name, "ids": ids, "hidden_rows": min(n, 3),
                 "positions": [{"ids": i.tolist(), "logits": rounded(v), "lse": round(float(l), 5)}
                               for i, v, l in zip(top.indices, top.values, logits.logsumexp(-1))],
                 "greedy": tokens, "greedy_margin": rounded(margins, 4), "mtp": {"std": [], "lead0": []}}
        if router_margins:
            entry["router_margin_min"] = float(f"{min(router_margins):.3g}")
        print(f"  {name:7s} variant {variant:3d}: {len(set(tokens))} distinct tokens, greedy margin >= {min(margins):.4f}, "
              f"router margin >= {min(router_margins, default=1):.1e}", flush=True)
        return entry, logits, hidden
    sys.exit(f"{name}: no sequence without a near tie in 400 draws; take another seed for the model")


def residual_stream(m, ids):
    """[n_layer + 1, n_tokens, n_embd]: the embedding, then the stream after every layer."""
    import torch
    rows, hooks = [m.model.embed_tokens(torch.tensor(ids))], []
    for layer in m.model.layers:
        hooks.append(layer.register_forward_hook(lambda _m, _i, o: rows.append((o[0] if isinstance(o, tuple) else o).reshape(len(ids), -1))))
    m.model(torch.tensor([ids]), use_cache=False)
    for h in hooks:
        h.remove()
    return torch.stack(rows)


def make(a):
    import numpy as np
    import torch
    import transformers
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    tokenizer = json.load(open(a.tokenizer, encoding="utf-8"))["model"]
    for name in a.names:
        s = MODELS[name]
        out = os.path.join(a.out, s["arch"])
        os.makedirs(out, exist_ok=True)
        path = os.path.join(out, name)
        m, margins = model(s), []
        if a.hf:
            m.save_pretrained(os.path.join(a.hf, name))
        for layer in m.model.layers if "n_expert" in s else []:
            k = s["n_expert_used"]

            def record(_module, _inputs, o):
                p = o[0].float().softmax(-1).sort(-1, descending=True).values
                margins.append(float((p[:, k - 1] - p[:, k]).min()))
            layer.mlp.gate.register_forward_hook(record)
        print(name)
        write_gguf(path + ".gguf", name, s, m.state_dict(), tokenizer)
        plain = {i for token, i in tokenizer["vocab"].items() if i < N_BPE and token.isascii()}
        blob, seqs = Blob(), []
        for seq, n in SEQUENCES.items():
            entry, logits, hidden = sequence(m, seq, n, s["seed"], plain, margins)
            seqs.append(entry | {"last_logits": blob.put(logits[-1]), "hidden": blob.put(hidden[-entry["hidden_rows"]:])})
        stream = residual_stream(m, seqs[1]["ids"])
        golden = {"format": 1, "model": name, "arch": s["arch"], "gguf": name + ".gguf", "vocab_size": N_VOCAB, "hidden_size": s["n_embd"],
                  "dtype": "transformers float32 on bf16-exact weights",
                  "made_by": f"scripts/reference_logits.py make --tokenizer tests/golden/qwen3/tokenizer.json tests/golden {name}",
                  "versions": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__},
                  "blob": name + ".f32", "layers": {"sequence": seqs[1]["name"], "shape": list(stream.shape), "data": blob.put(stream)},
                  "blob_floats": blob.n, "sequences": seqs}
        np.concatenate(blob.parts).tofile(path + ".f32")
        with open(path + ".json", "w") as f:
            json.dump(golden, f, separators=(",", ":"))
            f.write("\n")
        model_end = packed(path)
        for end in (model_end, ".json", ".f32"):
            print(f"  wrote {path}{end}: {os.path.getsize(path + end)} bytes")


def packed(path):
    """Packs the model of `path`; the end of the new name."""
    with open(path + ".gguf", "rb") as f, open(path + ".gguf.z4", "wb") as z:
        data = f.read()
        z.write(zlib.compress(b"".join(data[first::4] for first in range(4)), 9))
    os.remove(path + ".gguf")
    return ".gguf.z4"


def unpacked(path, folder):
    """A file that llama.cpp can open."""
    if os.path.exists(path + ".gguf"):
        return path + ".gguf"
    out = os.path.join(folder, os.path.basename(path) + ".gguf")
    with open(path + ".gguf.z4", "rb") as z, open(out, "wb") as f:
        data, at = zlib.decompress(z.read()), 0
        whole = bytearray(len(data))
        for first in range(4):
            n = len(range(first, len(data), 4))
            whole[first::4] = data[at:at + n]
            at += n
        f.write(whole)
    return out


def ask(port, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    r = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(r, timeout=120))


def started(argv, port):
    """The server process, once it answers."""
    p = subprocess.Popen(argv + ["--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(600):
        if p.poll() is not None:
            sys.exit(f"{argv[0]} ended with status {p.returncode}; run it by hand: {' '.join(argv)}")
        try:
            ask(port, "/health")
            return p
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    p.kill()
    sys.exit(f"{argv[0]} does not answer on port {port} after 60 s")


def verify(a):
    """Greedy tokens must be equal, and log-probabilities of the first one's rivals near."""
    bad = 0
    folder = tempfile.TemporaryDirectory()
    for name in a.names:
        path = os.path.join(a.out, MODELS[name]["arch"], name)
        golden = json.load(open(path + ".json"))
        blob = open(path + ".f32", "rb").read()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        p = started([a.server, "-m", unpacked(path, folder.name), "-c", "512", "-np", "1", "-t", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off",
                     "--no-warmup", "--host", "127.0.0.1"], port)
        try:
            for s in golden["sequences"]:
                o = ask(port, "/completion", {"prompt": s["ids"], "n_predict": N_GREEDY, "temperature": 0, "n_probs": TOP,
                                              "cache_prompt": False, "return_tokens": True})
                logits = struct.unpack_from(f"<{N_VOCAB}f", blob, 4 * s["last_logits"][0])
                lse = s["positions"][-1]["lse"]
                first = o["completion_probabilities"][0]["top_logprobs"]
                d = max(abs(t["logprob"] - (logits[t["id"]] - lse)) for t in first)
                ok = o["tokens"] == s["greedy"] and d < 1e-3
                bad += not ok
                print(f"{name:12s} {s['name']:7s} {'same' if o['tokens'] == s['greedy'] else 'OTHER'} {N_GREEDY} tokens, "
                      f"top-{TOP} log-probabilities differ by {d:.1e} at most{'' if ok else '  BAD'}", flush=True)
                if o["tokens"] != s["greedy"]:
                    print(f"  expected {s['greedy']}\n  got      {o['tokens']}")
        finally:
            p.terminate()
            p.wait()
    sys.exit(1 if bad else 0)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = ap.add_subparsers(dest="what", required=True)
    mk, ve = sub.add_parser("make"), sub.add_parser("verify")
    mk.add_argument("--tokenizer", required=True, help="a byte-level BPE tokenizer.json")
    mk.add_argument("--hf", metavar="DIR", help="also keep the models as transformers saves them")
    ve.add_argument("--server", required=True, help="llama.cpp's llama-server")
    for p, f in ((mk, make), (ve, verify)):
        p.add_argument("out", metavar="OUT_DIR")
        p.add_argument("names", nargs="*", default=list(MODELS), metavar="name")
        p.set_defaults(run=f)
    a = ap.parse_args()
    if unknown := [n for n in a.names if n not in MODELS]:
        ap.error(f"{', '.join(unknown)}: known names are {', '.join(MODELS)}")
    a.run(a)


if __name__ == "__main__":
    main()
