"""Fixtures that every folder may ask for. Brokers start on first use, so unit tests start none."""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
import sys
import types
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from sparkmirror.testing.clusters import KafkaCluster, start_all
from tests.descriptors import many_descriptors as holding_many
from tests.kafka.clusters.quiet import QUIET_BROKER

# On a busy machine a single example may take any time.
settings.register_profile("busy", deadline=None)
settings.load_profile("busy")

# The files that take longest (a minute and more on a busy machine), longest first, behind those
# that share clusters (below). Workers take whole files in this order, so that none of these is
# begun when all others are done.
_LONGEST = (
    "test_dealing.py",
    "test_modes.py",
    "test_standby.py",
    "test_topic_names.py",
    "test_transforms.py",
    "test_throttle.py",
    "test_exactly_once_run.py",
    "test_at_least_once_run.py",
    "test_kerberos_mirrors.py",
    "test_spark_cluster.py",
    "test_registry.py",
    "test_batch_kinds.py",
    "test_routing.py",
    "test_record_handlers.py",
    "test_mm1_once.py",
    "test_mm1_records.py",
    "test_demo.py",
    "test_moving_a_cluster.py",
    "test_metrics.py",
    "test_compatibility.py",
    "test_clusters.py",
    "test_newest_release.py",
    "test_newest_release_mirrors.py",
    "test_mm1_group.py",
    "test_takeover.py",
    "test_pressure.py",
    "test_quick_check.py",
    "test_spark_network.py",
    "test_kerberos.py",
    "test_tutorials.py",
    "test_checkpoints.py",
    "test_topologies.py",
    "test_emit_settings.py",
    "test_old_mm1_files.py",
    "test_doctor.py",
    "test_gaps.py",
)
_SHORTEST = ("property", "unit")
_SHARED_BY = "tests/kafka"  # the folder whose conftest.py has the clusters that its files share
# The folder whose files share one Spark, which one worker runs.
_ONE_SPARK = "tests/unit/data/transform"
_TESTS = Path(__file__).parent
# Files whose tests share clusters beside the pair, which one worker runs one behind the other. In
# other workers the same clusters would start again, and an idle broker takes two hundredths of a
# core, one of six half as much again. They start with the first test that asks for them, and end
# with the last: of a group's first file these tests are the last, and of its last file the first.
_TOGETHER = {
    "a guard": (
        "test_control.py",
        "test_bad_records.py",
        "test_exactly_once_refused.py",
        "test_bad_input.py",
    ),
    "six brokers": (
        "test_broker_faults.py",
        "test_requests.py",
        "test_stalls.py",
        "test_long_links.py",
        "test_target_loss.py",
    ),
    "logins": (
        "test_secure_mirror.py",
        "test_security.py",
        "test_bad_security.py",
        "secure_runs.py",
        "test_mirror_client.py",
        "test_examples.py",
    ),
    "six brokers too": (
        "test_source_loss.py",
        "test_exactly_once.py",
        "test_missing_markers.py",
        "test_lost_capacity.py",
        "test_shared_brokers.py",
    ),
    "permissions": (
        "test_acls.py",
        "test_acl_lock.py",
        "test_acls_every_feature.py",
        "test_topic_sync.py",
    ),
}
_SHARING = ("faulty_clusters", "authorized", "secured_clusters", "guarded")
"""The fixtures that are these clusters."""

# A worker has a pair of brokers, often six more, and a JVM of Spark's.
_WORKER_BYTES = 5 << 30
_WORKERS_MAX = 6
_WITHOUT_BROKERS = pytest.StashKey[str]()
"""The id of the worker that runs tests without brokers only, if there is one."""
# It is for the moments in which the others wait: who waits for a broker shall not wait for it, too.
_NICE = 5


def pytest_configure(config: pytest.Config) -> None:
    """Commands that the tests start are ended with Ctrl+C, which a script's jobs in the background
    ignore, and all that they start with them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if getattr(config, "workerinput", {}).get("without_brokers"):
        os.nice(_NICE)
    # Libraries in C take what is left at the interpreter's end for lost, and say so. It is the last
    # thing that is done: pytest searches for garbage a few times before.
    config.add_cleanup(gc.unfreeze)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a worker which tests it will get."""
    of_it = node.config.stash.get(_WITHOUT_BROKERS, "")
    node.workerinput["without_brokers"] = node.gateway.id == of_it


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As ``--dist loadfile``, but files that share clusters of their own, or Spark, count as one.

    One worker takes files without brokers alone, from the end of the list, but those that share
    Spark before all others: they take minutes, and nobody could help with them in the end. The
    other workers take what is first, and help it with what it leaves.
    """
    from xdist.scheduler import LoadFileScheduling

    class ByBrokers(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            if not _needs_brokers(file):
                return _ONE_SPARK if Path(file).is_relative_to(_ONE_SPARK) else file
            name = Path(file).name
            return next((group for group, files in _TOGETHER.items() if name in files), file)

        def _assign_work_unit(self, node: Any) -> None:
            if node.gateway.id == config.stash.get(_WITHOUT_BROKERS, ""):
                long = _ONE_SPARK in self.workqueue
                last = _ONE_SPARK if long else next(reversed(self.workqueue))
                if _needs_brokers(last):
                    node.shutdown()
                    return
                self.workqueue.move_to_end(last, last=False)  # whence a file is taken
            super()._assign_work_unit(node)

    return ByBrokers(config, log) if config.getoption("dist") == "loadfile" else None


def _needs_brokers(scope: str) -> bool:
    """Whether a file, or files that count as one, may start brokers."""
    return not {*Path(scope).parts} & {*_SHORTEST}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """With brokers one more than cores: tests wait as much as they compute. Fewer where memory is
    short. One worker beside these has tests without brokers.
    """
    by_memory = psutil.virtual_memory().available // _WORKER_BYTES
    with_brokers = max(1, min((os.cpu_count() or 1) + 1, by_memory, _WORKERS_MAX))
    if with_brokers == 1:
        return 1
    config.stash[_WITHOUT_BROKERS] = f"gw{with_brokers}"
    return with_brokers + 1


SHARED = pytest.StashKey[tuple[KafkaCluster, KafkaCluster]]()
"""The two clusters that files share, once one of them has asked for them."""

LAST_ON = pytest.StashKey[dict[str, str]]()
"""The last test on the clusters that are a fixture of this name, for each of `_SHARING`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """In a new clone each worker compiles its share of all tests, and finds the others' after that.

    Pytest's own order is the same for all of them: each would compile every file, at the same time.
    """
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is None or [Path(config.rootpath, one) for one in config.args] != [_TESTS]:
        return
    gc.disable()  # nothing of what is collected goes away
    number = int(worker["workerid"].removeprefix("gw"))
    for path in sorted(_TESTS.rglob("test_*.py"))[number :: worker["workercount"]]:
        name = ".".join(path.relative_to(_TESTS.parent).with_suffix("").parts)
        # What is wrong with a file, or skips it, is told when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def pytest_collection_finish() -> None:
    """Ten thousand tests are millions of objects, and each search for garbage visits all.

    Many tests make one, to see that nothing is left of what they used. From here on it leaves out
    what is there now.
    """
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)  # when those that do not run are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first, those without any broker last; ``make test`` keeps that order.

    Files that share clusters beside the pair are the first of all, one behind the other. So are,
    among those without brokers, the ones that share Spark.
    """
    users = {name: [item for item in items if _uses(item, name)] for name in _SHARING}
    sharing = {*chain(*users.values())}
    together = list(chain(*_TOGETHER.values()))
    unknown = {item.path.name for item in sharing} - {*together}
    assert not unknown, f"{unknown} ask for one of {_SHARING} and are not in _TOGETHER"
    rank = {name: number for number, name in enumerate(_LONGEST)}
    first = {files[0] for files in _TOGETHER.values()}
    last = {files[-1] for files in _TOGETHER.values()}

    @cache  # paths are slow, and there are some thirty tests to a file
    def place_of(path: Path) -> tuple[int, bool | None]:
        """Its number, and whether its tests that share clusters are its last (None: in between)."""
        if path.is_relative_to(_TESTS.parent / _ONE_SPARK):
            return len(rank) + 1, None
        if path.relative_to(_TESTS).parts[0] in _SHORTEST:
            return len(rank) + 2, None
        if path.name in together:
            late = True if path.name in first else False if path.name in last else None
            return together.index(path.name) - len(together), late
        return rank.get(path.name, len(rank)), None

    def place(item: pytest.Item) -> tuple[int, bool]:
        number, late = place_of(item.path)
        return number, late is not None and (item in sharing) is late

    items.sort(key=place)  # stable: among the others, and mostly within a file, nothing changes
    numbers = {item: number for number, item in enumerate(items)}
    config.stash[LAST_ON] = {
        name: max(found, key=numbers.__getitem__).nodeid for name, found in users.items() if found
    }


def _uses(item: pytest.Item, fixture: str) -> bool:
    """Whether a test runs on the shared clusters that are this fixture."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.get(fixture, ()) if info is not None else ()
    # A file that has a fixture of this name itself means clusters of its own.
    return bool(definitions) and definitions[-1].baseid == _SHARED_BY


def _product() -> dict[tuple[str, str], int]:
    """Every class, function and module that a module of the product has a name for."""
    return {
        (module.__name__, name): id(value)
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").split(".")[0] == "sparkmirror"
        for name, value in list(vars(module).items())
        if isinstance(value, type | types.FunctionType | types.ModuleType)
    }


_LEFT = pytest.StashKey[dict[tuple[str, str], int]]()
"""The product as the file before has left it: no fixture for more than one file patches it."""


@pytest.fixture(scope="module", autouse=True)
def product_unchanged(pytestconfig: pytest.Config) -> Iterator[None]:
    """Fails a file that leaves a patch of its own in the product, for whatever runs after it."""
    before = pytestconfig.stash.get(_LEFT, None) or _product()
    yield
    after = pytestconfig.stash[_LEFT] = _product()
    patched = [".".join(name) for name, value in before.items() if after.get(name, value) != value]
    assert not patched, f"left patched: {', '.join(patched)}"


@pytest.fixture(scope="session")
def cluster_pair(
    pytestconfig: pytest.Config,
) -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """Two one-node clusters, A and B, started side by side once per session."""
    pair = KafkaCluster("A", config=QUIET_BROKER), KafkaCluster("B", config=QUIET_BROKER)
    start_all(*pair)
    pytestconfig.stash[SHARED] = pair
    try:
        yield pair
    finally:
        del pytestconfig.stash[SHARED]
        for cluster in pair:
            cluster.stop()


@pytest.fixture(scope="session")
def cluster_a(cluster_pair: tuple[KafkaCluster, KafkaCluster]) -> KafkaCluster:
    """The source cluster of most tests; shared, so leave its broker up."""
    return cluster_pair[0]


@pytest.fixture(scope="session")
def cluster_b(cluster_pair: tuple[KafkaCluster, KafkaCluster]) -> KafkaCluster:
    """The target cluster of most tests; shared, so leave its broker up."""
    return cluster_pair[1]


@pytest.fixture
def new_cluster() -> Iterator[Callable[..., KafkaCluster]]:
    """Starts a cluster for this test alone: ``new_cluster("C", nodes=3, config={...})``."""
    with ExitStack() as stack:

        def start(name: str, **options: Any) -> KafkaCluster:
            return stack.enter_context(KafkaCluster(name, **options))

        yield start


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses."""
    test = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:80]
    return f"{test}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """All that the test opens is beyond what ``select.select`` takes; see `tests.descriptors`."""
    with holding_many():
        yield
