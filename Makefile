# Needs python3 (3.10 or later, with venv) and make; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
# The stamp is named after what pyproject.toml says, so an unchanged one installs nothing again.
CONTENT := $(shell cksum < pyproject.toml | cut -d ' ' -f 1)
INSTALLED := .venv/installed-$(CONTENT)
INSTALLED_DEV := .venv/installed-dev-$(CONTENT)

.PHONY: demo test lint clean

# One to four minutes with the install.
demo: $(INSTALLED)
	$(BIN)/mlx-amort train --preset demo

# What is marked slow, .ci/run runs beside it; PYTEST=... adds options or names tests.
test: $(INSTALLED_DEV)
	$(BIN)/python -m pytest -q -n auto --dist worksteal --durations=20 -m "not slow" $(PYTEST)

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "error: $(PYTHON) is older than 3.10; name a newer one: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv .venv \
	  || { rm -rf .venv; echo "error: $(PYTHON) cannot make a venv; on Debian: apt-get install python3-venv" >&2; exit 2; }

$(INSTALLED): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(INSTALLED_DEV): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(INSTALLED)
