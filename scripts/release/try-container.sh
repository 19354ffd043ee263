#!/usr/bin/env bash
# Builds the image of a container file from a release's files without a registry, and has its server answer. As root.
#   debootstrap --variant=minbase bookworm ROOT && scripts/release/try-container.sh ROOT [FOLDER [FILE]]
# ROOT stands for the base images. FOLDER: where scripts/release.sh put its files, target/dist if not given. FILE:
# Containerfile.cpu if not given; of Containerfile.cuda, which wants a plugin's archive there, the server without a GPU.
# Needs buildah, whose images and containers go into a folder of their own, and curl.
set -euo pipefail
root=$(cd "${1:?which root? scripts/release/try-container.sh ROOT [FOLDER [FILE]]}" && pwd)
dist=$(cd "${2:-target/dist}" && pwd)
file=${3:-Containerfile.cpu}

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
sed -n 's/^FROM \([^ ]*\).*/\1/p' "$dist/$file" | sort -u | while read -r image; do
    case $image in */*) ;; *) image=library/$image ;; esac
    build commit --quiet "$base" "docker.io/$image" </dev/null >/dev/null
done
(cd "$dist" && build bud --pull-never --isolation chroot --network host --quiet -f "$file" -t nextn-server . >/dev/null)
made=$(build from --pull-never localhost/nextn-server)
for ((port = 8170; port < 8200; port++)); do
    (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
done
read -ra command <<<"$(sed -n 's/^ENTRYPOINT \[\(.*\)\]$/\1/p' "$dist/$file" | tr -d '",')"
build run --isolation chroot "$made" -- "${command[@]}" --host 127.0.0.1 --port "$port" >"$work/log" 2>&1 &
for ((n = 0; n < 300; n++)); do
    curl -fsS "http://127.0.0.1:$port/health" >/dev/null 2>&1 && break
    sleep 0.2
done
text=$(curl -fsS "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' \
    -d '{"messages": [{"role": "user", "content": "What is 20 + 15?"}], "temperature": 0, "max_tokens": 64}') ||
    { cat "$work/log" >&2; stop "the server did not answer"; }
grep -q 35 <<<"$text" || stop "the server said: $text"
server=$(pgrep -n -f "nextn-server --host .*--port $port")
user=$(ps -o uid= -p "$server" | tr -d ' ')
[ "$user" = 65534 ] || stop "the server runs as user $user, 65534 expected"
kill -TERM "$server"
wait || stop "the container ended with an error"
server=
grep -q ended "$work/log" || stop "the server did not end by SIGTERM"
grep 'no GPU' "$work/log" || :
echo "-- the image of $file answers, as user $user, and ends by SIGTERM"
