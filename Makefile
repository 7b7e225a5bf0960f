# Two commands do everything: `make run` and `make test`. The rest are their steps.
VENV ?= .venv
PYTHON ?= python3
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := setup.py pyproject.toml constraints.txt $(shell find _speedups loadtest -name '*.p[yx][xd]')
# setuptools warns of what an editable installation may meet in general.
QUIET := PYTHONWARNINGS="ignore:Editable installation"
SECONDS ?= 600

help:
	@echo "make run      build, install into $(VENV), start one node on 127.0.0.1:1883, its web page on http://127.0.0.1:8080"
	@echo "make test     build, install what tests need, run every check and test (about 25 minutes)"
	@echo "make bench    measure, beside other brokers where they can be had: one node (ONLY=single, about 8 minutes)"
	@echo "              and a cluster (ONLY=cluster, about 25), and Spark on its log of messages (ONLY=analytics, 3)"
	@echo "make soak     the long forms: fuzzing, sanitizer, faults, memory; SECONDS=$(SECONDS) each"
	@echo "make dist     an sdist and a wheel in dist/"
	@echo "make clean    remove what was built"

install: $(VENV)/.installed

$(VENV)/.installed: $(SOURCES) | $(PY)
	@$(PIP) setuptools wheel cython
	@echo "building FlockMQ (a minute the first time)"
	@$(QUIET) $(PIP) --no-build-isolation -e .
	@touch $@

$(PY):
	@deploy/system-packages.sh build
	$(PYTHON) -m venv $(VENV)

# On port 1883, with the web page on 8080; FLOCKMQ_LISTEN, FLOCKMQ_HTTP_LISTEN and the other variables of
# `flockmq sample-config` change what it does.
run: install
	@FLOCKMQ_HTTP_LISTEN="$${FLOCKMQ_HTTP_LISTEN-127.0.0.1:8080}" exec $(VENV)/bin/flockmq serve

$(VENV)/.installed-test: $(VENV)/.installed
	@deploy/system-packages.sh test
	@$(QUIET) $(PIP) --no-build-isolation -e '.[test]'
	@touch $@

test: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -n 4 --dist worksteal -m 'not soak'
	$(PY) tests/fuzz/fuzz_packets.py --seconds 10
	$(PY) tests/fuzz/fuzz_connection.py --seconds 20
	$(PY) tests/fuzz/fuzz_websocket.py --seconds 5

bench: $(VENV)/.installed-test
	@mkdir -p build
	$(if $(filter-out analytics,$(or $(ONLY),all)),$(PY) -m loadtest.bench $(addprefix --only ,$(ONLY)) --output build/BENCHMARKS.md)
	$(if $(filter analytics,$(or $(ONLY),analytics)),$(PY) -m loadtest.analytics --output build/BENCHMARKS-analytics.md)

soak: $(VENV)/.installed-test
	$(PY) tests/fuzz/fuzz_packets.py --seconds $(SECONDS)
	$(PY) tests/fuzz/fuzz_connection.py --seconds $(SECONDS)
	$(PY) tests/fuzz/fuzz_websocket.py --seconds $(SECONDS)
	tests/sanitize.sh
	FLOCKMQ_TEST_SECONDS=$(SECONDS) $(PY) -m pytest -m soak

dist: install
	@$(PIP) build
	$(PY) -m build --no-isolation

clean:
	rm -rf $(VENV) build dist *.egg-info
	find _speedups loadtest \( -name '*.so' -o -name '*.c' \) -delete

.DEFAULT_GOAL := help
.PHONY: help install run test bench soak dist clean
