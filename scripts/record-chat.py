#!/usr/bin/env python3
"""Records a chat with nextn-cli's own model as an asciinema cast: docs/pictures/chat.cast, for `asciinema play` or its player.

    scripts/record-chat.py [--program target/release/nextn-cli] [--output FILE] [--columns N] [-- OPTIONS OF NEXTN-CLI]

What stands in the cast is what the program wrote to a terminal, when it wrote it; only waits are cut to a second. Keys are typed
by this script, at one pace. Without --program it builds nextn-cli first.
"""

import argparse
import codecs
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEYS = [
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "/stats",
    "/undo",
    "/show",
    "/exit",
]
# Shown where a message can be typed.
PROMPT = "a message, or /help"
PACE = 0.05
LONGEST_WAIT = 1.0
PATIENCE = 120.0


class Recorder:
    """A program on a terminal of its own, and the events of the cast."""

    def __init__(self, command, columns, rows):
        self.events, self.seen, self.clock, self.last = [], "", 0.0, time.monotonic()
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.state = tempfile.TemporaryDirectory()
        pid, self.terminal = pty.fork()
        if pid == 0:
            env = dict(os.environ, TERM="xterm-256color", XDG_STATE_HOME=self.state.name)
            for name in ("NO_COLOR", "NEXTN_MODEL", "NEXTN_LOG"):
                env.pop(name, None)
            time.sleep(0.2)
            os.execvpe(command[0], command, env)
        self.pid = pid
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def take(self, seconds):
        """Notes what comes within so many seconds; False when the program has ended."""
        if not select.select([self.terminal], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.terminal, 65536)
        except OSError:
            data = b""
        if not data:
            return False
        now = time.monotonic()
        self.clock += min(now - self.last, LONGEST_WAIT)
        self.last = now
        text = self.decoder.decode(data)
        self.seen += text
        self.events.append([round(self.clock, 3), "o", text])
        return True

    def wait(self, text):
        """Until `text` is on the screen."""
        start = time.monotonic()
        while text not in self.seen:
            if not self.take(0.2) or time.monotonic() - start > PATIENCE:
                sys.exit(f"{text!r} did not come; the end of the screen: {self.seen[-400:]!r}")
        self.seen = self.seen.split(text, 1)[1]

    def type(self, keys):
        """Types a line."""
        for key in keys:
            os.write(self.terminal, key.encode())
            end = time.monotonic() + PACE
            while (left := end - time.monotonic()) > 0 and self.take(left):
                pass
        os.write(self.terminal, b"\r")

    def end(self):
        """Until the program ends; gives its code."""
        while self.take(PATIENCE):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--program", type=pathlib.Path)
    args.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/pictures/chat.cast")
    args.add_argument("--columns", type=int, default=80)
    args.add_argument("--rows", type=int, default=24)
    args.add_argument("options", nargs="*", default=[])
    args = args.parse_args()
    program = args.program
    if program is None:
        subprocess.run(["cargo", "build", "--release", "--locked", "--bin", "nextn-cli"], cwd=ROOT, check=True)
        program = ROOT / "target/release/nextn-cli"
    options = args.options or ["--temp", "0", "--think", "off"]
    recorder = Recorder([str(program), *options], args.columns, args.rows)
    for keys in KEYS:
        recorder.wait(PROMPT)
        recorder.type(keys)
    if (code := recorder.end()) != 0:
        sys.exit(f"nextn-cli ended with {code}")
    header = {
        "version": 2,
        "width": args.columns,
        "height": args.rows,
        "title": "nextn-cli: a chat with the model inside the program",
        "env": {"TERM": "xterm-256color"},
    }
    lines = [json.dumps(header), *(json.dumps(event, ensure_ascii=False) for event in recorder.events)]
    text = "\n".join(lines) + "\n"
    if re.search(re.escape(str(pathlib.Path.home())) + "/", text):
        sys.exit("the recording names a folder of this machine")
    args.output.write_text(text)
    print(f"{args.output}: {len(recorder.events)} events, {recorder.clock:.1f} s, {len(text)} bytes")


if __name__ == "__main__":
    main()
