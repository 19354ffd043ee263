#!/usr/bin/env bash
# Real clients against nextn-server, with the model inside it. Prints a table; the exit code is 1 when a check fails.
#
#   tests/clients/run.sh [PROGRAM...]     all of clients.py's programs, or those named
#
# Needs python3, node, npm and package registries. All that is fetched lies under target/clients. NEXTN_SERVER names
# another server than target/release/nextn-server, which is built otherwise.
set -euo pipefail
cd "$(dirname "$0")/../.."
place=$PWD/target/clients
mkdir -p "$place"

# The package lists are kept beside what was installed from them.
if ! cmp -s tests/clients/requirements.txt "$place/requirements.txt"; then
    python3 -m venv "$place/python"
    "$place/python/bin/pip" install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
    cp tests/clients/requirements.txt "$place/"
fi
if ! cmp -s tests/clients/package.json "$place/node/package.json"; then
    mkdir -p "$place/node"
    cp tests/clients/package.json "$place/node/"
    (cd "$place/node" && npm install --silent --no-audit --no-fund) || { rm "$place/node/package.json"; exit 1; }
fi
# Modules are found from the folder of the program that asks for them.
cp tests/clients/*.mjs "$place/node/"

if [ -z "${NEXTN_SERVER:-}" ]; then
    cargo build --release --bin nextn-server
    export NEXTN_SERVER=$PWD/target/release/nextn-server
fi
exec "$place/python/bin/python" tests/clients/clients.py "$place" "$@"
