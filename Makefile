# run, test, check and bench work from a fresh clone, each without another command before it.

VENV := .venv
BIN := $(VENV)/bin
HOST ?= 127.0.0.1
PORT ?= 8000
# Arguments for pytest: make test ARGS='-k replay'
ARGS ?=
# The first Python of these that is new enough makes the virtual environment.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet

.DEFAULT_GOAL := help
.PHONY: help run test check bench servers
.DELETE_ON_ERROR:

help:
	@echo 'make run     everything up at http://$(HOST):$(PORT), with a shop whose jobs really fail (HOST=, PORT=)'
	@echo 'make test    the checks and all tests, as CI runs them (ARGS= goes to pytest)'
	@echo 'make check   format, lint, types, import contracts, templates, migrations'
	@echo 'make bench   the benchmarks, each against its peer in the same run'

run: $(VENV)/installed
	@$(BIN)/python manage.py up --host $(HOST) --port $(PORT) --demo --first-login

# Four at a time on two cores: half of the time they wait for servers. A file stays in one process, with its
# servers; tests/conftest.py says which files go first.
test: check servers $(VENV)/compiled
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/djlint templates jobs/templates --lint --quiet
	$(BIN)/python manage.py makemigrations --check --dry-run
	$(BIN)/python manage.py check --fail-level WARNING

bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks $(ARGS)

# The virtual environment. A stamp file is newer than what was installed, so this runs when a pin changes.
$(BIN)/python:
	@if [ -z '$(PYTHON)' ]; then \
		echo 'No Python 3.11 or newer was found. Install one (Debian: apt install python3 python3-venv),'; \
		echo 'or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11'; exit 1; fi
	@echo 'Creating $(VENV) with $(PYTHON)'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo 'The virtual environment could not be made. On Debian: apt install python3-venv'; exit 1; }

$(VENV)/installed: requirements.txt | $(BIN)/python
	@echo 'Installing requirements.txt'
	@$(PIP) install -r requirements.txt
	@touch $@

$(VENV)/installed-dev: requirements-dev.txt requirements.txt | $(BIN)/python
	@echo 'Installing requirements-dev.txt'
	@$(PIP) install -r requirements-dev.txt
	@touch $(VENV)/installed $@

# The four processes of the tests begin together, and in a fresh clone each would compile all of them: once is
# 20 s of a processor less. What cannot be collected is not told here but by the tests.
$(VENV)/compiled: $(VENV)/installed-dev
	@$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true
	@touch $@

# The programs of the tests that no wheel ships. Playwright's own download is not used: Debian's Chromium is
# patched by Debian; the one without windows takes a quarter less time. RUNLEVEL=1 keeps the package of the broker
# from starting one.
servers:
	@missing=; \
	command -v chromium-headless-shell >/dev/null 2>&1 || missing="$$missing chromium-headless-shell"; \
	[ -x /usr/sbin/rabbitmq-server ] || missing="$$missing rabbitmq-server"; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "Installing$$missing for the tests"; log=$$(mktemp); \
		{ apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
			apt-get install -qq -y --no-install-recommends $$missing; } >"$$log" 2>&1 \
			|| { cat "$$log"; rm -f "$$log"; exit 1; }; \
		rm -f "$$log"; \
	else \
		echo "The tests need$$missing. Install it (Debian: sudo apt install$$missing)."; exit 1; \
	fi
