"""Load tests with locust: simulated clients, what they check, scenarios; `loadtest/locustfile.py` is the entrance."""
