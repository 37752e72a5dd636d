# SPDX-License-Identifier: Apache-2.0
"""Names that several parts rely on: annotations, labels, the finalizer, the container and its paths.

The names of extended resources are settings (`slicekeeper.config.settings.Resources`), because a cluster may already
use others.
"""

from typing import Final

GROUP: Final = "slicekeeper.io"
API: Final = "timekeeper.slicekeeper.io/v1"
"""Group and version under which the API server offers the timekeeper's routes."""
API_SERVICE: Final = "v1.timekeeper.slicekeeper.io"

# Written by the webhook.
MANAGED_LABEL: Final = "slicekeeper.io/managed"
MANAGED_VALUE: Final = "true"
MANAGED_SELECTOR: Final = MANAGED_LABEL
"""Selects managed pods whatever the value is: a Binding may have overwritten it (Kubernetes 1.35)."""
FINALIZER: Final = "slicekeeper.io/charge"
GATE: Final = "slicekeeper.io/reservation"
"""The schedulingGate of a pod whose GPU time is not reserved yet; only the timekeeper removes it."""
WAITS_FOR_GPU: Final = "WaitsForGPU"
WAITS_FOR_GPU_TIME: Final = "WaitsForGpuTime"
"""The reason of the timekeeper's event that says how much GPU time such a pod waits for."""

SIDECAR: Final = "gpu-sidecar"
ENV_PREFIX: Final = "SLICEKEEPER_"
LIBRARY_PATH: Final = "/usr/local/slicekeeper/lib/libvcuda.so"
LIMITER_VARIABLE: Final = "SLICEKEEPER_LIMITER"
"""Names the limiter in a container whose `LD_PRELOAD` is the user's own; the seat loads it by `/etc/ld.so.preload`."""

# Written by the webhook on GpuBudgets and ClusterGpuBudgets.
CHANGED_BY: Final = "slicekeeper.io/changed-by"
"""The generation of the object and the user that wrote it, see `slicekeeper.kube.changed_by`."""

# Written by the scheduler, in the Binding.
GPU_PREFIX: Final = "gpu.slicekeeper.io/"
BOUND_AT: Final = "slicekeeper.io/bound-at"
SHARING_MODE: Final = "slicekeeper.io/sharing-mode"

# Written by the reclaimer on a pod that waits, so that kube-scheduler tries it again. Nothing reads it.
ROOM_SEEN_AT: Final = "slicekeeper.io/room-seen-at"

# Written by the webhook at admission and by the timekeeper while the pod runs.
BUDGET_STATE: Final = "slicekeeper.io/budget-state"
IN_BUDGET: Final = "in-budget"
OVER_BUDGET: Final = "over-budget"

# Written by administrators, on nodes.
RULE: Final = "slicekeeper.io/rule"
SHARD: Final = "slicekeeper.io/shard"
"""Names the scheduler that has the node, see `scheduler.shards`."""

# Written by the node agent.
NODE_GPUS: Final = "slicekeeper.io/gpus"
NODE_AGENT: Final = "slicekeeper.io/agent"
"""The address at which the agent reports whether it is ready, see `slicekeeper.kube.agent_address`."""
NODE_MACHINE: Final = "slicekeeper.io/machine"
"""The agent's findings about driver and container runtime, see `slicekeeper.gpu.node_setup`."""

# Written by the certificates part, into every namespace.
CA_CONFIG_MAP: Final = "slicekeeper-ca.crt"
CA_KEY: Final = "ca.crt"

# Written by `slicekeeper check --adopt` to a pod that is older than the installation.
ADOPTED_AT: Final = "slicekeeper.io/adopted-at"

# Written by users.
CORE_LIMIT: Final = "tencent.com/vcuda-core-limit"
CONTAINER_LIMIT_PREFIX: Final = "limit.slicekeeper.io/"
GPU_CLASS: Final = "slicekeeper.io/gpu-class"
GPU_AFFINITY: Final = "slicekeeper.io/gpu-affinity"
GPU_ANTI_AFFINITY: Final = "slicekeeper.io/gpu-anti-affinity"
GPU_EXCLUSION: Final = "slicekeeper.io/gpu-exclusion"
GPU_UUID: Final = "slicekeeper.io/gpu-uuid"
GPU_MODEL: Final = "slicekeeper.io/gpu-model"
SHARING: Final = "slicekeeper.io/sharing"
GANG: Final = "slicekeeper.io/gang"
"""The pods of a namespace with the same value are placed together; without it, those of one controller are."""
GANG_SIZE: Final = "slicekeeper.io/gang-size"
"""How many of a gang's pods must exist before any of them gets a place."""

LOCAL_VERSION: Final = "v1.36.0+slicekeeper.local"
"""The version that the API server of local mode states, by which it can be told from a cluster's."""

RUN_SECONDS: Final = "simulator.slicekeeper.io/run-seconds"
"""For how many seconds local mode runs the program of an image, if no `sleep` in the command says it."""

USER_ANNOTATIONS: Final = (
    CORE_LIMIT,
    GPU_CLASS,
    GPU_AFFINITY,
    GPU_ANTI_AFFINITY,
    GPU_EXCLUSION,
    GPU_UUID,
    GPU_MODEL,
    SHARING,
    GANG,
    GANG_SIZE,
)

STANDARD: Final = "standard"
BACKGROUND: Final = "background"
GPU_CLASSES: Final = (STANDARD, BACKGROUND)

EXCLUSIVE: Final = "exclusive"
SHARED: Final = "shared"
MIG: Final = "mig"
ADAPTIVE: Final = "adaptive"
SHARING_MODES: Final = (ADAPTIVE, EXCLUSIVE, SHARED, MIG)
PLANNED_SHARING_MODES: Final = ("remote",)
"""Modes that are planned; they are refused until they exist."""

# Annotations that are written to existing pods: a new pod may not have them.
NEVER_ON_NEW_PODS: Final = (BOUND_AT, SHARING_MODE, ADOPTED_AT)


def gpu_annotation(container: str) -> str:
    """Return the pod annotation for the GPUs chosen for `container`."""
    return GPU_PREFIX + container


def limit_annotation(container: str) -> str:
    """Return the pod annotation for the elastic ceiling of `container`."""
    return CONTAINER_LIMIT_PREFIX + container
