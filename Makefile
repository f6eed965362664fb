# The developer's manual. Each verb installs what it needs into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Whether this environment works: not where venv failed (Debian without python3-venv), nor after the
# system's Python has become another one. Then it is made again.
WORKS := $(BIN)/python -c 'import pip' 2>/dev/null
$(shell $(WORKS) || rm -f $(STAMP))
# Workers: by cores and memory (tests/conftest.py), or TEST_WORKERS=2. A file's tests share its
# clusters. The order of files is that of tests/conftest.py, and so is which worker gets them: by
# itself xdist begins the files of one long test last.
TEST_WORKERS ?= auto

.PHONY: audit demo test more lint bench bench-wan bench-transforms bench-control faults fuzz interop matrix long kerberos docs install prepare lock clean

demo: prepare
	$(BIN)/sparkmirror demo $(ARGS)

# Tests start hundreds of Python processes: without bytecode, which some machines forbid, each
# compiles what it imports.
test more long: export PYTHONDONTWRITEBYTECODE =
test: prepare
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	  --durations=40 --junitxml=artifacts/junit.xml $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Known faults of what is installed, and ruff's security rules. ARGS="--offline" asks nobody,
# ARGS="--online" fails where the registry's database cannot be asked.
audit: $(STAMP)
	$(BIN)/python -m tests.audit $(ARGS)

bench: prepare
	$(BIN)/python -m benchmarks.run $(ARGS)

# Two places with a round trip of 50 ms between them; ARGS="--round-trip-ms 100 --side source".
bench-wan: prepare
	$(BIN)/python -m benchmarks.wan $(ARGS)

# What transforms cost, beside a Python loop and the Java tools; some 25 minutes. ARGS="--only smts".
bench-transforms: prepare
	$(BIN)/python -m benchmarks.transforms $(ARGS)

# Flame graphs of the workers and the JVM of a mirror that catches up, of one with a trickle, and of
# one with 10,000 partitions; some six minutes. ARGS="--only tail".
.PHONY: profile
profile: prepare
	$(BIN)/python -m benchmarks.profiles $(ARGS)

# Groups that move over, and the control plane of a large cluster; about half an hour.
bench-control: prepare
	$(BIN)/python -m benchmarks.control.failover
	$(BIN)/python -m benchmarks.control.control_plane $(ARGS)
	$(BIN)/python -m benchmarks.control.control_plane --latency $(ARGS)
	$(BIN)/python -m benchmarks.control.control_traffic

faults: prepare
	$(BIN)/python -m tests.faults $(ARGS)
	$(BIN)/python -m tests.faults.partitions

docs: $(STAMP)
	$(BIN)/python -m sparkmirror.config.docs docs/settings.md
	$(BIN)/python -m sparkmirror.observe.metrics.catalog docs/metrics.md
	$(BIN)/python -m tests.module_page docs/modules.md

# What Java's own tools and classes take part in.
interop: prepare
	$(BIN)/python -m pytest -m "interop or not interop" tests/kafka/java_peers \
	  tests/kafka/control/test_checkpoints.py tests/kafka/control/test_topic_sync.py \
	  tests/kafka/mm1/test_mm1_group.py $(ARGS)

# A mirror through every listener and login, as source and as target; brokers' certificates that
# change; each permission taken away with every feature on; every example; whole runs on the newest
# Kafka. Some fifteen minutes.
matrix: prepare
	$(BIN)/python -m pytest -m "matrix or not matrix" tests/kafka/security/secure_runs.py \
	  tests/kafka/security/test_kerberos_mirrors.py tests/kafka/security/test_acls_every_feature.py \
	  tests/kafka/tutorials/test_examples.py \
	  tests/kafka/mirrors/test_newest_release_mirrors.py $(ARGS)

# What `make test` does once, with other faults, sides and settings.
more: prepare
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	  --durations=20 --junitxml=artifacts/junit-more.xml -m "more and not long" $(ARGS)

# Whole mirrors that are killed, moved, frozen and starved further than `make more` does it.
long: prepare
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	  -m long $(ARGS)

# Ten processor-minutes of hostile answers; FUZZ="--seconds 60 records" shortens it.
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz.run $(FUZZ)

.PHONY: mutants coverage test-all

# Small faults in the product, one at a time, and which test notices each; some ten minutes.
mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(ARGS)

# The lines of src that the tests run, in all processes; takes longer than `make test`.
coverage: prepare
	TEST_WORKERS="$(TEST_WORKERS)" $(BIN)/python -m tests.covered $(ARGS)

# Everything, for hours; one report in tests/results. ARGS="--continue", "--only fuzz", "--list".
test-all: prepare
	$(BIN)/python -m tests.complete $(ARGS)

# A KDC and gssapi for the Kerberos tests, where this machine lets us; else they are skipped.
kerberos: $(STAMP)
	tests/install-kdc $(BIN)

# Prometheus's own check of the alert rules, for the test that is skipped without it.
.PHONY: promtool
promtool: $(STAMP)
	tests/install-promtool $(BIN)

install: prepare

# Spark's class archive in .venv: every start of Spark takes some seconds less. It is made once for each
# version of Java and PySpark. Where it cannot be made, everything works without it.
prepare: $(STAMP)
	-@$(BIN)/sparkmirror prepare

# uv installs the locked versions several times faster than pip; it comes from PyPI itself. What is
# installed, and what builds it, has a hash in one of the three lock files. The lock names all that
# is needed, which the check proves. With dependencies uv would ask the index for each package again:
# where the index does not say how long its answers hold, as many mirrors of PyPI, that is another
# download of PySpark, which uv then builds anew though it has it, one process after another.
$(STAMP): requirements.lock requirements-build.lock requirements-uv.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "sparkmirror needs Python 3.11 or newer; $(PYTHON) is older. Set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 14))' || \
	  echo "warning: sparkmirror is not tested with a Python newer than 3.13; $(PYTHON) is. Set PYTHON=..."
	$(WORKS) || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes \
	  -r requirements-uv.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps \
	  --build-constraints requirements-build.lock -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps \
	  --build-constraints requirements-build.lock -e .
	$(BIN)/uv pip check --quiet --python $(BIN)/python
	@touch $(STAMP)

UV_VERSION := 0.13.8
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-header --no-annotate

# What pyproject.toml names in a list of one line, in $$named. Of nothing uv would make an empty lock.
NAMED = named=$$(sed -n 's/^$(1) = \["\(.*\)"\]$$/\1/p' pyproject.toml); \
  test -n "$$named" || { echo 'pyproject.toml has no line $(1) = ["..."]' >&2; exit 1; }

# requirements-run.lock is what a container needs: the same versions, without the developers' tools.
# hatchling builds sparkmirror (pyproject.toml names its version), setuptools PySpark and, with the
# Cython that it names, gssapi, which only the Kerberos tests need.
lock:
	$(COMPILE) --group dev --extra java --output-file requirements.lock pyproject.toml
	$(COMPILE) --extra java --constraint requirements.lock \
	  --output-file requirements-run.lock pyproject.toml
	@$(call NAMED,requires); printf '%s\n' "$$named" setuptools 'cython==3.3.0' | \
	  $(COMPILE) --output-file requirements-build.lock -
	echo uv==$(UV_VERSION) | $(COMPILE) --output-file requirements-uv.lock -
	@$(call NAMED,kerberos); printf '%s\n' "$$named" | \
	  $(COMPILE) --output-file requirements-kerberos.lock -

# What is published, in dist/, built twice and tried in an empty environment. KEY=... signs the
# checksums with that GnuPG key; UNSIGNED=1 leaves that out, for a trial.
.PHONY: release
release: $(STAMP)
	KEY="$(KEY)" UNSIGNED="$(UNSIGNED)" .ci/release $(BIN)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis artifacts
