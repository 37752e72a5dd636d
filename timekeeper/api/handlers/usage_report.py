# SPDX-License-Identifier: Apache-2.0
"""Accept sidecars' usage reports."""

from __future__ import annotations

from flask import Response

from slicekeeper.wire.timekeeper import ReportAnswer, ReportBatch
from timekeeper.api import requests
from timekeeper.api.problems import Problem
from timekeeper.api.service import Service
from timekeeper.api.usage_reporter import may_leave, reporter
from timekeeper.ledger.usage_report import take

MOST_AT_ONCE = 1_000


def taken(service: Service) -> Response:
    """Accept one pod's reports."""
    caller = reporter(service)
    given = requests.body(ReportBatch)
    if len(given.reports) > MOST_AT_ONCE:
        raise Problem(422, "batch-too-large", f"send at most {MOST_AT_ONCE} reports at once", "reports")
    outcomes = take(service.books.database, caller, given.reports, service.clock.now_ms())
    uids = {caller.pod_uid} if caller.pod_uid else {report.pod_uid for report in given.reports}
    return requests.answer(ReportAnswer(outcomes=outcomes, terminate=may_leave(service, uids)))
