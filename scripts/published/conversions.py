#!/usr/bin/env python3
"""Checkpoints as transformers saves them, converted by `extract-nextn convert` and by llama.cpp's converter: the same files?

  scripts/published/llamacpp.sh FOLDER --build --torch
  cargo build && FOLDER/venv/bin/python scripts/published/conversions.py FOLDER [--work DIR] [--nextn target/debug]

Makes small checkpoints with random weights (files/checkpoints.py) of each family that `convert` reads, with a NextN layer where
transformers has none, converts them to BF16, and compares every key and the bytes of every tensor; then the logits that
`nextn-bench logits` gives for our file (F32, F32 cells) with those of transformers. Likewise projectors of checkpoints that see
(files/towers.py), in each type that they are made in, and EAGLE-3 and DFlash heads (files/heads.py), with their target's folder and with its
file; each then drafts for the target. Prints a table of each, and puts them in the places of those in
docs/measurements/conversions.md with --write; --only NAMES does some
(NAME:mmproj is a projector, NAME:head a draft head). Exit status: 1 when something differs that may not.
"""
import argparse, json, subprocess, sys
from pathlib import Path

import numpy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAMES = ["qwen3_5", "qwen3_5_moe", "qwen3_5-yarn", "qwen3_next", "llama", "llama-biased", "llama-mha", "llama-rope3", "llama-linear", "mistral",
         "mixtral", "ministral3", "qwen2", "qwen2-tied", "qwen2-yarn-factor", "qwen3", "qwen3-yarn", "qwen3-yarn-betas", "qwen3_moe", "glm4",
         "glm4_moe", "glm4_moe_lite", "deepseek_v3", "granite", "phi3", "phi3-long", "llama-pieces", "llama-merges",
         "mistral-pieces", "mixtral-pieces", "phi3-pieces", "phi3-pieces-long", "mistral-own", "mistral-own-pieces", "ministral3-own", "nemotron_h", "nemotron_h-biased", "lfm2", "gpt_oss", "gpt_oss-mxfp4", "gemma2", "gemma3", "gemma3-seeing"]
TOWERS = ["qwen3_5", "gemma4", "gemma3"]
HEADS = ["eagle3", "eagle3-wide", "eagle3-speculator", "dflash", "dflash-window"]
TYPES = ["F32", "F16", "BF16", "Q8_0"]
# Keys that tell of the converter, or that a name is made for.
IGNORED = {"general.name", "general.basename", "general.size_label", "general.quantization_version"}


def run(*command):
    r = subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace")
    if r.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {r.returncode}\n{(r.stdout + r.stderr)[-1500:]}")
    return r.stdout


def contents(path):
    from gguf import GGUFReader
    reader = GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tensors = {t.name: (tuple(map(int, t.shape)), t.tensor_type, t.data.tobytes()) for t in reader.tensors}
    return keys, tensors


def differing(theirs, ours):
    (their_keys, their_tensors), (our_keys, our_tensors) = contents(theirs), contents(ours)
    keys = sorted(k for k in (their_keys.keys() | our_keys.keys()) - IGNORED if their_keys.get(k) != our_keys.get(k))
    return keys, sorted(t for t in their_tensors.keys() | our_tensors.keys() if their_tensors.get(t) != our_tensors.get(t))


def convert_theirs(args, folder, out, pre, *more):
    line = json.dumps([pre, str(folder), *more, "--outfile", str(out), "--outtype", "bf16"])
    process = subprocess.run([sys.executable, str(HERE / "files/llama.py"), "convert", str(args.folder / "llama.cpp")], input=line + "\n",
                             capture_output=True, text=True)
    if process.stdout.strip():
        raise RuntimeError(f"llama.cpp's converter: {process.stdout.strip()[-600:]}")


def compare(args, name):
    folder = args.work / name
    if not (folder / "reference.npz").exists():
        run(sys.executable, HERE / "files/checkpoints.py", args.work, name)
    theirs, ours, wide = (args.work / f"{name}-{end}.gguf" for end in ("theirs", "ours", "f32"))
    own = ["--mistral-format", "--disable-mistral-community-chat-template"] if (folder / "params.json").exists() else []
    convert_theirs(args, folder, theirs, (folder / "pre.txt").read_text(), *own)
    # Experts that are packed stay so; products with them are computed with rounded activations.
    for out, *kind in ((ours, "BF16"), (wide, "F32", "--requantize")):
        out.unlink(missing_ok=True)
        run(args.nextn / "extract-nextn", "convert", folder, "-o", out, "--type", *kind)
    keys, tensors = differing(theirs, ours)
    their_keys, their_tensors = contents(theirs)
    reference = numpy.load(folder / "reference.npz")
    logits = folder / "logits.npy"
    run(args.nextn / "nextn-bench", "logits", "-m", wide, "--tokens", ",".join(map(str, reference["ids"])), "--cache-type-k", "f32",
        "--cache-type-v", "f32", "--flash-attn", "off", "--device", "cpu", "--full", logits, "--hidden", folder / "hidden.npy")
    distance = float(numpy.abs(numpy.load(logits) - reference["logits"]).max())
    return len(their_keys), keys, len(their_tensors), tensors, distance


def compare_projectors(args, name):
    folder = args.work / "towers" / name
    if not (folder / "config.json").exists():
        run(sys.executable, HERE / "files/towers.py", args.work / "towers", name)
    n, equal = [], []
    for kind in TYPES:
        theirs, ours = (args.work / f"mmproj-{name}-{kind}-{end}.gguf" for end in ("theirs", "ours"))
        run(sys.executable, args.folder / "llama.cpp/convert_hf_to_gguf.py", folder, "--mmproj", "--outtype", kind.lower(), "--outfile", theirs)
        ours.unlink(missing_ok=True)
        run(args.nextn / "extract-nextn", "convert", folder, "-o", ours, "--mmproj", "--type", kind)
        keys, tensors = contents(ours)
        n = len(keys), len(tensors)
        equal.append(ours.read_bytes() == theirs.read_bytes())
    return *n, [kind for kind, same in zip(TYPES, equal) if not same]


def compare_heads(args, name):
    folder = args.work / "heads" / name
    if not (folder / "target.txt").exists():
        run(sys.executable, HERE / "files/heads.py", args.work / "heads", name)
    target = args.work / (folder / "target.txt").read_text()
    if not (target / "reference.npz").exists():
        run(sys.executable, HERE / "files/checkpoints.py", args.work, target.name)
    theirs, ours, of_file, whole = (args.work / f"head-{name}-{end}.gguf" for end in ("theirs", "ours", "of-file", "target"))
    convert_theirs(args, folder, theirs, (target / "pre.txt").read_text(), "--target-model-dir", str(target))
    for path in (ours, of_file, whole):
        path.unlink(missing_ok=True)
    run(args.nextn / "extract-nextn", "convert", target, "-o", whole, "--type", "F32")
    for out, of in ((ours, target), (of_file, whole)):
        run(args.nextn / "extract-nextn", "convert", folder, "-o", out, "--type", "BF16", "--target", of)
    if ours.read_bytes() != of_file.read_bytes():
        raise RuntimeError(f"{name}: the target's folder and its file give other heads")
    keys, tensors, (their_keys, their_tensors) = *differing(theirs, ours), contents(theirs)
    ids = ",".join(map(str, numpy.load(target / "reference.npz")["ids"][:50]))
    common = [args.nextn / "nextn-bench", "generate", "-m", whole, "--tokens", ids, "-n", 32, "--device", "cpu", "--flash-attn", "off"]
    plain, drafted = (json.loads(run(*common, *more)) for more in ([], ["--draft-model", ours, "--draft", 3]))
    same = plain["tokens"] == drafted["tokens"] and drafted["drafted"] > 0
    return len(their_keys), keys, len(their_tensors), tensors, same


def put(text, head, rows):
    """The rows of the table with this head, in place of those that are there."""
    before, after = text.split(head + "\n", 1)
    lines = after.split("\n")
    n = next(i for i, line in enumerate(lines) if not line.startswith("|"))
    return "\n".join([before + head, lines[0], *rows, *lines[n:]])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--work", type=Path, default=Path("conversions"))
    p.add_argument("--nextn", type=Path, default=ROOT / "target/debug")
    p.add_argument("--only", default=",".join([*NAMES, *(f"{name}:mmproj" for name in TOWERS), *(f"{name}:head" for name in HEADS)]),
                   help="names; NAME:mmproj is a projector, NAME:head a draft head")
    p.add_argument("--write", action="store_true")
    args = p.parse_args()
    args.work.mkdir(exist_ok=True, parents=True)
    rows, projectors, heads, right = [], [], [], True
    for name in args.only.split(","):
        if name.endswith(":head"):
            n_keys, keys, n_tensors, tensors, same = compare_heads(args, name.removesuffix(":head"))
            cells = [name.removesuffix(":head"), n_keys, ", ".join(f"`{k}`" for k in keys) or "none", n_tensors, ", ".join(tensors[:4]) or "none"]
            heads.append(f"| {' | '.join(map(str, cells))} | {'yes' if same else 'NO'} |")
            right &= not tensors and same
            print(heads[-1], flush=True)
            continue
        if name.endswith(":mmproj"):
            n_keys, n_tensors, other = compare_projectors(args, name.removesuffix(":mmproj"))
            projectors.append(f"| {name.removesuffix(':mmproj')} | {n_keys} | {n_tensors} | {', '.join(other) or 'none'} |")
            right &= not other
            print(projectors[-1], flush=True)
            continue
        n_keys, keys, n_tensors, tensors, distance = compare(args, name)
        rows.append(f"| {name} | {n_keys} | {', '.join(f'`{k}`' for k in keys) or 'none'} | {n_tensors} | {', '.join(tensors[:4]) or 'none'} | {distance:.0e} |")
        right &= not tensors and distance < 1e-3
        print(rows[-1], flush=True)
    if args.write:
        page = ROOT / "docs/measurements/conversions.md"
        text = page.read_text()
        text = put(text, HEAD, rows) if rows else text
        text = put(text, PROJECTOR_HEAD, projectors) if projectors else text
        page.write_text(put(text, HEADS_HEAD, heads) if heads else text)
    return 0 if right else 1


HEAD = "| Checkpoint | Keys | Of these differ | Tensors | Of these differ | Largest difference of a logit |"
HEADS_HEAD = "| Head | Keys | Of these differ | Tensors | Of these differ | Drafts, text equal |"
PROJECTOR_HEAD = "| Checkpoint | Keys | Tensors | Types whose files differ |"

if __name__ == "__main__":
    sys.exit(main())
