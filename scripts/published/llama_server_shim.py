"""A pytest plugin for llama.cpp's server tests, loaded by llama_server_tests.py: it changes no test, only what they start.

Both servers get the models of a hub's cache that llama_server_tests.py fills with ours under the names that the tests use, and no
network. Ours gets the context of one slot, since its `-c` is that and llama-server's is shared by the slots, and does not
think where llama-server is told to use no template. In tests that count on a model that never ends a reply, as theirs does not,
both are started with `--ignore-eos`. Each result is a line of JSON in the file NEXTN_SHIM_RESULTS.
"""
import json
import os
import types

import pytest

import utils

OURS = os.environ["NEXTN_SHIM_SERVER"] == "ours"
FILES = os.environ["NEXTN_SHIM_FILES"]
RESULTS = os.environ["NEXTN_SHIM_RESULTS"]

# Tests that ask for a number of tokens and look for as many.
ENDLESS = (
    "test_chat_completions_multiple_choices", "test_ctx_shift_enabled", "test_ctx_shift_disabled_short_prompt", "test_n_probs_post_")

# What conftest.py would do before each file: start every preset once, to fetch its model.
utils.ServerPreset.load_all = staticmethod(lambda: None)

start = utils.ServerProcess.start


def start_offline(self, timeout_seconds=60):
    self.offline = True
    self.model_url = None
    return start(self, 5 * timeout_seconds)


utils.ServerProcess.start = start_offline


def local_file(url, output_file_path=None):
    """The file that takes the place of one of a hub."""
    name = "lora.gguf" if "shakespeare" in url else "model.gguf"
    path = os.path.join(FILES, name)
    if not os.path.exists(path):
        pytest.skip(f"no file takes the place of {url}")
    return path


utils.download_file = local_file


def popen(args, *rest, **kwargs):
    """Starts a server; for ours the context of the slots becomes that of one."""
    args = list(args)
    if OURS and "--ctx-size" in args and "--kv-unified" not in args:
        at = args.index("--ctx-size") + 1
        slots = int(args[args.index("--parallel") + 1]) if "--parallel" in args else 1
        args[at] = str(int(args[at]) // slots)
    if OURS and "--no-jinja" in args and "--reasoning" not in args:
        # There the model's template is not used then, and nothing asks the model to think.
        args += ["--reasoning", "off"]
    if any(f"::{name}" in os.environ.get("PYTEST_CURRENT_TEST", "") for name in ENDLESS):
        args.append("--ignore-eos")
    return utils_subprocess.Popen(args, *rest, **kwargs)


utils_subprocess = utils.subprocess
utils.subprocess = types.SimpleNamespace(**{**vars(utils_subprocess), "Popen": popen})


def pytest_runtest_logreport(report):
    """A line for each test: what came of its call, or of its set-up where that did not pass."""
    if report.when != "call" and report.outcome == "passed":
        return
    why = ""
    if report.outcome == "failed":
        why = getattr(getattr(report.longrepr, "reprcrash", None), "message", None) or str(report.longrepr)
    elif report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        why = report.longrepr[2]
    with open(RESULTS, "a") as file:
        file.write(json.dumps({"test": report.nodeid, "when": report.when, "outcome": report.outcome, "why": why[:4000]}) + "\n")
