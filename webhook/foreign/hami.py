# SPDX-License-Identifier: Apache-2.0
"""HAMi: `nvidia.com/gpu` with `gpumem`, `gpumem-percentage` and `gpucores`, and its annotations."""

from __future__ import annotations

from typing import Final

from slicekeeper import names
from slicekeeper.config.foreign_dialects import HAMI_PRIORITY
from slicekeeper.gpu.foreign_request import Reading, ReferenceGpu, gpu_containers
from slicekeeper.kube.objects import Pod
from webhook.foreign.vgpu import VgpuNames, read_vgpus

_NAMES: Final = VgpuNames(
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/vgpu-mode",
)
_USE_TYPE: Final = "nvidia.com/use-gputype"
_USE_UUID: Final = "nvidia.com/use-gpuuuid"
_AVOIDS: Final = ("nvidia.com/nouse-gputype", "nvidia.com/nouse-gpuuuid")
_IGNORED: Final = {
    "hami.io/node-scheduler-policy": "Slicekeeper's scheduler has one policy for the cluster",
    "hami.io/gpu-scheduler-policy": "Slicekeeper's scheduler has one policy for the cluster",
    "hami.io/": "only HAMi reads it",
    "nvidia.com/numa-bind": "the scheduler chooses by links itself",
}


def read(pod: Pod, gpu: ReferenceGpu, reading: Reading) -> None:
    """Read a pod written for HAMi."""
    read_vgpus(pod, _NAMES, gpu, reading)
    if not reading.shares:
        return
    annotations = pod.metadata.annotations
    reading.ignores(annotations, _IGNORED)
    for _, name, _ in gpu_containers(pod, (HAMI_PRIORITY,)):
        reading.notes.append(f"{name}: {HAMI_PRIORITY} is ignored: the namespace's budget determines the class")
    if _USE_TYPE in annotations:
        reading.annotations[names.GPU_MODEL] = str(annotations[_USE_TYPE])
    if _USE_UUID in annotations:
        [uuid, *others] = [text.strip() for text in str(annotations[_USE_UUID]).split(",")]
        reading.annotations[names.GPU_UUID] = uuid
        if others:
            rule = "one of several GPUs cannot be requested; name one GPU, or the models that are acceptable"
            reading.refuse_annotation(annotations, _USE_UUID, rule, f"{_USE_UUID}: {uuid}")
    for key in _AVOIDS:
        if key in annotations:
            rule = "GPU models cannot be excluded; name the models that are acceptable"
            reading.refuse_annotation(annotations, key, rule, f"{names.GPU_MODEL}: A100,H100")
