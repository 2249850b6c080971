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
.PHONY: help run test check bench browser
.DELETE_ON_ERROR:

help:
	@echo 'make run     everything up at http://$(HOST):$(PORT), with a shop whose jobs really fail (HOST=, PORT=)'
	@echo 'make test    the checks and all tests, as CI runs them (ARGS= goes to pytest)'
	@echo 'make check   format, lint, types, import contracts, templates, migrations'
	@echo 'make bench   the benchmarks, each against its peer in the same run'

run: $(VENV)/installed
	@$(BIN)/python manage.py up --host $(HOST) --port $(PORT) --demo --first-login

test: check browser
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/djlint templates --lint --quiet
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

# The browser of the tests. Playwright's own download is not used: Debian's Chromium is patched by Debian.
browser:
	@if command -v chromium >/dev/null 2>&1; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo 'Installing Chromium for the browser tests'; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; } \
			>.chromium-install.log 2>&1 || { cat .chromium-install.log; rm -f .chromium-install.log; exit 1; }; \
		rm -f .chromium-install.log; \
	else \
		echo 'The browser tests need the command chromium. Install it (Debian: sudo apt install chromium).'; exit 1; \
	fi
