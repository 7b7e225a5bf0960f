#!/bin/sh
# Installs the wheel for this Python from a directory, without a compiler, starts a node and delivers a message.
#
#   serve-wheel.sh DIRECTORY CONSTRAINTS
set -eu
wheels=$1
constraints=$2

for compiler in cc gcc clang; do
    if command -v $compiler; then
        echo "a compiler is installed: this run would prove nothing" >&2
        exit 1
    fi
done
place=$(mktemp -d)
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --no-index --no-deps --find-links "$wheels" flockmq
"$place/venv/bin/pip" install --quiet --only-binary :all: -c "$constraints" flockmq  # its dependencies
PATH=$place/venv/bin:$PATH
cd "$place"
python -c 'import flockmq._speedups.net.tls, flockmq.loadtest.generator.generator'  # the modules that are linked to OpenSSL

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
