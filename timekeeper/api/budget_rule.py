# SPDX-License-Identifier: Apache-2.0
"""Convert a request body to the budget rule that it asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from msgspec import UNSET, UnsetType

from slicekeeper.config.policy import LAST_ANCHOR
from slicekeeper.units import NO_TIME, GpuMilliseconds, Instant
from timekeeper.api import parse
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.problems import Problem
from timekeeper.api.schemas.budget import BudgetPatch, RuleBody
from timekeeper.core.budget_record import Rule
from timekeeper.ledger.budget_rule import Change

T = TypeVar("T")


def rule_of(context: HandlerContext, given: RuleBody) -> Rule:
    """Return the rule that a body asks for, from now on.

    Raises Problem if there is no such time zone or anchor.
    """
    zone = parse.time_zone(given.time_zone)
    _refuse_rollover(given.rollover_ms, given.period)
    anchor = None if given.anchor is None else _anchor(given.anchor, given.period)
    return Rule(
        context.clock.now_ms(),
        given.amount_ms,
        given.period,
        zone,
        given.credit_ms,
        given.rollover_ms,
        anchor=anchor,
        used="reset" if given.new_period else "counts",
    )


def patched(context: HandlerContext, given: BudgetPatch) -> Change:
    """Return a function that makes the requested rule from the one in force, from now on.

    Raises Problem if there is no such time zone or anchor; the function raises it if it does not fit the period.
    """
    if given.time_zone is not UNSET:
        parse.time_zone(given.time_zone)
    if isinstance(given.anchor, str):
        _anchor(given.anchor, "none" if given.period == "none" else "month")
    now = context.clock.now_ms()

    def change(rule: Rule) -> Rule:
        period = _or(given.period, rule.period)
        rollover = _or(given.rollover_ms, NO_TIME if period == "none" else rule.rollover)
        _refuse_rollover(rollover, period)
        anchor = rule.anchor if given.anchor is UNSET else None
        if isinstance(given.anchor, str):
            anchor = _anchor(given.anchor, period)
        return replace(
            rule,
            since=now,
            amount=_or(given.amount_ms, rule.amount),
            period=period,
            zone=_or(given.time_zone, rule.zone),
            credit=_or(given.credit_ms, rule.credit),
            rollover=rollover,
            anchor=None if period == "none" else anchor,
            used="reset" if given.new_period else "counts",
        )

    return change


def _or(given: T | UnsetType, before: T) -> T:
    return before if isinstance(given, UnsetType) else given


def _refuse_rollover(rollover: GpuMilliseconds, period: str) -> None:
    """Refuse a rollover that has no effect."""
    if rollover and period == "none":
        detail = "rolloverMs: a budget without periods has nothing to roll over; leave it out"
        raise Problem(422, "body-invalid", detail, "rolloverMs")


def _anchor(text: str, period: str) -> Instant:
    """Return an anchor as an instant.

    Raises Problem if a budget without periods would have one, or if it is too late.
    """
    anchor = parse.instant(text, "anchor")
    if period == "none":
        raise Problem(422, "body-invalid", "anchor: a budget without periods cannot have one; leave it out", "anchor")
    if anchor > LAST_ANCHOR:
        raise Problem(422, "instant-invalid", "anchor: it must be before the year 9000", "anchor")
    return anchor
