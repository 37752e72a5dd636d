# SPDX-License-Identifier: Apache-2.0
"""Accept the budgets that objects of the cluster define, as the operator reports them."""

from __future__ import annotations

from flask import Response

from timekeeper.api import budget_answer, requests
from timekeeper.api.budget_owner import NamespaceOwner, owner
from timekeeper.api.budget_rule import rule_of
from timekeeper.api.problems import Problem
from timekeeper.api.schemas.budget_object import ObjectBody, ParentObjectBody
from timekeeper.api.service import Service, kept_name, service
from timekeeper.core.caller import Caller
from timekeeper.ledger import budget_object
from timekeeper.ledger.budget_object import Desired
from timekeeper.store.budget_objects import Kept

_RIGHT = "objects"


def put(namespace: str) -> Response:
    """Let an object keep a namespace's budget."""
    it = service()
    caller = it.allow("update", "", _RIGHT)
    whose = NamespaceOwner(it, requests.namespace(namespace))
    budget_object.keep(it.books, whose.place(), _desired(it, requests.body(ObjectBody), caller))
    return budget_answer.changed(whose)


def put_parent(parent: str) -> Response:
    """Let an object keep a team or an organisation, which is created if there is none."""
    it = service()
    caller = it.allow("update", "", _RIGHT)
    whose = owner(it, parent=parent)
    given = requests.body(ParentObjectBody)
    budget_object.keep_parent(it.books, parent, given.kind, _desired(it, given, caller))
    return budget_answer.changed(whose)


def deleted(**path: str) -> Response:
    """Note that the object that kept a budget was deleted; a repetition changes nothing."""
    it = service()
    caller = it.allow("delete", "", _RIGHT)
    whose = owner(it, **path)
    uid = requests.plain("object", 64)
    if not uid:
        raise Problem(422, "query-invalid", "object: name the UID of the object, as in object=…", "object")
    budget_object.release(it.books, whose.place(), uid, actor=caller.name, now=it.clock.now_ms())
    return budget_answer.changed(whose)


def _desired(it: Service, given: ObjectBody, caller: Caller) -> Desired:
    rule = rule_of(it, given)
    parent = requests.parent(given.parent) if given.parent else given.parent
    state = Kept(given.uid, requests.instant(given.created_at, "createdAt"), given.generation, parent)
    who = kept_name(given.changed_by or "")
    return Desired(state, given.object_version, rule, who, caller.name, it.clock.now_ms())
