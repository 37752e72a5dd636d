# SPDX-License-Identifier: Apache-2.0
"""Rates of GPU models over time, from the settings or set by hand.

A rate that is set to apply immediately replaces all rates of this kind that were written before it and would begin
after it: a rate that was written with a clock far ahead of all others never begins if another one was written since. A
rate that was set for a given instant stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final, Literal

from sqlalchemy import insert, select
from sqlalchemy.orm import Session, aliased

from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.units import Instant
from timekeeper.core.rate import ONE, RateBook
from timekeeper.store.db.models import Rate, WorkloadRow

Source = Literal["settings", "rest"]

_LATER = aliased(Rate)
_APPLIES: Final = Rate.booked_at.is_distinct_from(Rate.effective_at) | ~(
    select(_LATER.id)
    .where(
        _LATER.model == Rate.model,
        _LATER.id > Rate.id,
        _LATER.booked_at == _LATER.effective_at,
        _LATER.effective_at < Rate.effective_at,
    )
    .exists()
)
"""Condition on a rate: no later one replaced it before it began."""


def read(session: Session) -> RateBook:
    """Return all rates that ever apply."""
    rows = session.execute(select(Rate.model, Rate.effective_at, Rate.numerator, Rate.denominator).where(_APPLIES))
    return RateBook([(model, since, Fraction(num, den)) for model, since, num, den in rows])


def listed(session: Session, model: str, after: int, limit: int) -> list[Rate]:
    """Return rates in the order in which they were set, of one model if it is named."""
    query = select(Rate).where(Rate.id > after)
    if model:
        query = query.where(Rate.model == model)
    return list(session.scalars(query.order_by(Rate.id).limit(limit)))


def add(session: Session, model: str, rate: Fraction, since: Instant, source: Source, *, now: Instant) -> None:
    """Append a rate that is set at `now`."""
    values = {
        "model": model,
        "numerator": rate.numerator,
        "denominator": rate.denominator,
        "effective_at": since,
        "source": source,
        "booked_at": now,
    }
    session.execute(insert(Rate).values(values))


def last_at_once(session: Session, model: str) -> Rate | None:
    """Return the rate of a model that was set last to apply immediately, and not for a given instant."""
    query = select(Rate).where(Rate.model == model, Rate.effective_at == Rate.booked_at)
    return session.scalars(query.order_by(Rate.id.desc()).limit(1)).one_or_none()


def from_now(session: Session, model: str, now: Instant) -> Instant:
    """Return when a rate that is set to apply immediately begins: after the last one of this kind, by any right clock.

    A rate that is further ahead than clocks may differ was written by a wrong clock, and never takes effect.
    """
    last = last_at_once(session, model)
    since = now if last is None or last.effective_at > now + CLOCK_SKEW_MS else max(now, Instant(last.effective_at + 1))
    while at(session, model, since) is not None:
        since = Instant(since + 1)
    return since


def at(session: Session, model: str, since: Instant) -> Rate | None:
    """Return the rate of a model that was set for exactly an instant."""
    return session.scalars(select(Rate).where(Rate.model == model, Rate.effective_at == since)).one_or_none()


def changed_settings(session: Session, wanted: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Return the rates that have changed in the settings; a model that is no longer named has 1 again."""
    query = select(Rate).where(Rate.source == "settings").order_by(Rate.id)
    before = {row.model: row.rate for row in session.scalars(query)}
    now = {**dict.fromkeys(before, ONE), **wanted}
    return {model: rate for model, rate in now.items() if before.get(model, ONE) != rate}


def is_new_ledger(session: Session) -> bool:
    """Return whether no pod was ever charged and no rate was ever set."""
    return all(session.execute(select(column).limit(1)).first() is None for column in (Rate.id, WorkloadRow.pod_uid))
