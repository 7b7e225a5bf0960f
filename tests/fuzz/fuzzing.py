"""Owns: how a fuzz target is run. Options: `--seconds N` (0: until stopped), `--keep`, any of libFuzzer's.

A run begins with the seeds of the target and with the inputs in `corpus/TARGET.txt`, one in each line, as hexadecimal
digits. With `--keep` it ends with a new such file: the fewest inputs that reach all code which the run has reached.

Exit status 0: nothing was found. In a venv with atheris.
"""

import argparse
import shlex
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
        make_target: makes it; its imports of `tests.model` and `broker` guide the fuzzer.
        seeds: inputs to begin with.
        length: bytes of the longest input.
    """
    parser = argparse.ArgumentParser(description=describe)
    parser.add_argument("--seconds", type=int, default=60, help="how long to run; 0 means until stopped")
    parser.add_argument("--keep", action="store_true", help="write the corpus that the run ends with")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # of the process that is the fuzzer
    options, others = parser.parse_known_args()
    if options.folder is None:
        # The fuzzer ends its process without cleaning up, so it gets a separate process in a folder of ours.
        with tempfile.TemporaryDirectory() as folder:
            return run(Path(folder), options.seconds, others, keep=options.keep)

    import atheris  # here, so that this file can be read where atheris is not installed

    with atheris.instrument_imports(include=["tests.model", "broker"]):
        target = make_target()
    corpus = options.folder / "corpus"
    for number, seed in enumerate(seeds()):
        (corpus / f"{number:04}").write_bytes(seed)
    flags = [f"-max_total_time={options.seconds}", f"-max_len={length}", "-keep_seed=1", *others, str(corpus)]
    atheris.Setup([str(options.folder / "fuzzer"), *flags], target)
    atheris.Fuzz()
    return 0


def run(folder: Path, seconds: int, flags: list[str], *, keep: bool) -> int:
    """Run the fuzzer in a folder, with flags of libFuzzer; `keep`: then write its corpus. Returns its exit status."""
    kept = Path(__file__).with_name("corpus") / f"{Path(sys.argv[0]).stem.removeprefix('fuzz_')}.txt"
    corpus, fewest, fuzzer = folder / "corpus", folder / "fewest", folder / "fuzzer"
    corpus.mkdir()
    fewest.mkdir()
    for number, line in enumerate(kept.read_text().split() if kept.exists() else ()):
        (corpus / f"kept{number:05}").write_bytes(bytes.fromhex(line))
    # A program, since libFuzzer starts itself again to merge.
    command = shlex.join([sys.executable, sys.argv[0], "--folder", str(folder)])
    fuzzer.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    fuzzer.chmod(0o755)
    status = subprocess.run([fuzzer, "--seconds", str(seconds), *flags], check=False).returncode
    if status == 0 and keep:
        merge = [fuzzer, "--seconds", "0", "-keep_seed=0", "-merge=1", fewest]
        status = subprocess.run(merge, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
        lines = sorted((file.read_bytes().hex() for file in fewest.iterdir()), key=lambda line: (len(line), line))
        kept.parent.mkdir(exist_ok=True)
        kept.write_text("".join(f"{line}\n" for line in lines if line))
    return status
