"""Clients that mean harm, all at once: does the server go on answering the others?

hostile.py [--seconds S] [--attack NAME]...; standard library only. Starts a server with the model inside it and
measures what is usual. Then runs every attack of ATTACKS (or those named) for S seconds, each in a process and from a
loopback address of its own (127.0.0.2 and up: the server counts connections and wrong keys by address), while a
well-behaved client at 127.0.0.1 asks /health ten times a second and has short chats, and the server's memory is read.
Prints what each attack met with, and a table of bounds; ends with 1 when one is broken.

Bounds: /health within 50 ms at the 99th percentile and never without an answer; a chat within twice its usual time at
the median, and none refused; resident memory below 1 GiB at its highest; no status that an attack did not earn; SIGTERM
ends the server with code 0. Times are worth something on a machine that does nothing else.
"""

import argparse
import http.client
import json
import os
import random
import re
import resource
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from urllib.parse import urlsplit

from load import percentile
from server import Server

KEY = "key-of-the-honest"
HEALTH_MS, CHAT_TIMES, MEMORY_MIB = 50, 2, 1024
# Seconds: whatever is asked is answered by then.
PATIENCE = 90
# Chats, and seconds of asking /health, that say what is usual.
USUAL, USUAL_SECONDS = 20, 10
SLOTS = "NEXTN_HOSTILE_SLOTS"
CHAT = {
    "messages": [{"role": "user", "content": "What is 20 + 15?"}], "temperature": 0, "max_tokens": 40,
    "cache_prompt": False, "chat_template_kwargs": {"enable_thinking": False},
}


class Target:
    """The server as one attacker sees it."""

    def __init__(self, host, port, source, seconds):
        self.address, self.source = (host, int(port)), source
        self.end = time.monotonic() + float(seconds)
        self.met = Counter()
        self.rng = random.Random(source)

    def lasts(self):
        return time.monotonic() < self.end

    def connect(self, receive_buffer=None):
        s = socket.socket()
        if receive_buffer:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        s.settimeout(60)
        s.bind((self.source, 0))
        s.connect(self.address)
        return s

    def ask(self, method, path, body=None, key=KEY, connection=None):
        """Counts and returns the status of an answer that is read to its end; 0 is none."""
        own = connection or http.client.HTTPConnection(*self.address, timeout=PATIENCE, source_address=(self.source, 0))
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        try:
            own.request(method, path, body=body, headers=headers)
            answer = own.getresponse()
            answer.read()
            status = answer.status
        except (OSError, http.client.HTTPException):
            own.close()
            status = 0
        if connection is None:
            own.close()
        self.met[status or "cut"] += 1
        return status


def request(method, path, body=b""):
    """The bytes of a request."""
    return (f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n").encode() + body


def ended(sockets, seconds):
    """Waits so long, and returns those that the server has ended."""
    gone, end = [], time.monotonic() + seconds
    poll = select.poll()
    for s in sockets:
        poll.register(s, select.POLLHUP | select.POLLERR | select.POLLRDHUP)
    by_number = {s.fileno(): s for s in sockets}
    while by_number and (left := end - time.monotonic()) > 0:
        for number, _ in poll.poll(left * 1e3):
            poll.unregister(number)
            gone.append(by_number.pop(number))
    return gone


def held(target, n, begin):
    """Keeps `n` connections that `begin` has made useless, and opens those anew that the server ends."""
    sockets = []
    while target.lasts():
        while len(sockets) < n and target.lasts():
            s = target.connect(4096)
            try:
                begin(s)
                target.met["opened"] += 1
            except OSError:
                target.met["refused"] += 1
            sockets.append(s)
        for s in ended(sockets, min(1.0, max(0.0, target.end - time.monotonic()))):
            sockets.remove(s)
            s.close()
            target.met["ended by the server"] += 1
    for s in sockets:
        s.close()


def slow_readers(target):
    """Requests one after another whose answers nobody reads."""
    many = request("GET", "/openapi.json") * 200

    def begin(s):
        s.setblocking(False)
        for _ in range(50):
            if not select.select([], [s], [], 0.2)[1]:
                return
            s.send(many)

    held(target, 24, begin)


def unread_streams(target):
    """Long answers as streams that nobody reads."""
    body = {"prompt": "Once upon", "stream": True, "ignore_eos": True, "max_tokens": 1900, "n_probs": 20}
    held(target, 2, lambda s: s.sendall(request("POST", "/v1/completions", json.dumps(body).encode())))


def schema_bomb(target):
    """A schema that grows eightfold with every step into it."""
    bomb = {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 8}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"x": bomb}, "required": ["x"], "$defs": bomb["$defs"]}}}
    forms = [{"tools": [tool], "tool_choice": choice} for choice in ("auto", "required")]
    forms.append({"response_format": {"type": "json_schema", "json_schema": {"name": "f", "schema": bomb}}})
    while target.lasts():
        # The prompt with the tool is read once, as others' prompts are: it is the schema that attacks.
        form = {**target.rng.choice(forms), "cache_prompt": True, "max_tokens": 4}
        target.ask("POST", "/v1/chat/completions", json.dumps({**CHAT, **form}))
        time.sleep(0.5)


def large_bodies(target):
    """Ten bodies of 8 MiB at once: lists of numbers, messages that are none, a text."""
    size = (8 << 20) - 4096
    zeros = "[" + "0," * (size // 2 - 1) + "0]"
    million = "[" + "0," * 1_000_000 + "0]"
    bodies = [
        ("/v1/completions", '{"max_tokens":1,"prompt":%s}' % zeros),
        ("/v1/completions", '{"max_tokens":1,"prompt":%s}' % million),
        ("/v1/chat/completions", '{"max_tokens":1,"messages":%s}' % million),
        ("/completion", '{"n_predict":1,"prompt":"x","logit_bias":%s}' % million),
        ("/tokenize", '{"content":"%s"}' % ("once upon a time " * (size // 17))),
    ]
    while target.lasts():
        connections = []
        for path, body in bodies * 2:
            s = target.connect()
            s.setblocking(False)
            connections.append((s, memoryview(request("POST", path, body.encode()))))
        answers(target, connections)
        end = min(time.monotonic() + 5, target.end)
        while time.monotonic() < end:
            time.sleep(0.1)


def answers(target, connections):
    """Sends all requests at the same time, and counts the statuses that come back."""
    waiting, end = dict(connections), time.monotonic() + PATIENCE
    while waiting and time.monotonic() < end:
        writing = [s for s, data in waiting.items() if data]
        readable, writable, _ = select.select(list(waiting), writing, [], 1)
        for s in writable:
            try:
                waiting[s] = waiting[s][s.send(waiting[s][: 1 << 16]):]
            except OSError:
                # The server has answered before it had read all.
                waiting[s] = waiting[s][:0]
        for s in readable:
            try:
                first = s.recv(1 << 16)
            except OSError:
                first = b""
            found = re.match(rb"HTTP/1.1 (\d+)", first)
            target.met[int(found[1]) if found else "cut"] += 1
            del waiting[s]
            s.close()
    if waiting:
        target.met["without an answer"] += len(waiting)


def half_open(target):
    """A thousand connections that send half of a request."""
    halves = [request("POST", "/v1/chat/completions")[:-2], request("POST", "/tokenize", b" " * 100)[:-90]]
    held(target, 1000, lambda s: s.sendall(target.rng.choice(halves)))


def slot_files(target):
    """Files to restore that are cut, changed, or not there to be named."""
    place = os.environ[SLOTS]
    prompt = json.dumps({"prompt": "Once upon a time", "n_predict": 8})
    saved = False
    while not saved and target.lasts():
        target.ask("POST", "/completion", prompt)
        saved = any(target.ask("POST", f"/slots/{i}?action=save", '{"filename":"good"}') == 200 for i in range(4))
    if not saved:
        return
    with open(os.path.join(place, "good"), "rb") as file:
        good = file.read()
    while target.lasts():
        bad = bytearray(good[: target.rng.randrange(len(good))] if target.rng.random() < 0.3 else good)
        for _ in range(target.rng.randrange(1, 20)):
            if bad:
                # The beginning has the numbers that say how much follows.
                at = target.rng.randrange(min(len(bad), target.rng.choice([64, 4096, len(bad)])))
                bad[at] = target.rng.randrange(256)
        with open(os.path.join(place, "bad"), "wb") as file:
            file.write(bad)
        for name in ("bad", "../bad", "none"):
            target.ask("POST", f"/slots/{target.rng.randrange(5)}?action=restore", json.dumps({"filename": name}))
        time.sleep(0.5)


def wrong_keys(target):
    """Keys, guessed as fast as one connection lets."""
    connection = http.client.HTTPConnection(*target.address, timeout=60, source_address=(target.source, 0))
    while target.lasts():
        for _ in range(20):
            target.ask("GET", "/v1/models", key=f"guess-{target.rng.random()}", connection=connection)
        time.sleep(0.1)


# Each with the statuses that it may meet with; a connection that is held has none.
ATTACKS = {
    "slow_readers": (slow_readers, set()),
    "unread_streams": (unread_streams, set()),
    "schema_bomb": (schema_bomb, {200, 400, 503}),
    "large_bodies": (large_bodies, {200, 400, 413, 503, "cut"}),
    "half_open": (half_open, set()),
    # 409: another answer is in that slot.
    "slot_files": (slot_files, {200, 400, 404, 409}),
    "wrong_keys": (wrong_keys, {401, 429}),
}
COUNTS = {"opened", "refused", "ended by the server"}


def attack(name, host, port, source, seconds):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
    target = Target(host, port, source, seconds)
    ATTACKS[name][0](target)
    print(json.dumps({str(key): n for key, n in target.met.items()}))


def chat(address):
    """The seconds of a short chat, and its status."""
    start = time.monotonic()
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(CHAT), headers)
        answer = connection.getresponse()
        answer.read()
        status = answer.status
    except (OSError, http.client.HTTPException) as error:
        status = repr(error)
    connection.close()
    return time.monotonic() - start, status


def peak_mib(server):
    """The highest resident memory so far, pages of the model's file included."""
    with open(f"/proc/{server.process.pid}/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+)", status.read())[1]) / 1024


def measured(server, seconds, names):
    """Runs the attacks. Gives what chats and /health took before, both and memory beside them, and what they met."""
    parts = urlsplit(server.url)
    address = (parts.hostname, parts.port)
    here, host = os.path.dirname(os.path.abspath(__file__)), [parts.hostname, str(parts.port)]

    def start(program, *words):
        command = [sys.executable, os.path.join(here, program), *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def probed(probe):
        return [float(ms) for ms in probe.communicate()[0].split()]

    usual = [chat(address)[0] for _ in range(USUAL)], probed(start("load.py", "--health", *host, str(USUAL_SECONDS)))
    attackers = {}
    for i, name in enumerate(names):
        attackers[name] = start("hostile.py", "--one", name, *host, f"127.0.0.{i + 2}", str(seconds))
    probe = start("load.py", "--health", *host, str(seconds))
    end, chats, rss = time.monotonic() + seconds, [], []
    while time.monotonic() < end:
        chats.append(chat(address))
        rss.append(server.rss_kb() / 1024)
        time.sleep(0.5)
    health = probed(probe)
    met, end = {}, time.monotonic() + PATIENCE + 30
    for name, process in attackers.items():
        try:
            out = process.communicate(timeout=max(1, end - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            process.kill()
            out = process.communicate()[0]
        met[name] = json.loads(out) if process.returncode == 0 else {f"ended with {process.returncode}": 1}
    return usual, chats, rss, health, met


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=600)
    options.add_argument("--attack", action="append", choices=ATTACKS)
    options.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.one:
        return attack(*args.one)
    names = args.attack or list(ATTACKS)
    with tempfile.TemporaryDirectory() as place:
        os.environ[SLOTS] = place
        command = ["-t", "1", "-c", "2048", "-np", "4", "--cache-ram", "64", "--checkpoint-ram", "64", "--api-key", KEY,
                   "--slot-save-path", place, "--shutdown-timeout", "5"]
        with Server(*command) as server:
            usual, chats, rss, health, met = measured(server, args.seconds, names)
            peak = peak_mib(server)
            server.terminate()
            code = server.ended()
    earned = {name: {str(s) for s in ATTACKS[name][1]} | COUNTS for name in names}
    strange = [f"{name}: {what}" for name in names for what in met[name] if what not in earned[name]]
    for name in names:
        print(f"{name:15} {', '.join(f'{what}: {n}' for what, n in sorted(met[name].items()))}")
    refused = [status for _, status in chats if status != 200]
    p99, unanswered = percentile(health, 0.99), sum(ms == float("inf") for ms in health)
    alone, alone_health = statistics.median(usual[0]), percentile(usual[1], 0.99)
    times = statistics.median(seconds for seconds, _ in chats) / alone
    rows = [
        (f"/health before, p99 of {len(usual[1])}", f"{alone_health:.1f} ms", "", True),
        (f"/health, p99 of {len(health)}", f"{p99:.1f} ms", f"{HEALTH_MS} ms", p99 <= HEALTH_MS),
        ("/health without an answer", unanswered, 0, not unanswered and len(health) > 0),
        (f"chat, median of {len(chats)} against {alone * 1e3:.0f} ms", f"{times:.2f} times",
         f"{CHAT_TIMES} times", times <= CHAT_TIMES),
        ("chats refused", f"{len(refused)} {refused[:3] or ''}", 0, not refused),
        ("own memory at its highest", f"{max(rss):.0f} MiB", f"{MEMORY_MIB} MiB", max(rss) <= MEMORY_MIB),
        ("own memory at the end", f"{rss[-1]:.0f} MiB", "", True),
        ("all memory at its highest", f"{peak:.0f} MiB", f"{MEMORY_MIB} MiB", peak <= MEMORY_MIB),
        ("statuses that were not earned", f"{len(strange)} {strange[:5] or ''}", 0, not strange),
        ("SIGTERM", f"code {code}", "code 0", code == 0),
    ]
    for what, found, bound, good in rows:
        print(f"{what:45} {found!s:>20}  {f'at most {bound}' if bound != '' else '':20} {'ok' if good else 'FAIL'}")
    sys.exit(not all(good for *_, good in rows))


if __name__ == "__main__":
    main()
