#!/usr/bin/env python3
"""How many prompt tokens nextn-server and llama-server compute again when a client comes back, side by side. Standard library only.

  cache.py --nextn target/release/nextn-server --llama BUILD/bin/llama-server -m FILE.gguf [--write docs/measurements/cache.md]
           [--nextn-args ".."] [--llama-args ".."] [--port 18200]

Each case runs on a fresh server with one slot and drafting on, greedily: it sends some requests, and the table has the tokens of the
last prompt that were computed, as the server itself reports them, and the length of that prompt. A model with recurrent layers shows
most, since its state cannot be cut back. Exit status: 0 when every case has both numbers and ours is never the larger one.
"""
import argparse, json, os, shlex, subprocess, sys, tempfile, time, urllib.error, urllib.request

WORDS = ("river stone garden window letter market summer winter bridge candle forest harbour island journey kitchen ladder "
         "mountain needle orchard pocket quarry ribbon shadow thunder valley wagon yellow anchor basket castle").split()


def document(n_sentences, seed=7):
    """Plain sentences that hardly repeat."""
    state, sentences = seed, []
    for i in range(n_sentences):
        picks = []
        for _ in range(5):
            state = (state * 1103515245 + 12345) % 2**31
            picks.append(WORDS[(state >> 16) % len(WORDS)])
        sentences.append(f"The {picks[0]} and the {picks[1]} lie near the {picks[2]}, so the {picks[3]} is {i + 3} days from the {picks[4]}.")
    return " ".join(sentences)


class Server:
    def __init__(self, command, port):
        self.base = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                if urllib.request.urlopen(self.base + "/health", timeout=2).status == 200:
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        self.log.seek(0)
        raise SystemExit(f"{shlex.join(command)} did not start:\n{self.log.read().decode(errors='replace')[-2000:]}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def post(self, path, body):
        request = urllib.request.Request(self.base + path, json.dumps(body).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.load(response)

    def complete(self, prompt, n=16):
        reply = self.post("/completion", {"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": True})
        return counts(reply["timings"]), reply["content"]

    def chat(self, messages, n=24, **more):
        body = {"messages": messages, "max_tokens": n, "temperature": 0, "cache_prompt": True, **more}
        reply = self.post("/v1/chat/completions", body)
        return counts(reply["timings"]), reply["choices"][0]["message"]


def counts(timings):
    """Tokens computed of the prompt, and all of them."""
    return timings["prompt_n"], timings["prompt_n"] + timings.get("cache_n", 0)


def said(role, content):
    return {"role": role, "content": content}


def again_raw(server):
    server.complete(document(48))
    return server.complete(document(48))[0]


def longer_raw(server):
    text = document(48)
    _, reply = server.complete(text)
    return server.complete(text + reply + " Then the")[0]


def changed_end_raw(server):
    text = document(48)
    server.complete(text + "\nQuestion: where is the river?\nAnswer:")
    return server.complete(text + "\nQuestion: how many days is it to the castle, and why?\nAnswer:")[0]


def changed_end_chat(server):
    text = document(48)
    server.chat([said("user", text + "\n\nWhere is the river?")])
    return server.chat([said("user", text + "\n\nHow many days is it to the castle, and why?")])[0]


def again_chat(server):
    messages = [said("system", "You are brief."), said("user", document(40) + "\n\nWhere is the river?")]
    server.chat(messages)
    return server.chat(messages)[0]


def edited_turn(server):
    messages = [said("user", "What is 20 + 15?")]
    _, reply = server.chat(messages)
    messages += [said("assistant", reply["content"] or ""), said("user", "And what is 7 + 8?")]
    server.chat(messages)
    return server.chat(messages[:-1] + [said("user", "And what is 9 + 4?")])[0]


def edited_turn_after_a_document(server):
    messages = [said("system", document(20)), said("user", "What is 20 + 15?")]
    _, reply = server.chat(messages)
    messages += [said("assistant", reply["content"] or ""), said("user", "And what is 7 + 8?")]
    server.chat(messages)
    return server.chat(messages[:-1] + [said("user", "And what is 9 + 4?")])[0]


def ten_turns(server):
    """All turns together."""
    messages, computed, total = [said("system", document(12))], 0, 0
    for turn in range(10):
        messages.append(said("user", f"What is {turn + 11} + {2 * turn + 3}?"))
        (n, n_all), reply = server.chat(messages)
        computed, total = computed + n, total + n_all
        messages.append(said("assistant", reply["content"] or ""))
    return computed, total


def restored(server):
    text = document(48)
    server.complete(text)
    server.post("/slots/0?action=save", {"filename": "kept.bin"})
    server.post("/slots/0?action=erase", {})
    server.post("/slots/0?action=restore", {"filename": "kept.bin"})
    return server.complete(text)[0]


def restored_and_longer(server):
    text = document(48)
    _, reply = server.complete(text)
    server.post("/slots/0?action=save", {"filename": "kept.bin"})
    server.post("/slots/0?action=erase", {})
    server.post("/slots/0?action=restore", {"filename": "kept.bin"})
    return server.complete(text + reply + " Then the")[0]


CASES = [
    ("a raw prompt sent again", again_raw),
    ("a raw prompt with its answer and more text", longer_raw),
    ("a raw document with another question at its end", changed_end_raw),
    ("the same in a chat message", changed_end_chat),
    ("a chat sent again", again_chat),
    ("the last message of a short chat edited", edited_turn),
    ("the same after a long system message", edited_turn_after_a_document),
    ("ten turns of a chat, all together", ten_turns),
    ("a slot file restored, the same raw prompt", restored),
    ("a slot file restored, the prompt with its answer and more", restored_and_longer),
]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--nextn", required=True)
    p.add_argument("--llama")
    p.add_argument("-m", "--model", required=True)
    p.add_argument("--nextn-args", default="")
    p.add_argument("--llama-args", default="--spec-type draft-mtp --spec-draft-n-max 2")
    p.add_argument("--port", type=int, default=18200)
    p.add_argument("--write")
    a = p.parse_args()
    rows, well = [], True
    for name, case in CASES:
        figures = []
        for program, more in [(a.nextn, a.nextn_args), (a.llama, a.llama_args)]:
            if not program:
                figures.append(None)
                continue
            with tempfile.TemporaryDirectory() as slots:
                command = [program, "-m", a.model, "--host", "127.0.0.1", "--port", str(a.port), "-np", "1", "-c", "2048",
                           "--slot-save-path", slots + os.sep, *shlex.split(more)]
                with Server(command, a.port) as server:
                    try:
                        figures.append(case(server))
                    except urllib.error.HTTPError as error:
                        print(f"{name}: {program}: {error}: {error.read().decode(errors='replace')[:300]}", file=sys.stderr)
                        figures.append(None)
        ours, theirs = figures
        well = well and ours is not None and (theirs is None or ours[0] <= theirs[0])
        told = [f"{f[0]} of {f[1]}" if f else "-" for f in figures]
        print(f"{name:60} {told[0]:>16} {told[1]:>16}", flush=True)
        rows.append(f"| {name} | {told[0]} | {told[1]} |")
    if a.write:
        head = ("# Prompt tokens computed again\n\nMade by `scripts/published/cache.py` with the model "
                f"`{os.path.basename(a.model)}`, one slot, drafting on, greedy; computed tokens of the last prompt and its length, as each "
                "server reports them.\n\n| case | nextn-server | llama-server |\n|---|---|---|\n")
        with open(a.write, "w") as f:
            f.write(head + "\n".join(rows) + "\n")
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
