#!/usr/bin/env bash
# Packs every crate that is published, lays them with all that they depend on into a registry in a folder, and installs a
# program from there as a user would, without a network; then the program answers with the model inside.
#   scripts/try-publish.sh [CRATE] [-- OPTION..]    CRATE: nextn if not given. OPTION: of cargo install, as --debug
# PACKAGES   a folder of .crate files that were packed before; they are packed afresh if not set
# WORK       where packages, registry and what is built lie: target/try-publish if not set
set -euo pipefail
cd "$(dirname "$0")/.."

stop() { echo "try-publish: $1" >&2; exit 1; }
crate=nextn
case ${1:-} in '' | --) ;; *) crate=$1 && shift ;; esac
[ "${1:-}" != -- ] || shift
work=${WORK:-target/try-publish}
rm -rf "${work:?}"/{packages,registry,home,installed} && mkdir -p "$work"/{registry,home}
work=$(cd "$work" && pwd)

packages=${PACKAGES:-}
if [ -z "$packages" ]; then
    # Only crates with `publish = false` stay behind.
    left=$(cargo metadata --locked --no-deps --format-version 1 |
        python3 -c 'import json, sys; [print(p["name"]) for p in json.load(sys.stdin)["packages"] if p["publish"] == []]')
    # shellcheck disable=SC2046,SC2086 # A list.
    if ! cargo package --locked --allow-dirty --no-verify --workspace $(printf -- '--exclude %s ' $left) \
        --target-dir "$work/packages" >"$work/packages.log" 2>&1; then
        tail -n 20 "$work/packages.log" >&2
        stop "cargo did not pack all crates"
    fi
    packages=$work/packages/package
fi
crates=("$packages"/*.crate)
[ -e "${crates[0]}" ] || stop "cargo packed nothing"

# What others wrote, at the versions of the lock files; ggml's source is in the package that the second one names.
cargo vendor --locked --quiet --versioned-dirs --sync vendor/ggml-sys/ggml/Cargo.toml "$work/registry" >/dev/null
for file in "${crates[@]}"; do
    tar -xzf "$file" -C "$work/registry"
    folder=$work/registry/$(basename "$file" .crate)
    printf '{"files":{},"package":"%s"}' "$(sha256sum "$file" | cut -d' ' -f1)" >"$folder/.cargo-checksum.json"
    for field in description license; do
        grep -q "^$field = " "$folder/Cargo.toml" || stop "$(basename "$folder") says nothing of its $field"
    done
done
cat >"$work/home/config.toml" <<END_OF_CONFIG
[source.crates-io]
replace-with = "folder"
[source.folder]
directory = "$work/registry"
[net]
offline = true
END_OF_CONFIG

# From a folder of its own: a configuration of this checkout does not reach there.
cd "$work/home"
CARGO_HOME=$work/home CARGO_TARGET_DIR=$work/built cargo install --locked "$crate" --root "$work/installed" "$@"
for program in "$work"/installed/bin/*; do
    "$program" --version | head -n 1
done
for program in "$work"/installed/bin/nextn-c*; do
    # A crate that installs no chat has none to ask.
    [ -e "$program" ] || continue
    text=$("$program" -p 'What is 20 + 15?' -n 64 --temp 0 --no-stats)
    grep -q 35 <<<"$text" || stop "$(basename "$program") said: $text"
    echo "-- $(basename "$program"): $text"
done
echo "-- ${#crates[@]} crates packed, $crate installed from them"
