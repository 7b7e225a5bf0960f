# Two commands do everything: `make run` and `make test`. The rest are their steps.
VENV ?= .venv
PYTHON ?= python3
# Extras of pyproject.toml that are installed: for clusters and `--workers`, and for tokens.
EXTRAS ?= auth,cluster
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
SOURCES := setup.py pyproject.toml constraints.txt $(shell find _speedups loadtest -name '*.p[yx][xd]')
# setuptools warns of what an editable installation may meet in general.
QUIET := PYTHONWARNINGS="ignore:Editable installation"
SECONDS ?= 600
# Modules that were translated to C for the installation need not be translated again for the tests of packages.
TRANSLATED := CYTHON_CACHE_DIR="$${FLOCKMQ_TEST_CACHE:-$(CURDIR)/build}/compiled/cython"
# Without it every process that tests start would compile all modules that it imports, and each worker all tests.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make run      build, install into $(VENV), start one node on localhost:1883, its web page on http://127.0.0.1:8080"
	@echo "              (FLOCKMQ_LISTEN=127.0.0.1:1884 make run: another port)"
	@echo "make install  build and install only; EXTRAS=$(EXTRAS) are the extras"
	@echo "make check    what each change must pass: ruff, mypy, unit and architecture tests (below two minutes)"
	@echo "make test     build, install what tests need, run every check and test (some 20 minutes on two cores)"
	@echo "make tidy     a report: what is too large, badly named or hard to read; it fails nothing"
	@echo "make bench    measure, beside other brokers where they can be had: one node (ONLY=single, about 11 minutes)"
	@echo "              and a cluster (ONLY=cluster, about 25), Spark on its log of messages (ONLY=analytics, 3),"
	@echo "              the cost of a message while connections, subscriptions and nodes grow (ONLY=growth, 10), and"
	@echo "              the cost of clients that all return to a cluster (ONLY=storm, 5)"
	@echo "make soak     the long forms: fuzzing, sanitizers, faults, memory; SECONDS=$(SECONDS) each; a record in deploy/docs/records"
	@echo "make release-check  tests of what is published that take too long for each change"
	@echo "make docs     the documentation as a site, in build/site"
	@echo "make dist     an sdist and a wheel in dist/"
	@echo "make clean    remove what was built"

install: $(VENV)/.installed-$(EXTRAS)

$(VENV)/.installed: $(SOURCES) | $(PY)
	@$(PIP) setuptools wheel cython
	@echo "building FlockMQ (one to five minutes the first time)"
	@$(QUIET) $(TRANSLATED) $(PIP) --no-build-isolation -e .
	@touch $@

$(PY):
	@deploy/system-packages.sh build
	$(PYTHON) -m venv $(VENV)

# On port 1883, with the web page on 8080; FLOCKMQ_LISTEN, FLOCKMQ_HTTP_LISTEN and the other variables of
# `flockmq sample-config` change what it does.
run: install
	@FLOCKMQ_HTTP_LISTEN="$${FLOCKMQ_HTTP_LISTEN-127.0.0.1:8080}" exec $(VENV)/bin/flockmq serve

# Extras by their requirements: to install '.[test]' would compile everything once more.
requirements = $(PY) -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
    print(*(line for name in "$(1)".split(",") for line in extras[name]), sep="\n")' >$(VENV)/requirements.txt

$(VENV)/.installed-%: $(VENV)/.installed pyproject.toml
	@$(call requirements,$*)
	@$(PIP) -r $(VENV)/requirements.txt
	@touch $@

# Modules of tests that are never imported stay uncompiled.
$(VENV)/.installed-test: $(VENV)/.installed pyproject.toml
	@deploy/system-packages.sh test
	@$(call requirements,test)
	@$(PIP) --no-compile -r $(VENV)/requirements.txt
	@touch $@

# Steps that run side by side print what they say when they have ended: `$(call beside,NAME,COMMAND)` starts one, `$(ended)`
# waits for all and fails if one has failed.
beside = ( { $(2); } >build/$(1).log 2>&1 || touch build/$(1).failed; echo "--- $(1)"; cat build/$(1).log ) &
ended = wait; test -z "$$(ls build/*.failed 2>/dev/null)"
begin = mkdir -p build; rm -f build/*.failed
PYTEST := $(PY) -m pytest -q

check: $(VENV)/.installed-test
	@$(begin); \
	$(call beside,ruff,$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .) \
	$(call beside,mypy,$(VENV)/bin/mypy) \
	$(call beside,tests,$(PYTEST) -n 2 --dist worksteal tests/unit tests/architecture) \
	$(ended)

# Groups of tests, the longest first, are in tests/schedule.py. Lint and fuzzers fill the time in which tests wait.
test: $(VENV)/.installed-test
	@$(begin); \
	$(call beside,ruff,$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .) \
	$(call beside,mypy,$(VENV)/bin/mypy) \
	$(call beside,fuzz,nice $(PY) tests/fuzz/fuzz_packets.py --seconds 10 && \
	    nice $(PY) tests/fuzz/fuzz_connection.py --seconds 20 && nice $(PY) tests/fuzz/fuzz_websocket.py --seconds 5 && \
	    nice $(PY) tests/fuzz/fuzz_nodes.py --seconds 5) \
	$(PYTEST) -n 5 --dist loadgroup --no-loadscope-reorder -m 'not soak and not release' || touch build/tests.failed; \
	$(ended)

tidy: | $(PY)
	@$(PY) tests/architecture/tidy.py

bench: $(VENV)/.installed-test
	@mkdir -p build
	$(if $(filter-out analytics growth storm,$(or $(ONLY),all)),$(PY) -m flockmq.loadtest.bench $(addprefix --only ,$(ONLY)) --output build/BENCHMARKS.md)
	$(if $(filter analytics,$(or $(ONLY),analytics)),$(PY) -m flockmq.loadtest.analytics --output build/BENCHMARKS-analytics.md)
	$(if $(filter growth,$(or $(ONLY),growth)),$(PY) -m flockmq.loadtest.growth --output build/BENCHMARKS-growth.md --plot build/growth.svg)
	$(if $(filter storm,$(or $(ONLY),storm)),$(PY) -m flockmq.loadtest.storm --output build/BENCHMARKS-storm.md)

soak: $(VENV)/.installed-test
	$(PY) tests/soak.py --seconds $(SECONDS)

release-check: $(VENV)/.installed-test
	@$(PYTEST) -m release

# REF is the branch or tag to which links to sources lead.
docs: $(VENV)/.installed-docs $(VENV)/.installed-$(EXTRAS)
	@$(PY) deploy/site/pages.py build/docs $(or $(REF),main)
	@$(VENV)/bin/zensical build --strict --config-file build/docs/zensical.toml
	@rm -rf build/site && mv build/docs/site build/site
	@echo "$(PY) -m http.server --directory build/site 8000 shows it"

dist: install
	@$(PIP) build
	$(PY) -m build --no-isolation

clean:
	rm -rf $(VENV) build dist *.egg-info
	find _speedups loadtest \( -name '*.so' -o -name '*.c' \) -delete

.DEFAULT_GOAL := help
.PHONY: help install run check test tidy bench soak release-check docs dist clean
