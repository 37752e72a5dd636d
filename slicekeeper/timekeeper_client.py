# SPDX-License-Identifier: Apache-2.0
"""The timekeeper's REST interface as the webhook, the sidecars and the command line use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec

from slicekeeper.errors import Unavailable
from slicekeeper.http import JsonClient, path
from slicekeeper.settings import TimekeeperClientSettings
from slicekeeper.wire.timekeeper import (
    Budget,
    BudgetList,
    DecisionList,
    ReportAnswer,
    UsageReport,
    Workload,
    WorkloadList,
)

T = TypeVar("T", bound=msgspec.Struct)


class TimekeeperClient:
    """Speaks to one timekeeper. Errors are `slicekeeper.errors.ServiceError`s."""

    def __init__(self, settings: TimekeeperClientSettings) -> None:
        self._http = JsonClient(
            settings.url,
            ca_file=settings.ca_file,
            token_file=settings.token_file,
            timeout=settings.timeout_seconds,
        )

    def decisions(self, etag: str = "") -> tuple[DecisionList | None, str]:
        """Return all namespaces' decisions and their ETag; None where nothing changed since `etag`."""
        headers = {"If-None-Match": etag} if etag else {}
        status, got, data = self._http.request("GET", "/api/v1/decisions", headers=headers)
        if status == 304:
            return None, etag
        return _decode(data, DecisionList), got.get("ETag", "")

    def report(self, reports: list[UsageReport]) -> ReportAnswer:
        """Send one pod's reports; safe to repeat."""
        _, _, data = self._http.request("POST", "/api/v1/reports", body={"reports": reports})
        return _decode(data, ReportAnswer)

    def budgets(self) -> Iterator[Budget]:
        """Yield every budget, page by page."""
        cursor: str | None = ""
        while cursor is not None:
            page = self._page("/api/v1/budgets", BudgetList, {"cursor": cursor} if cursor else {})
            yield from page.items
            cursor = page.next_cursor

    def budget(self, namespace: str) -> Budget:
        """Return one namespace's budget; one never seen has its policy's default."""
        return self._page(path("api", "v1", "budgets", namespace), Budget, {})

    def set_budget(self, namespace: str, amount_ms: int, period: str, time_zone: str) -> Budget:
        """Give a namespace a budget of its own."""
        body = {"amountMs": amount_ms, "period": period, "timeZone": time_zone}
        _, _, data = self._http.request("PUT", path("api", "v1", "budgets", namespace), body=body)
        return _decode(data, Budget)

    def grant(self, namespace: str, amount_ms: int, reason: str, idempotency_key: str) -> Budget:
        """Book a grant; repeating it with the same key books nothing more."""
        _, _, data = self._http.request(
            "POST",
            path("api", "v1", "budgets", namespace, "grants"),
            body={"amountMs": amount_ms, "reason": reason},
            headers={"Idempotency-Key": idempotency_key},
        )
        return _decode(data, Budget)

    def workloads(self, namespace: str = "") -> Iterator[Workload]:
        """Yield every pod that the ledger knows, newest first."""
        cursor: str | None = ""
        while cursor is not None:
            query = {k: v for k, v in (("namespace", namespace), ("cursor", cursor)) if v}
            page = self._page("/api/v1/workloads", WorkloadList, query)
            yield from page.items
            cursor = page.next_cursor

    def _page(self, url: str, kind: type[T], query: Mapping[str, str]) -> T:
        _, _, data = self._http.request("GET", url, query=query)
        return _decode(data, kind)


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"timekeeper: the answer is not a {kind.__name__}: {error}") from error
