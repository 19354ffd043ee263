"""Conversations over several servers behind HAProxy: do they come back to the server that has their state, and what happens
when one server is killed?

fleet.py [--conversations N] [--turns T] [--tokens K] [--workers W]; standard library, and haproxy in PATH. The model is the
one inside the program; HAProxy's configuration is that of scripts/deploy, with three servers on free ports. With --litellm
PROGRAM (pip install 'litellm[proxy]', the version of requirements.txt) LiteLLM's proxy stands in HAProxy's place, which
spreads requests and does not know conversations. Prints a table of the ways below. `hits`: tokens that were taken from state (`cached_tokens`), as a share of those that a turn could take: all
of the prompt and reply of the turn before. Ends with 1 when a request was neither answered nor refused with an error, or
when conversations on three servers hit less than 0.9 times as much as on one.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from server import Server

CONFIG = pathlib.Path(__file__).parents[2] / "scripts/deploy/helm/nextn/files/haproxy.cfg"
# LiteLLM wants one; the servers ask for none.
KEY = f"sk-fleet-{os.urandom(16).hex()}"
THINGS = ["a dragon", "a fox", "a robot", "a whale", "a queen", "a tailor", "an owl", "a river"]


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Front:
    """HAProxy before `servers`, as scripts/deploy has it but for their addresses; `balance` in place of its own."""

    def __init__(self, servers, balance=None):
        self.port = free_port()
        text = CONFIG.read_text().replace("bind :8080", f"bind 127.0.0.1:{self.port}")
        places = "\n".join(f"    server s{i} {s.url.removeprefix('http://')}" for i, s in enumerate(servers))
        text = text.replace("    server-template nextn 10 nextn:8080 resolvers names init-addr none", places)
        if balance:
            text = text.replace("balance hash var(txn.session)", f"balance {balance}").replace("    hash-", "    # hash-")
        assert places in text and "bind :8080" not in text
        self.file = tempfile.NamedTemporaryFile("w", suffix=".cfg")
        self.file.write(text)
        self.file.flush()

    def __enter__(self):
        self.process = subprocess.Popen(["haproxy", "-q", "-db", "-f", self.file.name], stderr=subprocess.DEVNULL)
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise SystemExit("haproxy did not start")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class LiteLLM:
    """LiteLLM's proxy before `servers`, which it takes at random; a server that fails is left out for a while."""

    def __init__(self, servers, program):
        self.port, self.program = free_port(), program
        models = [{"model_name": "fleet", "litellm_params": {"model": "openai/nextn", "api_base": f"{s.url}/v1", "api_key": "none"}} for s in servers]
        router = {"routing_strategy": "simple-shuffle", "num_retries": 3, "allowed_fails": 1, "cooldown_time": 30}
        self.file = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        # JSON is YAML.
        json.dump({"model_list": models, "router_settings": router, "litellm_settings": {"telemetry": False}}, self.file)
        self.file.flush()

    def __enter__(self):
        # It asks the net for prices otherwise.
        environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY, "LITELLM_LOG": "ERROR"}
        command = [self.program, "--config", self.file.name, "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        while self.process.poll() is None:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/health/liveliness")
                if connection.getresponse().status == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.2)
        raise SystemExit(f"{self.program} did not start")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.answered = self.refused = self.broken = self.cached = self.could = 0
        self.seconds = []

    def count(self, **values):
        with self.lock:
            for name, value in values.items():
                setattr(self, name, getattr(self, name) + value)


def ask(port, messages, session, tokens, stream):
    """`(outcome, text, usage)`: `answered`, `refused` (an error with its reason), or `broken`."""
    body = {"model": "fleet", "messages": messages, "temperature": 0, "max_tokens": tokens, "chat_template_kwargs": {"enable_thinking": False}}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"} | ({"x-session-id": session} if session else {})
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
    except (OSError, http.client.HTTPException):
        return "broken", "", None
    if response.status != 200:
        return ("refused" if response.status in (429, 502, 503, 504) else "broken"), "", None
    if not stream:
        reply = json.loads(data)
        return "answered", reply["choices"][0]["message"]["content"], reply["usage"]
    text, usage, done = "", None, False
    for line in data.decode().splitlines():
        if line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            if "error" in event:
                return "refused", "", None
            usage = event.get("usage") or usage
            text += "".join(c["delta"].get("content") or "" for c in event["choices"])
    return ("answered" if done else "broken"), text, usage


def converse(port, number, args, tally, by_header):
    rng = random.Random(number)
    # A name makes each beginning its own; half of the conversations share their system message.
    system = "You are Pocket. Answer briefly." if number % 2 else f"You help person {number}. Answer briefly."
    messages = [{"role": "system", "content": system}, {"role": "user", "content": f"I am person {number}. Tell me a short story about {rng.choice(THINGS)}."}]
    before = 0
    for turn in range(args.turns):
        start = time.monotonic()
        outcome, text, usage = ask(port, messages, f"conversation-{number}" if by_header else None, args.tokens, args.stream)
        for _ in range(3):
            if outcome != "refused":
                break
            # As clients do.
            tally.count(refused=1)
            time.sleep(0.5)
            outcome, text, usage = ask(port, messages, f"conversation-{number}" if by_header else None, args.tokens, args.stream)
        tally.count(**{outcome: 1})
        if outcome != "answered":
            return
        with tally.lock:
            tally.seconds.append(time.monotonic() - start)
        if turn:
            tally.count(cached=usage["prompt_tokens_details"]["cached_tokens"], could=before)
        before = usage["prompt_tokens"] + usage["completion_tokens"]
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": rng.choice(["And then?", "Tell me more.", "Why?"])}]


def run(port, args, by_header=True, kill=None):
    """All conversations, each turn by turn, in a random order of arrival. `kill` is called after a third of them."""
    tally = Tally()
    started = 0
    lock = threading.Lock()

    def one(number):
        nonlocal started
        with lock:
            started += 1
            if kill and started == args.conversations // 3:
                kill()
        converse(port, number, args, tally, by_header)

    with ThreadPoolExecutor(args.workers) as pool:
        list(pool.map(one, range(args.conversations)))
    return tally


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--litellm", metavar="PROGRAM")
    args = parser.parse_args()
    options = ["-np", "4", "-t", "1", "-c", "1024", "--max-queue", "16", "--max-connections-per-address", "1024"]
    rows = []

    def way(title, n, balance=None, by_header=True, end=None):
        servers = [Server(*options).__enter__() for _ in range(n)]
        try:
            with LiteLLM(servers, args.litellm) if args.litellm else Front(servers, balance) as front:
                kill = (lambda: servers[1].process.send_signal(end)) if end else None
                start = time.monotonic()
                tally = run(front.port, args, by_header, kill)
                hits = tally.cached / max(tally.could, 1)
                seconds = sorted(tally.seconds) or [0]
                rows.append((title, tally, hits))
                print(f"| {title} | {tally.answered} | {tally.refused} | {tally.broken} | {hits:.1%} |"
                      f" {seconds[len(seconds) // 2]:.2f} | {seconds[len(seconds) * 99 // 100]:.2f} | {time.monotonic() - start:.0f} |", flush=True)
        finally:
            for server in servers:
                server.__exit__()

    print("| servers | answered | refused, then asked again | broken | hits | median, s | 99th of 100, s | all, s |\n|---|---|---|---|---|---|---|---|")
    if args.litellm:
        way("three, behind LiteLLM", 3)
    else:
        way("one", 1)
        way("three, in turns", 3, balance="roundrobin")
        way("three, by header", 3)
        way("three, by how they begin", 3, by_header=False)
    way("three, one ends (SIGTERM)", 3, end=signal.SIGTERM)
    way("three, one is killed (SIGKILL)", 3, end=signal.SIGKILL)
    one = rows[0][2]
    wrong = [f"{title}: {tally.broken} broken" for title, tally, _ in rows if tally.broken]
    wrong += [f"{title}: hits {hits:.1%}, one server {one:.1%}" for title, _, hits in rows if title.startswith("three, by ") and hits < 0.9 * one]
    print("\n".join(wrong) or "all is well")
    sys.exit(bool(wrong))


main()
