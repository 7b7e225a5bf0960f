#!/bin/sh
# Installs the wheel of this Python from a directory, where nothing can be compiled, and serves with it.
#
#   serve-wheel.sh DIRECTORY CONSTRAINTS
set -eu
wheels=$1
constraints=$2

if command -v cc gcc clang; then
    echo "there is a compiler here: this proves nothing" >&2
    exit 1
fi
place=$(mktemp -d)
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --no-index --no-deps --find-links "$wheels" flockmq
"$place/venv/bin/pip" install --quiet --only-binary :all: -c "$constraints" flockmq  # what it depends on
PATH=$place/venv/bin:$PATH
cd "$place"
python -c 'import _speedups.net.tls, loadtest.generator.generator'  # the modules that are linked to OpenSSL

flockmq serve --listen 127.0.0.1:1883 2>log &
node=$!
trap 'kill $node 2>/dev/null || true' EXIT
tries=0
until grep -q 'is ready' log; do
    tries=$((tries + 1))
    if [ $tries -gt 100 ]; then
        cat log >&2
        exit 1
    fi
    sleep 0.1
done
flockmq pub -t a/b -m hello -q 1 -r
[ "$(flockmq sub -t 'a/#' -v -C 1)" = "a/b hello" ]
echo "installed and served"
