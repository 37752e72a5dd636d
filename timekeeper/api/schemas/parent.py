# SPDX-License-Identifier: Apache-2.0
"""Bodies that set the budget of a team or an organisation, or put a budget under one."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from timekeeper.api.schemas.base import Body, Reason
from timekeeper.api.schemas.budget import BudgetBody, BudgetPatch

ParentKind = Literal["team", "organisation"]


class ParentPatch(BudgetPatch, frozen=True, kw_only=True):
    """The parts of a team's or an organisation's budget to change; another `kind` than its own is refused."""

    kind: ParentKind | UnsetType = UNSET


class ParentBudgetBody(BudgetBody, frozen=True, kw_only=True):
    """A team or an organisation and its budget."""

    kind: ParentKind


class PlaceBody(Body, frozen=True, kw_only=True):
    """The budget's parent from now on; null: none."""

    parent: Annotated[str, Meta(min_length=1, max_length=63)] | None
    reason: Reason
