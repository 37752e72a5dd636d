# SPDX-License-Identifier: Apache-2.0
"""Accept sidecars' usage reports."""

from __future__ import annotations

from flask import Response

from slicekeeper.wire.timekeeper import ReportAnswer, ReportBatch
from timekeeper.api import answers, parse
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.problems import Problem
from timekeeper.api.usage_reporter import may_leave, reporter
from timekeeper.ledger.usage_report import take

MOST_AT_ONCE = 1_000


def taken(context: HandlerContext) -> Response:
    """Accept one pod's reports."""
    caller = reporter(context)
    given = parse.body(ReportBatch)
    if len(given.reports) > MOST_AT_ONCE:
        raise Problem(422, "batch-too-large", f"send at most {MOST_AT_ONCE} reports at once", "reports")
    outcomes = take(context.books.database, caller, given.reports, context.clock.now_ms())
    uids = {caller.pod_uid} if caller.pod_uid else {report.pod_uid for report in given.reports}
    return answers.json(ReportAnswer(outcomes=outcomes, terminate=may_leave(context, uids)))
