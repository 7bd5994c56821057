# `make book` builds the course into _build/html, `make test` runs every check.
# Both need only Python 3.11 or newer and make: they set up .venv themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BOOK := _build/.book
JOBS ?= 2
CHAPTER ?=

# Kept bytecode halves the time that each notebook's kernel needs to start.
unexport PYTHONDONTWRITEBYTECODE

SOURCES := $(shell find nbs book transformer_course tools -type f -not -path '*/.*' -not -name '*.pyc') _toc.yml settings.ini CONTRIBUTING.md

.PHONY: help book serve test lab run export clean-nbs parity bench translators measurements lock clean distclean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: try make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(BOOK): $(READY) $(SOURCES)
	$(BIN)/python tools/export.py
	$(BIN)/python tools/build_book.py
	$(BIN)/python tools/check_links.py _build/html
	@touch $@

book: $(BOOK)  ## build the book (from the stored outputs; warnings are errors)
	@echo "The book: file://$(CURDIR)/_build/html/index.html"

serve: book  ## build the book and open it in a browser
	$(BIN)/python tools/serve.py _build/html

test: $(READY) $(if $(CHAPTER),,$(BOOK))  ## run every test, or one chapter's: make test CHAPTER=04
	$(BIN)/python -m pytest -n $(JOBS) $(if $(CHAPTER),$$($(BIN)/python tools/chapters.py --tests $(CHAPTER)),--bare)

lab: $(READY)  ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab nbs

run: $(READY)  ## re-run notebooks and store their outputs: make run, make run CHAPTER=04
	$(BIN)/python tools/export.py
	$(BIN)/python tools/run_notebooks.py $$($(BIN)/python tools/chapters.py $(CHAPTER))

export: $(READY)  ## write the package from the notebooks
	$(BIN)/python tools/export.py

clean-nbs: $(READY)  ## strip notebooks of metadata that does not belong in them
	$(BIN)/nbdev_clean

parity: $(READY)  ## run the comparisons with reference libraries and store what they saw
	$(BIN)/python -m pytest tests -m "not browser and not bench and not slow" -n 0 --record-parity

bench: $(READY)  ## check the speed bounds (let nothing else run)
	$(BIN)/python -m pytest tests -m bench -n 0 -s

translators: $(READY)  ## train again what chapter 28 compares (an hour on two cores)
	$(BIN)/python tools/train_translators.py

measurements: $(READY)  ## train again what the chapters of parts 6 to 8 compare (an hour and a half on one core)
	for script in tools/measure_*.py; do OMP_NUM_THREADS=1 $(BIN)/python $$script || exit 1; done

lock:  ## pin the newest releases; a local build of torch (+cpu) is named by its release
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install -q pip-tools==7.6.2
	.venv-lock/bin/pip-compile -q --upgrade --strip-extras --allow-unsafe --no-emit-options --no-header --annotation-style=line -o requirements.txt requirements.in
	sed -i 's/^\(torch==[0-9.]*\)+[a-z0-9]*/\1/' requirements.txt
	rm -rf .venv-lock

clean:  ## delete what was built, keep the environment
	rm -rf _build build dist *.egg-info .pytest_cache .hypothesis .benchmarks

distclean: clean  ## delete the environment too
	rm -rf $(VENV) .venv-lock
