"""The jobs of one flow, and how often each has a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from sparkmirror.control.flow import FlowControl
from sparkmirror.control.jobs import Job, run_once
from sparkmirror.control.report.gaps import LOOK_PAUSE_S

_REPORT_INTERVAL_S = 10.0
_HISTORY_INTERVAL_S = 1.0
_THROTTLE_INTERVAL_S = 1.0
_TABLES_INTERVAL_S = 0.5
_DEAL_INTERVAL_S = 10.0


def flow_jobs(flow: FlowControl, *, once: bool) -> list[Job]:
    """The jobs of a flow that this process owns, except the topics job.

    ``once``: it is copied up to frozen end offsets.
    """
    name, own, over = flow.name, flow.ownership, flow.over.is_set

    def mine(job: Callable[[], object]) -> Callable[[], None]:
        return partial(flow.as_owner, job)

    jobs = [
        Job(f"ends-{name}", partial(run_once, flow.source_ends), flow.source_ends.pause_s),
        Job(
            f"progress-{name}",
            partial(run_once, flow.slots),
            after_failure=flow.slots.forget_reader,
        ),
        Job(f"gaps-{name}", flow.slots.gaps.step, lambda: LOOK_PAUSE_S),
        Job(f"orders-{name}", flow.orders.poll, after_failure=flow.forget_orders),
    ]
    if flow.share is not None:
        jobs.append(Job(f"group-{name}", flow.share.step))
    report_interval_s = _REPORT_INTERVAL_S
    if own is not None:
        jobs.append(Job(f"claims-{name}", own.watch, lambda: own.check_interval_s))
        report_interval_s = min(report_interval_s, own.report_interval_s)
    jobs += [
        Job(f"report-{name}", mine(flow.reports.write), lambda: report_interval_s),
        Job(f"history-{name}", mine(flow.history.flush), lambda: _HISTORY_INTERVAL_S),
        Job(f"throttle-{name}", mine(flow.throttling.step), lambda: _THROTTLE_INTERVAL_S),
        Job(f"deal-{name}", mine(flow.dealing.step), lambda: _DEAL_INTERVAL_S),
    ]
    if not once:
        jobs.append(Job(f"moves-{name}", mine(flow.moving.step), wait=flow.moving.wait))
        jobs.append(Job(f"renewal-{name}", flow.renewal.step, lambda: _REPORT_INTERVAL_S))
    if flow.routed.used:
        jobs.append(Job(f"routed-{name}", mine(flow.routed.step), wait=flow.routed.wait))
    if any(one.tables for one in flow.settings.transforms):
        jobs.append(Job(f"tables-{name}", flow.tables.step, lambda: _TABLES_INTERVAL_S))
    if flow.groups is not None and not once:
        groups = flow.groups
        jobs += [
            Job(f"groups-{name}", mine(groups.tick), lambda: groups.pause_s),
            Job(f"group-lags-{name}", groups.lags.step),
        ]
    jobs += [replace(job, once=mine(job.once), single=once, timed=True) for job in flow.syncs()]
    return [replace(job, over=over) for job in jobs]
