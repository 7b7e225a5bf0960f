"""`python -m flockmq.loadtest.analytics`: see loadtest/compare/spark.py."""

import sys

from .compare.spark import main

if __name__ == "__main__":
    sys.exit(main())
