#!/usr/bin/env bash
# Tries a release's files in a bare root of a Linux distribution, as root: nothing but them is put there.
#   debootstrap --variant=minbase bullseye ROOT && scripts/release/try.sh ROOT [FOLDER]
# FOLDER: where scripts/release.sh put its files, target/dist if not given.
# For the archive, the installer (from a folder, and from an address of this machine) and the Debian package: a chat with the
# model inside, the server with curl (this machine's), a round trip of extract-nextn, and the head measured by nextn-tune.
# Then each is taken away again.
set -euo pipefail
root=${1:?which root? scripts/release/try.sh ROOT [FOLDER]}
dist=$(cd "${2:-target/dist}" && pwd)
model=$(cd "$(dirname "$0")/../.." && pwd)/models/pocket-q4_k_m.gguf
cpu=$(uname -m)
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$(dirname "$0")/../../Cargo.toml")
archive=$dist/nextn-$version-$cpu-unknown-linux-gnu.tar.gz

# Leaves the machine's variables behind.
inside() { chroot "$root" /usr/bin/env -i HOME=/srv PATH="$PATH_INSIDE" "$@"; }
PATH_INSIDE=/usr/sbin:/usr/bin:/sbin:/bin
stop() { echo "try: $1" >&2; exit 1; }

server=
leave() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || :
    for at in "$root"/{proc,dev}; do mountpoint -q "$at" && umount "$at"; done
}
trap leave EXIT
for at in proc dev; do mountpoint -q "$root/$at" || mount --bind "/$at" "$root/$at"; done

# $1: what is tried, $2: the folder of the programs inside.
works() {
    local start port text want n
    start=$(date +%s%N)
    PATH_INSIDE=$2:/usr/sbin:/usr/bin:/sbin:/bin
    inside nextn-cli --version | head -n 1
    text=$(inside nextn-cli -p 'What is 20 + 15?' -n 64 --temp 0 --no-stats)
    grep -q 35 <<<"$text" || stop "$1: the model said: $text"
    text=$(printf 'What is 20 + 15?\n' | inside nextn-cli --json --temp 0 -n 64)
    grep -q 35 <<<"$text" || stop "$1: the chat said: $text"

    # Not by the function: a shell of its own would get the signal.
    chroot "$root" /usr/bin/env -i HOME=/srv PATH="$PATH_INSIDE" nextn-server --port 0 --log-file /srv/server.log &
    server=$!
    for ((n = 0; n < 100; n++)); do
        port=$(sed -n 's|.*listening on http://127.0.0.1:\([0-9]*\).*|\1|p' "$root/srv/server.log" 2>/dev/null | head -1) || : # not there yet
        [ -n "$port" ] && curl -fsS "http://127.0.0.1:$port/health" >/dev/null 2>&1 && break
        sleep 0.1
    done
    text=$(curl -fsS "http://127.0.0.1:${port:?the server did not start}/v1/chat/completions" -H 'Content-Type: application/json' \
        -d '{"messages": [{"role": "user", "content": "What is 20 + 15?"}], "temperature": 0, "max_tokens": 64}')
    grep -q 35 <<<"$text" || stop "$1: the server said: $text"
    kill -TERM "$server"
    wait "$server" || stop "$1: the server ended with $?"
    server=
    rm "$root/srv/server.log"

    cp "$model" "$root/srv/model.gguf"
    inside extract-nextn strip /srv/model.gguf -o /srv/plain.gguf >/dev/null
    inside extract-nextn extract /srv/model.gguf -o /srv/head.gguf >/dev/null
    inside extract-nextn graft /srv/plain.gguf /srv/head.gguf -o /srv/again.gguf >/dev/null
    inside extract-nextn verify /srv/again.gguf >/dev/null
    want=$(inside nextn-cli -m /srv/model.gguf -p 'Tell me a joke.' -n 40 --temp 0 --no-stats)
    for file in plain again; do
        text=$(inside nextn-cli -m "/srv/$file.gguf" -p 'Tell me a joke.' -n 40 --temp 0 --no-stats)
        [ "$text" = "$want" ] || stop "$1: $file.gguf says: $text; expected: $want"
    done
    printf '{"messages": [{"role": "user", "content": "What is 20 + 15?"}, {"role": "assistant", "content": "35"}]}\n%.0s' 1 2 3 4 >"$root/srv/texts.jsonl"
    text=$(inside nextn-tune head /srv/model.gguf --data /srv/texts.jsonl --measure 2>&1) || stop "$1: nextn-tune said: $text"
    grep -q 'of drafts are right' <<<"$text" || stop "$1: nextn-tune said: $text"
    rm "$root"/srv/{model,plain,head,again}.gguf "$root/srv/texts.jsonl"
    echo "-- $1: chat, server, extract and tune work, $((($(date +%s%N) - start) / 1000000)) ms"
    PATH_INSIDE=/usr/sbin:/usr/bin:/sbin:/bin
}

sed -n 's/^PRETTY_NAME=//p' "$root/etc/os-release"
inside ldd --version | sed -n 1p

rm -rf "$root/opt/try" && mkdir -p "$root/opt/try"
tar -xzf "$archive" -C "$root/opt/try" --strip-components=1
works archive /opt/try/bin
rm -rf "$root/opt/try"

mkdir "$root/opt/try"
cp "$dist"/{SHA256SUMS,install.sh} "$archive" "$root/opt/try/"
inside sh /opt/try/install.sh --from /opt/try
works 'install.sh from a folder' /srv/.local/bin
inside sh /opt/try/install.sh --remove
[ -z "$(find "$root/srv/.local" -type f)" ] || stop "install.sh --remove left files"
printf 'x' >>"$root/opt/try/$(basename "$archive")"
inside sh /opt/try/install.sh --from /opt/try 2>/dev/null && stop "install.sh took an archive that was changed"
[ ! -e "$root/srv/.local/bin/nextn-cli" ] || stop "install.sh installed an archive that was changed"
echo '-- install.sh refuses an archive that was changed'
rm -rf "$root/opt/try" "$root/srv/.local"

case $cpu in x86_64) deb=("$dist"/nextn_*_amd64.deb) ;; *) deb=("$dist"/nextn_*_arm64.deb) ;; esac
cp "${deb[0]}" "$root/srv/nextn.deb"
inside dpkg -i /srv/nextn.deb >/dev/null
works "$(basename "${deb[0]}")" /usr/bin
inside dpkg --purge nextn >/dev/null
[ ! -e "$root/usr/bin/nextn-cli" ] || stop "the package's programs are still there"
rm "$root/srv/nextn.deb"
