# SPDX-License-Identifier: Apache-2.0
"""A budget's statement as CSV: its columns and lines, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from slicekeeper.units import Instant, format_instant
from slicekeeper.wire.timekeeper import StatementChild, StatementTotal
from timekeeper.store.statements import Charged

_COLUMNS: Final = ("line", "subject", "name", "correction", "count", "amountMs", "overBudgetMs", "balanceMs")


def csv_lines(
    name: str,
    span: tuple[Instant, Instant],
    opening: int,
    totals: Sequence[StatementTotal],
    rows: Iterable[Charged | StatementChild],
) -> Iterator[str]:
    """Yield the lines of the statement of the budget `name`; `rows` are its pods, or the budgets below it."""
    closing = opening + sum(total.balance_ms for total in totals)
    yield _line(*_COLUMNS)
    yield _line("opening", format_instant(span[0]), name, "", "", "", "", opening)
    for kind in totals:
        cells = (kind.kind, "", str(kind.correction).lower(), kind.count, kind.amount_ms, "", kind.balance_ms)
        yield _line("total", *cells)
    yield _line("closing", format_instant(span[1]), name, "", "", "", "", closing)
    for row in rows:
        if isinstance(row, StatementChild):
            yield _line(row.kind, row.name, "", "", "", row.charged_ms, row.over_budget_ms, "")
        else:
            yield _line("workload", row.pod_uid, row.pod_name, "", "", row.charged, row.over_budget, "")


def _line(*cells: object) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue()
