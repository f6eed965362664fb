"""Why lines of the product are not run by ``make test``: by module, or by function of a module.

A key is a file below ``src/sparkmirror``, or ``file:function`` (``file:Class.method``). What is
not in here has the reason that its source gives (`tests.covered.unreached`); what is here and is
run by tests is listed, too.
"""

from __future__ import annotations

__all__ = ["REASONS"]

_DEMO = "`make long` runs the whole demo (tests/kafka/tutorials/test_demo.py)"
_JAVAS_CLIENT = (
    "`make interop` compares it with Java's client (tests/kafka/java_peers/test_mirror_client.py)"
)
_EXECUTORS = "`make long` asks a Spark cluster's executors (tests/kafka/cli/test_doctor.py)"
_PLANNER = "`make long` kills the planner (tests/faults/test_exactly_once_run.py)"
_DRAINED_ALONE = "`make long` drains one flow of two (tests/kafka/mirrors/test_standby.py)"

REASONS: dict[str, str] = {
    "data/workers/prefork_client.py:owner": (
        "systems that do not tell who is at the other end of a local socket"
    ),
    "data/workers/prefork_client.py": (
        "starts without site-packages (`python -I -S`), so coverage.py is not there; "
        "tests/unit/data/workers/test_prefork_server.py shows what it does"
    ),
    "cli/verbs/demo.py": _DEMO,
    "demo/mirror.py": _DEMO,
    "demo/run.py": _DEMO,
    "demo/traffic.py": _DEMO,
    "demo/verify.py": _DEMO,
    "client.py": _JAVAS_CLIENT,
    "cli/verbs/offsets.py": _JAVAS_CLIENT,
    "doctor/executors.py": _EXECUTORS,
    "cli/verbs/doctor.py:_add_executors": _EXECUTORS,
    "data/spark/restarts.py": _PLANNER,
    "data/query.py:FlowRunner._ended": _PLANNER,
    "data/query.py:FlowRunner.end": _DRAINED_ALONE,
    "control/loop.py:ControlLoop.hand_over": _DRAINED_ALONE,
}
