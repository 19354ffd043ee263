#!/usr/bin/env python3
"""Packs a folder the same way on every machine: pack.py FOLDER ARCHIVE SECONDS.

ARCHIVE ends with .tar.gz or .zip. Names are sorted, owners left out, every time is SECONDS since 1970: the same files make
the same bytes. GNU tar can do that, a Mac's cannot.
"""

import gzip
import os
import pathlib
import sys
import tarfile
import time
import zipfile


def members(folder):
    """The folder and all in it, each before what it holds."""
    yield folder
    for path in sorted(folder.rglob("*"), key=lambda path: path.parts):
        yield path


def tar(folder, archive, seconds):
    with open(archive, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as out:
            for path in members(folder):
                entry = out.gettarinfo(path, path.relative_to(folder.parent).as_posix())
                entry.uid = entry.gid = 0
                entry.uname = entry.gname = ""
                entry.mtime = seconds
                entry.mode = 0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644
                if path.is_file():
                    with open(path, "rb") as content:
                        out.addfile(entry, content)
                else:
                    out.addfile(entry)


def zip_(folder, archive, seconds):
    # The format knows no time before 1980.
    when = max(time.gmtime(seconds)[:6], (1980, 1, 1, 0, 0, 0))
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for path in members(folder):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(folder.parent).as_posix(), when)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = (0o755 if os.access(path, os.X_OK) else 0o644) << 16
                out.writestr(entry, path.read_bytes())


def main():
    folder, archive, seconds = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], int(sys.argv[3])
    (zip_ if archive.endswith(".zip") else tar)(folder, archive, seconds)


main()
