#!/usr/bin/env python3
"""Token ids of files that `extract-nextn convert` makes of SentencePiece vocabularies, beside SentencePiece's and the `tokenizers` library's;
and of Mistral's tekken.json, beside the package mistral-common.

  scripts/published/llamacpp.sh FOLDER --build --torch
  cargo build --workspace --bins --examples && FOLDER/venv/bin/python scripts/published/pieces.py MODEL [MODEL ..] [--strings N] [--work DIR]

MODEL is a `tokenizer.model` of Llama's kind (such as those within the package mistral-common). Of each, two checkpoints of one small layer
are made and converted: one with the file, one with a `tokenizer.json` of merges in its place, in the order of the pieces' scores. N random
strings (those of vocabularies.py) are encoded without special tokens (compared with SentencePiece) and with them (compared with
`tokenizers`, which reads that `tokenizer.json`). A MODEL that ends in .json is a tekken.json: one checkpoint, and strings without special
tokens, which that package reads from no text. Prints a row of docs/measurements/conversions.md for each. Exit status: 1 when ids differ.
"""
import argparse, json, shutil, subprocess, sys
from pathlib import Path

import numpy, sentencepiece
from safetensors.numpy import save_file
from tokenizers import Tokenizer

import vocabularies

ROOT = Path(__file__).resolve().parents[2]
N_EMBD = 32
SPACE = "\u2581"


def tensors(n_vocab):
    rng = numpy.random.default_rng(1)
    shapes = {"embed_tokens": (n_vocab, N_EMBD), "norm": (N_EMBD,), "layers.0.input_layernorm": (N_EMBD,), "layers.0.post_attention_layernorm": (N_EMBD,)}
    shapes |= {f"layers.0.self_attn.{x}_proj": (N_EMBD, N_EMBD) for x in "qkvo"} | {f"layers.0.mlp.{x}_proj": (N_EMBD, N_EMBD) for x in ("gate", "up", "down")}
    return {f"model.{name}.weight": rng.standard_normal(shape, dtype=numpy.float32) for name, shape in shapes.items()}


def json_of(processor, added):
    """`tokenizer.json` as transformers converted Llama's: merges make pieces in the order of their scores."""
    n = processor.get_piece_size()
    vocab = {processor.id_to_piece(id): id for id in range(n)}
    pieces = [p for p, id in vocab.items() if len(p) > 1 and not (processor.is_control(id) or processor.is_byte(id) or processor.is_unknown(id))]
    merges = []
    for whole in sorted(pieces, key=lambda p: -processor.get_score(vocab[p])):
        halves = [(whole[:i], whole[i:]) for i in range(1, len(whole)) if whole[:i] in vocab and whole[i:] in vocab]
        merges += sorted(halves, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    normalizer = dict(type="Sequence", normalizers=[dict(type="Prepend", prepend=SPACE), dict(type="Replace", pattern=dict(String=" "), content=SPACE)])
    model = dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=True,
                 byte_fallback=True, ignore_merges=False, vocab=vocab, merges=merges)
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=normalizer, pre_tokenizer=None, post_processor=None,
                decoder=None, model=model)


def folder(path, n_vocab):
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    save_file(tensors(n_vocab), path / "model.safetensors")
    config = dict(architectures=["LlamaForCausalLM"], num_hidden_layers=1, hidden_size=N_EMBD, num_attention_heads=2, intermediate_size=N_EMBD,
                  vocab_size=n_vocab, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def converted(args, path):
    """The folder's file, with its vocabulary open."""
    file = args.work / f"{path.name}.gguf"
    file.unlink(missing_ok=True)
    subprocess.run([str(args.nextn / "extract-nextn"), "convert", str(path), "-o", str(file), "--type", "f32"], check=True, capture_output=True)
    return vocabularies.Ours(file)


def row_of_tekken(args, model):
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer
    theirs = Tekkenizer.from_file(model)
    path = folder(args.work / f"{model.name}-own", theirs.n_words)
    shutil.copy(model, path / "tekken.json")
    ours = converted(args, path)
    plain = vocabularies.strings(args.strings, vocabularies.SEED)
    cell = vocabularies.compare(ours, lambda text: theirs.encode(text, bos=False, eos=False), plain, False, args.show)
    ours.close()
    print(f"| {model.name} | {theirs.n_words} | {args.strings} | {cell} | | | |", flush=True)
    return cell == args.strings


def row(args, model):
    if model.suffix == ".json":
        return row_of_tekken(args, model)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    n = processor.get_piece_size()
    controls = [id for id in range(n) if processor.is_control(id) or processor.is_unknown(id)]
    added = {id: (processor.id_to_piece(id), True) for id in controls} | {n: ("<|im_start|>", True), n + 1: ("[user]", False)}
    token = lambda content, special: dict(content=content, special=special, lstrip=False, rstrip=False, normalized=False, single_word=False)
    added = {id: token(*t) for id, t in added.items()}
    whole = json_of(processor, [dict(id=id) | t for id, t in added.items()])
    with_model, with_merges = (folder(args.work / f"{model.name}-{kind}", n + 5) for kind in ("model", "merges"))
    shutil.copy(model, with_model / "tokenizer.model")
    config = dict(added_tokens_decoder={str(id): t for id, t in added.items()}, add_bos_token=True)
    (with_model / "tokenizer_config.json").write_text(json.dumps(config))
    (with_merges / "tokenizer.json").write_text(json.dumps(whole))
    fast = Tokenizer.from_str(json.dumps(whole))
    specials = [t["content"] for t in added.values()]
    plain, mixed = vocabularies.strings(args.strings, vocabularies.SEED), vocabularies.strings(args.strings, vocabularies.SEED + 1, specials)
    cells = []
    for path in (with_model, with_merges):
        ours = converted(args, path)
        cells.append(vocabularies.compare(ours, lambda text: processor.encode(text), plain, False, args.show))
        cells.append(vocabularies.compare(ours, lambda text: fast.encode(text, add_special_tokens=False).ids, mixed, True, args.show))
        ours.close()
    print(f"| {model.name} | {n} | {args.strings} | " + " | ".join(map(str, cells)) + " |", flush=True)
    return all(cell == args.strings for cell in cells)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", type=Path, nargs="+")
    p.add_argument("--strings", type=int, default=1000)
    p.add_argument("--show", type=int, default=0)
    p.add_argument("--work", type=Path, default=Path("conversions"))
    p.add_argument("--nextn", type=Path, default=ROOT / "target/debug")
    args = p.parse_args()
    return 0 if all([row(args, model) for model in args.models]) else 1


if __name__ == "__main__":
    sys.exit(main())
