#!/usr/bin/env python3
"""Agents and editors of others against nextn-server, unmodified: a table of program, version, request, result, and what the server's
log has against it. Standard library only.

  programs.py FOLDER --server target/release/nextn-server [--write docs/measurements/programs.md] [--port 18300] [--only NAME ...]
              [--server-args ".."] [--claude-args ".."]

Claude Code, Codex, OpenCode and Continue are fetched into FOLDER from the node registry (npm; the versions below) and run headless with settings
of their own under FOLDER, without a key and without reaching anything but the server. What editors and front ends send (llama.vim,
SillyTavern, Continue's completions, Cline, Aider, LangChain) is replayed: bodies in the shape that these programs send: llama.vim's after its source, the others' after their documentation. The server runs with the model inside
it, which is small: a result says that the program got through its turns with answers and calls, not that they were good.

The case `claude-code, ten turns` is one conversation of ten user messages with thinking and tools. `cached` is the share of those tokens
that an earlier request of the same conversation had sent or been answered, and that were not computed again; it has to be 95 % at least.
Exit status: 0 when every case passed.
"""
import argparse, atexit, json, os, re, shlex, shutil, subprocess, sys, tempfile, threading, time, urllib.error, urllib.request

PACKAGES = {"@anthropic-ai/claude-code": "2.1.197", "@openai/codex": "0.169.0", "opencode-ai": "1.18.33",
            "@continuedev/cli": "1.5.47"}
TIMEOUT = 900
# More arguments of Claude Code: `--claude-args "--tools Read,Bash"` makes its prompts short, for slow machines.
CLAUDE_ARGS = []


class Server:
    """nextn-server with its own model, and its log."""

    def __init__(self, program, port, more):
        self.program, self.port, self.base = program, port, f"http://127.0.0.1:{port}"
        self.path = tempfile.mktemp(suffix=".log")
        self.log = open(self.path, "wb")
        command = [program, "--port", str(port), "-c", "49152", "-np", "2", *more]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        for _ in range(600):
            try:
                if urllib.request.urlopen(self.base + "/health", timeout=2).status == 200:
                    break
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None:
                    raise SystemExit(open(self.path).read()[-2000:])
                time.sleep(0.2)
        self.mark = os.path.getsize(self.path)

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        os.unlink(self.path)

    def since(self):
        """The lines of the log since the last time."""
        time.sleep(0.5)
        with open(self.path, errors="replace") as log:
            log.seek(self.mark)
            text = log.read()
            self.mark = log.tell()
        return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]

    def post(self, path, body, headers=None):
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"content-type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def requests_in(lines):
    """Method, path and status of each request in the log."""
    found = [re.search(r"answered method=(\S+) path=(\S+) status=(\d+)", line) for line in lines]
    return [(m[1], m[2], int(m[3])) for m in found if m]


def ended_in(lines):
    """Tokens of each prompt: all, cached, and those of the reply."""
    found = [re.search(r"answer ended .*n_prompt=(\d+) n_cached=(\d+) n_generated=(\d+) n_drafted=(\d+)", line) for line in lines]
    return [tuple(map(int, m.groups())) for m in found if m]


def troubles_in(lines):
    return [line.split("Z", 1)[-1].strip() for line in lines if re.search(r"Z\s+(WARN|ERROR)", line)]


class Case:
    def __init__(self, name, version, what, apart=None):
        """`apart`: what its requests are where none goes on with another, in place of a share that was cached."""
        self.name, self.version, self.what, self.apart = name, version, what, apart

    def run(self, server, folder):
        """The result in words, and whether it is well."""
        raise NotImplementedError


def in_words(text, n=60):
    text = " ".join(text.split())
    return text if len(text) <= n else text[: n - 3] + "..."


def fresh(folder, name):
    path = os.path.join(folder, "runs", name)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(os.path.join(path, "work"))
    with open(os.path.join(path, "work", "fruit.txt"), "w") as f:
        f.write("apples 3\npears 5\n")
    return path


def environment(home, env):
    return {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": tempfile.gettempdir(), "TERM": "dumb", "NO_COLOR": "1",
             "XDG_CONFIG_HOME": home + "/config", "XDG_DATA_HOME": home + "/data", "XDG_CACHE_HOME": home + "/cache",
             "XDG_STATE_HOME": home + "/state", **env}


def command(arguments, home, env):
    """What a program printed, and its exit status."""
    try:
        done = subprocess.run(arguments, cwd=home + "/work", env=environment(home, env), input="", capture_output=True, text=True,
                              timeout=TIMEOUT)
        return done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        return str(error.stdout or ""), "timed out", 124


class Claude(Case):
    def __init__(self, name, what, turns, thinking):
        super().__init__(name, PACKAGES["@anthropic-ai/claude-code"], what)
        self.turns, self.thinking = turns, thinking

    def run(self, server, folder):
        home = fresh(folder, self.name.replace(" ", "-").replace(",", ""))
        program = os.path.join(folder, "node_modules", ".bin", "claude")
        env = {"ANTHROPIC_BASE_URL": server.base, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": "nextn",
               "ANTHROPIC_SMALL_FAST_MODEL": "nextn", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
               "MAX_THINKING_TOKENS": str(self.thinking), "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "400", "API_TIMEOUT_MS": "3000000",
               "CLAUDE_STREAM_IDLE_TIMEOUT_MS": "3000000"}
        arguments = [program, "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose", *CLAUDE_ARGS]
        events = []
        with open(home + "/stderr", "w+") as err:
            process = subprocess.Popen(arguments, cwd=home + "/work", env=environment(home, env), stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=err, text=True)
            killer = threading.Timer(TIMEOUT, process.kill)
            killer.start()
            # A message that comes while another is answered would be joined to it.
            for turn in self.turns:
                try:
                    process.stdin.write(json.dumps({"type": "user", "message": {"role": "user", "content": turn}}) + "\n")
                    process.stdin.flush()
                except BrokenPipeError:
                    break
                for line in process.stdout:
                    events.append(json.loads(line) if line.startswith("{") else {"type": "other", "text": line})
                    if events[-1].get("type") == "result":
                        break
            process.stdin.close()
            code = process.wait()
            killer.cancel()
            err.seek(0)
            said = err.read()
        results = [event for event in events if event.get("type") == "result"]
        well = code == 0 and len(results) == len(self.turns) and not any(event.get("is_error") for event in results)
        blocks = [block for event in events if event.get("type") == "assistant" for block in event["message"]["content"]]
        n_calls = sum(block["type"] == "tool_use" for block in blocks)
        n_thought = sum(block["type"] == "thinking" for block in blocks)
        last = in_words(str(results[-1].get("result"))) if results else in_words(said)
        return f"exit {code}, {len(results)} of {len(self.turns)} answered, {n_thought} thoughts, {n_calls} calls; `{last}`", well


class Codex(Case):
    def run(self, server, folder):
        home = fresh(folder, "codex")
        with open(home + "/config.toml", "w") as f:
            f.write(f'model = "nextn"\nmodel_provider = "nextn"\n[model_providers.nextn]\nname = "nextn"\n'
                    f'base_url = "{server.base}/v1"\nwire_api = "responses"\n')
        program = os.path.join(folder, "node_modules", ".bin", "codex")
        out, err, code = command([program, "exec", "--skip-git-repo-check", "--json", "What is 20 + 15?"], home, {"CODEX_HOME": home})
        events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        said = [event["item"].get("text", "") for event in events if event.get("item", {}).get("type") == "agent_message"]
        failed = [event for event in events if event.get("type") in ("turn.failed", "error")]
        last = in_words(said[-1]) if said else in_words(json.dumps(failed) + err)
        return f"exit {code}; `{last}`", code == 0 and bool(said) and not failed


class OpenCode(Case):
    def run(self, server, folder):
        home = fresh(folder, "opencode")
        config = {"$schema": "https://opencode.ai/config.json", "autoupdate": False, "share": "disabled", "model": "nextn/nextn",
                  "small_model": "nextn/nextn", "provider": {"nextn": {
                      "npm": "@ai-sdk/openai-compatible", "name": "nextn", "options": {"baseURL": server.base + "/v1", "apiKey": "none"},
                      "models": {"nextn": {"name": "nextn", "limit": {"context": 49152, "output": 400}}}}}}
        with open(os.path.join(home, "work", "opencode.json"), "w") as f:
            json.dump(config, f)
        built = [os.path.join(folder, "node_modules", name, "bin", "opencode") for name in sorted(os.listdir(folder + "/node_modules"))
                 if name.startswith("opencode-") and name not in ("opencode-ai",)]
        program = next((path for path in built if os.path.exists(path)), os.path.join(folder, "node_modules", ".bin", "opencode"))
        out, err, code = command([program, "run", "--format", "json", "What is 20 + 15?"], home, {})
        events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        said = [event["part"].get("text", "") for event in events if event.get("type") == "text" and "part" in event]
        failed = [event for event in events if event.get("type") == "error"]
        last = in_words(said[-1]) if said else in_words(json.dumps(failed) + err + out)
        return f"exit {code}; `{last}`", code == 0 and bool(said) and not failed


class Continue(Case):
    def run(self, server, folder):
        home = fresh(folder, "continue")
        connected, err, code = command([os.path.abspath(server.program), "connect", "continue", "--url", server.base, "--write", "--yes"], home, {})
        if code != 0:
            return f"connect: exit {code}; `{in_words(err)}`", False
        program = os.path.join(folder, "node_modules", ".bin", "cn")
        said, err, code = command([program, "--config", home + "/.continue/config.yaml", "-p", "What is 20 + 15?"], home,
                                  {"CONTINUE_TELEMETRY_ENABLED": "0"})
        return f"exit {code}; `{in_words(said or err)}`", code == 0 and bool(said.strip())


class Replay(Case):
    """Requests in the shape that a program sends, and what it reads of the replies."""

    def __init__(self, name, version, what, requests, apart=None):
        super().__init__(name, version, what, apart)
        self.requests = requests

    def run(self, server, folder):
        told, well, before = [], True, None
        for path, body, reads in self.requests:
            body = body(before) if callable(body) else body
            status, text = server.post(path, body)
            read = None
            if status == 200:
                try:
                    before = last_event(text) if body.get("stream") else json.loads(text)
                    read = reads(text if body.get("stream") else before)
                except (KeyError, IndexError, TypeError, ValueError) as error:
                    read, well = f"{type(error).__name__}: {error}", False
            else:
                read = json.loads(text)["error"]["message"]
            well = well and status == 200
            told.append(f"{status} `{in_words(str(read), 50)}`")
        return "; ".join(told), well


def events_of(text):
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def last_event(text):
    return events_of(text)[-1]


def streamed(text):
    """The text of a streamed chat, and the names of its calls."""
    said, calls = "", []
    for event in events_of(text):
        for choice in event.get("choices", []):
            delta = choice.get("delta", {})
            said += delta.get("content") or ""
            calls += [call["function"]["name"] for call in delta.get("tool_calls") or [] if call["function"].get("name")]
    if not said and not calls:
        raise ValueError("neither a text nor a call")
    return said or calls


FILE = "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n"
READ = {"type": "function", "function": {"name": "read_file", "description": "Reads a file.", "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}}
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}


def llama_vim():
    fields = ["content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms", "timings/prompt_per_second",
              "timings/predicted_n", "timings/predicted_ms", "timings/predicted_per_token_ms", "timings/predicted_per_second",
              "truncated", "tokens_cached"]
    extra = [{"text": FILE, "time": [1, 2], "filename": "a.py"}]
    ring = {"input_prefix": "", "input_suffix": "", "input_extra": extra, "prompt": "", "n_predict": 0, "temperature": 0.0,
            "stream": False, "samplers": [], "cache_prompt": True, "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""]}
    fim = {"input_prefix": FILE, "input_suffix": "\n\nprint(volume(1, 2, 3))\n", "input_extra": extra, "prompt": "    return ",
           "n_predict": 32, "n_indent": 4, "top_k": 40, "top_p": 0.99, "stream": False, "samplers": ["top_k", "top_p", "infill"],
           "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1500, "response_fields": fields}

    def reads(reply):
        return f"{reply['content']!r}, {reply['timings/predicted_n']} tokens, {reply['tokens_cached']} cached"
    return [("/infill", ring, lambda reply: reply), ("/infill", fim, reads)]


def sillytavern():
    body = {"prompt": "Seraphina: Hello!\nYou: Who are you?\nSeraphina:", "max_new_tokens": 24, "max_tokens": 24, "n_predict": 24,
            "num_predict": 24, "num_ctx": 8192, "temperature": 1, "top_p": 1, "typical_p": 1, "typical": 1, "sampler_seed": -1, "seed": -1,
            "min_p": 0, "repetition_penalty": 1, "repeat_penalty": 1, "repeat_last_n": 64, "rep_pen": 1, "rep_pen_range": 0,
            "frequency_penalty": 0, "presence_penalty": 0, "top_k": 0, "skew": 0, "min_tokens": 0, "add_bos_token": True,
            "smoothing_factor": 0, "smoothing_curve": 1, "dry_allowed_length": 2, "dry_multiplier": 0, "dry_base": 1.75,
            "dry_sequence_breakers": ["\n", ":", "\"", "*"], "dry_penalty_last_n": 0, "max_tokens_second": 0,
            "stopping_strings": ["\nYou:"], "stop": ["\nYou:"], "truncation_length": 8192, "ban_eos_token": False, "ignore_eos": False,
            "skip_special_tokens": True, "include_reasoning": True, "top_a": 0, "tfs": 1, "tfs_z": 1, "epsilon_cutoff": 0,
            "eta_cutoff": 0, "mirostat_mode": 0, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "custom_token_bans": "",
            "banned_strings": [], "api_type": "llamacpp", "api_server": "http://127.0.0.1", "xtc_threshold": 0.1, "xtc_probability": 0,
            "nsigma": 0, "top_n_sigma": 0, "min_keep": 0, "adaptive_target": -0.01, "adaptive_decay": 0.9, "n_probs": 0,
            "dynatemp_min": 1, "dynatemp_max": 1, "dynatemp_low": 1, "dynatemp_high": 1, "dynatemp_range": 0, "dynatemp_exponent": 1,
            "grammar": "", "cache_prompt": True, "logit_bias": [], "stream": True,
            "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "tfs_z", "typical_p", "top_p", "min_p", "adaptive_p",
                         "xtc", "temperature"]}
    return [("/completion", body, lambda text: "".join(event["content"] for event in events_of(text))),
            ("/tokenize", {"content": "Who are you?"}, lambda reply: f"{len(reply['tokens'])} tokens")]


def continue_():
    chat = {"model": "nextn", "messages": [{"role": "system", "content": "You are an agent."},
                                           {"role": "user", "content": [{"type": "text", "text": "What is in fruit.txt?"}]}],
            "max_tokens": 200, "temperature": 0.5, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0, "stop": None,
            "stream": True, "stream_options": {"include_usage": True}, "tools": [READ], "parallel_tool_calls": False}
    tab = {"prompt": FILE, "n_predict": 24, "frequency_penalty": 0, "presence_penalty": 0, "min_p": 0, "mirostat": 0,
           "stop": ["\n\n", "/src/", "#- coding: utf-8", "```"], "top_k": 40, "top_p": 0.9, "temperature": 0.01, "stream": True}
    return [("/v1/chat/completions", chat, streamed),
            ("/completion", tab, lambda text: "".join(event["content"] for event in events_of(text)))]


def cline():
    first = {"model": "nextn", "messages": [{"role": "system", "content": "You are Cline."}, {"role": "user", "content": [
        {"type": "text", "text": "<task>\nWhat is in fruit.txt?\n</task>"}, {"type": "text", "text": "<environment_details>\n# Mode\nACT\n"}]}],
        "temperature": 0, "max_tokens": 200, "stream": True, "stream_options": {"include_usage": True}, "tools": [READ],
        "tool_choice": "auto", "parallel_tool_calls": False, "reasoning_effort": "low"}
    call = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": "{\"path\": \"fruit.txt\"}"}}
    image = {"type": "text", "text": "apples 3"}
    then = {**first, "messages": first["messages"] + [{"role": "assistant", "content": None, "tool_calls": [call]},
                                                      {"role": "tool", "tool_call_id": "call_1", "content": [image]},
                                                      {"role": "user", "content": [{"type": "text", "text": "Go on."}]}]}
    return [("/v1/chat/completions", body, streamed) for body in (first, then)]


def aider():
    body = {"model": "nextn", "messages": [{"role": "system", "content": "Act as an expert software developer."},
                                           {"role": "user", "content": "I am not sharing any files yet."},
                                           {"role": "assistant", "content": "Ok."},
                                           {"role": "user", "content": "What is 20 + 15?"}],
            "stream": True, "temperature": 0, "extra_headers": None}
    return [("/v1/chat/completions", {**body, "max_tokens": 200}, streamed)]


def langchain():
    both = {"model": "nextn", "messages": [{"role": "user", "content": "My name is Clara and I am 31 years old."}], "max_tokens": 300,
            "tools": [READ], "tool_choice": "auto", "parallel_tool_calls": False, "temperature": 0, "reasoning_effort": "none",
            "response_format": {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}}
    first = {"model": "nextn", "input": "My name is Clara.", "max_output_tokens": 100, "reasoning": {"effort": "none"}}

    def reads(reply):
        message = reply["choices"][0]["message"]
        return message.get("tool_calls") or json.loads(message["content"])

    def then(before):
        return {**first, "input": [{"role": "user", "content": "What is my name?"}], "previous_response_id": before["id"]}

    def said(reply):
        return [part["text"] for item in reply["output"] if item["type"] == "message" for part in item["content"]][0]
    return [("/v1/chat/completions", both, reads), ("/v1/responses", first, said), ("/v1/responses", then, said)]


TEN = ["What is 20 + 15?", "Read the file fruit.txt.", "How many pears are there?", "Double it.", "What is the capital of France?",
       "List the files here.", "What is 7 + 8?", "Who are you?", "Tell me a joke.", "Thank you. What was my first question?"]

CASES = [
    Claude("claude-code", "`claude -p`, one question", ["What is 20 + 15?"], 0),
    Claude("claude-code, ten turns", "`claude -p` with ten messages, thinking on", TEN, 1024),
    Codex("codex", PACKAGES["@openai/codex"], "`codex exec`, one question"),
    OpenCode("opencode", PACKAGES["opencode-ai"], "`opencode run`, one question", apart="two conversations"),
    Continue("continue", PACKAGES["@continuedev/cli"], "`cn -p` with the settings of `connect continue --write`, one question"),
    Replay("llama.vim", "shape, 2025", "`/infill`: a chunk read ahead (`n_predict: 0`), then a completion", llama_vim(), apart="two prompts"),
    Replay("SillyTavern", "shape", "`/completion` with all its samplers, `/tokenize`", sillytavern()),
    Replay("Continue", "shape", "chat with tools, tab completion", continue_()),
    Replay("Cline", "shape", "chat with tools, a call and its result", cline()),
    Replay("Aider", "shape", "chat as litellm sends it", aider()),
    Replay("LangChain", "shape", "tools with `response_format`; responses with `previous_response_id`", langchain()),
]


def repeated_share(ended):
    """Of the tokens that each prompt repeats of the longest conversation so far, the share that was cached. Other requests than those
    of the conversation (titles, summaries) are shorter than half of it, and do not count. `None`: no prompt goes on with another."""
    cached = repeated = 0
    before = None
    for n_prompt, n_cached, n_generated, _ in ended:
        if before and n_prompt < before / 2:
            continue
        if before and n_prompt >= before:
            cached, repeated = cached + min(n_cached, before), repeated + before
        before = n_prompt
    return cached / repeated if repeated else None


def fetch(folder):
    os.makedirs(folder, exist_ok=True)
    there = lambda name, version: os.path.exists(f"{folder}/node_modules/{name}/package.json") and json.load(
        open(f"{folder}/node_modules/{name}/package.json"))["version"] == version
    missing = [f"{name}@{version}" for name, version in PACKAGES.items() if not there(name, version)]
    if missing:
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, *missing], check=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--server", default="target/release/nextn-server")
    p.add_argument("--server-args", default="")
    p.add_argument("--claude-args", default="")
    p.add_argument("--port", type=int, default=18300)
    p.add_argument("--only", nargs="*")
    p.add_argument("--write")
    p.add_argument("--show-log", action="store_true", help="print the server's log of each case")
    a = p.parse_args()
    CLAUDE_ARGS.extend(shlex.split(a.claude_args))
    folder = os.path.abspath(a.folder)
    cases = [case for case in CASES if not a.only or case.name in a.only]
    if any(not isinstance(case, Replay) for case in cases):
        fetch(folder)
    rows, all_well = [], True
    server = Server(a.server, a.port, shlex.split(a.server_args))
    atexit.register(server.close)
    for case in cases:
        start = time.monotonic()
        result, well = case.run(server, folder)
        lines = server.since()
        if a.show_log:
            print("\n".join(lines), file=sys.stderr)
        requests, ended, troubles = requests_in(lines), ended_in(lines), troubles_in(lines)
        counted = {}
        for method, path, status in requests:
            if path not in ("/health",):
                counted[(path, status)] = counted.get((path, status), 0) + 1
        sent = ", ".join(f"{n} x `{path}` {status}" for (path, status), n in counted.items())
        share = repeated_share(ended)
        cached = f"{100 * share:.1f} %" if share is not None else "-"
        cached = case.apart or cached
        refused = [status for (_, status) in counted if status >= 400 and status != 404]
        if "ten turns" in case.name:
            well = well and share is not None and share >= 0.95 and len(ended) >= 10
        well = well and not refused and not troubles
        all_well = all_well and well
        told = "<br>".join(troubles) or "-"
        row = f"| {case.name} {case.version} | {case.what} | {'well' if well else '**not well**'}: {result} | {sent} | {cached} | {told} |"
        print(row + f"  ({time.monotonic() - start:.0f} s)", flush=True)
        rows.append(row)
    if a.write:
        head = ("# Programs of others against nextn-server\n\nMade by `scripts/published/programs.py` with the model inside the server "
                f"(`-c 49152 -np 2 {a.server_args}`), drafting on. The agents are run headless from the node registry; the others' requests are "
                "replayed in the shape that they send (llama.vim's after its source). `cached`: of the tokens that a prompt repeats of its conversation, the share that was "
                "not computed again; of a program that has two conversations this is said instead. Troubles: warnings and errors in the server's log.\n\n"
                "| program | what it does | result | requests | cached | troubles |\n|---|---|---|---|---|---|\n")
        with open(a.write, "w") as f:
            f.write(head + "\n".join(rows) + "\n")
    sys.exit(0 if all_well else 1)


if __name__ == "__main__":
    main()
