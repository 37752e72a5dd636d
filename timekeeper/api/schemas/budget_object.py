# SPDX-License-Identifier: Apache-2.0
"""Bodies with the budget that an object of the cluster defines."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slicekeeper.kube.changed_by import LONGEST
from timekeeper.api.schemas.base import Instant
from timekeeper.api.schemas.budget import RuleBody
from timekeeper.api.schemas.parent import ParentKind

Uid = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[!-~]*$", description="The object's UID.")]
Generation = Annotated[int, Meta(ge=1, le=2**62, description="The object's, as the API server counts its changes.")]
Version = Annotated[
    str, Meta(max_length=128, description="The budget's `objectVersion`, as it was before the object was read.")
]
ChangedBy = Annotated[str, Meta(min_length=1, max_length=LONGEST, description="Who wrote that generation.")]
Parent = Annotated[str, Meta(max_length=63, description="Empty: under none.")]


class ObjectBody(RuleBody, frozen=True, kw_only=True):
    """A namespace's budget as its object says."""

    uid: Uid
    created_at: Instant
    generation: Generation
    object_version: Version
    changed_by: ChangedBy | None = None
    """Null: it is not known."""
    parent: Parent | None = None
    """Null: the object does not say."""


class ParentObjectBody(ObjectBody, frozen=True, kw_only=True):
    """A team or an organisation as its object says."""

    kind: ParentKind
