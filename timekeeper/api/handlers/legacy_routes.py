# SPDX-License-Identifier: Apache-2.0
"""Serve the three routes of the service that Slicekeeper replaces, with its payloads. Minutes are GPU-minutes."""

from __future__ import annotations

import uuid

from flask import Response

from slicekeeper.units import MS_PER_MINUTE, NO_TIME, GpuMilliseconds
from slicekeeper.wire.timekeeper import SPENDABLE, Figures
from timekeeper.api import answers, parse, usage_reporter
from timekeeper.api.budget_owner import owner_of
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.idempotency import idempotency_key
from timekeeper.api.problems import Problem
from timekeeper.api.schemas.legacy_routes import IncreaseBody, LegacyBudget, SignOfLife, Terminate
from timekeeper.api.views import budget as budget_views
from timekeeper.core.refusal import NamespaceUnknown
from timekeeper.ledger import movement
from timekeeper.ledger.movement import Order
from timekeeper.store import workloads


def shown(context: HandlerContext, namespace: str) -> Response:
    """Return a budget; a namespace never seen has the full default: the clients of this route know no other answer."""
    owner = owner_of(context, namespace)
    owner.allow("get")
    try:
        budget, _ = owner.current()
    except NamespaceUnknown:
        policy, now = context.policy.of(namespace), context.clock.now_ms()
        budget = budget_views.budget(namespace, None, policy, now, NO_TIME, uid="", gone=False)
    return _answer(budget)


def _answer(budget: Figures) -> Response:
    return answers.json(
        LegacyBudget(
            budget_available=budget.state in SPENDABLE,
            budget=budget.to_spend_ms / MS_PER_MINUTE,
            budget_remaining=budget.balance_ms / MS_PER_MINUTE,
        )
    )


def report(context: HandlerContext, namespace: str) -> Response:
    """Accept a sign of life; it charges nothing."""
    name = parse.namespace(namespace)
    caller = usage_reporter.reporter(context)
    given = parse.body(SignOfLife)
    if not caller.operator and (caller.namespace, caller.pod_name) != (name, given.pod_name):
        raise Problem(403, "wrong-pod", "a pod may report only for itself", "pod_name")
    pod = (
        context.controller.pods.find(caller.pod_uid)
        if caller.pod_uid
        else context.controller.pods.named(name, given.pod_name)
    )
    if pod is None:
        raise Problem(404, "pod-unknown", f"no GPU pod {given.pod_name} is known in {name}", "pod_name")
    uid, now = pod["metadata"]["uid"], context.clock.now_ms()
    context.books.database.write(lambda session: workloads.heard(session, uid, now))
    return answers.json(Terminate(usage_reporter.may_leave(context, {uid})))


def increase(context: HandlerContext, namespace: str) -> Response:
    """Book a grant of some minutes; with an Idempotency-Key only once."""
    owner = owner_of(context, namespace)
    caller = owner.allow("create", "grants")
    given = parse.body(IncreaseBody)
    now = context.clock.now_ms()
    key = idempotency_key(shorten=True) or uuid.uuid4().hex
    amount = GpuMilliseconds(given.minutes * MS_PER_MINUTE)
    order = Order(amount, given.reason, key, parse.canonical(), caller.name, now)
    movement.grant(context.books, owner.account_ref(), order, valid_from=now, valid_to=None)
    context.controller.nudge()
    return _answer(owner.current()[0])
