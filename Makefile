# Everything a fresh machine needs besides Python >= 3.11 and make is installed by `make install`,
# which the other targets call by themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: install run test lint format lock clean
install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jaxrefine needs Python >= 3.11, this is " + sys.version.split()[0] + "; name another with make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint requirements.lock --editable '.[test]'
	touch $@

run: install  ## the main job; make run ARGS="task=car_racing method=zero_shot"
	$(BIN)/python -m jaxrefine.main $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest --numprocesses auto --dist loadscope $(ARGS)

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:  ## pin anew what pyproject.toml asks for (needs uv)
	uv pip compile --universal --python-version 3.11 --extra test --extra bench --no-header --no-annotate --quiet pyproject.toml --output-file requirements.lock

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
