"""Owns: how a fuzz target is run. Options: `--seconds N` (0: until stopped), `--corpus DIRECTORY`, any of libFuzzer's.

Exit status 0: nothing was found. In a venv with atheris.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
Target = Callable[[bytes], None]


def fuzz(describe: str, make_target: Callable[[], Target], seeds: Callable[[], Iterable[bytes]], length: int) -> int:
    """Run a target.

    Args:
        describe: one sentence.
        make_target: makes it; what it imports of `tests.model` and `broker` guides the fuzzer.
        seeds: inputs to begin with.
        length: bytes of the longest input.
    """
    parser = argparse.ArgumentParser(description=describe)
    parser.add_argument("--seconds", type=int, default=60, help="how long to run; 0 means until stopped")
    parser.add_argument("--corpus", type=Path, help="directory to keep inputs in; without it they are thrown away")
    options, others = parser.parse_known_args()
    if options.corpus is None:
        # The fuzzer ends its process without cleaning up, so a process of its own runs in a directory of ours.
        with tempfile.TemporaryDirectory() as directory:
            return subprocess.run([sys.executable, *sys.argv, "--corpus", directory], check=False).returncode

    import atheris  # here, so that this file can be read where atheris is not installed

    with atheris.instrument_imports(include=["tests.model", "broker"]):
        target = make_target()
    options.corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()):
        (options.corpus / f"{number:04}").write_bytes(seed)
    flags = [f"-max_total_time={options.seconds}", f"-max_len={length}", "-keep_seed=1", *others, str(options.corpus)]
    atheris.Setup([sys.argv[0], *flags], target)
    atheris.Fuzz()
    return 0
