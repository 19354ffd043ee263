"""Many streams at once, some left early, SIGTERM in the middle: does the server keep its answers, its memory and its time?

load.py [--seconds S] [--streams N] [--rounds R]; standard library only. Each round starts a server with
models/pocket-moe-q8_0.gguf (whose rows have the same bits in any company), asks every question alone, then keeps N
streams running for S / R seconds. Every answer is compared with the one that its question got alone, those left early as
far as they came. Beside them /health is asked by a process of its own, 300 half-open requests are held for a third of the
time, and resident memory is read. At the end of the round SIGTERM comes while streams run. Ends with 1 when something was
not as it should be.
"""

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from urllib.parse import urlsplit

from server import Server

MODEL = "models/pocket-moe-q8_0.gguf"
SHUTDOWN = 5
THINGS = ["dragon", "fox", "robot", "whale", "queen", "tailor", "owl", "river"]
QUESTIONS = (
    [f"Tell me a short story about a {thing}." for thing in THINGS]
    + [f"What is {a} + {b}?" for a, b in zip(range(11, 99, 7), range(90, 10, -6))]
    + ["Write a Rust function that reverses a string.", "Count from 3 to 30.", "Who are you?", "Tell me a joke."]
)


class Left(Exception):
    """The stream was left early."""


def body(question, thinking):
    return {
        "messages": [{"role": "user", "content": question}], "stream": True, "temperature": 0, "max_tokens": 120,
        "chat_template_kwargs": {"enable_thinking": thinking},
    }


async def answer(address, request, leave_after=None):
    """What a stream said, as (text, ended); `ended` is `done`, `error` or `cut`."""
    data = json.dumps(request).encode()
    reader, writer = await asyncio.open_connection(*address)
    text, ended, n_events = [], "cut", 0
    try:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
                     b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data))
        status = (await reader.readline()).split()
        if status[1:2] != [b"200"]:
            raise RuntimeError(f"status {status}: {(await reader.read(2000))[-300:]}")
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                ended = "done" if ended == "cut" else ended
                break
            event = json.loads(line[6:])
            if "error" in event:
                ended = "error" if event["error"].get("code") == "server_shutdown" else f"error {event}"
                continue
            for choice in event["choices"]:
                delta = choice["delta"]
                text.append(delta.get("reasoning_content") or delta.get("content") or "")
            n_events += 1
            if leave_after is not None and n_events >= leave_after:
                raise Left
    except Left:
        ended = "left"
    finally:
        writer.close()
    return "".join(text), ended


class Load:
    def __init__(self, address, alone, rng):
        self.address, self.alone, self.rng = address, alone, rng
        self.n = {"done": 0, "left": 0, "error": 0}
        self.wrong = []
        self.stopping = False

    async def worker(self):
        while not self.stopping:
            key = self.rng.choice(list(self.alone))
            leave = self.rng.randrange(1, 25) if self.rng.random() < 0.3 else None
            try:
                text, ended = await answer(self.address, body(*key), leave)
            except (OSError, RuntimeError, asyncio.IncompleteReadError) as error:
                # After SIGTERM nobody listens any more.
                if not self.stopping:
                    self.wrong.append(f"{key}: {error!r}")
                    await asyncio.sleep(0.2)
                continue
            whole = self.alone[key]
            right = text == whole if ended == "done" else whole.startswith(text)
            expected = {"done", "left"} | ({"error"} if self.stopping else set())
            if not right or ended not in expected:
                self.wrong.append(f"{key}, {ended}: {text!r}, alone {whole!r}")
            self.n[ended] = self.n.get(ended, 0) + 1


def half_open(address, n=300):
    """Requests that are never completed; the server ends each after its time limit, so they are opened anew by callers."""
    sockets = []
    for i in range(n):
        s = socket.create_connection(address)
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n" + (b"content-length: 100\r\n\r\n{" if i % 2 else b""))
        sockets.append(s)
    return sockets


def health(host, port, seconds):
    """Asks /health ten times a second; prints milliseconds, one a line."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        with socket.create_connection((host, port), timeout=30) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            got = s.recv(4096)
        ms = (time.monotonic() - start) * 1e3
        print(f"{ms:.2f}" if b" 200 " in got else "inf", flush=True)
        time.sleep(max(0, 0.1 - ms / 1e3))


def percentile(values, p):
    return sorted(values)[min(len(values) - 1, int(len(values) * p))] if values else float("inf")


async def round_of(server, seconds, n_streams, seed):
    parts = urlsplit(server.url)
    address = (parts.hostname, parts.port)
    alone = {}
    for question in QUESTIONS:
        for thinking in (False, True):
            text, ended = await answer(address, body(question, thinking))
            assert ended == "done", ended
            alone[question, thinking] = text
    load = Load(address, alone, random.Random(seed))
    probe = subprocess.Popen([sys.executable, __file__, "--health", *map(str, address), str(seconds)],
                             stdout=subprocess.PIPE, text=True)
    workers = [asyncio.create_task(load.worker()) for _ in range(n_streams)]
    start, rss, held = time.monotonic(), [], []
    while (now := time.monotonic() - start) < seconds:
        if seconds / 3 <= now < seconds * 2 / 3 and not held:
            held = await asyncio.to_thread(half_open, address)
        await asyncio.sleep(min(1.0, seconds / 20))
        rss.append(server.rss_kb())
        print(f"{now:.0f} s: {rss[-1] / 1024:.1f} MiB", file=sys.stderr)
    out, _ = await asyncio.to_thread(probe.communicate)
    load.stopping = True
    stopped = time.monotonic()
    server.terminate()
    code = await asyncio.to_thread(server.ended)
    took = time.monotonic() - stopped
    await asyncio.wait(workers, timeout=30)
    [s.close() for s in held]
    return load, [float(ms) for ms in out.split()], rss, code, took


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=600)
    options.add_argument("--streams", type=int, default=64)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--health", nargs=3)
    args = options.parse_args()
    if args.health:
        return health(args.health[0], int(args.health[1]), float(args.health[2]))
    failed = []
    for i in range(args.rounds):
        # Small caches, so that they are full soon: memory is to stay where it is then.
        command = ["-m", MODEL, "-t", "1", "-c", "512", "-np", str(args.streams), "--max-queue", "256",
                   "--cache-ram", "64", "--checkpoint-ram", "64", "--spec", "nextn", "--draft-max", "2",
                   "--shutdown-timeout", str(SHUTDOWN)]
        with Server(*command) as server:
            load, ms, rss, code, took = asyncio.run(round_of(server, args.seconds / args.rounds, args.streams, i))
        # The first third fills caches.
        settled, last = max(rss[: len(rss) // 3 + 1]) / 1024, max(rss[-(len(rss) // 6) - 1 :]) / 1024
        p99 = percentile(ms, 0.99)
        print(f"round {i + 1}: {load.n}, {len(load.wrong)} wrong; /health {len(ms)} times: median "
              f"{statistics.median(ms):.1f} ms, p99 {p99:.1f} ms, worst {max(ms):.1f} ms; memory {rss[0] / 1024:.0f} MiB at "
              f"first, {settled:.0f} after a third, {last:.0f} at the end; SIGTERM: code {code} after {took:.1f} s", flush=True)
        failed += load.wrong[:5]
        if p99 > 50:
            failed.append(f"/health took {p99:.1f} ms at the 99th percentile, 50 are the most")
        if last > 1.05 * settled + 8:
            failed.append(f"memory grew from {settled:.0f} to {last:.0f} MiB")
        if code != 0 or took > SHUTDOWN + 3:
            failed.append(f"SIGTERM: code {code} after {took:.1f} s")
        if not load.n["done"] or not load.n["left"]:
            failed.append(f"too little was asked: {load.n}")
    for line in failed:
        print("FAIL", line)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
