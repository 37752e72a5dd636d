# SPDX-License-Identifier: Apache-2.0
"""Find the accounting period around an instant although a budget's rules, and with them its periods, have changed."""

from __future__ import annotations

from collections.abc import Sequence

from slicekeeper.units import EPOCH, Instant
from timekeeper.core.budget_record import Rule
from timekeeper.core.budget_state import rule_at
from timekeeper.core.period import PeriodName, bounds


def accounting_period(rules: Sequence[Rule], at: Instant) -> tuple[Instant, Instant]:
    """Return the start and end of the accounting period around an instant, under the rules of a namespace.

    A rule with another calendar keeps the current period, and ends it when its own calendar does. A rule that begins a
    new period ends the previous period at its own start.
    """
    calendar = _calendar(rules[0])
    # The last period that a rule in force before `at` has begun or prolonged; none yet.
    start = end = EPOCH
    for rule in rules[1:]:
        if rule.since > at:
            break
        if rule.used == "reset":
            start, end = rule.since, _bounds(rule.since, _calendar(rule))[1]
        elif _calendar(rule) != calendar:
            start = start if rule.since < end else _bounds(rule.since, calendar)[0]
            end = _bounds(rule.since, _calendar(rule))[1]
        calendar = _calendar(rule)
    # After it, periods follow the calendar; the first one begins where it ended.
    if at >= end:
        start, end = max(_bounds(at, calendar)[0], end), _bounds(at, calendar)[1]
    # A rule that is in force later but within the period may still move the period's end.
    for rule in rules[1:]:
        if at < rule.since < end:
            if rule.used == "reset":
                return start, rule.since
            if _calendar(rule) != calendar:
                calendar = _calendar(rule)
                end = _bounds(rule.since, calendar)[1]
    return start, end


def period_end(rules: Sequence[Rule], at: Instant) -> Instant | None:
    """Return when the budget's period that an instant is in ends, as the rules are now; None: never.

    Until that period ends, each rule with another calendar moves its end, and one that begins a new period is the end.
    """
    calendar = rule_at(rules, at).calendar
    end = _end(at, calendar)
    for rule in rules:
        if at < rule.since and (end is None or rule.since < end):
            if rule.used == "reset":
                return rule.since
            if rule.calendar != calendar:
                calendar, end = rule.calendar, _end(rule.since, rule.calendar)
    return end


def _end(at: Instant, calendar: tuple[PeriodName, str, Instant | None]) -> Instant | None:
    found = bounds(at, *calendar)
    return None if found is None else found[1]


def _calendar(rule: Rule) -> tuple[PeriodName, str, Instant | None]:
    """Return when a rule's accounting periods begin: without periods, each calendar month."""
    return ("month", rule.zone, None) if rule.period == "none" else rule.calendar


def _bounds(at: Instant, calendar: tuple[PeriodName, str, Instant | None]) -> tuple[Instant, Instant]:
    found = bounds(at, *calendar)
    if found is None:
        raise ValueError("a month has bounds")
    return found
