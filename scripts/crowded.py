#!/usr/bin/env python3
"""Speed beside other programs that take processors, as a table (decision 0016).

usage: crowded.py BENCH MODEL.gguf [--tokens N] [--loops 0,1,2] [--parallel 1,4] [--draft D] [--threads T]

BENCH is a release build of nextn-bench. Beside it run busy loops (`while :; do :; done`), which are stopped afterwards. Run it on
a machine that does nothing else: the column "others" shows the seconds of processor time that other programs took.
"""

import argparse
import json
import os
import subprocess
import sys


def processor_seconds():
    """Busy seconds of the whole machine since it started."""
    fields = [int(x) for x in open("/proc/stat").readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def of_process(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(options, n_loops):
    command = [options.bench, "speed", "-m", options.model, "-p", "0", "-n", str(options.tokens), "-r", "1", "--json",
               "--no-bandwidth", "-t", str(options.threads), "-d", f"0,{options.draft}", "--parallel", options.parallel]
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(n_loops)]
    try:
        before, times = processor_seconds(), os.times()
        done = subprocess.run(command, capture_output=True, text=True)
        spent = os.times()
        own = spent.children_user + spent.children_system - times.children_user - times.children_system
        others = processor_seconds() - before - own - sum(of_process(loop.pid) for loop in loops)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    found = {(s["n_sequences"], s["depth"]): s["median"] for s in json.loads(done.stdout)["speculation"]}
    return found, max(others, 0.0), "other programs use the processors" in done.stderr


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "))
    parser.add_argument("bench")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--loops", default="0,1,2")
    parser.add_argument("--parallel", default="1,4")
    parser.add_argument("--draft", default="2")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    runs = [(int(n), *measure(options, int(n))) for n in options.loops.split(",")]
    kinds = list(runs[0][1])
    names = [f"{n} sequences, " * (n > 1) + ("plain" if depth == "0" else f"drafts of {depth}") for n, depth in kinds]
    print(f"`{os.path.basename(options.model)}`, {options.threads} threads, tokens a second, share of the first row:\n")
    print("| busy loops | " + " | ".join(names) + " | others, s |")
    print("|---" * (len(names) + 2) + "|")
    quiet = runs[0][1]
    for n, found, others, said in runs:
        cells = [f"{found[k]:.1f}" + (f" ({found[k] / quiet[k]:.2f})" if n != runs[0][0] else "") for k in kinds]
        print(f"| {n} | " + " | ".join(cells) + f" | {others:.1f} |")
        if said:
            print(f"{n} loops: the line about other programs was printed", file=sys.stderr)


if __name__ == "__main__":
    main()
