"""Load tests with locust: simulated clients, their checks, scenarios; the entry point is `loadtest/locustfile.py`."""
