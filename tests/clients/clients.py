"""Runs client programs against a server and prints what they told: a row for each check.

clients.py PLACE [PROGRAM...]: PLACE has what run.sh installed. Ends with 1 when a check failed or a program told nothing.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import projector
from server import Server

PROGRAMS = [
    "python_openai", "python_anthropic", "python_ollama", "python_litellm", "python_langchain", "node_openai", "node_ollama",
    "node_ai", "schema", "images",
]
KEY = "key-of-the-clients"


def run(program, place, url):
    here = Path(__file__).parent
    environment = {**os.environ, "NEXTN_URL": url, "NEXTN_KEY": KEY}
    if program.startswith("node_"):
        command = ["node", place / "node" / f"{program}.mjs"]
    else:
        command = [place / "python/bin/python", here / f"{program}.py"]
    log = place / f"{program}.log"
    with open(log, "w") as errors:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
    rows = []
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word in ("ok", "FAIL"):
            rows.append((program, word, rest))
    if not rows or (done.returncode != 0 and all(row[1] == "ok" for row in rows)):
        rows.append((program, "FAIL", f"ended with {done.returncode}: see {log}"))
    return rows


def seeing(place):
    """Options of a server whose model reads images."""
    file = place / "mmproj-pocket.gguf"
    projector.write(file, 256)
    model = Path(__file__).parent / "../../models/pocket-q4_k_m.gguf"
    return ["-m", str(model), "-a", "pocket", "--mmproj", str(file), "--image-min-pixels", "1024", "--image-max-pixels", "4096"]


def main():
    place, wanted = Path(sys.argv[1]), sys.argv[2:] or PROGRAMS
    if unknown := set(wanted) - set(PROGRAMS):
        raise SystemExit(f"{', '.join(unknown)}: not one of {', '.join(PROGRAMS)}")
    rows = []
    # Drafts are made whether they pay on this machine or not: they must not show.
    options = ["-t", "1", "-np", "4", "--embeddings", "--api-key", KEY, "--spec", "nextn", "--draft-max", "3", "--offline"]
    for program in wanted:
        start = time.monotonic()
        # Requests made from a document ask for answers of any length: a short context ends them.
        own = ["-c", "192", "--slot-save-path", str(place)] if program == "schema" else ["-c", "2048"]
        if program == "images":
            own += seeing(place)
        with Server(*options, *own) as server:
            rows += run(program, place, server.url)
            server.terminate()
            code = server.ended()
        if code != 0:
            rows.append((program, "FAIL", f"the server ended with {code}: see {server.log.name}"))
        print(f"{program}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    width = max(len(row[0]) for row in rows)
    for program, word, rest in rows:
        print(f"{program:{width}}  {word:4}  {rest}")
    failed = sum(row[1] != "ok" for row in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
