#!/usr/bin/env python3
"""Holds an archive to what `cargo binstall` will look for: binstall.py ARCHIVE, run in the repository's root.

Package `nextn` says in its metadata where a release's archives and the programs in them lie. Ends with 1 where the
archive has another name, or lacks a program. Fetches nothing; scripts/try-binstall.sh runs cargo-binstall.
"""

import json
import pathlib
import re
import subprocess
import sys
import tarfile


def main():
    archive = pathlib.Path(sys.argv[1])
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    packages = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    package = next(p for p in packages if p["name"] == "nextn")
    said = package["metadata"]["binstall"]
    name = re.fullmatch(rf"nextn-{re.escape(package['version'])}-(.+)\.tar\.gz", archive.name)
    if not name:
        sys.exit(f"binstall.py: {archive.name} is no archive of version {package['version']}")
    values = {"version": package["version"], "target": name[1], "repo": package["repository"] or "REPOSITORY", "binary-ext": ""}

    def filled(template, **more):
        return re.sub(r"\{ *([a-z-]+) *\}", lambda m: {**values, **more}[m[1]], template)

    wrong = []
    url = filled(said["pkg-url"])
    if url.rsplit("/", 1)[1] != archive.name:
        wrong.append(f"pkg-url names {url.rsplit('/', 1)[1]}, the archive is {archive.name}")
    with tarfile.open(archive) as tar:
        files = {m.name for m in tar if m.isfile()}
    binaries = [t["name"] for t in package["targets"] if "bin" in t["kind"]]
    paths = [filled(said["bin-dir"], bin=binary) for binary in binaries]
    wrong += [f"bin-dir says {path}, which the archive lacks" for path in paths if path not in files]
    if wrong:
        sys.exit("\n".join(f"binstall.py: {line}" for line in wrong))
    print(f"-- cargo binstall finds {len(paths)} programs in {archive.name}")


main()
