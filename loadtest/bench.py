"""`python -m loadtest.bench`: see loadtest/compare/benchmark.py."""

import sys

from loadtest.compare.benchmark import main

if __name__ == "__main__":
    sys.exit(main())
