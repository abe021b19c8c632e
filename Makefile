# Every target sets up what it needs: `make demo` the package alone, the others the tools and the
# peers too. Both are quick once they are there.

PYTHON ?= python3
RUN := .venv/bin/python -m
CORE := .venv/.vitrail-core
DEV := .venv/.vitrail-installed
EXTRAS := [dev,hub,fast,mobile,serve,telemetry,docs]

# Tests start many processes: without cached bytecode each would compile torch and the peers again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-all test-docs faults check bench docs site release clean

setup: $(DEV)

# A stamp is removed first and written last, so an install that broke off is done again. It holds
# the directory it was made for: a copied tree brings a .venv that still points at the original.
ifneq ($(shell cat $(CORE) 2>/dev/null),$(CURDIR))
.PHONY: $(CORE)
endif
ifneq ($(shell cat $(DEV) 2>/dev/null),$(CURDIR))
.PHONY: $(DEV)
endif

# $(call install,extras,a further command): PIP_CONSTRAINT hands the pins to the isolated build too, which -c does not
# reach. Without --no-compile pip spends half a minute on bytecode that Python writes when needed.
define install
	@rm -f $@
	@$(RUN) pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	@echo "installing into .venv: some minutes the first time"
	PIP_CONSTRAINT=constraints.txt $(RUN) pip install --quiet --no-compile -c constraints.txt -e '.$(1)'
	$(2)
	@printf '%s' '$(CURDIR)' > $@
endef

$(CORE): pyproject.toml constraints.txt
	$(call install,)

$(DEV): pyproject.toml constraints.txt litert.txt
	$(call install,$(EXTRAS),$(RUN) pip install --quiet --no-compile --no-deps -r litert.txt)
	@printf '%s' '$(CURDIR)' > $(CORE)

demo: $(if $(filter $(CURDIR),$(shell cat $(DEV) 2>/dev/null)),$(DEV),$(CORE))
	.venv/bin/vitrail demo --overwrite

# One thread for each of two workers: more would fight over the cores. A worker takes whole files
# until the other has none left, so that what a file's tests share is made once. Tests write
# thousands of files, each synced to disk: they go to memory where it has 4 GB to spare.
MEMORY := $(shell df -k --output=avail /dev/shm 2>/dev/null | awk 'NR == 2 && $$1 > 4e6 {print "/dev/shm"}')
ALONE := $(if $(MEMORY),TMPDIR=$(MEMORY)) OMP_NUM_THREADS=1 $(RUN) pytest
PYTEST := $(ALONE) -n 2 --dist worksteal
# Tests that need a process of their own run beside the others; what they printed comes last.
OWN := build/alone.txt
OWN_FILES = $(shell grep -rl --include='*.py' 'pytest.mark.alone' tests)

# $(call beside,options for those that run alone,options for the others)
define beside
	@mkdir -p $(dir $(OWN))
	@$(ALONE) $(1) $(OWN_FILES) >$(OWN) 2>&1 & own=$$!; \
	$(PYTEST) $(2); others=$$?; \
	wait $$own; status=$$?; cat $(OWN); exit $$((others | status))
endef

test: setup
	$(call beside,-m 'alone and not slow',)

# Everything: also the slow tests that `make test` leaves out.
test-all: setup
	$(call beside,-m alone,-m 'not alone and not faults' --hypothesis-profile thorough)

# Every command and code block of the documentation, the scripts and the notebooks are executed.
test-docs: setup
	$(PYTEST) -m 'slow or not slow' tests/docs

# Processes are killed, disks fill up, machines leave: prints how often, and what was lost.
# About 6 minutes of processor time without the two tests of torchrun's agents; not timed as a whole.
faults: setup
	$(ALONE) -m 'faults or not faults' tests/faults

check: setup
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy
	$(RUN) pytest tests/architecture

# Prints ratios measured side by side; docs/benchmarks.md keeps what they printed.
bench: setup
	@set -e; for script in $(wildcard benchmarks/*.py); do $(RUN) benchmarks.$$(basename $$script .py); done

# The examples in the docstrings are the reference; `make test` runs them too.
docs: setup
	$(RUN) pytest src

# The documentation site, in site/; a link or a reference that leads nowhere is an error.
site: setup
	$(RUN) tools.site build/docs
	.venv/bin/zensical build --clean --strict
	$(RUN) tools.site --finish site

# Wheel and sdist in dist/, checked; the wheel is installed apart from everything and tried.
release: setup
	rm -rf dist
	PIP_CONSTRAINT=constraints.txt $(RUN) build --outdir dist
	$(RUN) twine check --strict dist/*
	$(RUN) tools.release dist

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache build dist site
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
