"""`python -m flockmq.loadtest.bench`: see loadtest/compare/benchmark.py."""

import sys

from .compare.benchmark import main

if __name__ == "__main__":
    sys.exit(main())
