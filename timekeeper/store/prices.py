# SPDX-License-Identifier: Apache-2.0
"""Prices of GPU models, versioned: what a pod is charged per millisecond, and when that changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from timekeeper.records import Claim
from timekeeper.store.models import Rate, Workload

Source = Literal["settings", "rest"]
_ONE = Fraction(1)


def encode_shares(shares: Mapping[str, Fraction]) -> str:
    """Return a pod's GPUs by model as they are stored."""
    texts = {model: f"{share.numerator}/{share.denominator}" for model, share in sorted(shares.items())}
    return msgspec.json.encode(texts).decode()


class PriceBook:
    """All prices that ever were."""

    def __init__(self, rows: Sequence[tuple[str, int, Fraction]]) -> None:
        self._by_model: dict[str, list[tuple[int, Fraction]]] = {}
        for model, since, rate in sorted(rows):
            self._by_model.setdefault(model, []).append((since, rate))
        self._shares: dict[str, dict[str, Fraction]] = {}
        self._newest: dict[str, Fraction] = {}
        """What shares cost since the last price of any of their models."""

    def rate(self, model: str, at: int) -> Fraction:
        """Return a model's rate at an instant; 1 where nobody has set one."""
        return next((rate for since, rate in reversed(self._by_model.get(model, [])) if since <= at), _ONE)

    def highest(self, model: str, since: int) -> Fraction:
        """Return the highest rate that a model has at an instant or later, as far as it is set today."""
        return max([self.rate(model, since), *(rate for at, rate in self._by_model.get(model, ()) if at > since)])

    def highest_of_all(self, since: int) -> Fraction:
        """Return the highest rate of any model at an instant or later; at least that of a model without one."""
        return max((self.highest(model, since) for model in self._by_model), default=_ONE)

    def claim(self, key: str, start: int, end: int | None, shares: str) -> Claim:
        """Return a pod's claim, with the prices of its models from its start on."""
        mine = self._shares.get(shares)
        if mine is None:
            found = msgspec.json.decode(shares, type=dict[str, str])
            mine = self._shares[shares] = {model: Fraction(text) for model, text in found.items()}
        turns = {since for model in mine for since, _ in self._by_model.get(model, ()) if since > start}
        if not turns:
            rate = self._newest.get(shares)
            if rate is None:
                rate = self._newest[shares] = self._total(mine, start)
            return Claim(key, start, end, rate.numerator, rate.denominator)
        first, *later = [(at, self._total(mine, at)) for at in (start, *sorted(turns))]
        told = []
        last = first[1]
        for at, rate in later:
            if rate != last and (end is None or at < end):
                told.append((at, rate.numerator, rate.denominator))
                last = rate
        return Claim(key, start, end, first[1].numerator, first[1].denominator, tuple(told))

    def _total(self, shares: Mapping[str, Fraction], at: int) -> Fraction:
        return sum((share * self.rate(model, at) for model, share in shares.items()), Fraction(0))


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
    now = {**dict.fromkeys(before, _ONE), **wanted}
    return {model: rate for model, rate in now.items() if before.get(model, _ONE) != rate}


def none_counted(session: Session) -> bool:
    """Whether no pod was ever charged, at a price or at 1, and nobody has set one."""
    return all(session.execute(select(column).limit(1)).first() is None for column in (Rate.id, Workload.pod_uid))
