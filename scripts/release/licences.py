#!/usr/bin/env python3
"""Writes the licences of all that is compiled into the programs: licences.py TARGET, run in the repository's root.

Each package's own licence files, one after the other; a text that several packages share stands once.
"""

import json
import pathlib
import re
import subprocess
import sys

# Packages whose programs an archive has (scripts/release.sh).
PROGRAMS = ("nextn", "nextn-tune")
NAMES = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def metadata(manifest, target):
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target, "--manifest-path", manifest]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def linked(data):
    """The packages that the programs are linked with: dependencies, but for those of build scripts and tests."""
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    seen, todo = set(), [p["id"] for p in data["packages"] if p["name"] in PROGRAMS and not p["source"]]
    while todo:
        at = todo.pop()
        if at not in seen:
            seen.add(at)
            todo += [d["pkg"] for d in nodes[at]["deps"] if any(k["kind"] is None for k in d["dep_kinds"])]
    return [p for p in data["packages"] if p["id"] in seen]


def texts(folder):
    files = sorted(f for f in folder.iterdir() if f.is_file() and NAMES.match(f.name))
    return [f.read_text(encoding="utf-8", errors="replace").strip() for f in files]


def main():
    target = sys.argv[1]
    data = metadata("Cargo.toml", target)
    entries = []
    for p in linked(data):
        found = texts(pathlib.Path(p["manifest_path"]).parent)
        if p["source"]:
            entries.append((f"{p['name']} {p['version']}", p["license"] or "see below", found))
        elif p["name"] not in PROGRAMS and found:
            entries.append((f"files of others in {p['name']}", "see below", found))
    pin = metadata("vendor/ggml-sys/ggml/Cargo.toml", target)
    carrier = next(p for p in pin["packages"] if p["name"] == "llama-cpp-sys-4")
    upstream = pathlib.Path(carrier["manifest_path"]).parent / "llama.cpp"
    found = texts(upstream) + texts(upstream / "ggml") + texts(pathlib.Path(carrier["manifest_path"]).parent)
    entries.append((f"ggml (from {carrier['name']} {carrier['version']})", "MIT", found))

    without = [name for name, licence, found in entries if not found and licence == "see below"]
    if without:
        sys.exit(f"licences.py: neither a licence nor its text: {', '.join(without)}")
    shared = {}
    for name, licence, found in sorted(entries):
        print(f"{name}: {licence}")
        for text in found:
            shared.setdefault(text, []).append(name)
    for text, names in shared.items():
        print(f"\n{'=' * 80}\n{', '.join(names)}\n{'-' * 80}\n{text}")


main()
