"""Owns: the fuzz target of the codec. `python tests/fuzz/fuzz_packets.py --seconds 60`, in a venv with atheris.

Every input is decoded at levels 3, 4 and 5 and fed to a Decoder in pieces; only documented errors may escape. The plain
model decodes it too and has to agree: its Python branches are also what guides the fuzzer, which cannot see into C.
With `FLOCKMQ_SANITIZE=address` in the build, a read beyond the bytes ends the run as well.

Options: `--seconds N` (0: until stopped), `--corpus DIRECTORY`, any option of libFuzzer. Exit status 0: nothing found.
"""

import argparse
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make_target() -> Callable[[bytes], None]:
    """The function under fuzz. Imports happen here, so that they can be instrumented."""
    packets = importlib.import_module("_speedups.packets")
    model = importlib.import_module("tests.model.codec")

    def as_model(packet: object) -> dict[str, object]:
        fields: tuple[str, ...] = packet.fields  # type: ignore[attr-defined]
        return {"type": type(packet).__name__} | {name: getattr(packet, name) for name in fields}

    def check_decode(data: bytes, level: int) -> None:
        try:
            expected = model.decode(data, level)
        except model.Refused:
            expected = None
        try:
            packet = packets.decode(data, level)
        except packets.MalformedPacket as error:
            assert expected is None, (data, level, error.reason)
            return
        assert as_model(packet) == expected, (data, level)
        level = getattr(packet, "protocol_level", level)
        assert packets.decode(packets.encode(packet, level), level) == packet, (data, level)

    def feed(data: bytes, level: int, size: int) -> tuple[list[object], str | None]:
        """The packets of a stream cut into pieces of `size` bytes, and the error that ended it."""
        decoder = packets.Decoder(level, 100_000)
        found: list[object] = []
        for n in range(0, len(data), size):
            try:
                found += decoder.feed(data[n : n + size])
            except packets.MalformedPacket as error:
                return found + list(error.packets), error.reason
        return found, None

    def target(data: bytes) -> None:
        for level in (3, 4, 5):
            check_decode(data, level)
            # A length that holds lets changes of the body get past the fixed header.
            if 2 < len(data) < 130:
                check_decode(data[:1] + bytes([len(data) - 2]) + data[2:], level)
            whole = feed(data, level, len(data) + 1)
            for size in (1, 3, 16):
                assert feed(data, level, size) == whole, (data, level, size)

    return target


def write_seeds(directory: Path) -> None:
    cases = importlib.import_module("tests.cases.packets")
    for number, case in enumerate(cases.CASES):
        (directory / f"{number:04}").write_bytes(case.data)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the packet codec.")
    parser.add_argument("--seconds", type=int, default=60, help="how long to run; 0 means until stopped")
    parser.add_argument("--corpus", type=Path, help="directory to keep inputs in; without it they are thrown away")
    options, others = parser.parse_known_args()
    if options.corpus is None:
        # The fuzzer ends its process without cleaning up, so a process of its own runs in a directory of ours.
        with tempfile.TemporaryDirectory() as directory:
            return subprocess.run([sys.executable, *sys.argv, "--corpus", directory], check=False).returncode
    sys.path.insert(0, str(ROOT))

    import atheris  # here, so that this file can be read where atheris is not installed

    with atheris.instrument_imports(include=["tests.model"]):
        target = make_target()
    options.corpus.mkdir(parents=True, exist_ok=True)
    write_seeds(options.corpus)
    atheris.Setup(
        [sys.argv[0], f"-max_total_time={options.seconds}", "-max_len=512", *others, str(options.corpus)], target
    )
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
