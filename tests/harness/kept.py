"""Where tests keep results that cost minutes and seldom change: base images, packages, compiled files.

FLOCKMQ_TEST_CACHE names a directory that several checkouts share; else it is `build`, until `make clean`.
"""

import os
from pathlib import Path

from tests.harness.broker_process import ROOT

KEPT = Path(os.environ.get("FLOCKMQ_TEST_CACHE") or ROOT / "build")
