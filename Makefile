# Two commands do everything: `make run` and `make test`. The rest are their steps.
VENV ?= .venv
PY := $(VENV)/bin/python
SOURCES := setup.py pyproject.toml constraints.txt $(wildcard _speedups/*.pyx _speedups/*.pxd loadtest/*.pyx loadtest/*.pxd)

.DEFAULT_GOAL := help

help:
	@echo "make run    build, install into $(VENV), start one node on 127.0.0.1:1883"
	@echo "make test   build, install what tests need, run every check and test"
	@echo "make bench  measure, beside Mosquitto if it is installed"
	@echo "make soak   the long forms: fuzzing, sanitizers, faults, memory"
	@echo "make clean  remove what was built"

install: $(VENV)/.installed
$(VENV)/.installed: $(SOURCES) | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools wheel cython
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e .
	@touch $@

$(PY):
	@deploy/system-packages.sh build
	python3 -m venv $(VENV)

run: install
	$(VENV)/bin/flockmq serve

clean:
	rm -rf $(VENV) build dist *.egg-info _speedups/*.so _speedups/*.c loadtest/*.so loadtest/*.c loadtest/bin

.PHONY: help install run clean
