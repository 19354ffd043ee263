#!/usr/bin/env python3
"""Makes tests/golden/tiny/llamacpp.json.z: what libllama computes for the tiny models of tests/golden.rs.

  NEXTN_WRITE_TINY=DIR cargo test --test golden tiny
  FOLDER/venv/bin/python scripts/published/files/tiny.py FOLDER DIR        FOLDER: what scripts/published/llamacpp.sh made
"""
import json, sys, zlib
from pathlib import Path

import numpy

from llama import Library

if len(sys.argv) != 3:
    sys.exit(__doc__)
folder, tiny = map(Path, sys.argv[1:])
package = next(p for p in sorted(folder.glob("llama_cpp_python-*")) if p.is_dir())
library = Library(str(package), str(folder / "build/bin"))
golden = {}
for entry in json.loads((tiny / "list.json").read_text()):
    rope = {field: value for field, value in entry["rope"].items() if value is not None}
    answer = library.answer(dict(model=str(tiny / entry["file"]), ids=entry["ids"], n=0, text="", out=str(tiny / "logits.npy"), rope=rope))
    if "error" in answer:
        sys.exit(f"{entry['name']}: {answer['error']}")
    rows = numpy.load(tiny / "logits.npy")
    near = numpy.partition(rows, -2)[:, -2:]
    print(f"{entry['name']}: the best two tokens are {float((near[:, 1] - near[:, 0]).min()):.4f} apart at least")
    golden[entry["name"]] = {"best": rows.argmax(-1).tolist(), "last": [round(float(v), 5) for v in rows[-1]]}
out = Path(__file__).resolve().parents[3] / "tests/golden/tiny/llamacpp.json.z"
out.parent.mkdir(exist_ok=True)
text = "{\n" + ",\n".join(f"{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}" for name, value in golden.items()) + "\n}\n"
out.write_bytes(zlib.compress(text.encode(), 9))
