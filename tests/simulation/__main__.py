"""`python -m tests.simulation --seed N` or `--seeds A..B`: runs plans, and prints the story of one that fails."""

import sys

from tests.simulation.command import main

if __name__ == "__main__":
    sys.exit(main())
