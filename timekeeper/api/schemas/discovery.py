# SPDX-License-Identifier: Apache-2.0
"""The answer to Kubernetes' discovery: a `metav1.APIResourceList`."""

from __future__ import annotations

from typing import Literal

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
    """The list of resources."""

    resources: tuple[ApiResource, ...]
    kind: Literal["APIResourceList"] = "APIResourceList"
    api_version: Literal["v1"] = "v1"
    group_version: str = names.API
