# SPDX-License-Identifier: Apache-2.0
"""The two kinds of objects, and the owner of each one's budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from slicekeeper import names
from slicekeeper.kube.client import Object, Resource
from slicekeeper.wire.timekeeper import Budget, Parent

B = TypeVar("B", Budget, Parent)

VERSION: Final = "v1alpha1"
_PREFIX: Final = f"/apis/{names.GROUP}/{VERSION}"

ONLY_NAME: Final = "default"
"""The name of a namespace's GpuBudget: a namespace has one budget, so it can have one object."""


@dataclass(frozen=True)
class Kind(Generic[B]):
    """A kind of object, and the budgets that such objects keep."""

    resource: Resource
    budget: type[B]

    def holder(self, obj: Object) -> str:
        """Return the name of the namespace, the team or the organisation of an object."""
        return str(obj["metadata"]["namespace" if self.resource.namespaced else "name"])


GPU_BUDGETS: Final = Kind(Resource(_PREFIX, "gpubudgets"), Budget)
CLUSTER_GPU_BUDGETS: Final = Kind(Resource(_PREFIX, "clustergpubudgets", namespaced=False), Parent)
