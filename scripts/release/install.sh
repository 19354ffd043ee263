#!/bin/sh
# Installs nextn's programs, manual pages and completions from a release; no root, no compiler.
#
#   sh install.sh                          into ~/.local
#   sh install.sh --prefix /usr/local      elsewhere
#   sh install.sh --from FOLDER|URL        from a folder, or another address, that holds a release's files
#   sh install.sh --remove                 takes away what it installed
#
# What it fetches is held to the release's SHA256SUMS before it is unpacked; files are replaced by renaming, so that
# running programs go on. Needs tar, gzip, a SHA-256 program (sha256sum, shasum or openssl), and for an address curl or wget.
set -eu

url='@URL@'

stop() { echo "install.sh: $1" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

# The name that a release has for this machine.
machine() {
    case $(uname -s) in
        Linux) system=unknown-linux-gnu ;;
        Darwin) system=apple-darwin ;;
        *) stop "there are no archives for $(uname -s): build it from source" ;;
    esac
    case $(uname -m) in
        x86_64 | amd64) cpu=x86_64 ;;
        aarch64 | arm64) cpu=aarch64 ;;
        *) stop "there are no archives for $(uname -m): build it from source" ;;
    esac
    if [ "$system" = unknown-linux-gnu ] && ! (getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1) | grep -qi 'glibc\|gnu'; then
        stop "the programs need glibc, which this system does not have: build them from source"
    fi
    echo "$cpu-$system"
}

# $1: a file of the release, $2: where it goes.
fetch() {
    case $from in
        *://*)
            if has curl; then
                curl -fsSL --proto '=https,http' --retry 3 -o "$2" "$from/$1" || stop "$from/$1 could not be fetched"
            elif has wget; then
                wget -q -O "$2" "$from/$1" || stop "$from/$1 could not be fetched"
            else
                stop "install curl or wget, or fetch the release's files and give their folder: --from FOLDER"
            fi ;;
        *) cp "$from/$1" "$2" || stop "there is no $1 in $from" ;;
    esac
}

sum() {
    if has sha256sum; then sha256sum "$1" | cut -d' ' -f1
    elif has shasum; then shasum -a 256 "$1" | cut -d' ' -f1
    elif has openssl; then openssl dgst -sha256 -r "$1" | cut -d' ' -f1
    else stop "no sha256sum, shasum or openssl: the archive cannot be checked"
    fi
}

remove() {
    [ -f "$prefix/$list" ] || stop "nothing was installed by this script under $prefix"
    while IFS= read -r file; do
        rm -f "$prefix/$file"
    done <"$prefix/$list"
    rm -f "$prefix/$list"
    rmdir "$prefix/share/doc/nextn" 2>/dev/null || :
    echo "removed from $prefix"
}

main() {
    from=$url prefix=${NEXTN_PREFIX:-${HOME:+$HOME/.local}} remove=
    list=share/doc/nextn/FILES
    while [ $# -gt 0 ]; do
        case $1 in
            --from) [ $# -gt 1 ] || stop "--from wants a folder or an address"; from=${2%/}; shift 2 ;;
            --prefix) [ -n "${2:-}" ] || stop "--prefix wants a folder"; prefix=${2%/}; prefix=${prefix:-/}; shift 2 ;;
            --remove) remove=yes; shift ;;
            -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 0 ;;
            *) stop "$1 is no option: --from, --prefix, --remove" ;;
        esac
    done
    [ -n "$prefix" ] || stop "HOME is not set: say where with --prefix FOLDER"
    case $prefix in /*) ;; *) prefix=$(pwd)/$prefix ;; esac
    if [ -n "$remove" ]; then remove; return; fi
    case $from in '@'*) stop "this copy belongs to no release: say where the files are with --from FOLDER|URL" ;; esac

    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' INT TERM HUP
    fetch SHA256SUMS "$work/SHA256SUMS"
    target=$(machine)
    archive=$(sed -n "s/^[0-9a-f]*  \(nextn-[0-9][^/]*-$target\.tar\.gz\)\$/\1/p" "$work/SHA256SUMS")
    case $archive in
        '') stop "this release has no archive for $target" ;;
        *"
"*) stop "SHA256SUMS lists several archives for $target" ;;
    esac
    fetch "$archive" "$work/$archive"
    wanted=$(sed -n "s/^\([0-9a-f]\{64\}\)  $archive\$/\1/p" "$work/SHA256SUMS")
    found=$(sum "$work/$archive")
    [ "$found" = "${wanted:-none}" ] || stop "$archive is not what SHA256SUMS says: ${wanted:-none} expected, $found found"
    (cd "$work" && gzip -dc "$archive" | tar -xf -) || stop "$archive could not be unpacked"
    tree=$work/${archive%.tar.gz}
    # Runs before anything is replaced.
    "$tree/bin/nextn-cli" --version >"$work/version" 2>&1 || stop "the programs do not run here: $(cat "$work/version")"

    (cd "$tree" && find . -type f | sed 's|^\./||' | sort) >"$work/files"
    while IFS= read -r file; do
        mkdir -p "$prefix/$(dirname "$file")"
        cp -p "$tree/$file" "$prefix/$file.new$$"
        mv -f "$prefix/$file.new$$" "$prefix/$file"
    done <"$work/files"
    # What an earlier version had and this one has not goes.
    if [ -f "$prefix/$list" ]; then
        while IFS= read -r file; do
            grep -qxF -e "$file" "$work/files" || rm -f "$prefix/$file"
        done <"$prefix/$list"
    fi
    cp "$work/files" "$prefix/$list"
    head -n 1 "$work/version"
    echo "installed under $prefix; take it away with: sh install.sh --prefix '$prefix' --remove"
    case :$PATH: in
        *":$prefix/bin:"*) ;;
        *) echo "add $prefix/bin to PATH:  export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
}

main "$@"
