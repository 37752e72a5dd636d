# SPDX-License-Identifier: Apache-2.0
"""Read the options in a pod's annotations: class, sharing, affinity, a particular GPU or model, a gang."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.gpu.request import GpuRequest
from slicekeeper.gpu.violations import Violations

MAX_GANG: Final = 512
"""No gang has more pods; it is placed as one, so its size bounds how long that takes."""

_UUID: Final = "GPU-8f6e1a52-3b0c-4d9e-a1f7-5c2d90e4b6a8"
_OPTIONS: Final = frozenset(names.USER_ANNOTATIONS)
LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class AnnotationReader:
    """Reads the annotations of one pod."""

    def __init__(self, annotations: Mapping[str, Any], violations: Violations) -> None:
        self._annotations = annotations
        self._violations = violations

    def options(self, requests: tuple[GpuRequest, ...]) -> dict[str, Any]:
        """Return the pod-wide options of a PodRequest that differ from the defaults."""
        if _OPTIONS.isdisjoint(self._annotations):
            return {}
        sharing, affinity = self._sharing(requests)
        return {
            "sharing": sharing,
            "affinity": affinity,
            "gpu_models": self._models(),
            "gpu_uuid": self._uuid(),
            "gpu_class": self._choice(names.GPU_CLASS, names.GPU_CLASSES, names.STANDARD),
            "anti_affinity": self._label(names.GPU_ANTI_AFFINITY),
            "exclusion": self._label(names.GPU_EXCLUSION),
            "gang": self._label(names.GANG),
            "gang_size": self._gang_size(),
        }

    def _sharing(self, requests: tuple[GpuRequest, ...]) -> tuple[str, str]:
        """Return the sharing mode and the affinity label, which a MIG slice excludes."""
        sharing = self._choice(names.SHARING, names.SHARING_MODES, names.ADAPTIVE)
        has_whole_gpus = any(not request.is_fraction for request in requests)
        if sharing == names.SHARED and has_whole_gpus:
            self._refuse(
                "shared-whole-gpu",
                names.SHARING,
                rule="whole GPUs are not shared; request 1 to 99 percent or choose another mode",
                example=f"{names.SHARING}: exclusive",
            )
        affinity = self._label(names.GPU_AFFINITY)
        if sharing == names.MIG and has_whole_gpus:
            self._refuse(
                "mig-whole-gpu",
                names.SHARING,
                rule="a MIG slice is a part of one GPU, for a container that asks for 1 to 99 percent of it; whole "
                "GPUs are allocated undivided",
                example=f"{names.SHARING}: {names.EXCLUSIVE}",
            )
        if sharing == names.MIG and affinity:
            self._refuse(
                "mig-affinity",
                names.GPU_AFFINITY,
                rule="a MIG slice holds one container, so pods cannot share it",
                example=f"{names.SHARING}: {names.SHARED} beside {names.GPU_AFFINITY}: {affinity}",
            )
        return sharing, affinity

    def _models(self) -> tuple[str, ...]:
        """Return the models that the pod may be on; empty: any."""
        text = self._text(names.GPU_MODEL, "A100,H100")
        models = tuple(model.strip() for model in text.split(",") if model.strip())
        if text and not models:
            self._refuse(
                "text-invalid",
                names.GPU_MODEL,
                rule="it must name at least one model, several separated by commas",
                example=f"{names.GPU_MODEL}: A100,H100",
            )
        return models

    def _uuid(self) -> str:
        """Return the UUID of the one GPU that the pod may be on; empty: any."""
        uuid = self._text(names.GPU_UUID, _UUID)
        if re.search(r"[\s,;]", uuid):
            first = next((part for part in re.split(r"[\s,;]+", uuid) if part), _UUID)
            self._refuse(
                "text-invalid",
                names.GPU_UUID,
                rule="it must name one GPU or MIG slice by its UUID, as `slicekeeper nodes` shows it; "
                "no pod can be on each of several",
                example=f"{names.GPU_UUID}: {first}",
            )
        return uuid

    def _gang_size(self) -> int:
        """Return the minimum number of pods of a gang, 0 without a gang."""
        key = names.GANG_SIZE
        value = self._annotations.get(key)
        if value is None and not self._annotations.get(names.GANG):
            return 0
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 4:
            size = int(value)
            if 2 <= size <= MAX_GANG:
                return size
        self._refuse(
            "gang-size-invalid",
            key,
            rule=f"a gang's size is how many of its pods are placed together or not at all, a whole number from 2 to "
            f"{MAX_GANG}, as a string",
            example=f'{key}: "8"',
        )
        return 0

    def _choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        value = self._annotations.get(key, default)
        if value in allowed and isinstance(value, str):
            return value
        reason = f" ({value} is planned but not available yet)" if value in names.PLANNED_SHARING_MODES else ""
        self._refuse(
            "choice-unknown", key, rule=f"it must be one of {', '.join(allowed)}{reason}", example=f"{key}: {default}"
        )
        return default

    def _label(self, key: str) -> str:
        value = self._annotations.get(key, "")
        if value == "" or (isinstance(value, str) and LABEL.fullmatch(value)):
            return str(value)
        self._refuse(
            "label-invalid",
            key,
            rule="it must be a label: up to 63 letters, digits, '-', '_' or '.', a letter or digit at both ends",
            example=f"{key}: training",
        )
        return ""

    def _text(self, key: str, example: str) -> str:
        value = self._annotations.get(key, "")
        if (
            isinstance(value, str)
            and len(value) <= 1024
            and value.isprintable()
            and (value.strip() or key not in self._annotations)
        ):
            return value.strip()
        self._refuse(
            "text-invalid",
            key,
            rule="it must be a non-empty line of at most 1,024 printable characters",
            example=f"{key}: {example}",
        )
        return ""

    def _refuse(self, code: str, key: str, rule: str, example: str) -> None:
        field = f"metadata.annotations[{key}]"
        self._violations.add(code=code, field=field, value=self._annotations.get(key), rule=rule, example=example)
