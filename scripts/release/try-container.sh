#!/usr/bin/env bash
# Builds the image of Containerfile.cpu from a release's files without a registry, and has its server answer. As root.
#   debootstrap --variant=minbase bookworm ROOT && scripts/release/try-container.sh ROOT [FOLDER]
# ROOT stands for debian:bookworm-slim. FOLDER: where scripts/release.sh put its files, target/dist if not given.
# Needs buildah, whose images and containers go into a folder of their own, and curl.
set -euo pipefail
root=$(cd "${1:?which root? scripts/release/try-container.sh ROOT [FOLDER]}" && pwd)
dist=$(cd "${2:-target/dist}" && pwd)

stop() { echo "try-container: $1" >&2; exit 1; }
for tool in buildah curl; do command -v $tool >/dev/null || stop "missing: $tool"; done
work=$(mktemp -d)
server=
leave() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || :
    build rm -a >/dev/null 2>&1 || :
    rm -rf "$work"
}
# Neither namespaces nor overlays: it works within a container too.
build() { buildah --storage-driver vfs --root "$work/images" --runroot "$work/run" "$@"; }
trap leave EXIT

base=$(build from scratch)
build add "$base" "$root" / >/dev/null
build commit --quiet "$base" docker.io/library/debian:bookworm-slim >/dev/null
(cd "$dist" && build bud --pull-never --isolation chroot --network host --quiet -f Containerfile.cpu -t nextn-server . >/dev/null)
made=$(build from --pull-never localhost/nextn-server)
for ((port = 8170; port < 8200; port++)); do
    (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
done
build run --isolation chroot "$made" -- nextn-server --host 127.0.0.1 --port "$port" >"$work/log" 2>&1 &
for ((n = 0; n < 300; n++)); do
    curl -fsS "http://127.0.0.1:$port/health" >/dev/null 2>&1 && break
    sleep 0.2
done
text=$(curl -fsS "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' \
    -d '{"messages": [{"role": "user", "content": "What is 20 + 15?"}], "temperature": 0, "max_tokens": 64}') ||
    { cat "$work/log" >&2; stop "the server did not answer"; }
grep -q 35 <<<"$text" || stop "the server said: $text"
server=$(pgrep -n -f "nextn-server --host 127.0.0.1 --port $port")
user=$(ps -o uid= -p "$server" | tr -d ' ')
[ "$user" = 65534 ] || stop "the server runs as user $user, 65534 expected"
kill -TERM "$server"
wait || stop "the container ended with an error"
server=
grep -q ended "$work/log" || stop "the server did not end by SIGTERM"
echo "-- the image of Containerfile.cpu answers, as user $user, and ends by SIGTERM"
