# SPDX-License-Identifier: Apache-2.0
"""Set the rates of GPU models, by request or as the settings say."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from sqlalchemy.orm import Session

from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.units import EPOCH, Instant, format_instant
from timekeeper.core.refusal import InstantPast, RateExists
from timekeeper.ledger import settlement
from timekeeper.ledger.books import Books
from timekeeper.ledger.executed_request import KeyedRequest, executed, keep
from timekeeper.store import rates, timelines

_ALL: Final = ""
"""The subject of requests about rates: they concern all accounts."""


def set_rate(
    books: Books,
    model: str,
    rate: Fraction,
    *,
    since: Instant | None,
    reason: str,
    actor: str,
    now: Instant,
    asked: KeyedRequest | None = None,
) -> tuple[Instant, bool]:
    """Set a GPU model's rate from an instant on; intervals of running pods are split there, exactly.

    `since` None: from now on; of two such calls the later one applies, whatever the clocks show. Returns the instant
    from which the rate applies, and False if it already did. Raises InvalidValue if the instant is past, Conflicting if
    another rate applies from it on.
    """

    def change(session: Session) -> tuple[Instant, bool]:
        before = executed(books, session, _ALL, asked)
        if before is not None and before.rate_since is not None:
            return before.rate_since, False
        at, made = set_new(session)
        keep(books, session, _ALL, asked, rate_since=at)
        return at, made

    def set_new(session: Session) -> tuple[Instant, bool]:
        if since is not None and since < now:
            message = f"effectiveAt: {format_instant(since)} is in the past, and past charges do not change"
            raise InstantPast(message, "effectiveAt")
        last = rates.last_at_once(session, model)
        if since is None and last is not None and last.rate == rate and 0 <= last.effective_at - now <= CLOCK_SKEW_MS:
            return last.effective_at, False
        at = rates.from_now(session, model, now) if since is None else since
        there = rates.at(session, model, at)
        if there is not None and there.rate == rate:
            return at, False
        if there is not None:
            raise RateExists(f"{model} has the rate {there.rate} from that instant on; choose another instant")
        rates.add(session, model, rate, at, "rest", now=at if since is None else now)
        detail = {"model": model, "rate": str(rate), "effectiveAt": at, "reason": reason}
        books.audit(session, actor=actor, action="rate", about=None, detail=detail, now=now)
        settled = max(now, at) if since is None else now
        settlement.settle_all(books, session, dict.fromkeys(timelines.holders_since(session, at), at), settled)
        return at, True

    return books.database.write(change)


def follow_settings(books: Books, wanted: dict[str, Fraction], now: Instant) -> None:
    """Apply the settings' rates from now on if they have changed; in a new ledger, from the start of time."""

    def change(session: Session) -> None:
        first = rates.is_new_ledger(session)
        instants = []
        for model, rate in rates.changed_settings(session, wanted).items():
            instants.append(EPOCH if first else rates.from_now(session, model, now))
            rates.add(session, model, rate, instants[-1], "settings", now=instants[-1])
        if instants:
            since = min(instants)
            settlement.settle_all(books, session, dict.fromkeys(timelines.holders_since(session, since), since), now)

    books.database.write(change)
