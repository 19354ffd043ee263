"""A server for the time of a `with`: the program under test on a free port, with what it logs in a file."""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time

PROGRAM = os.environ.get("NEXTN_SERVER", "target/release/nextn-server")


class Server:
    def __init__(self, *options, program=PROGRAM):
        self.command = [program, "--port", "0", *options]
        self.log = tempfile.NamedTemporaryFile("w+", prefix="nextn-server-", suffix=".log", delete=False)

    def __enter__(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("NEXTN_")}
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, env=environment)
        self.url = None
        for line in self.process.stderr:
            self.log.write(line)
            if found := re.search(r"listening on (https?://\S+)", line):
                # The line comes when the model is there.
                self.url = found[1]
                break
        if not self.url or self.process.poll() is not None:
            raise SystemExit(f"{' '.join(self.command)} did not start: see {self.log.name}")
        # Somebody has to read on, or the server would wait for room.
        self.reader = threading.Thread(target=self._read)
        self.reader.start()
        return self

    def _read(self):
        for line in self.process.stderr:
            self.log.write(line)
        self.log.flush()

    def rss_kb(self):
        """Resident memory of its own: the pages of the model's file are the kernel's."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"RssAnon:\s+(\d+)", status.read())[1])

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def ended(self, timeout=60):
        """The exit code."""
        code = self.process.wait(timeout)
        self.reader.join()
        return code

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.terminate()
            start = time.monotonic()
            while self.process.poll() is None and time.monotonic() - start < 60:
                time.sleep(0.05)
            if self.process.poll() is None:
                self.process.kill()
        self.reader.join()
        self.log.close()
