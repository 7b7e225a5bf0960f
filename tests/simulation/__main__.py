"""`python -m tests.simulation --seed N` or `--seeds A..B`: runs plans, and prints the story of one that fails."""

import os
import sys

from tests.simulation import clock

if __name__ == "__main__":
    if not clock.is_ready():  # the linker replaces clocks at the start of a process
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], clock.environment())
    from tests.simulation.command import main

    sys.exit(main())
