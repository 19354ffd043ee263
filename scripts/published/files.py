#!/usr/bin/env python3
"""Files as people have them: what llama.cpp's converter and tools make of small checkpoints, opened here and there.

  scripts/published/llamacpp.sh FOLDER --build --torch
  cargo build && FOLDER/venv/bin/python scripts/published/files.py FOLDER [--work DIR] [--nextn target/debug] [--only SECTION,..] [--types MODEL,..]

Makes checkpoints with transformers (files/checkpoints.py), converts them with llama.cpp's converter, quantizes, splits and merges them with
its tools, and compares logits of a prompt of 200 tokens and the greedy text after it: `nextn-bench logits` and `generate` beside libllama,
both with F32 cells and without fused attention. Writes docs/measurements/files.md. Sections: checkpoints, rope, types, layouts, drafts;
those that --only leaves out stay as they were made before. Half an hour on two cores that other programs used, too. Exit status: 1 when a cell is not as expected.
"""
import argparse, concurrent.futures, json, os, re, shutil, subprocess, sys, threading, time, urllib.request
from pathlib import Path

import numpy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
N_GREEDY = 24
FLOATS = {"F32", "F16", "BF16"}
TYPES = ("F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q4_K_M Q4_K_S Q4_1 Q4_0 Q3_K_L Q3_K_M Q3_K_S Q2_K Q2_K_S IQ4_NL IQ4_XS IQ3_M IQ3_S "
         "IQ3_XS IQ3_XXS IQ2_M IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S TQ2_0 TQ1_0 MXFP4_MOE Q2_0 Q1_0").split()
# What differs from llama.cpp by intent: transformers is the reference there.
THEIRS = {"qwen3-yarn-betas": "it does not read `rope.scaling.yarn_beta_fast` and `_slow` for `qwen3`",
          "qwen2-yarn-factor": "it does not read `rope.scaling.yarn_attn_factor` for `qwen2`"}


class Peer:
    """libllama in processes of its own, which a file may end."""

    def __init__(self, args):
        package = next(p for p in sorted(args.folder.glob("llama_cpp_python-*")) if p.is_dir())
        self.command = [sys.executable, str(HERE / "files/llama.py"), "serve", str(package), str(args.folder / "build/bin")]
        self.local = threading.local()

    def ask(self, **request):
        process = getattr(self.local, "process", None)
        if process is None or process.poll() is not None:
            process = self.local.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                            stderr=subprocess.DEVNULL, text=True)
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            process.wait()
            return {"error": "its process ended"}
        return json.loads(line)


def run(*command, ok=True):
    r = subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace")
    if ok and r.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {r.returncode}\n{(r.stdout + r.stderr)[-1500:]}")
    return r


class Lab:
    """The work folder and the two programs."""

    def __init__(self, args):
        self.args, self.peer = args, Peer(args)
        self.work = args.work
        self.files = self.work / "files"
        self.files.mkdir(parents=True, exist_ok=True)
        self.bin = args.folder / "build/bin"
        self.bad = []
        self.converter, self.lock = None, threading.Lock()

    def checkpoint(self, name):
        reference = numpy.load(self.work / "checkpoints" / name / "reference.npz")
        return reference["ids"].tolist(), reference["logits"], str(reference["text"])

    def convert(self, name, out, *options):
        """llama.cpp's converter on a checkpoint; gives the path of what it was told to write."""
        out = self.files / out
        folder = self.work / "checkpoints" / name
        with self.lock:
            if not out.exists():
                if self.converter is None:
                    command = [sys.executable, HERE / "files/llama.py", "convert", self.args.folder / "llama.cpp"]
                    self.converter = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                request = [(folder / "pre.txt").read_text(), str(folder), "--outfile", str(out), *options]
                self.converter.stdin.write(json.dumps(request) + "\n")
                self.converter.stdin.flush()
                answer = self.converter.stdout.readline().strip()
                if answer:
                    raise RuntimeError(f"converter on {name} {options}: {json.loads(answer)}")
        return out

    def tool(self, name, *arguments, ok=True):
        return run(self.bin / name, *arguments, ok=ok)

    def quantize(self, source, kind, imatrix=None, *options):
        """The quantized file, or why the tool makes none."""
        out = self.files / f"{source.stem}.{kind}{'.imatrix' if imatrix else ''}.gguf"
        if not out.exists():
            with_imatrix = ["--imatrix", imatrix] if imatrix else []
            r = self.tool("llama-quantize", *with_imatrix, *options, source, out, kind, 1, ok=False)
            if r.returncode:
                out.unlink(missing_ok=True)
                reason = [line for line in (r.stdout + r.stderr).splitlines() if "imatrix" in line or "failed" in line]
                return reason[-1].strip() if reason else f"status {r.returncode}"
        return out

    def imatrix(self, name):
        """The importance matrix of a checkpoint."""
        out = self.work / f"{name}.imatrix.gguf"
        if not out.exists():
            corpus = self.work / "corpus.txt"
            corpus.write_text("\n".join(p.read_text() for p in sorted((ROOT / "docs").glob("*.md"))))
            source = self.convert(name, f"{name}.gguf", "--outtype", "f32")
            self.tool("llama-imatrix", "-m", source, "-f", corpus, "-o", out, "-c", 128, "--chunks", 16, "-t", 1)
        return out

    def ours(self, command, file, ids, *options):
        cells = ["--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off", "-t", "1", "--device", "cpu"]
        return run(self.args.nextn / "nextn-bench", command, "-m", file, "--tokens", ",".join(map(str, ids)), *cells, *options, ok=False)

    def logits(self, file, ids, *flags):
        """What `nextn-bench logits` gives: an array, or the error."""
        out = {side: self.work / f"{side}-{threading.get_ident()}.npy" for side in ("logits", "hidden")}
        r = self.ours("logits", file, ids, "--full", out["logits"], "--hidden", out["hidden"], *flags)
        if r.returncode:
            return r.stderr.strip().splitlines()[-1] if r.stderr else f"status {r.returncode}"
        return numpy.load(out["logits"])

    def compare(self, name, file, flags=(), rope=None, exact=False, n=N_GREEDY):
        """What a file gives here and in llama.cpp: a dictionary of a cell; `error` or `theirs` says which of them refused. `exact`: how far
        each is from exact arithmetic on the same weights, which is that of the file turned to F32."""
        ids, reference, text = self.checkpoint(name)
        ours = self.logits(file, ids, *flags)
        if isinstance(ours, str):
            return {"error": ours}
        out = self.work / f"theirs-{threading.get_ident()}.npy"
        answer = self.peer.ask(model=str(file), ids=ids, n=n, text=text, out=str(out), rope=rope or {})
        if "error" in answer:
            return {"theirs": answer["error"]}
        peer = numpy.load(out)
        spread = float(peer.std())
        differs = float(abs(ours - peer).max()) / spread
        r = {"differs": differs, "reference": float(abs(ours - reference).max()) / float(reference.std()),
             "their_reference": float(abs(peer - reference).max()) / float(reference.std()), "ids": answer["ids"]}
        if n:
            reply = json.loads(self.ours("generate", file, ids, "-n", n, *flags).stdout)["tokens"]
            fork = next((i for i, (a, b) in enumerate(zip(reply, answer["greedy"])) if a != b), n)
            # A text may part where the two likeliest tokens are closer than the two programs.
            r |= {"fork": fork, "tie": fork < n and answer["margins"][fork] / spread <= 2 * differs < 0.2}
        if exact:
            wide = self.files / f"exact-{threading.get_ident()}.gguf"
            self.tool("llama-quantize", "--allow-requantize", file, wide, "F32", 1)
            truth = self.logits(wide, ids)
            wide.unlink()
            r |= {"ours_kl": divergence(ours, truth), "their_kl": divergence(peer, truth)}
        return r

    def tokens(self, file, text):
        """The ids that nextn makes of a text."""
        words = self.work / f"text-{threading.get_ident()}.txt"
        words.write_text(text)
        encoded = json.loads(run(self.args.nextn / "nextn-bench", "tokenize", "-m", file, "--text-file", words).stdout)
        return encoded if isinstance(encoded, list) else encoded["tokens"]

    def expect(self, what, right):
        if not right:
            self.bad.append(what)


def divergence(a, b):
    """The mean Kullback-Leibler divergence of `a` from `b`, in nats a position."""
    def log_softmax(x):
        x = x.astype(numpy.float64)
        x = x - x.max(-1, keepdims=True)
        return x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))
    p, q = log_softmax(b), log_softmax(a)
    return max(0.0, float((numpy.exp(p) * (p - q)).sum(-1).mean()))


def as_near(r):
    """True where we are about as near exact arithmetic as llama.cpp. Where experts are nearly tied, either may pick others."""
    return r["ours_kl"] <= 2 * r["their_kl"] + 1e-6


def text_cell(r):
    return f"{r['fork']} of {N_GREEDY}{', a tie' if r['tie'] else ''}"


def each(items, work):
    """`work` of every item, two at a time, in order."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, items))


def parallel_rows(items, work):
    return each(items, lambda item: work(*item) if isinstance(item, tuple) else work(item))


def checkpoints(lab):
    names = [p.name for p in sorted((lab.work / "checkpoints").iterdir())]

    def row(name):
        file = lab.convert(name, f"{name}.gguf", "--outtype", "f32")
        r = lab.compare(name, file)
        arch = run(lab.args.nextn / "extract-nextn", "inspect", file, "--json", ok=False).stdout
        arch = re.search(r'"architecture":\s*"([^"]+)"', arch)
        arch = arch.group(1) if arch else "?"
        if "error" in r or "theirs" in r:
            lab.expect(f"checkpoint {name}: {r}", False)
            return f"| {name} | {arch} | {r.get('error', '')} | {r.get('theirs', '')} | | | |"
        by_intent = name in THEIRS          # the text is another one then
        lab.expect(f"checkpoint {name}: {r}", r["reference"] < 1e-3 and (by_intent or r["differs"] < 1e-4 and r["fork"] == N_GREEDY or r["tie"]))
        return (f"| {name} | {arch} | {r['reference']:.0e} | {r['their_reference']:.0e} | {r['differs']:.0e} | {'another' if by_intent else text_cell(r)} "
                f"| {'equal' if lab.tokens(file, lab.checkpoint(name)[2]) == r['ids'] else 'DIFFER'} |")
    rows = each(names, row)
    notes = [f"- `{name}`: llama.cpp differs from transformers, because {why}; nextn does." for name, why in THEIRS.items() if name in names]
    return ["## Checkpoints, converted to F32", "", "Largest difference of a logit, in standard deviations of the logits, over all positions.", "",
            "| Checkpoint | Architecture | nextn - transformers | llama.cpp - transformers | nextn - llama.cpp | Greedy text as llama.cpp's | Token ids of a text |",
            "|---|---|---|---|---|---|---|", *rows, "", *notes]


def types(lab):
    models = lab.args.types
    sources = {name: lab.convert(name, f"{name}.gguf", "--outtype", "f32") for name in models}
    matrices = {name: lab.imatrix(name) for name in models}

    def cell(name, kind, with_imatrix):
        if with_imatrix and kind in FLOATS | {"Q8_0"}:
            return ""
        file = lab.quantize(sources[name], kind, matrices[name] if with_imatrix else None)
        if isinstance(file, str):
            return "none made"
        r = lab.compare(name, file, exact=True, n=0)
        file.unlink()
        if "error" in r:
            lab.expect(f"{name} {kind}: {r['error']}", False)
            return r["error"]
        if "theirs" in r:
            return f"llama.cpp: {r['theirs']}"
        lab.expect(f"{name} {kind} imatrix {with_imatrix}: {r['ours_kl']}, {r['their_kl']}", as_near(r))
        return f"{r['ours_kl']:.0e}, {r['their_kl']:.0e}"
    columns = [(name, imatrix) for name in models for imatrix in (False, True)]
    cells = parallel_rows([(name, kind, imatrix) for kind in TYPES for name, imatrix in columns], cell)
    rows = [f"| {kind} | " + " | ".join(cells[i * len(columns):(i + 1) * len(columns)]) + " |" for i, kind in enumerate(TYPES)]
    head = "".join(f" {name}{', imatrix' if imatrix else ''} |" for name, imatrix in columns)
    return ["## Types of llama-quantize", "", "How far nextn, then llama.cpp, is from exact arithmetic on the same weights (the file turned to F32): mean "
            "divergence in nats. Both round activations; llama.cpp does so for F16 and BF16, too. \"None made\": llama-quantize wants an importance "
            "matrix for every tensor, and llama-imatrix gives none for an MTP layer.", "", f"| Type |{head}", "|---" * (len(columns) + 1) + "|", *rows]


def layouts(lab):
    cases = []

    def case(what, name, file, refused=None):
        cases.append((what, name, file, refused))
    for kind in ("f16", "bf16", "q8_0", "auto"):
        case(f"converter `--outtype {kind}`", "qwen3_5_moe", lab.convert("qwen3_5_moe", f"out-{kind}.gguf", "--outtype", kind))
    for name in ("qwen3", "llama", "qwen2", "qwen3_5"):
        case("converter `--fuse-qkv`", name, lab.convert(name, f"{name}-fused-qkv.gguf", "--outtype", "f16", "--fuse-qkv"))
    fused = lab.convert("qwen3_5_moe", "fused-exps.gguf", "--outtype", "f16", "--fuse-gate-up-exps")
    case("converter `--fuse-gate-up-exps`", "qwen3_5_moe", fused)
    whole = lab.convert("qwen3_5", "whole.gguf", "--outtype", "f16")

    def shards(folder, make):
        folder = lab.files / folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder)
        return sorted(folder.glob("*.gguf"))
    split = shards("split", lambda d: lab.tool("llama-gguf-split", "--split", "--split-max-tensors", 20, whole, d / "model"))
    case(f"`llama-gguf-split --split`, {len(split)} shards", "qwen3_5", split[0])
    by_size = shards("by-size", lambda d: lab.tool("llama-gguf-split", "--split", "--split-max-size", "3M", whole, d / "model.v1.0-x"))
    case(f"`--split-max-size`, {len(by_size)} shards, dots in the name", "qwen3_5", by_size[0])
    empty = shards("empty", lambda d: lab.tool("llama-gguf-split", "--split", "--no-tensor-first-split", "--split-max-tensors", 30, whole, d / "model"))
    case("`--no-tensor-first-split`", "qwen3_5", empty[0])
    merged = lab.files / "merged.gguf"
    merged.unlink(missing_ok=True)
    lab.tool("llama-gguf-split", "--merge", split[0], merged)
    case("`llama-gguf-split --merge`", "qwen3_5", merged)
    kept = shards("kept", lambda d: lab.tool("llama-quantize", "--keep-split", split[0], d / "model.gguf", "Q4_K_M"))
    case(f"`llama-quantize --keep-split`, {len(kept)} shards", "qwen3_5", kept[0])
    converted = shards("converted", lambda d: lab.convert("qwen3_moe", d / "model.gguf", "--outtype", "f16", "--split-max-tensors", "20"))
    case(f"converter `--split-max-tensors`, {len(converted)} shards", "qwen3_moe", converted[0])
    one = shards("one", lambda d: lab.tool("llama-gguf-split", "--split", "--split-max-tensors", 1000, whole, d / "model"))
    case("split into 1 of 1", "qwen3_5", one[0])
    beside = lab.files / "beside"
    beside.mkdir(exist_ok=True)
    projector = lab.convert("qwen3_5", beside / "mmproj-model.gguf", "--mmproj", "--outtype", "f16")
    shutil.copy(whole, beside / "model.gguf")
    case("a projector (mmproj) beside", "qwen3_5", beside / "model.gguf")
    head = lab.convert("qwen3_5", "mtp-model.gguf", "--mtp", "--outtype", "f16")
    case("the projector as the model", "qwen3_5", projector, refused="clip")
    case("a second shard as the model", "qwen3_5", split[1], refused="shard")
    case("a draft head (mtp) as the model", "qwen3_5", head, refused="blk.0")
    case("an importance matrix as the model", "qwen3_5", lab.imatrix("qwen3_5"), refused="imatrix")
    lonely = lab.files / "lonely"
    lonely.mkdir(exist_ok=True)
    shutil.copy(split[0], lonely / split[0].name)
    case("a first shard without the others", "qwen3_5", lonely / split[0].name, refused="00002-of-")
    case("llama-quantize `--output-tensor-type q5_k --token-embedding-type q6_k --tensor-type attn_v=q8_0`", "qwen3_moe",
         lab.quantize(lab.convert("qwen3_moe", "qwen3_moe.gguf", "--outtype", "f32"), "Q4_K_M", None, "--output-tensor-type", "q5_k",
                      "--token-embedding-type", "q6_k", "--tensor-type", "attn_v=q8_0"))
    case("llama-quantize `--pure`", "llama", lab.quantize(lab.convert("llama", "llama.gguf", "--outtype", "f32"), "Q4_K_S", None, "--pure"))
    case("llama-quantize `--leave-output-tensor`", "llama",
         lab.quantize(lab.convert("llama", "llama.gguf", "--outtype", "f32"), "Q5_K_S", None, "--leave-output-tensor"))

    def row(what, name, file, refused):
        if isinstance(file, str):
            lab.expect(f"{what}: {file}", False)
            return f"| {what} | {name} | {file} | | |"
        r = lab.compare(name, file, exact=not refused)
        if refused:
            lab.expect(f"{what}: {r}", refused in r.get("error", ""))
            said = re.sub(r"(error: )?\S*/(\S+\.gguf)", r"\2", r.get("error", "it was opened"))
            return f"| {what} | refused: {said} | | | |"
        if "error" in r or "theirs" in r:
            lab.expect(f"{what}: {r}", False)
            return f"| {what} | {name} | {r} | | |"
        lab.expect(f"{what}: {r}", as_near(r))
        return f"| {what} | {name} | {r['ours_kl']:.0e} | {r['their_kl']:.0e} | {text_cell(r)} |"
    return ["## Layouts", "", "Files of the converter, of llama-gguf-split and of llama-quantize, measured as above, and files that are no models.", "",
            "| File | Checkpoint | nextn - exact | llama.cpp - exact | Same greedy text |", "|---|---|---|---|---|", *parallel_rows(cases, row)]


def server(command, port, log):
    """Starts a server and waits until it answers."""
    process = subprocess.Popen([str(c) for c in command], stdout=log, stderr=subprocess.STDOUT)
    for _ in range(300):
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended with {process.returncode}: {Path(log.name).read_text()[-600:]}")
        try:
            if urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).status == 200:
                return process
        except OSError:
            time.sleep(0.2)
    process.terminate()
    raise RuntimeError(f"{command[0]} does not answer")


def complete(lab, command, ids, n):
    """Greedy tokens of a server for a prompt of ids, and what it says of drafts."""
    port = lab.args.port
    with open(lab.work / "server.log", "w") as log:
        process = server([*command, "--port", port, "--host", "127.0.0.1"], port, log)
        try:
            # With `ignore_eos` llama.cpp gives no end of text at all, nextn goes on behind it: without the special tokens both do the same.
            body = dict(prompt=ids, n_predict=n, temperature=0, top_k=1, return_tokens=True, cache_prompt=False, ignore_eos=True,
                        logit_bias=[[token, -1000] for token in range(508, 512)])
            request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
            reply = json.load(urllib.request.urlopen(request, timeout=120))
            return reply["tokens"], reply.get("timings", {})
        finally:
            process.terminate()
            process.wait()


def drafts(lab):
    rows, n = [], 48
    llama = [lab.bin / "llama-server", "-c", 1024, "-np", 1, "-t", 1, "--no-webui", "--no-repack", "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
    nextn = [lab.args.nextn / "nextn-server", "-c", 1024, "--parallel", 1, "-t", 1, "--flash-attn", "off", "--cache-type-k", "f32",
             "--cache-type-v", "f32"]
    for name, kind in (("qwen3_5", "F32"), ("qwen3_5", "Q4_K_M"), ("qwen3_5_moe", "Q4_K_M"), ("qwen3_5-yarn", "F32")):
        whole = lab.convert(name, f"{name}.gguf", "--outtype", "f32")
        alone = lab.convert(name, f"{name}-no-mtp.gguf", "--outtype", "f32", "--no-mtp")
        head = lab.convert(name, f"mtp-{name}-head.gguf", "--outtype", "f32", "--mtp")
        if kind != "F32":
            whole, alone, head = (lab.quantize(f, kind) for f in (whole, alone, head))
        ids = lab.checkpoint(name)[0]
        for what, model, head_of_theirs in (("inside", whole, None), ("`--no-mtp` and `--mtp`", alone, head)):
            # llama-quantize counts the head's layer: the two files have not all types in common.
            plain, _ = complete(lab, [*llama, "-m", model], ids, n)
            off, _ = complete(lab, [*nextn, "-m", model, "--spec", "off"], ids, n)
            files = ["-m", model, *(["--model-draft", head_of_theirs] if head_of_theirs else [])]
            try:
                theirs, t = complete(lab, [*llama, *files, "--spec-type", "draft-mtp", "--spec-draft-n-max", 3], ids, n)
                their = f"{same(theirs, plain)}; {t.get('draft_n_accepted', '?')} of {t.get('draft_n', '?')}"
            except (RuntimeError, OSError) as error:
                their = str(error).splitlines()[0].replace(str(lab.bin) + "/", "")
            ours, t = complete(lab, [*nextn, *files, "--spec", "nextn", "--draft-max", 3], ids, n)
            lab.expect(f"drafts {name} {kind} {what}", ours == off and (off == plain or kind != "F32"))
            rows.append(f"| {name} | {kind} | {what} | {same(off, plain)} | {same(ours, off)}; {t.get('draft_n_accepted', '?')} of "
                        f"{t.get('draft_n', '?')} | {their} |")
    return ["## Draft heads", "", f"Greedy text of {n} tokens: nextn without drafts beside llama.cpp's server without drafts, then each with drafts of up to "
            "3 tokens beside its own without, and accepted of drafted tokens. The heads have random weights. Where quantized experts are "
            "nearly tied, roundings choose between them, and texts part.", "",
            "| Checkpoint | Type | Head | nextn, no drafts | nextn, drafts | llama.cpp, drafts |", "|---|---|---|---|---|---|", *rows]


def same(a, b):
    n = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return "same" if len(a) == len(b) == n else f"parts after {n}"


NONE, LINEAR, YARN = 0, 1, 2


def rope(lab):
    yarn = dict(rope_scaling_type=YARN, rope_freq_scale=0.25, yarn_orig_ctx=64)
    cases = [
        ("--rope-scaling linear --rope-scale 4", dict(rope_scaling_type=LINEAR, rope_freq_scale=0.25)),
        ("--rope-freq-scale 0.5", dict(rope_freq_scale=0.5)),
        ("--rope-freq-base 5000", dict(rope_freq_base=5000.0)),
        ("--rope-scaling none", dict(rope_scaling_type=NONE)),
        ("--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 64", yarn),
        ("--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 64 --yarn-beta-fast 16 --yarn-beta-slow 2", yarn | dict(yarn_beta_fast=16.0, yarn_beta_slow=2.0)),
        ("--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 64 --yarn-ext-factor 0.5", yarn | dict(yarn_ext_factor=0.5)),
        ("--rope-scaling yarn --rope-scale 4 --yarn-ext-factor 0 --yarn-attn-factor 1.2",
         dict(rope_scaling_type=YARN, rope_freq_scale=0.25, yarn_ext_factor=0.0, yarn_attn_factor=1.2)),
    ]
    names = ("qwen3", "llama", "qwen3_5", "qwen3-yarn", "ministral3")

    def cell(name, flags, fields):
        file = lab.convert(name, f"{name}.gguf", "--outtype", "f32")
        r = lab.compare(name, file, flags=flags.split(), rope=fields)
        if "error" in r or "theirs" in r:
            lab.expect(f"rope {name} {flags}: {r}", False)
            return str(r)
        lab.expect(f"rope {name} {flags}: {r}", r["differs"] < 1e-4 and (r["fork"] == N_GREEDY or r["tie"]))
        return f"{r['differs']:.0e}, {text_cell(r)}"
    cells = parallel_rows([(name, flags, fields) for flags, fields in cases for name in names], cell)
    rows = [f"| `{flags}` | " + " | ".join(cells[i * len(names):(i + 1) * len(names)]) + " |" for i, (flags, _) in enumerate(cases)]
    return ["## Flags of the rotation", "", "F32 files of these checkpoints, with the same flags in both programs.", "",
            "| Flags | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|", *rows]


SECTIONS = {f.__name__: f for f in (checkpoints, rope, types, layouts, drafts)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what scripts/published/llamacpp.sh made")
    parser.add_argument("--work", type=Path, help="where files go [default: FOLDER/files]")
    parser.add_argument("--nextn", type=Path, default=ROOT / "target/debug", help="where the programs are")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, joined by commas")
    parser.add_argument("--types", default="qwen3_5,llama", type=lambda s: s.split(","), help="checkpoints that are quantized to every type")
    parser.add_argument("--port", type=int, default=21400)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/measurements/files.md")
    args = parser.parse_args()
    args.folder, start = args.folder.resolve(), time.monotonic()
    args.work = (args.work or args.folder / "files").resolve()
    made = args.work / "checkpoints"
    if not made.exists():
        run(sys.executable, HERE / "files/checkpoints.py", made)
    lab = Lab(args)
    made = args.work / "sections"
    made.mkdir(exist_ok=True)
    for name in filter(None, args.only.split(",")):
        began = time.monotonic()
        (made / f"{name}.md").write_text("\n".join(SECTIONS[name](lab)))
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    parts = [(made / f"{name}.md").read_text() for name in SECTIONS if (made / f"{name}.md").exists()]
    args.out.write_text("\n".join(head(args)) + "\n" + "\n\n".join(parts).rstrip() + "\n")
    print(f"{args.out}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    for what in lab.bad:
        print(f"not as expected: {what}", file=sys.stderr)
    sys.exit(1 if lab.bad else 0)


def head(args):
    import torch, transformers
    version = next(p.name.rsplit("-", 1)[1] for p in sorted(args.folder.glob("llama_cpp_python-*")) if p.is_dir())
    when = time.strftime("%B %Y")
    return ["# Files of llama.cpp's tools", "",
            f"Made by `scripts/published/files.py` in {when}, with the llama.cpp of llama-cpp-python {version}, transformers {transformers.__version__} and "
            f"torch {torch.__version__.split('+')[0]}, on two CPU cores. Small models with random weights; F32 cells, no fused attention.", ""]


if __name__ == "__main__":
    main()
