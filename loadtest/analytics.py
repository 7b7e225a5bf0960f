"""`python -m loadtest.analytics`: see loadtest/compare/spark.py."""

import sys

from loadtest.compare.spark import main

if __name__ == "__main__":
    sys.exit(main())
