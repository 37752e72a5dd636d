# SPDX-License-Identifier: Apache-2.0
"""Accept the budgets that objects of the cluster define, as the operator reports them."""

from __future__ import annotations

from flask import Response

from timekeeper.api import answers, parse
from timekeeper.api.budget_owner import NamespaceOwner, owner_of
from timekeeper.api.budget_rule import rule_of
from timekeeper.api.handler_context import HandlerContext, kept_name
from timekeeper.api.problems import Problem
from timekeeper.api.schemas.budget_object import ObjectBody, ParentObjectBody
from timekeeper.core.caller import Caller
from timekeeper.ledger import budget_object
from timekeeper.ledger.budget_object import Desired
from timekeeper.store.budget_objects import AcceptedObject

_RIGHT = "objects"


def put(context: HandlerContext, namespace: str) -> Response:
    """Let an object keep a namespace's budget."""
    caller = context.allow("update", "", _RIGHT)
    owner = NamespaceOwner(context, parse.namespace(namespace))
    budget_object.keep(context.books, owner.account_ref(), _desired(context, parse.body(ObjectBody), caller))
    return answers.changed(owner)


def put_parent(context: HandlerContext, parent: str) -> Response:
    """Let an object keep a team or an organisation, which is created if there is none."""
    caller = context.allow("update", "", _RIGHT)
    owner = owner_of(context, parent=parent)
    given = parse.body(ParentObjectBody)
    budget_object.keep_parent(context.books, parent, given.kind, _desired(context, given, caller))
    return answers.changed(owner)


def deleted(context: HandlerContext, **path: str) -> Response:
    """Note that the object that kept a budget was deleted; a repetition changes nothing."""
    caller = context.allow("delete", "", _RIGHT)
    owner = owner_of(context, **path)
    uid = parse.plain("object", 64)
    if not uid:
        raise Problem(422, "query-invalid", "object: name the UID of the object, as in object=…", "object")
    budget_object.release(context.books, owner.account_ref(), uid, actor=caller.name, now=context.clock.now_ms())
    return answers.changed(owner)


def _desired(context: HandlerContext, given: ObjectBody, caller: Caller) -> Desired:
    rule = rule_of(context, given)
    parent = parse.parent(given.parent) if given.parent else given.parent
    state = AcceptedObject(given.uid, parse.instant(given.created_at, "createdAt"), given.generation, parent)
    who = kept_name(given.changed_by or "")
    return Desired(state, given.object_version, rule, who, caller.name, context.clock.now_ms())
