# SPDX-License-Identifier: Apache-2.0
"""What a pod takes of its node: the sum of its containers' requests as kube-scheduler counts it, for any resource.

Plain init containers run one after another before the app containers, and kubelet passes their devices on. So a pod
takes the larger of two amounts: what its app containers and native sidecars request together, and the most that any
plain init container requests together with the native sidecars started before it (KEP-753).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TypeVar

Number = TypeVar("Number", int, Fraction)


def effective_request(containers: Iterable[tuple[str, Mapping[str, Number]]]) -> dict[str, Number]:
    """Return a pod's request by resource, from the `(kind, request)` of its containers in the manifest's order.

    `kind` is that of `pod_manifest.containers`. Ephemeral containers cannot request anything.
    """
    together: dict[str, Number] = {}
    most: dict[str, Number] = {}
    for kind, request in containers:
        for name, amount in request.items():
            if kind == "init":
                with_sidecars = together[name] + amount if name in together else amount
                most[name] = max(with_sidecars, most.get(name, with_sidecars))
            elif kind != "ephemeral":
                together[name] = together[name] + amount if name in together else amount
    return {name: max(amount, together.get(name, amount)) for name, amount in {**together, **most}.items()}
