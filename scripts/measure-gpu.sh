#!/usr/bin/env bash
# Measures nextn on this machine's GPUs and writes a page of Markdown: machine, commands, and what they printed. The tables of
# docs/measurements for GPUs are made from such pages; send yours in with the name of the card as its title.
#
#   scripts/measure-gpu.sh [OPTIONS] [PART..]
#
#   --bin FOLDER        nextn-bench and nextn-server; target/release if absent. Their backend: NEXTN_BACKEND_DIR
#   --models FOLDER     where synthetic models are, or are written to (27b takes 16 GB, 35b-a3b 20 GB); the current folder
#   --shapes "A B"      shapes to measure (`nextn-bench synth --shape list`); "27b 35b-a3b"
#   --type TYPE         type of their weights; q4_k
#   --rounds N          rounds of each measurement; 3
#   --out FILE          the page; standard output
#   --llama PROGRAM     llama.cpp's server with the same GPU's backend, for the part `llama`
#   --llama-args ARGS   its arguments; "-ngl 99 -fa on -np 1"
#
# Parts, all of them if none is named (`llama` with --llama, `two` with two GPUs and more):
#   speed     plain decoding and drafts of 1 to 6 tokens and auto        passes    forward passes of 1 to 16 tokens
#   exact     the same with --exact on, and tokens with drafts and without
#   sampled   greedy and sampled requests of the server, in turns        parallel  8 and 32 sequences
#   prompts   512 to 65,536 tokens                                       long      behind 16,384 and 131,072 tokens
#   cache     types of the KV cache behind 16,384 tokens                 experts   --cpu-moe, with copies of experts and without
#   memory    memory as counted and as taken                             two       one GPU alone, two by layers and by parts of each
#   llama     beside llama.cpp's server, in turns: plain, each with its best draft length, prompts of 16,384
# Needs bash, and curl for `sampled`. Ends with a status other than 0 if a command failed; what it said is in the page.
set -uo pipefail
usage() { sed -n '2,28s/^# \{0,1\}//p' "$0" >&2; exit 2; }
bin=target/release models=. shapes="27b 35b-a3b" type=q4_k rounds=3 out=/dev/stdout llama='' llama_args="-ngl 99 -fa on -np 1" parts=()
while [ $# -gt 0 ]; do
    case $1 in
    --bin | --models | --shapes | --type | --rounds | --out | --llama | --llama-args)
        [ $# -ge 2 ] || usage
        name=${1#--}
        printf -v "${name//-/_}" %s "$2"
        shift
        ;;
    speed | passes | exact | sampled | parallel | prompts | long | cache | experts | memory | two | llama) parts+=("$1") ;;
    *) usage ;;
    esac
    shift
done
bench=$bin/nextn-bench server=$bin/nextn-server failures=0
[ -x "$bench" ] || { echo "measure-gpu: no nextn-bench in $bin (--bin)" >&2; exit 2; }
gpus=$("$bench" devices | grep -c '| gpu |')
[ "$gpus" -gt 0 ] || { echo "measure-gpu: nextn-bench devices lists no GPU; NEXTN_BACKEND_DIR says where its backend is" >&2; exit 2; }
if [ ${#parts[@]} = 0 ]; then
    parts=(speed passes exact sampled parallel prompts long cache experts memory)
    [ "$gpus" -gt 1 ] && parts+=(two)
    [ -n "$llama" ] && parts+=(llama)
fi
exec 3>"$out" || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Figures of one run are not those of earlier ones.
export NEXTN_CALIBRATION=$work/calibration

say() { printf '%s\n' "$@" >&3; }

failed() {
    failures=$((failures + 1))
    say "failed: $1"
}

# Runs a command and writes it with what it printed.
run() {
    local shown=$*
    shown=${shown//$bin\//}
    shown=${shown//$models\//}
    say '```' "\$ $shown"
    if ! "$@" >"$work/printed" 2>"$work/said"; then
        failed "$(tail -3 "$work/said")"
    fi
    cat "$work/printed" >&3
    say '```'
}

# Tokens a second of one request to the server.
request() {
    curl -s -m 120 "http://127.0.0.1:$port/completion" -H 'Content-Type: application/json' \
        -d "{\"prompt\":\"Tell me a story about a fox and a river.\",\"n_predict\":256,\"ignore_eos\":true,\"seed\":$1,\"cache_prompt\":false,$2}" |
        sed -n 's/.*"predicted_per_second":\([0-9.]*\).*/\1/p'
}

sampled() {
    local draft kind seed speed
    [ -x "$server" ] && command -v curl >/dev/null || { failed "nextn-server or curl is missing"; return; }
    port=$((20000 + RANDOM % 20000))
    say '```' '' "256 tokens a request to nextn-server, tokens a second; sampled: T = 0.7, top-k 20, top-p 0.95"
    for draft in "--spec off" "--draft-max 4"; do
        # shellcheck disable=SC2086
        "$server" -m "$1" --port $port -c 4096 --parallel 1 $draft >"$work/server" 2>&1 &
        for _ in $(seq 300); do
            kill -0 %% 2>/dev/null || break
            curl -s -m 2 "http://127.0.0.1:$port/health" | grep -q ok && break
            sleep 0.2
        done
        if ! kill -0 %% 2>/dev/null || [ -z "$(request 1 '"temperature":0')" ]; then
            failed "$draft: $(tail -1 "$work/server")"
            kill %% 2>/dev/null
            continue
        fi
        for seed in $(seq $((rounds + 1))); do
            for kind in '"temperature":0' '"temperature":0.7,"top_k":20,"top_p":0.95'; do
                speed=$(request "$seed" "$kind")
                if [ -n "$speed" ]; then say "$draft  round $seed  {$kind}  $speed"; else failed "a request"; fi
            done
        done
        kill %% && wait %% 2>/dev/null
    done
    say '```'
}

exact() {
    local draft tokens first=''
    run "$bench" speed --no-bandwidth -m "$1" --exact on -p 0 -n 256 -d 0,3,auto -r "$rounds"
    for draft in 0 3; do
        tokens=$("$bench" generate -m "$1" --tokens 84,104,101,32,102,101,114 -n 2000 --exact on --draft "$draft" 2>"$work/said" | tr -d ' \n' | sed 's/.*"tokens":\[\([0-9,]*\)\].*/\1/')
        [ -n "$tokens" ] || { failed "$(tail -1 "$work/said")"; return; }
        [ "$draft" = 0 ] && first=$tokens
    done
    if [ "$first" = "$tokens" ]; then say "" "2,000 tokens with drafts of 3: those without."; else say "" "2,000 tokens with drafts of 3 are not those without."; fi
}

beside() {
    local draft
    run "$bench" compare -m "$1" -d 0 -n 128 -r "$rounds" --server "$llama" --server-args "$llama_args"
    for draft in 2 3 4; do
        run "$bench" compare -m "$1" -d auto -n 256 -r "$rounds" --server "$llama" \
            --server-args "$llama_args --spec-type draft-mtp --spec-draft-n-max $draft"
    done
    run "$bench" compare -m "$1" -d 5 -n 256 -r "$rounds" --server "$llama" --server-args "$llama_args --spec-type draft-mtp --spec-draft-n-max 3"
    run "$bench" compare -m "$1" -d 0 -n 64 -r 2 --depth-ctx 16384 --server "$llama" --server-args "$llama_args -c 20480"
}

say "# $("$bench" devices | sed -n 's/^| [^|]* | gpu | .* | \(.*\) |$/\1/p' | head -1)"
say ""
say "$(date -u '+%-d %B %Y'), $("$bench" --version | tr '\n' ' ')"
say ""
"$bench" devices >&3
command -v nvidia-smi >/dev/null && run nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

for shape in $shapes; do
    model=$models/$shape-$type.gguf
    if [ ! -e "$model" ]; then
        "$bench" synth --shape "$shape" --type "$type" --accept 0.8 -o "$model" >/dev/null || exit 1
    fi
    for part in "${parts[@]}"; do
        # Only these have experts.
        [ "$part" = experts ] && [[ $shape != *-a* ]] && continue
        say "" "## $shape, $type: $part" ""
        case $part in
        speed) run "$bench" speed --no-bandwidth -m "$model" -p 0 -n 256 -d 0,1,2,3,4,5,6,auto -r "$rounds" ;;
        passes) run "$bench" speed --no-bandwidth -m "$model" -p 0 -n 0 -d 0 --rows 1,2,3,4,5,6,7,8,16 -r "$rounds" ;;
        exact) exact "$model" ;;
        sampled) sampled "$model" ;;
        parallel) run "$bench" speed --no-bandwidth -m "$model" -p 0 -n 300 -d 0,2,3,auto --parallel 8,32 -r 1 ;;
        prompts) run "$bench" speed --no-bandwidth -m "$model" -p 512,4096,16384,65536 -n 0 -d 0 -r 2 ;;
        long) run "$bench" speed --no-bandwidth -m "$model" -p 0 -n 128 -d 0,3,auto --depth-ctx 16384,131072 -r 1 ;;
        cache) run "$bench" speed --no-bandwidth -m "$model" -p 0 -n 128 -d 0,3 --depth-ctx 16384 --cache-types f16,q8_0,q4_0 -r 2 ;;
        experts)
            run "$bench" speed --no-bandwidth -m "$model" --cpu-moe -p 512 -n 64 -d 0,1,2,auto -r "$rounds"
            run "$bench" speed --no-bandwidth -m "$model" --cpu-moe --expert-cache auto -p 512 -n 64 -d 0,2,auto -r "$rounds"
            ;;
        memory) run "$bench" memory -m "$model" ;;
        two)
            for mode in none layer tensor; do
                run "$bench" speed --no-bandwidth -m "$model" --split-mode "$mode" -p 4096 -n 128 -d 0,3,auto -r "$rounds"
            done
            ;;
        llama) beside "$model" ;;
        esac
    done
done
[ $failures = 0 ] || { echo "measure-gpu: $failures commands failed; the page says why" >&2; exit 1; }
