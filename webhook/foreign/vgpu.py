# SPDX-License-Identifier: Apache-2.0
"""Virtual GPUs as in HAMi and Volcano's plugin: a number of GPUs, and the memory and compute of each."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from slicekeeper.gpu.foreign_request import ConvertedShare, Reading, ReferenceGpu, gpu_containers, whole
from slicekeeper.kube.objects import Pod
from slicekeeper.units import CORES_PER_GPU


@dataclass(frozen=True)
class VgpuNames:
    """One plugin's resources: number of GPUs, MiB of each, percent of the memory of each, percent of its compute.

    `mode` is the annotation by which a pod chooses how GPUs are divided. Empty: the plugin has no such resource.
    """

    count: str
    memory: str
    percentage: str = ""
    cores: str = ""
    mode: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        """The four resources."""
        return self.count, self.memory, self.percentage, self.cores


def read_vgpus(pod: Pod, names: VgpuNames, gpu: ReferenceGpu, reading: Reading) -> None:
    """Read what each container requests.

    GPUs with neither memory nor compute stated are whole ones, and so are those with all compute requested.
    """
    for path, name, amounts in gpu_containers(pod, names.all):
        before = len(reading.violations)
        count, mib, percentage, cores = (whole(reading, name, path, amounts, key) for key in names.all)
        if len(reading.violations) > before or count == 0:
            continue
        if not _are_percentages(path, name, percentage, cores, names, reading):
            continue
        count = 1 if count is None else count
        if mib and percentage is not None:
            reading.notes.append(f"{name}: {names.percentage} is ignored beside {names.memory}")
        all_memory = not mib and percentage in (None, 100)
        if cores == CORES_PER_GPU or (all_memory and not cores):
            if not all_memory:
                reading.notes.append(f"{name}: all compute of a GPU is a whole GPU, with all of its memory")
            reading.shares[name] = ConvertedShare(count * CORES_PER_GPU)
            continue
        if count > 1:
            rule = (
                "shares of several GPUs in one container are not supported: request whole GPUs, or for a share of one"
            )
            reading.refuse(name, f"{path}[{names.count}]", count, rule, f"{names.count}: 1")
            continue
        part, memory = (None, Fraction(mib)) if mib else (Fraction(percentage or 100, 100), None)
        share = gpu.share(reading, name, path, core=cores or None, part=part, mib=memory)
        if share is not None:
            reading.shares[name] = share
    if reading.shares and pod.metadata.annotations.get(names.mode) == "mig":
        rule = "MIG slices are not created on demand; request a share"
        reading.refuse_annotation(pod.metadata.annotations, names.mode, rule, f"{names.mode}: hami-core")


def _are_percentages(
    path: str, container: str, percentage: int | None, cores: int | None, names: VgpuNames, reading: Reading
) -> bool:
    """Return whether compute and memory are percentages of one GPU; refuse the container otherwise."""
    if cores is not None and cores > CORES_PER_GPU:
        rule = "it must be a percentage of each GPU's compute, at most 100"
        reading.refuse(container, f"{path}[{names.cores}]", cores, rule, f"{names.cores}: 50")
        return False
    if percentage is not None and not 0 < percentage <= CORES_PER_GPU:
        rule = "it must be a percentage of each GPU's memory, from 1 to 100"
        reading.refuse(container, f"{path}[{names.percentage}]", percentage, rule, f"{names.percentage}: 50")
        return False
    return True
