# SPDX-License-Identifier: Apache-2.0
"""The owner of the budget in a path: a namespace, a team or an organisation. The same handlers serve all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from flask import request
from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.units import EPOCH, NO_TIME
from slicekeeper.wire.timekeeper import Budget, Parent
from timekeeper.api import paging, parse
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.problems import Problem
from timekeeper.api.views import budget as budget_views
from timekeeper.core.caller import Caller
from timekeeper.core.refusal import NamespaceUnknown
from timekeeper.ledger import reservation
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.budget_rule import policy_rule, policy_version, version_of
from timekeeper.ledger.standing import BudgetStanding
from timekeeper.store import accounts, idempotent_rows
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.idempotent_rows import Row


@dataclass(frozen=True)
class BudgetOwner(ABC):
    """The owner of a budget, by name; it need not exist."""

    context: HandlerContext
    name: str

    @abstractmethod
    def allow(self, verb: str, subresource: str = "") -> Caller:
        """Return the sender of the request if they have a right on this budget; otherwise raise an error."""

    @abstractmethod
    def find(self, session: Session) -> BudgetAccount | None:
        """Return its account; None if a namespace has none.

        Raises Unknown if there is no such parent.
        """

    def require(self, session: Session) -> BudgetAccount:
        """Return its account.

        Raises Unknown if it has none.
        """
        found = self.find(session)
        if found is None:
            raise NamespaceUnknown(f"namespace {self.name} has no account yet")
        return found

    @abstractmethod
    def account_ref(self) -> AccountRef:
        """Return the account in which movements are booked.

        Raises Unknown if neither the ledger nor the cluster has it.
        """

    @abstractmethod
    def current(self) -> tuple[Budget | Parent, str]:
        """Return the budget as it is, and its entity tag."""

    def page(self, kind: type[Row], *conditions: ColumnElement[bool]) -> tuple[list[Row], str | None]:
        """Return a page of what requests have booked in its account, newest first, and the cursor of the next one."""
        limit, before = paging.limit(), paging.cursor(int)
        with self.context.books.database.reading() as session:
            rows: list[Row] = []
            if account := self.find(session):
                rows = idempotent_rows.page(session, kind, account.id, *conditions, before=before, limit=limit + 1)
        return paging.page(rows, limit, lambda row: row.id)


@dataclass(frozen=True)
class NamespaceOwner(BudgetOwner):
    """A namespace: rights are those on its budget, and its account is created when something is booked.

    A name that is used again has several accounts, by UID. Without `uid`, it is the account of the existing namespace,
    or of the last one if none exists.
    """

    uid: str = ""

    def allow(self, verb: str, subresource: str = "") -> Caller:
        """Require the right in the namespace.

        For a deleted namespace, the right in all namespaces is required: whoever has rights in a new namespace of the
        same name may be another tenant.
        """
        gone = self.uid and self.uid != self.context.controller.namespaces.uid(self.name)
        return self.context.allow(verb, "" if gone else self.name, subresource)

    def find(self, session: Session) -> BudgetAccount | None:
        """Return the namespace's account; None if the cluster has the namespace, but the ledger no account of it.

        Raises Unknown if neither has it, or if there is a UID, and the ledger has no such account.
        """
        cluster, uid = self.context.books.cluster, self.uid or self.context.controller.namespaces.uid(self.name)
        if uid is None:
            last = accounts.find_name(session, cluster, self.name)
            if last is None:
                self._require_existing()
            return last
        found = accounts.find(session, cluster, uid)
        if found is not None and (found.name, found.kind) == (self.name, "namespace"):
            return found
        if self.uid:
            detail = f"uid: namespace {self.name} with UID {self.uid} has no account; `budget list` shows those that do"
            raise NamespaceUnknown(detail, "uid")
        return None

    def _require_existing(self) -> None:
        """Raise Unknown if the cluster does not have the namespace either; it may be newer than what is watched."""
        try:
            self.context.controller.namespace_uid(self.name)
        except NamespaceUnknown as error:
            message = f"namespace {self.name} is not found: neither the cluster nor the ledger has it"
            raise NamespaceUnknown(message) from error

    def account_ref(self) -> AccountRef:
        """Return the namespace as the cluster has it now; one that is named by its UID must have an account."""
        if self.uid:
            with self.context.books.database.reading() as session:
                self.require(session)
        uid = self.uid or self.context.controller.namespace_uid(self.name)
        return AccountRef(uid, self.name, self.context.policy.of(self.name))

    def standing(self) -> BudgetStanding | None:
        """Return the standing of the namespace; None while it has no account."""
        with self.context.books.database.reading() as session:
            account = self.find(session)
        return None if account is None else self.context.books.standing_of(account.uid)

    def current(self) -> tuple[Budget, str]:
        """Return the budget; one never seen has its policy's default."""
        standing, now = self.standing(), self.context.clock.now_ms()
        held = (
            reservation.reserved(self.context.books, now, standing.account.id)[standing.account.id]
            if standing
            else NO_TIME
        )
        namespaces_there = self.context.controller.namespaces
        uid = standing.account.uid if standing else namespaces_there.uid(self.name) or ""
        gone = standing is not None and namespaces_there.is_gone(self.name, uid)
        policy = self.context.policy.of(self.name)
        budget = budget_views.budget(self.name, standing, policy, now, held, uid=uid, gone=gone)
        unseen = policy_version(policy_rule(policy.budget, EPOCH))
        return budget, version_of(standing.rule) if standing else unseen


class ParentOwner(BudgetOwner):
    """A team or an organisation: it spans namespaces, so all rights are the cluster's, on `parents`."""

    def allow(self, verb: str, subresource: str = "") -> Caller:  # noqa: ARG002 - one right for all operations
        """Require the right on `parents`, for any operation."""
        return self.context.allow(verb, "", "parents")

    def find(self, session: Session) -> BudgetAccount:
        """Return the team's or organisation's account."""
        return accounts.require_parent(session, self.context.books.cluster, self.name)

    def account_ref(self) -> AccountRef:
        """Return its account; unlike a namespace it must have been created."""
        return AccountRef(self.standing().account.uid, self.name, NamespacePolicy())

    def current(self) -> tuple[Parent, str]:
        """Return the budget."""
        standing, now = self.standing(), self.context.clock.now_ms()
        held = reservation.reserved_below(self.context.books, [standing], now)[standing.account.id]
        return budget_views.parent(standing, now, held), version_of(standing.rule)

    def standing(self) -> BudgetStanding:
        """Return its standing.

        Raises Unknown if there is none of that name.
        """
        return self.context.books.require_parent(self.name)


def owner_of(context: HandlerContext, namespace: str = "", parent: str = "") -> NamespaceOwner | ParentOwner:
    """Return whose budget a path names.

    Raises Problem if it cannot be a name.
    """
    if parent:
        return ParentOwner(context, parse.parent(parent))
    return NamespaceOwner(context, parse.namespace(namespace), parse.plain("uid", 64))


def listed_namespace(context: HandlerContext, subresource: str = "") -> NamespaceOwner | None:
    """Require the right to list, and return the namespace that the query names; None if it names none: all are listed.

    Raises Problem if it is not a valid name, or if there is a UID without a name.
    """
    uid = parse.plain("uid", 64)
    if name := request.args.get("namespace", ""):
        owner = NamespaceOwner(context, parse.namespace(name), uid)
        owner.allow("list", subresource)
        return owner
    if uid:
        raise Problem(422, "query-invalid", "uid: name the namespace too, as in namespace=team&uid=…", "uid")
    context.allow("list", "", subresource)
    return None
