#!/bin/sh
# Builds the compiled modules with AddressSanitizer in a directory of its own, and runs the unit and protocol tests on them.
set -eu
cd "$(dirname "$0")/.."
python=$(pwd)/.venv/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$work"
cd "$work"
FLOCKMQ_SANITIZE=address "$python" setup.py --quiet build_ext --inplace
# Python itself is not instrumented: its allocator is told to use malloc, and what it leaks at exit is not ours.
# Tests of memory are left out: freed memory stays in quarantine for a while.
LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 PYTHONMALLOC=malloc \
    "$python" -m pytest -q -n 2 -m 'not soak' -k 'not memory and not slow_reader' tests/unit tests/protocol tests/storage
