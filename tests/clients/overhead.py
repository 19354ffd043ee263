"""What the server adds: a token's time in a stream against `nextn-bench speed`, the first token's time against llama.cpp.

overhead.py [--bench PROGRAM] [--peer LLAMA_SERVER] [--rounds N] [--threads T]; standard library only. Everything runs in
turns on models/pocket-q4_k_m.gguf, without drafts and without cached state; figures are medians. A token's time is the
engine's own, read once by Python and once by curl: a client that runs on the processors that compute takes its time from
them. It measures, and judges nothing: a machine that does other work at the same time gives figures of that work.
"""

import argparse
import http.client
import json
import shutil
import statistics
import subprocess
import time
import urllib.request
from urllib.parse import urlsplit

from server import Server

MODEL = "models/pocket-q4_k_m.gguf"
N = 200
PROMPT = "Tell me a short story about a dragon that wants to find a lost key. " * 12


class Stream:
    """Completions, each over a connection that is open before its time begins."""

    def __init__(self, url):
        parts = urlsplit(url)
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port)

    def ask(self, prompt, n):
        """Seconds to the first token, and the server's figures."""
        body = request(prompt, n)
        # The server does not keep idle connections for long.
        self.connection.close()
        self.connection.connect()
        start = time.perf_counter()
        self.connection.request("POST", "/completion", json.dumps(body), {"content-type": "application/json"})
        response = self.connection.getresponse()
        first, last = None, None
        for line in response:
            if line.startswith(b"data: {"):
                first, last = first or time.perf_counter(), line
        return first - start, figures(last, n)


def request(prompt, n):
    return {"prompt": prompt, "n_predict": n, "temperature": 0, "stream": True, "ignore_eos": True, "cache_prompt": False}


def figures(last, n):
    """The timings of a stream's last event."""
    timings = json.loads(last[6:])["timings"]
    assert timings["predicted_n"] == n, timings
    return timings


def curl(url, prompt, n):
    """A stream read by a program that does nothing with it; the server's figures."""
    command = ["curl", "-sN", "-H", "content-type: application/json", "-d", json.dumps(request(prompt, n)), f"{url}/completion"]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return figures([line for line in out.splitlines() if line.startswith(b"data: {")][-1], n)


class Peer:
    def __init__(self, program, threads):
        command = [program, "-m", MODEL, "-t", str(threads), "-c", "2048", "-np", "1", "--port", "18999", "--no-webui"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = "http://127.0.0.1:18999"
        for _ in range(600):
            try:
                urllib.request.urlopen(self.url + "/health")
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("llama.cpp's server does not start")


def bench(program, threads):
    """Milliseconds of a token."""
    command = [program, "speed", "-m", MODEL, "-t", str(threads), "-p", "0", "-n", str(N), "-r", "1", "--no-bandwidth", "--json"]
    out = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return 1e3 / out["tests"][0]["median"]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--bench", default="target/release/nextn-bench")
    options.add_argument("--peer")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--threads", type=int, default=1)
    args = options.parse_args()
    # nextn-bench has no drafts either, and no hidden rows to keep for them.
    with Server("-m", MODEL, "-t", str(args.threads), "-c", "2048", "-np", "1", "--spec", "off") as server:
        ours = Stream(server.url)
        ours.ask(PROMPT, 8)
        peer = Peer(args.peer, args.threads) if args.peer else None
        theirs = Stream(peer.url) if peer else None
        if theirs:
            theirs.ask(PROMPT, 8)
        clients = {"Python": lambda prompt, n: ours.ask(prompt, n)[1]}
        if shutil.which("curl"):
            clients["curl"] = lambda prompt, n: curl(server.url, prompt, n)
        each, plain, first, first_of_peer = {name: [] for name in clients}, [], [], []
        for _ in range(args.rounds):
            plain.append(bench(args.bench, args.threads))
            for name, read in clients.items():
                each[name].append(read("Once upon a time", N)["predicted_per_token_ms"])
            first.append(ours.ask(PROMPT, 2)[0] * 1e3)
            if theirs:
                first_of_peer.append(theirs.ask(PROMPT, 2)[0] * 1e3)
        if peer:
            peer.process.terminate()
            peer.process.wait()
    print(f"a token in nextn-bench: {statistics.median(plain):.3f} ms")
    for name, times in each.items():
        more = [100 * (x / y - 1) for x, y in zip(times, plain)]
        print(f"a token in a stream that {name} reads: {statistics.median(times):.3f} ms; the median of {args.rounds} pairs is "
              f"{statistics.median(more):+.1f} %, from {min(more):+.1f} to {max(more):+.1f} %")
    print(f"the first token of a long prompt: {statistics.median(first):.1f} ms" + (
        f", llama.cpp's server {statistics.median(first_of_peer):.1f} ms" if peer else ""))


if __name__ == "__main__":
    main()
