#!/usr/bin/env python3
"""Small files of every type of weight for quantisations-gpu.sh: a mixture of experts of one block, some 20 MB in all.

  scripts/published/llamacpp.sh FOLDER --build
  FOLDER/venv/bin/python scripts/published/quantisations_gpu.py FOLDER DIR

Weights are random numbers; llama-quantize makes the files.
"""
import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import quantisations
import random_moe

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("to", type=pathlib.Path)
    a = p.parse_args()
    a.to.mkdir(parents=True, exist_ok=True)
    source, imatrix = a.to / "f32.gguf", a.to / "imatrix.tmp"
    random_moe.write(source)
    quantisations.flat_importance(source, imatrix)
    for name in quantisations.TYPES[1:] + ["UD"]:
        quantisations.quantise(a, source, imatrix, name, a.to / f"{name}.gguf")
    imatrix.unlink()
    print(f"{sum(f.stat().st_size for f in a.to.iterdir()) / 1e6:.1f} MB in {a.to}")


if __name__ == "__main__":
    main()
