# SPDX-License-Identifier: Apache-2.0
"""Sets the rates of GPU models: pods that run then are split there, exactly."""

from __future__ import annotations

from fractions import Fraction

from sqlalchemy.orm import Session

from slicekeeper.errors import Conflict
from timekeeper.ledger.books import Books
from timekeeper.store import rates, timelines


def set_price(
    books: Books, model: str, rate: Fraction, *, since: int | None, reason: str, actor: str, now: int
) -> tuple[int, bool]:
    """Have a GPU model cost something else from an instant on; pods that run then are split there, exactly.

    `since` None: from now on, and whoever sets it so later has their way, whatever their clock says. Returns from when
    it holds, and False where it did so already. Raises Conflict where another does from the instant that was named.
    """

    def change(session: Session) -> tuple[int, bool]:
        last = rates.last_at_once(session, model)
        if since is None and last is not None and last.rate == rate and last.effective_at >= now:
            return last.effective_at, False
        at = rates.from_now(session, model, now) if since is None else since
        there = rates.at(session, model, at)
        if there is not None and there.rate == rate:
            return at, False
        if there is not None:
            raise Conflict(f"{model} has the rate {there.rate} from that instant on: name another", 409, "rate-exists")
        rates.add(session, model, rate, at, "rest", now=at if since is None else now)
        detail = {"model": model, "rate": str(rate), "effectiveAt": at, "reason": reason}
        books.note(session, actor=actor, action="rate", about=None, detail=detail, now=now)
        settled = max(now, at) if since is None else now
        books.settle_all(session, dict.fromkeys(timelines.touched_by(session, at), at), settled)
        return at, True

    return books.database.write(change)


def follow_settings(books: Books, wanted: dict[str, Fraction], now: int) -> None:
    """Have the settings' prices hold from now on where they have changed; before the first pod, from the start."""

    def change(session: Session) -> None:
        first = rates.none_counted(session)
        instants = []
        for model, rate in rates.changed_settings(session, wanted).items():
            instants.append(0 if first else rates.from_now(session, model, now))
            rates.add(session, model, rate, instants[-1], "settings", now=instants[-1])
        if instants:
            since = min(instants)
            books.settle_all(session, dict.fromkeys(timelines.touched_by(session, since), since), now)

    books.database.write(change)
