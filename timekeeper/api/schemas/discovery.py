# SPDX-License-Identifier: Apache-2.0
"""The answer to Kubernetes' discovery (`metav1.APIResourceList`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from slicekeeper import names


class ApiResource(msgspec.Struct, frozen=True, rename="camel"):
    """One kind of thing. No verb by which controllers list, watch or delete all there is: these are no objects."""

    name: str
    kind: str
    singular_name: str = ""
    namespaced: bool = False
    verbs: tuple[str, ...] = ("get",)


class ResourceList(msgspec.Struct, frozen=True, rename="camel"):
    """What there is."""

    resources: tuple[ApiResource, ...]
    kind: Literal["APIResourceList"] = "APIResourceList"
    api_version: Literal["v1"] = "v1"
    group_version: str = names.API
