#!/usr/bin/env bash
# Makes what a release consists of, as far as this Linux machine can: archives, .deb, installers, formula, container files.
#   scripts/release.sh [PART..]      all parts if none is named, in this order:
#     programs     build them (profile `dist`, feature `portable`)
#     archive      programs, manual pages, completions, licences: nextn-VERSION-TARGET.tar.gz; of Windows programs and
#                  licences, a .zip
#     deb          a Debian package of the same, with the service
#     collect      SHA256SUMS of all archives and packages in the folder, installers, formula, container files
# OUT       where they go: target/dist if not set. `collect` takes up what other machines put there
# TARGET    x86_64-unknown-linux-gnu (this machine's if not set); aarch64-unknown-linux-gnu needs that target of Rust;
#           x86_64-pc-windows-gnu too, and mingw-w64 (g++-mingw-w64-x86-64-posix on Debian)
# GLIBC     the oldest glibc that the programs run with: 2.17 with cargo-zigbuild (pip install ziglang cargo-zigbuild), this
#           machine's without. What was asked for is checked in the programs' symbols
# URL       where the release will be: https://github.com/$GITHUB_REPOSITORY/releases/download/vVERSION if not set
# PROGRAMS  a folder of programs that were built elsewhere, for `archive` and `deb`
# SOURCE_DATE_EPOCH   the time in archives: the commit's if not set
set -euo pipefail
cd "$(dirname "$0")/.."

stop() { echo "release: $1" >&2; exit 1; }
programs=(nextn-cli nextn-server nextn-bench nextn-tune extract-nextn)
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
target=${TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
out=${OUT:-target/dist}
name=nextn-$version-$target
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
mkdir -p "$out"
out=$(cd "$out" && pwd)

case $target in
    *-linux-*) system=linux ;;
    *-apple-darwin) system=macos ;;
    *-windows-gnu) system=windows ;;
    *) stop "no releases for $target" ;;
esac
exe=
[ "$system" != windows ] || exe=.exe

zig() { cargo zigbuild --help >/dev/null 2>&1; }
if zig; then glibc=${GLIBC:-2.17}; else glibc=${GLIBC:-}; fi
built=${PROGRAMS:-${CARGO_TARGET_DIR:-target}/$target/dist}

build() {
    local arguments=(-p nextn -p nextn-tune --profile dist --locked --features nextn/portable --bins)
    if [ "$system" = windows ]; then
        . scripts/mingw.sh
        command -v "$CXX_x86_64_pc_windows_gnu" >/dev/null || stop "missing: $CXX_x86_64_pc_windows_gnu (g++-mingw-w64-x86-64-posix)"
        cargo build "${arguments[@]}" --target "$target"
    elif [ "$system" = linux ] && zig; then
        cargo zigbuild "${arguments[@]}" --target "$target.$glibc"
    elif [ "$system" != linux ]; then
        cargo build "${arguments[@]}" --target "$target"
    else
        echo "release: without cargo-zigbuild the programs need this machine's glibc and libstdc++ or newer" >&2
        cargo build "${arguments[@]}" --target "$target"
    fi
}

# The newest version of glibc whose symbols a program asks for.
floor() {
    objdump -T "$@" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | cut -d_ -f2
}

# What a Windows needs beside the programs: nothing but its own libraries.
libraries() {
    local foreign file
    for file in "$@"; do [ -f "$file" ] || stop "there is no $file"; done
    foreign=$("${OBJDUMP:-x86_64-w64-mingw32-objdump}" -p "$@" | sed -n 's/^\tDLL Name: //p' | sort -uf |
        grep -ivE '^(api-ms-win-.*|advapi32|bcrypt|bcryptprimitives|crypt32|dbghelp|gdi32|iphlpapi|kernel32|msvcrt|ntdll|ole32|oleaut32|powrprof|psapi|secur32|shell32|ucrtbase|user32|userenv|version|ws2_32)\.dll$') || return 0
    stop "the programs need libraries that no Windows has: $(tr '\n' ' ' <<<"$foreign")"
}

# The programs as they run here, for their manual pages and completions.
runner() {
    case $target in
        # A Mac calls its processor arm64.
        "$(uname -m | sed 's/^arm64$/aarch64/')"-*) ;;
        aarch64-*) echo qemu-aarch64-static -L /usr/aarch64-linux-gnu ;;
        *) stop "programs for $target do not run here" ;;
    esac
}

# $1: a prefix to fill.
fill() {
    local program run
    if [ "$system" = windows ]; then
        # Manual pages are none of Windows'; completions for PowerShell come from --completions powershell.
        mkdir -p "$1/bin" "$1/doc"
        for program in "${programs[@]}"; do install -m 755 "$built/$program.exe" "$1/bin/"; done
        install -m 644 LICENSE README.md CHANGELOG.md "$1/doc/"
        scripts/release/licences.py "$target" >"$1/doc/LICENCES-OF-OTHERS"
        return
    fi
    read -ra run <<<"$(runner)"
    mkdir -p "$1"/{bin,share/man/man1,share/bash-completion/completions,share/zsh/site-functions,share/fish/vendor_completions.d,share/doc/nextn}
    for program in "${programs[@]}"; do
        install -m 755 "$built/$program" "$1/bin/"
        ${run[@]+"${run[@]}"} "$1/bin/$program" --man | gzip -9n >"$1/share/man/man1/$program.1.gz"
        ${run[@]+"${run[@]}"} "$1/bin/$program" --completions bash >"$1/share/bash-completion/completions/$program"
        ${run[@]+"${run[@]}"} "$1/bin/$program" --completions zsh >"$1/share/zsh/site-functions/_$program"
        ${run[@]+"${run[@]}"} "$1/bin/$program" --completions fish >"$1/share/fish/vendor_completions.d/$program.fish"
    done
    install -m 644 LICENSE README.md CHANGELOG.md "$1/share/doc/nextn/"
    scripts/release/licences.py "$target" >"$1/share/doc/nextn/LICENCES-OF-OTHERS"
}

archive() {
    local needed file=$name.tar.gz with=
    local paths=("${programs[@]/#/$built/}")
    case $system in
        linux)
            needed=$(floor "${paths[@]}")
            if [ -n "$glibc" ] && [ "$(printf '%s\n' "$glibc" "$needed" | sort -V | tail -1)" != "$glibc" ]; then
                stop "the programs need glibc $needed, $glibc is to be enough"
            fi
            with=", glibc $needed or newer" ;;
        windows)
            file=$name.zip
            libraries "${paths[@]/%/$exe}" ;;
    esac
    fill "$work/$name"
    scripts/release/pack.py "$work/$name" "$out/$file" "$SOURCE_DATE_EPOCH"
    # Of Windows there is a .zip, which the package's metadata does not name.
    [ "$system" = windows ] || scripts/release/binstall.py "$out/$file"
    echo "release: $file, $(du -h "$out/$file" | cut -f1)$with"
}

deb() {
    local root=$work/deb cpu program
    case $target in x86_64-*) cpu=amd64 ;; aarch64-*) cpu=arm64 ;; *) stop "no Debian package for $target" ;; esac
    fill "$root/usr"
    gzip -9n <CHANGELOG.md >"$root/usr/share/doc/nextn/changelog.gz"
    rm "$root/usr/share/doc/nextn/"{CHANGELOG.md,LICENSE}
    gzip -9n "$root/usr/share/doc/nextn/LICENCES-OF-OTHERS"
    {
        echo 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/'
        printf '\nFiles: *\nCopyright: %s\nLicense: MIT\n' "$(sed -n 's/^Copyright (c) //p' LICENSE)"
        printf 'Comment: what others wrote of the programs stands in LICENCES-OF-OTHERS.gz\n\nLicense: MIT\n'
        sed -n '/^Permission/,$p' LICENSE | sed 's/^$/./; s/^/ /'
    } >"$root/usr/share/doc/nextn/copyright"
    mkdir -p "$root/usr/share/zsh/vendor-completions" "$root/usr/lib/systemd/system" "$root/etc/nextn" "$root/DEBIAN"
    mv "$root/usr/share/zsh/site-functions/"* "$root/usr/share/zsh/vendor-completions/"
    rmdir "$root/usr/share/zsh/site-functions"
    sed 's|/usr/local/bin|/usr/bin|' scripts/deploy/nextn-server.service >"$root/usr/lib/systemd/system/nextn-server.service"
    install -m 644 scripts/release/server.toml "$root/etc/nextn/"
    echo /etc/nextn/server.toml >"$root/DEBIAN/conffiles"
    cat >"$root/DEBIAN/control" <<END
Package: nextn
Version: $version
Architecture: $cpu
Maintainer: ${MAINTAINER:-the nextn authors <nextn@localhost>}
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= $(floor "${programs[@]/#/$built/}"))
Section: science
Priority: optional
Description: runs GGUF language models and drafts with their NextN layer
 A terminal chat, a server with the HTTP interfaces of OpenAI, Anthropic and
 llama.cpp, file tools and a bench, over ggml. A small model is part of the
 programs. The service nextn-server is installed and neither enabled nor
 started: its options are in /etc/nextn/server.toml.
END
    (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    find "$root" -type d -exec chmod 755 {} +
    find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zgzip --build "$root" "$out/nextn_${version}_$cpu.deb" >/dev/null
    echo "release: nextn_${version}_$cpu.deb, $(du -h "$out/nextn_${version}_$cpu.deb" | cut -f1)"
}

# $1: a template, $2: the file that it becomes.
template() {
    sed "s|@VERSION@|$version|g; s|@URL@|$url|g; s|@HOMEPAGE@|$homepage|g" "$1" >"$2"
}

collect() {
    local file triple sum
    homepage=https://github.com/${GITHUB_REPOSITORY:-nextn/nextn}
    url=${URL:-$homepage/releases/download/v$version}
    for file in install.sh install.ps1 Containerfile.cpu Containerfile.cuda; do
        template "scripts/release/$file" "$out/$file"
    done
    (cd "$out" && find . -maxdepth 1 \( -name "nextn-$version-*.tar.gz" -o -name "nextn-$version-*.zip" -o -name "nextn_${version}_*.deb" \) -printf '%P\n' |
        sort | xargs -r sha256sum >SHA256SUMS)
    [ -s "$out/SHA256SUMS" ] || stop "there are no archives in $out"
    # Blocks of machines without an archive are left out.
    template scripts/release/nextn.rb.in "$work/nextn.rb"
    while IFS= read -r line; do
        case $line in
            '#begin '*)
                triple=${line#'#begin '}
                sum=$(sed -n "s/  nextn-$version-$triple\.tar\.gz\$//p" "$out/SHA256SUMS") ;;
            '#end') triple='' ;;
            *) [ -z "${triple:-}" ] || [ -n "$sum" ] || continue
                printf '%s\n' "${line/@SUM@/${sum:-}}" ;;
        esac
    done <"$work/nextn.rb" >"$out/nextn.rb"
    # So that installers can be checked too.
    (cd "$out" && sha256sum install.sh install.ps1 nextn.rb Containerfile.cpu Containerfile.cuda >>SHA256SUMS)
    cat "$out/SHA256SUMS"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ $# -gt 0 ] || set -- programs archive deb collect
for part in "$@"; do
    case $part in
        programs) build ;;
        archive | deb | collect) "$part" ;;
        *) stop "$part is no part: programs, archive, deb, collect" ;;
    esac
done
