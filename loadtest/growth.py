"""`python -m flockmq.loadtest.growth`: see loadtest/compare/growth.py."""

import sys

from .compare.growth import main

if __name__ == "__main__":
    sys.exit(main())
