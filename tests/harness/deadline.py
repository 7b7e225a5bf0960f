"""The one time limit of the tests' waits."""

# Seconds that anything may take, however busy the machine is. Only a test that fails waits for it.
DEADLINE = 900.0
