#!/usr/bin/env bash
# The web pages in a real browser, with the model inside the server: what they do, and accessibility by axe-core.
#
#   tests/pages/run.sh              checks.mjs: a row for each check; the exit code is 1 when one fails
#   tests/pages/run.sh pictures     writes docs/pictures/*.png (scripts/pictures.sh)
#
# Needs node, npm with a package registry, and Chromium (apt-get install chromium). What is fetched lies under target/pages.
# NEXTN_SERVER names another server than target/debug/nextn-server, which is built otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."
place=$PWD/target/pages
mkdir -p "$place"
if ! cmp -s tests/pages/package.json "$place/package.json"; then
    cp tests/pages/package.json "$place/"
    (cd "$place" && npm install --silent --no-audit --no-fund) || { rm "$place/package.json"; exit 1; }
fi
# Modules are found from the folder of the program that asks for them.
cp tests/pages/*.mjs "$place/"
if [ -z "${NEXTN_SERVER:-}" ]; then
    cargo build --locked --bin nextn-server
fi
exec node "$place/${1:-checks}.mjs" "${@:2}"
