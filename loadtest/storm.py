"""`python -m flockmq.loadtest.storm`: see loadtest/compare/storm.py."""

import sys

from .compare.storm import main

if __name__ == "__main__":
    sys.exit(main())
