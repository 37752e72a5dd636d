# SPDX-License-Identifier: Apache-2.0
"""The timekeeper's REST interface as the webhook, the sidecars and the command line use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from slicekeeper import names, typed_json
from slicekeeper.config.settings import TimekeeperClientSettings
from slicekeeper.errors import NotFound, SettingsError, Unavailable
from slicekeeper.net.json_client import JsonClient, path
from slicekeeper.wire.timekeeper import (
    Budget,
    ChildList,
    Decision,
    DecisionList,
    Grant,
    IntervalCorrection,
    Parent,
    ReportAnswer,
    Reservation,
    Statement,
    UsageReport,
    Workload,
)

T = TypeVar("T")
B = TypeVar("B", Budget, Parent)

_WHOSE: dict[type[msgspec.Struct], str] = {Budget: "budgets", Parent: "parents"}


class TimekeeperClient:
    """A client of one timekeeper. Errors are `slicekeeper.errors.ServiceError`s."""

    def __init__(self, settings: TimekeeperClientSettings, by_api_server: JsonClient | None = None) -> None:
        """Use the server in the settings, or a cluster's API server, which offers the same routes."""
        self._root = "/api/v1" if by_api_server is None else f"/apis/{names.API}"
        if by_api_server is not None:
            self._http: JsonClient | _ByApiServer = _ByApiServer(by_api_server)
            return
        if not settings.url:
            raise SettingsError("timekeeperClient.url is empty: name the timekeeper, for example http://127.0.0.1:8444")
        self._http = JsonClient(
            settings.url, ca_file=settings.ca_file, token_file=settings.token_file, timeout=settings.timeout_seconds
        )

    def decisions(self, etag: str = "") -> tuple[DecisionList | None, str]:
        """Return all namespaces' decisions and their ETag; None if nothing changed since `etag`."""
        headers = {"If-None-Match": etag} if etag else {}
        status, got, data = self._http.request("GET", self._at("decisions"), headers=headers)
        if status == 304:
            return None, etag
        return _decode(data, DecisionList), got.get("ETag", "")

    def report(self, reports: list[UsageReport]) -> ReportAnswer:
        """Send one pod's reports; safe to repeat."""
        return self._call("POST", self._at("reports"), ReportAnswer, {"reports": reports})

    def budgets(self, kind: type[B]) -> Iterator[B]:
        """Yield every namespace's budget, or every team and organisation, page by page."""
        return self._items(self._at(_WHOSE[kind]), kind)

    def budget(self, kind: type[B], name: str, uid: str = "") -> B:
        """Return one budget; a namespace never seen has its policy's default.

        `uid` selects one of several namespaces that have had the name.
        """
        return self._call("GET", self._at(_WHOSE[kind], name), kind, query=_which(uid))

    # Each change is made once per key. Without a key it is made again whenever it is sent.

    def set_budget(self, kind: type[B], name: str, rule: Mapping[str, object], reason: str = "set", key: str = "") -> B:
        """Set a namespace's own budget, or create a team; `rule` is the body of the request."""
        return self._call("PUT", self._at(_WHOSE[kind], name), kind, {**rule, "reason": reason}, key=key)

    def change_budget(
        self, kind: type[B], name: str, rule: Mapping[str, object], reason: str = "set", key: str = ""
    ) -> B:
        """Change the fields of a budget that `rule` has; a namespace then has its own budget."""
        return self._call("PATCH", self._at(_WHOSE[kind], name), kind, {**rule, "reason": reason}, key=key)

    def unset_budget(self, namespace: str, reason: str, key: str = "") -> Budget:
        """Return a namespace to its policy's budget."""
        return self._call("DELETE", self._at("budgets", namespace), Budget, query={"reason": reason}, key=key)

    def grant(self, kind: type[B], name: str, amount_ms: int, reason: str, idempotency_key: str) -> B:
        """Book a grant from now on; repeating it with the same key books nothing more."""
        return self.move_time(kind, name, "grants", {"amountMs": amount_ms, "reason": reason}, idempotency_key)

    def book_grant(self, kind: type[B], name: str, body: Mapping[str, object], idempotency_key: str) -> tuple[B, int]:
        """Book a grant as `body` says, once per key; return the budget and the grant's ID."""
        url, headers = self._at(_WHOSE[kind], name, "grants"), {"Idempotency-Key": idempotency_key}
        _, got, data = self._http.request("POST", url, body=body, headers=headers)
        return _decode(data, kind), int(got.get("Location", "").rpartition("/")[2] or 0)

    def grants(self, kind: type[B], name: str, uid: str = "") -> Iterator[Grant]:
        """Yield a budget's grants, newest first. `uid` is as for `budget`."""
        return self._items(self._at(_WHOSE[kind], name, "grants"), Grant, _which(uid))

    def withdraw(self, kind: type[B], name: str, number: int, reason: str, uid: str = "", key: str = "") -> Grant:
        """Withdraw a grant that has not begun; a repetition changes nothing. `uid` is as for `budget`."""
        url = self._at(_WHOSE[kind], name, "grants", str(number))
        return self._call("DELETE", url, Grant, query={"reason": reason, **_which(uid)}, key=key)

    def put_under(self, kind: type[B], name: str, parent: str | None, reason: str, key: str = "") -> B:
        """Put a namespace or a team under a team or an organisation, or under none."""
        body = {"parent": parent, "reason": reason}
        return self._call("PUT", self._at(_WHOSE[kind], name, "parent"), kind, body, key=key)

    def put_object(self, kind: type[B], name: str, desired: Mapping[str, object]) -> B:
        """Report an object of the cluster that defines a budget; a known generation changes nothing."""
        return self._call("PUT", self._at(_WHOSE[kind], name, "object"), kind, desired)

    def delete_object(self, kind: type[B], name: str, uid: str) -> None:
        """Report that the object which defined a budget was deleted; a repetition changes nothing."""
        self._http.request("DELETE", self._at(_WHOSE[kind], name, "object"), query={"object": uid})

    def children(self, name: str) -> ChildList:
        """Return what is directly under a team or an organisation."""
        return self._call("GET", self._at("parents", name, "children"), ChildList)

    def reservations(self, namespace: str) -> Iterator[Reservation]:
        """Yield a namespace's reservations, newest first."""
        return self._items(self._at("budgets", namespace, "reservations"), Reservation)

    def reservation(self, namespace: str, key: int) -> Reservation:
        """Return one reservation."""
        return self._call("GET", self._at("budgets", namespace, "reservations", str(key)), Reservation)

    def open_reservation(
        self, namespace: str, amount_ms: int, expires_at: str, reason: str, idempotency_key: str
    ) -> Reservation:
        """Set GPU time aside until an instant, once per key."""
        body = {"amountMs": amount_ms, "expiresAt": expires_at, "reason": reason}
        url = self._at("budgets", namespace, "reservations")
        return self._call("POST", url, Reservation, body, key=idempotency_key)

    def cancel_reservation(self, namespace: str, number: int, reason: str, key: str = "") -> Reservation:
        """Release a reservation that was opened by hand."""
        url = self._at("budgets", namespace, "reservations", str(number))
        return self._call("DELETE", url, Reservation, query={"reason": reason}, key=key)

    def move_time(
        self, kind: type[B], name: str, movement: str, body: Mapping[str, object], idempotency_key: str, uid: str = ""
    ) -> B:
        """Book a grant, a refund, an adjustment or a transfer, once per key; `body` is that of the route `movement`.

        `uid`, for a refund or an adjustment, is as for `budget`.
        """
        url = self._at(_WHOSE[kind], name, movement)
        return self._call("POST", url, kind, body, key=idempotency_key, query=_which(uid))

    def corrections(self, name: str, uid: str = "") -> Iterator[IntervalCorrection]:
        """Yield a namespace's corrected intervals, newest first. `uid` is as for `budget`."""
        return self._items(self._at("budgets", name, "intervals"), IntervalCorrection, _which(uid))

    def set_status(self, kind: type[B], name: str, status: str, reason: str, key: str = "") -> B:
        """Suspend, close or reactivate a budget."""
        body = {"status": status, "reason": reason}
        return self._call("PUT", self._at(_WHOSE[kind], name, "status"), kind, body, key=key)

    def statement(self, kind: type[B], name: str, interval: Mapping[str, str]) -> Iterator[Statement]:
        """Yield the pages of a statement; the first has the sums. `interval` has `from` and `to`, or neither."""
        return self._pages(self._at(_WHOSE[kind], name, "statement"), Statement, interval)

    def statement_csv(self, kind: type[B], name: str, interval: Mapping[str, str]) -> str:
        """Return a whole statement as CSV."""
        url = self._at(_WHOSE[kind], name, "statement")
        _, _, data = self._http.request("GET", url, query={**interval, "format": "csv"})
        return data.decode()

    def decision(self, namespace: str) -> Decision:
        """Return what a namespace may do now."""
        return self._call("GET", self._at("decisions", namespace), Decision)

    def records(self, *parts: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the items of a list (`entries`, `audit`…) as decoded JSON, page by page."""
        return self._items(self._at(*parts), dict[str, Any], {**(query or {}), "limit": "500"})

    def set_rate(self, model: str, rate: str, reason: str, effective_at: str | None, key: str = "") -> dict[str, Any]:
        """Set a GPU model's rate, from now on or from an instant on."""
        body = {"model": model, "rate": rate, "reason": reason, "effectiveAt": effective_at}
        return self._call("POST", self._at("rates"), dict[str, Any], body, key=key)

    def seal(self, name: str, until: str, reason: str, uid: str = "") -> None:
        """Seal a namespace's periods up to an instant. `uid` is as for `budget`."""
        body = {"until": until, "reason": reason}
        self._http.request("PUT", self._at("budgets", name, "seal"), body=body, query=_which(uid))

    def workloads(self, namespace: str = "", uid: str = "", state: str = "all") -> Iterator[Workload]:
        """Yield the pods that the ledger knows, newest first: all, or those that are `running` or `closed`.

        Those of one namespace if it is named.
        """
        query = {key: value for key, value in (("namespace", namespace), ("uid", uid)) if value}
        query |= {"state": state} if state != "all" else {}
        return self._items(self._at("workloads"), Workload, query)

    def _at(self, *parts: str) -> str:
        return self._root + path(*parts)

    def _items(self, url: str, kind: type[T], query: Mapping[str, str] | None = None) -> Iterator[T]:
        of_kind: Any = Page
        for page in self._pages(url, of_kind[kind], query):
            yield from page.items

    def _pages(self, url: str, kind: type[P], query: Mapping[str, str] | None = None) -> Iterator[P]:
        cursor: str | None = ""
        while cursor is not None:
            page = self._call("GET", url, kind, query={**(query or {}), **({"cursor": cursor} if cursor else {})})
            yield page
            cursor = page.next_cursor

    def _call(
        self,
        method: str,
        url: str,
        kind: type[T],
        body: Mapping[str, object] | None = None,
        *,
        key: str = "",
        query: Mapping[str, str] | None = None,
    ) -> T:
        headers = {"Idempotency-Key": key} if key else {}
        _, _, data = self._http.request(method, url, body=body, headers=headers, query=query)
        return _decode(data, kind)


class Page(msgspec.Struct, Generic[T], frozen=True, rename="camel"):
    """A page of a list, whatever it lists."""

    items: list[T]
    next_cursor: str | None = None


P = TypeVar("P", Statement, Page[Any])


class _ByApiServer:
    """Explains the errors of an API server that does not offer the timekeeper, or cannot reach it."""

    def __init__(self, http: JsonClient) -> None:
        self._http = http

    def request(self, method: str, path: str, **kwargs: Any) -> tuple[int, Mapping[str, str], bytes]:
        try:
            return self._http.request(method, path, **kwargs)
        except NotFound as error:
            if error.reason:
                raise
            raise Unavailable(
                f"{method} {path}: the API server does not offer the timekeeper: install its APIService, or "
                "name the timekeeper's own URL by timekeeperClient.url",
                404,
            ) from error
        except Unavailable as error:
            if error.status != 503 or error.reason not in ("", "ServiceUnavailable"):
                raise
            raise Unavailable(
                f"{method} {path}: the API server does not reach the timekeeper; see: "
                f"kubectl get apiservice {names.API_SERVICE} -o yaml",
                503,
            ) from error


def _which(uid: str) -> dict[str, str]:
    return {"uid": uid} if uid else {}


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return typed_json.decode(data, kind)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"timekeeper: the answer is not a {kind.__name__}: {error}") from error
