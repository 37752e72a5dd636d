# SPDX-License-Identifier: Apache-2.0
"""Rates of GPU models, versioned: what was set when, by the settings or by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from timekeeper.core.rate import ONE, PriceBook
from timekeeper.store.db.models import Rate, Workload

Source = Literal["settings", "rest"]


def read(session: Session) -> PriceBook:
    """Return all prices."""
    rows = session.execute(select(Rate.model, Rate.effective_at, Rate.numerator, Rate.denominator))
    return PriceBook([(model, since, Fraction(num, den)) for model, since, num, den in rows])


@dataclass(frozen=True)
class Priced:
    """One price as it was set."""

    id: int
    model: str
    rate: Fraction
    effective_at: int
    source: str


def listed(session: Session, model: str, after: int, limit: int) -> list[Priced]:
    """Return prices in the order in which they were set, of one model where it is named."""
    query = select(Rate).where(Rate.id > after)
    if model:
        query = query.where(Rate.model == model)
    return [_priced(row) for row in session.scalars(query.order_by(Rate.id).limit(limit))]


def _priced(row: Rate) -> Priced:
    return Priced(row.id, row.model, Fraction(row.numerator, row.denominator), row.effective_at, row.source)


def add(session: Session, model: str, rate: Fraction, since: int, source: Source, *, now: int) -> None:
    """Append a price that is set at `now`."""
    values = {
        "model": model, "numerator": rate.numerator, "denominator": rate.denominator, "effective_at": since,
        "source": source, "booked_at": now,
    }  # fmt: skip
    session.execute(insert(Rate).values(values))


def last_at_once(session: Session, model: str) -> Priced | None:
    """Return the newest price of a model that was set for at once, and not for an instant to come."""
    query = select(Rate).where(Rate.model == model, Rate.effective_at == Rate.booked_at)
    row = session.scalars(query.order_by(Rate.effective_at.desc()).limit(1)).one_or_none()
    return _priced(row) if row else None


def from_now(session: Session, model: str, now: int) -> int:
    """Return from when on a price holds that is set for at once: later than the last one that was, by any clock."""
    last = last_at_once(session, model)
    since = now if last is None else max(now, last.effective_at + 1)
    while at(session, model, since) is not None:
        since += 1
    return since


def at(session: Session, model: str, since: int) -> Priced | None:
    """Return the price of a model that holds from exactly an instant on."""
    row = session.scalars(select(Rate).where(Rate.model == model, Rate.effective_at == since)).one_or_none()
    return _priced(row) if row else None


def changed_settings(session: Session, wanted: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Return the prices that the settings name otherwise than they did; a model that is named no more has 1 again."""
    query = select(Rate).where(Rate.source == "settings").order_by(Rate.effective_at)
    before = {row.model: Fraction(row.numerator, row.denominator) for row in session.scalars(query)}
    now = {**dict.fromkeys(before, ONE), **wanted}
    return {model: rate for model, rate in now.items() if before.get(model, ONE) != rate}


def none_counted(session: Session) -> bool:
    """Whether no pod was ever charged, at a price or at 1, and nobody has set one."""
    return all(session.execute(select(column).limit(1)).first() is None for column in (Rate.id, Workload.pod_uid))
