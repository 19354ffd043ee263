#!/usr/bin/env bash
# Builds the programs for 64-bit Windows on a Linux machine and tries them under wine: answers, not speed.
#
#   scripts/test-windows.sh              a chat with the model inside, the server with curl, a round trip of extract-nextn, the
#                                        head measured by nextn-tune
#
# PROGRAMS   a folder of programs that were built elsewhere: nothing is built then
# On Debian and Ubuntu: apt-get install g++-mingw-w64-x86-64-posix wine64 wine curl, and rustup target add x86_64-pc-windows-gnu.
# Where rustup has no network, a tool chain with rust-src (Debian's rustc, cargo and rust-src, of this Rust or newer) builds the
# standard library too.
set -euo pipefail
cd "$(dirname "$0")/.."

target=x86_64-pc-windows-gnu
stop() { echo "test-windows: $1" >&2; exit 1; }
missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need wine 'wine64 wine'
need curl curl
[ -n "${PROGRAMS:-}" ] || need x86_64-w64-mingw32-g++-posix g++-mingw-w64-x86-64-posix
[ ${#missing[@]} -eq 0 ] || stop "missing; on Debian and Ubuntu: apt-get install ${missing[*]}"

if [ -z "${PROGRAMS:-}" ]; then
    . scripts/mingw.sh
    own=()
    sysroot=$(rustc --print sysroot)
    if [ ! -d "$sysroot/lib/rustlib/$target/lib" ]; then
        [ -d "$sysroot/lib/rustlib/src/rust/library" ] || stop "missing: rustup target add $target, or rust-src"
        export RUSTC_BOOTSTRAP=1
        # shellcheck disable=SC2054 # The commas are cargo's.
        own=(-Z build-std=std,panic_unwind,panic_abort)
    fi
    cargo build --locked --bins -p nextn -p nextn-cli -p nextn-tune --target $target "${own[@]}"
    PROGRAMS=${CARGO_TARGET_DIR:-target}/$target/debug
fi
programs=$(cd "$PROGRAMS" && pwd)
model=$PWD/models/pocket-q4_k_m.gguf

server=
work=$(mktemp -d)
leave() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || :
    wineserver -k 2>/dev/null || /usr/lib/wine/wineserver -k 2>/dev/null || :
    rm -rf "$work"
}
trap leave EXIT
export WINEPREFIX=${WINEPREFIX:-$work/wine} WINEDEBUG=${WINEDEBUG:--all} WINEDLLOVERRIDES='mscoree,mshtml='
cd "$work"
run() {
    local program=$1
    shift
    wine "$programs/$program.exe" "$@" 2>>errors
}
# Lines of Windows programs that wine passes on may end as there.
plain() { tr -d '\r'; }
is() {
    case $2 in *"$3"*) echo "-- $1" ;; *) cat errors >&2 || :; stop "$1: $3 expected, found: $2" ;; esac
}

question='What is 20 + 15?'
for program in nextn-cli nextn-server nextn-bench extract-nextn nextn-tune; do
    [ -f "$programs/$program.exe" ] || stop "$programs has no $program.exe"
done
# The chat that `cargo run` builds; no archive has it.
chats=(nextn-cli)
[ ! -f "$programs/nextn-chat.exe" ] || chats+=(nextn-chat)
# Rust's library takes random bytes from bcryptprimitives.dll, which wine 8 lacks: one that asks advapi32 stands in for it.
if ! run nextn-cli --version </dev/null >/dev/null; then
    compiler=${CC_x86_64_pc_windows_gnu:-x86_64-w64-mingw32-gcc-posix}
    command -v "$compiler" >/dev/null || { cat errors >&2; stop "nextn-cli does not start; for wine 8 install g++-mingw-w64-x86-64-posix"; }
    cat >random.c <<'END'
#include <windows.h>
BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T n) { return SystemFunction036(data, (ULONG)n); }
END
    "$compiler" -shared -O1 random.c -o bcryptprimitives.dll -ladvapi32
    WINEPATH=$(winepath -w "$work" 2>/dev/null)
    export WINEPATH
fi
run nextn-cli --version </dev/null | plain | sed -n 1p
for program in "${chats[@]}"; do
    is "$program answers" "$(run $program -p "$question" -n 64 --temp 0 --no-stats </dev/null | plain)" 35
done
is 'nextn-cli reads a pipe' "$(printf '%s\n' "$question" | run nextn-cli --json -n 64 --temp 0 | plain)" 35
printf '%s' "$question" >question.txt
is 'nextn-cli reads a file' "$(run nextn-cli -f question.txt -n 64 --temp 0 --no-stats </dev/null | plain)" 35

wine "$programs/nextn-server.exe" --port 0 --log-file server.log </dev/null >output 2>>errors &
server=$!
for ((n = 0; n < 600; n++)); do
    port=$(sed -n 's|.*listening on http://127.0.0.1:\([0-9]*\).*|\1|p' server.log 2>/dev/null | sed -n 1p) || : # not there yet
    [ -n "$port" ] && break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
done
[ -n "${port:-}" ] || { cat errors >&2; stop 'the server did not start'; }
body='{"messages": [{"role": "user", "content": "What is 20 + 15?"}], "temperature": 0, "max_tokens": 64'
ask() { curl -fsS --max-time 120 "http://127.0.0.1:$port$1" -H 'Content-Type: application/json' "${@:2}"; }
is 'the server is well' "$(ask /health)" ok
is 'the server answers' "$(ask /v1/chat/completions -d "$body}")" 35
is 'the server streams' "$(ask /v1/chat/completions -d "$body, \"stream\": true}")" 'data: [DONE]'
kill -INT "$server"
wait "$server" && code=0 || code=$?
server=
is 'the server ends by Ctrl-C' "code $code: $(plain <server.log | tail -n 1)" ended

cp "$model" model.gguf
run extract-nextn strip model.gguf -o plain.gguf </dev/null >/dev/null
run extract-nextn extract model.gguf -o head.gguf </dev/null >/dev/null
run extract-nextn graft plain.gguf head.gguf -o again.gguf </dev/null >/dev/null
run extract-nextn verify again.gguf </dev/null >/dev/null
joke=(-p 'Tell me a joke.' -n 40 --temp 0 --no-stats)
want=$(run nextn-cli -m model.gguf "${joke[@]}" </dev/null | plain)
[ -n "$want" ] || stop 'model.gguf says nothing'
for file in plain again; do
    is "$file.gguf says the same" "$(run nextn-cli -m $file.gguf "${joke[@]}" </dev/null | plain)" "$want"
done
is 'nextn-bench starts' "$(run nextn-bench --version </dev/null | plain)" nextn-bench
printf '{"messages": [{"role": "user", "content": "What is 20 + 15?"}, {"role": "assistant", "content": "35"}]}\n%.0s' 1 2 3 4 >texts.jsonl
is 'nextn-tune measures the head' "$(run nextn-tune head model.gguf --data texts.jsonl --measure </dev/null 2>&1 | plain)" 'of drafts are right'
is 'a file that is not there is named' "$(wine "$programs/nextn-cli.exe" -m none.gguf -p hello </dev/null 2>&1 | plain || :)" none.gguf
