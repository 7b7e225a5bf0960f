#!/bin/sh
# Builds the compiled modules with AddressSanitizer and UndefinedBehaviorSanitizer in a separate folder, and runs the
# unit, storage, cluster and protocol tests on them; or the tests that its arguments name, with more options of pytest.
set -eu
[ $# -gt 0 ] || set -- tests/unit tests/storage tests/cluster tests/protocol
cd "$(dirname "$0")/.."
python=$(pwd)/.venv/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z | xargs -0 cp --parents -t "$work"
cd "$work"
FLOCKMQ_SANITIZE=address,undefined "$python" setup.py --quiet build_ext --inplace
# Python itself is not instrumented: it uses malloc in place of its allocator, and its leaks at exit are not ours.
# Findings end their process. A node's report is in its log, where the tests' harness looks for it; reports of the
# tests' own processes are in the output, since pytest does not take over file descriptor 2.
# Tests of memory are left out: freed memory stays in quarantine for a while, and all of it has a margin.
LD_PRELOAD=$(gcc -print-file-name=libasan.so) PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 \
    UBSAN_OPTIONS=print_stacktrace=1:abort_on_error=1 \
    "$python" -m pytest -q --capture=sys -n 2 -m 'not soak' -k 'not memory and not footprint and not slow_reader' "$@"
