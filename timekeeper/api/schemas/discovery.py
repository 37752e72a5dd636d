# SPDX-License-Identifier: Apache-2.0
"""The answers to the API server's discovery, by path. They need no identity, and are the same at any time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from slicekeeper import names


class ApiResource(msgspec.Struct, frozen=True, rename="camel"):
    """One resource, without the verbs by which controllers list, watch or delete everything: it has no objects."""

    name: str
    kind: str
    singular_name: str = ""
    namespaced: bool = False
    verbs: tuple[str, ...] = ("get",)


class ResourceList(msgspec.Struct, frozen=True, rename="camel"):
    """A `metav1.APIResourceList`."""

    resources: tuple[ApiResource, ...]
    kind: Literal["APIResourceList"] = "APIResourceList"
    api_version: Literal["v1"] = "v1"
    group_version: str = names.API


DOCUMENTS: Final[Mapping[str, Any]] = {
    # One resource is listed, because client-go treats an empty list as an error. It is a subresource: kubectl offers
    # none of those as a kind, and ours are routes, not objects that it could show.
    f"/apis/{names.API}": ResourceList((ApiResource("budgets/statement", "Statement"),)),
    # Ours is an OpenAPI 3.1 document, of routes that are no objects.
    "/openapi/v2": {"swagger": "2.0", "info": {"title": names.API, "version": "v1"}, "paths": {}},
    "/openapi/v3": {"paths": {}},
}
