#!/usr/bin/env bash
# Has `cargo binstall nextn` install the programs of an archive as it would those of a release: the package comes from a registry,
# the archive from where the package's metadata says, both served on 127.0.0.1. Then the program answers with the model inside.
#   scripts/try-binstall.sh [ARCHIVE]    nextn-VERSION-TARGET.tar.gz for this machine, as scripts/release.sh makes it; that
#                                        in target/dist if not given
# Needs cargo-binstall 1.26 or newer (--allow-insecure-http); nothing is compiled.
# WORK       where registry, server and programs lie: target/try-binstall if not set
set -euo pipefail
cd "$(dirname "$0")/.."

stop() { echo "try-binstall: $1" >&2; exit 1; }
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
archive=${1:-target/dist/nextn-$version-$(rustc -vV | sed -n 's/^host: //p').tar.gz}
[ -f "$archive" ] || stop "there is no $archive: scripts/release.sh programs archive"
command -v cargo-binstall >/dev/null || stop "missing: cargo-binstall"
work=${WORK:-target/try-binstall}
rm -rf "${work:?}"/{package,site,home,installed,log} && mkdir -p "$work"/{site/index/ne/xt,home}
work=$(cd "$work" && pwd)
site=$work/site

: >"$work/log"
python3 -u -m http.server --bind 127.0.0.1 --directory "$site" 0 >>"$work/log" 2>&1 &
server=$!
trap 'kill $server' EXIT
port=
for ((n = 0; n < 100; n++)); do
    port=$(sed -n 's/^Serving HTTP on .* port \([0-9]*\) .*/\1/p' "$work/log")
    [ -z "$port" ] || break
    sleep 0.1
done
[ -n "$port" ] || stop "the server did not start: $(cat "$work/log")"
address=http://127.0.0.1:$port

# The package as it is published, but for the key `repository`, which names the server.
cargo package --quiet --locked --allow-dirty --no-verify --exclude-lockfile -p nextn --target-dir "$work/package" 2>"$work/package.log" ||
    { cat "$work/package.log" >&2; stop "cargo did not pack nextn"; }
tar -xzf "$work/package/package/nextn-$version.crate" -C "$work/package"
manifest=$work/package/nextn-$version/Cargo.toml
sed -i "/^repository = /d; 0,/^name = \"nextn\"\$/s||&\nrepository = \"$address/nextn\"|" "$manifest"
mkdir -p "$site/crates/nextn/$version"
tar -czf "$site/crates/nextn/$version/download" -C "$work/package" "nextn-$version"
printf '{"dl": "%s/crates"}\n' "$address" >"$site/index/config.json"
printf '{"name": "nextn", "vers": "%s", "deps": [], "cksum": "%s", "features": {}, "yanked": false}\n' "$version" \
    "$(sha256sum "$site/crates/nextn/$version/download" | cut -d' ' -f1)" >"$site/index/ne/xt/nextn"
mkdir -p "$site/nextn/releases/download/v$version"
cp "$archive" "$site/nextn/releases/download/v$version/"

# No program is compiled where the archive is not found: the other strategies are left out.
CARGO_HOME=$work/home NO_PROXY=127.0.0.1 no_proxy=127.0.0.1 cargo binstall --no-confirm --disable-telemetry \
    --no-discover-github-token --strategies crate-meta-data --allow-insecure-http --index "sparse+$address/index/" \
    --root "$work/installed" nextn </dev/null || stop "cargo-binstall ended with $?; the server's log is $work/log"
grep -q "GET /nextn/releases/download/v$version/$(basename "$archive") HTTP/1.1\" 200" "$work/log" || stop "nobody fetched $archive"
# It only warns of a program that the archive lacks, since programs are a feature of the package.
for program in nextn-cli nextn-server nextn-bench extract-nextn; do
    [ -x "$work/installed/bin/$program" ] || stop "$program was not installed"
    "$work/installed/bin/$program" --version | head -n 1
done
text=$("$work/installed/bin/nextn-cli" -p 'What is 20 + 15?' -n 64 --temp 0 --no-stats)
grep -q 35 <<<"$text" || stop "nextn-cli said: $text"
echo "-- cargo-binstall $(cargo binstall -V), programs from $(basename "$archive"): $text"
