#!/usr/bin/env python3
"""Speed of nextn-bench beside llama.cpp's llama-bench, in turns, on one machine. Standard library only.

  compare-llama.py --nextn target/release/nextn-bench --llama-bench PATH -m FILE.gguf [-t 2] [-p 1,2,3,4,8,64,512] [-n 64] [-r 5]
                   [--samples 1] [--llama-args "--repack 0 -fa off"] [--nextn-args ".."] [--max-foreign 0.1] [--json OUT.json]

After one warm-up each, every round runs `nextn-bench speed ..` and then `llama-bench ..` with the same file, threads and tests (A B A B ..),
each in a process of its own. The table has the medians over the rounds, and the ratio ours / theirs: its median and its range over the
rounds, where a round's ratio compares two runs that are neighbours in time. A ratio above 1 means that we are faster.

One short test in one process is noise: raise --samples (both programs' -r; a round then counts the median of its samples) for small
models. A run is marked when other programs used more than --max-foreign cores while it ran (Linux; from /proc/stat): such numbers
are for a first look only. `ppN`: N prompt tokens in one batch, `tgN`: N tokens one by one. Exit status: 0 when every test has both numbers.
"""
import argparse, json, os, shlex, statistics, subprocess, sys, time

try:
    import resource
except ImportError:                           # Windows: no foreign load figures
    resource = None


def numbers(text):
    values = [int(v) for v in text.split(",")]
    if min(values) < 0:
        raise argparse.ArgumentTypeError(f"{text}: counts are not negative")
    return values


def positive(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1")
    return int(text)


def busy_seconds():
    """CPU seconds that this machine spent on anything, stolen time included; None where /proc/stat is missing."""
    try:
        with open("/proc/stat") as f:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, f.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    """CPU seconds of this process and of its finished children."""
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def run(argv):
    """(parsed stdout, cores that others used meanwhile or None)"""
    known = resource is not None and busy_seconds() is not None
    t0, busy0, own0 = (time.monotonic(), busy_seconds(), own_seconds()) if known else (0, 0, 0)
    try:
        r = subprocess.run(argv, capture_output=True, text=True, errors="replace")
    except OSError as e:
        sys.exit(f"{argv[0]}: {e.strerror}")
    if r.returncode:
        sys.exit(f"{shlex.join(argv)}\nended with status {r.returncode}:\n{r.stderr[-3000:]}")
    foreign = round(max(0.0, (busy_seconds() - busy0 - (own_seconds() - own0)) / (time.monotonic() - t0)), 3) if known else None
    try:
        return json.loads(r.stdout), foreign
    except json.JSONDecodeError as e:
        sys.exit(f"{shlex.join(argv)}\nprinted no JSON ({e}):\n{r.stdout[:1000]}")


def test_name(n_prompt, n_gen):
    return f"pp{n_prompt}+tg{n_gen}" if n_prompt and n_gen else f"pp{n_prompt}" if n_prompt else f"tg{n_gen}"


def ours(out):
    return {t["name"]: statistics.median(t["tokens_per_second"]) for t in out["tests"]}


def theirs(out):
    return {test_name(t["n_prompt"], t["n_gen"]): statistics.median(t["samples_ts"]) for t in out}


def digits(v):
    return f"{v:.0f}" if v >= 1000 else f"{v:.1f}" if v >= 100 else f"{v:.2f}"


def table(tests):
    rows = [["test", "nextn tok/s", "llama.cpp tok/s", "ratio", "ratio min - max"]]
    for t in tests:
        a, b, r = t["nextn"], t["llama"], t["ratio"]
        rows.append([t["name"], digits(statistics.median(a)) if a else "-", digits(statistics.median(b)) if b else "-",
                     f"{statistics.median(r):.3f}" if r else "-", f"{min(r):.3f} - {max(r):.3f}" if r else "-"])
    width = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = ["| " + " | ".join(v.ljust(w) if c == 0 else v.rjust(w) for c, (v, w) in enumerate(zip(row, width))) + " |" for row in rows]
    rule = "|" + "|".join("-" * (w + 1) + ("-" if c == 0 else ":") for c, w in enumerate(width)) + "|"
    return "\n".join([lines[0], rule] + lines[1:])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--nextn", required=True, metavar="NEXTN_BENCH")
    ap.add_argument("--llama-bench", required=True, metavar="LLAMA_BENCH")
    ap.add_argument("-m", "--model", required=True)
    ap.add_argument("-t", "--threads", type=positive, default=os.cpu_count() or 1)
    ap.add_argument("-p", "--n-prompt", type=numbers, default=numbers("1,2,3,4,8,64,512"))
    ap.add_argument("-n", "--n-gen", type=numbers, default=[64])
    ap.add_argument("-r", "--rounds", type=positive, default=5)
    ap.add_argument("--samples", type=positive, default=1)
    ap.add_argument("--llama-args", type=shlex.split, default=[], metavar="ARGS")
    ap.add_argument("--nextn-args", type=shlex.split, default=[], metavar="ARGS")
    ap.add_argument("--max-foreign", type=float, default=0.1, metavar="CORES")
    ap.add_argument("--json", metavar="OUT")
    a = ap.parse_args()

    def argv(samples):
        common = ["-m", a.model, "-t", str(a.threads), "-p", ",".join(map(str, a.n_prompt)), "-n", ",".join(map(str, a.n_gen)),
                  "-r", str(samples)]
        return {"nextn": [a.nextn, "speed", *common, *a.nextn_args, "--json"],
                "llama": [a.llama_bench, *common, *a.llama_args, "-o", "json"]}

    parse, commands = {"nextn": ours, "llama": theirs}, argv(a.samples)
    settings = {}
    for who, command in argv(1).items():
        print(f"warm-up: {shlex.join(command)}", file=sys.stderr, flush=True)
        out, _ = run(command)
        parse[who](out)
        if who == "llama":
            settings = {k: out[0][k] for k in ("build_commit", "cpu_info", "repack", "flash_attn", "type_k", "type_v", "n_ubatch") if k in out[0]}
    rounds = []
    for i in range(a.rounds):
        speeds, foreign = {}, {}
        for who, command in commands.items():
            out, foreign[who] = run(command)
            speeds[who] = parse[who](out)
        loaded = [f"{who} {f:.2f}" for who, f in foreign.items() if f is not None and f > a.max_foreign]
        rounds.append({"speeds": speeds, "foreign_cores": foreign, "loaded": bool(loaded)})
        note = f"; LOADED: other programs used cores beside {', '.join(loaded)}" if loaded else ""
        print(f"round {i + 1} of {a.rounds} done{note}", file=sys.stderr, flush=True)

    names = [test_name(p, 0) for p in a.n_prompt if p] + [test_name(0, n) for n in a.n_gen if n]
    names += sorted({n for r in rounds for s in r["speeds"].values() for n in s} - set(names))
    tests = []
    for name in names:
        got = {who: [r["speeds"][who][name] for r in rounds if name in r["speeds"][who]] for who in commands}
        ratio = [r["speeds"]["nextn"][name] / r["speeds"]["llama"][name] for r in rounds if all(name in s for s in r["speeds"].values())]
        tests.append({"name": name, **got, "ratio": ratio})
    n_loaded = sum(r["loaded"] for r in rounds)
    print(table(tests))
    print(f"\n{os.path.basename(a.model)}, {a.threads} threads, {a.rounds} rounds of {a.samples} samples; "
          f"llama-bench: {', '.join(f'{k} {v}' for k, v in settings.items())}")
    if rounds[0]["foreign_cores"]["nextn"] is None:
        print("Other programs' use of the machine is not known here.")
    elif n_loaded:
        print(f"WARNING: {n_loaded} of {a.rounds} rounds ran while other programs used more than {a.max_foreign} cores.")
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"model": os.path.basename(a.model), "threads": a.threads, "commands": {k: shlex.join(v) for k, v in commands.items()},
                       "llama_settings": settings, "loaded_rounds": n_loaded, "rounds": rounds, "tests": tests}, f, indent=1)
            f.write("\n")
    if missing := [t["name"] for t in tests if len(t["ratio"]) < a.rounds]:
        sys.exit(f"not measured by both programs: {', '.join(missing)}")


if __name__ == "__main__":
    main()
