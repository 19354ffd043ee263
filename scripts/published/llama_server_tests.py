#!/usr/bin/env python3
"""Runs llama.cpp's own server tests (tools/server/tests) on llama-server and on nextn-server, and writes docs/measurements/llama-server-tests.md.

    scripts/published/llamacpp.sh FOLDER --build
    cargo build --bin nextn-server
    FOLDER/venv/bin/pip install pytest pytest-timeout requests filelock wget openai prometheus-client aiohttp
    FOLDER/venv/bin/python scripts/published/llama_server_tests.py FOLDER [FILE ..] [--only ours|theirs] [--show] [-k WORDS]

The tests want small models of a hub: both servers get the project's own instead (models/pocket-q4_k_m.gguf), from a cache that is laid
out as the hub's, under the names that the tests use. Tests that look for the words or token counts of those models fail on both. Tests
marked slow, which need large models, are left out. FILE is a test file such as test_basic.py; without one all run, and only then is
the table written. Results are kept in FOLDER/server-tests/RESULTS.jsonl for each server; --show prints what fails on ours alone.
"""
import argparse
import collections
import datetime
import json
import os
import pathlib
import shutil
import subprocess
import sys

import llama_server_reasons

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The names of the hub under which the tests ask for models, with the file that each is.
MODELS = {
    "ggml-org/test-model-stories260K": "stories260K-f32.gguf",
    "ggml-org/test-model-stories260K-infill": "stories260K-infill-f32.gguf",
    "ggml-org/stories15M_MOE": "stories15M_MOE-F16.gguf",
    "ggml-org/tinygemma3-GGUF": "tinygemma3-Q8_0.gguf",
    "ggml-org/models": "tinyllamas/stories260K.gguf",
}
# Test files whose whole subject nextn-server does not have: they are left out, and the page says so.
OTHER_SUBJECTS = {
    "test_compat_gcp.py": "the form of Vertex AI's predictions, which llama-server has for one cloud's hosts",
    "test_lora.py": "an adapter for the test's own model, which does not fit another: both servers skip it",
    "test_mcp_servers.py": "MCP servers that the server starts: nextn-server starts no programs",
    "test_proxy.py": "a proxy for the web page's MCP clients: nextn-server calls no addresses that clients name",
    "test_rerank.py": "a reranker; the model in place of the test's has no rank head, by which llama-server ranks all the same and "
                      "nextn-server refuses to",
    "test_router.py": "a server without a model that starts a server for each model of the cache: nextn-server holds several models "
                      "itself, those that it is given or that --allow-downloads lists",
    "test_stream.py": "streams that are kept and can be read again",
    "test_tools_builtin.py": "tools that the server runs itself, a shell among them: nextn-server runs none",
    "test_vision_api.py": "pictures, which nextn-server does not see",
}
# Other files of ggml-org/models.
MORE = ["bert-bge-small/ggml-model-f16.gguf", "jina-reranker-v1-tiny-en/ggml-model-f16.gguf"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--only", choices=["ours", "theirs"])
    parser.add_argument("--show", action="store_true")
    parser.add_argument("-k", dest="words")
    parser.add_argument("--port", type=int, default=18200)
    parser.add_argument("--ours", type=pathlib.Path, default=ROOT / "target/debug/nextn-server")
    parser.add_argument("--table", type=pathlib.Path, default=ROOT / "docs/measurements/llama-server-tests.md")
    args = parser.parse_args()
    folder = args.folder.resolve()
    work = folder / "server-tests"
    files = prepare(folder, work)
    tests = folder / "llama.cpp/tools/server/tests"
    # Slots and presets are saved there.
    (tests / "tmp").mkdir(exist_ok=True)
    everything = sorted(path.name for path in (tests / "unit").glob("test_*.py"))
    chosen = args.files or [file for file in everything if file not in OTHER_SUBJECTS]
    servers = {"theirs": folder / "build/bin/llama-server", "ours": args.ours.resolve()}
    for name, program in servers.items():
        if args.only in (None, name) and not (args.show and not args.files):
            for file in chosen:
                run(work, tests, file, name, program, files, args)
    results = {name: read(work / f"{name}.jsonl") for name in servers}
    if not args.files:
        results = {name: {t: one for t, one in found.items() if file_of(t) not in OTHER_SUBJECTS} for name, found in results.items()}
    if args.show:
        return show(results, args.files)
    if not args.files and args.only is None and not args.words:
        package = next((path.name for path in folder.glob("llama_cpp_python-*") if path.is_dir()), "an unknown version")
        args.table.write_text(table(results, f"{datetime.date.today():%d %B %Y}, llama.cpp of {package}"))


def prepare(folder, work):
    """The cache of models in `work`; the folder of the files that take the place of downloads."""
    model = ROOT / "models/pocket-q4_k_m.gguf"
    cache, files = work / "cache", work / "files"
    files.mkdir(parents=True, exist_ok=True)
    link(model, files / "model.gguf")
    for repo, file in MODELS.items():
        snapshot = cache / f"models--{repo.replace('/', '--')}"
        commit = "0" * 40
        (snapshot / "refs").mkdir(parents=True, exist_ok=True)
        (snapshot / "refs/main").write_text(commit)
        for name in [file] + (MORE if repo == "ggml-org/models" else []):
            link(model, snapshot / "snapshots" / commit / name)
    return files


def link(model, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        shutil.copyfile(model, path)


def run(work, tests, file, name, program, files, args):
    """Runs one test file on one server, and keeps its results in place of earlier ones."""
    kept, fresh = work / f"{name}.jsonl", work / f"{name}.new"
    fresh.write_text("")
    env = {
        **os.environ,
        "PYTHONPATH": f"{tests}:{pathlib.Path(__file__).parent}", "PORT": str(args.port), "LLAMA_SERVER_BIN_PATH": str(program),
        "LLAMA_CACHE": str(work / "cache"), "HF_HUB_CACHE": str(work / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "NEXTN_SHIM_SERVER": name, "NEXTN_SHIM_RESULTS": str(fresh), "NEXTN_SHIM_FILES": str(files), "NEXTN_SHUTDOWN_TIMEOUT": "2",
        # Two threads that wait for each other by spinning take long on a machine that does something else as well.
        "LLAMA_ARG_THREADS": "1", "NEXTN_THREADS": "1",
    }
    command = [
        sys.executable, "-m", "pytest", "-p", "llama_server_shim", "-p", "no:cacheprovider", "-q", "-m", "not slow", "--timeout", "400",
        "--basetemp", str(work / f"tmp-{name}"), f"unit/{file}", *(["-k", args.words] if args.words else [])]
    with open(work / f"{name}-{file}.log", "w") as log:
        subprocess.run(command, cwd=tests, env=env, stdout=log, stderr=subprocess.STDOUT)
    lines = fresh.read_text().splitlines()
    ran = {json.loads(line)["test"] for line in lines}
    old = [line for line in (kept.read_text().splitlines() if kept.exists() else []) if json.loads(line)["test"] not in ran]
    kept.write_text("".join(line + "\n" for line in old + lines))
    counts = collections.Counter(json.loads(line)["outcome"] for line in lines)
    print(name, file, dict(counts), flush=True)


def read(path):
    """Each test's result; a test that fails in its set-up or clean-up has failed."""
    found = {}
    if not path.exists():
        return found
    for line in path.read_text().splitlines():
        one = json.loads(line)
        if found.get(one["test"], {}).get("outcome") != "failed":
            found[one["test"]] = one
    return found


def file_of(test):
    return test.split("::")[0].split("/")[-1]


def passed(results, name, test):
    return results[name].get(test, {}).get("outcome") == "passed"


def show(results, files):
    for test, theirs in results["theirs"].items():
        if files and not any(f"/{file}::" in f"/{test}" for file in files):
            continue
        ours = results["ours"].get(test, {"outcome": "absent", "why": ""})
        if theirs["outcome"] == "passed" and ours["outcome"] != "passed":
            print(f"{test}\n    {ours['outcome']}: {' '.join(ours['why'].split())[:700]}")


def table(results, when):
    """The page."""
    tests = sorted(set(results["theirs"]) | set(results["ours"]))
    skipped = [t for t in tests if any(results[name].get(t, {}).get("outcome") == "skipped" for name in results)]
    ran = [t for t in tests if t not in skipped]
    rows = collections.defaultdict(collections.Counter)
    for test in ran:
        pair = (passed(results, "theirs", test), passed(results, "ours", test))
        rows[file_of(test)][pair] += 1
    total = sum(rows.values(), collections.Counter())
    line = lambda file, n: f"| {file} | {n[True, True]} | {n[True, False]} | {n[False, True]} | {n[False, False]} |"
    alone = [t for t in ran if passed(results, "theirs", t) and not passed(results, "ours", t)]
    name = lambda test: test.removeprefix("unit/").replace("|", "\\|")
    reasons = [f"| `{name(t)}` | {llama_server_reasons.of(t)} |" for t in alone]
    return "\n".join([
        "# llama-server's own tests", "",
        f"{when}; `scripts/published/llama_server_tests.py` runs `tools/server/tests` on llama-server and on nextn-server (a debug build), both "
        "with the embedded model in place of the small models that the tests name. Tests that look for the words or the token counts "
        f"of those models pass on neither; tests marked slow are left out, and {len(skipped)} were skipped.", "",
        "| file | both | llama-server alone | nextn-server alone | neither |", "|---|---|---|---|---|",
        *[line(f"`{file}`", rows[file]) for file in sorted(rows)], line("all", total), "",
        "Left out, as nextn-server has nothing of the kind: " + "; ".join(f"`{file}` ({what})" for file, what in OTHER_SUBJECTS.items()) + ".", "",
        f"## Passes on llama-server alone: {len(alone)}", "", "| test | why |", "|---|---|", *reasons, ""])


if __name__ == "__main__":
    main()
