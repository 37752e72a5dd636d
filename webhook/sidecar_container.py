# SPDX-License-Identifier: Apache-2.0
"""The reporting sidecar, a native sidecar that passes Pod Security `restricted`, keeps the QoS class, and needs no GPU.

If seats are used, it has a seat of its own, which gives it its pod's counters and no device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.config.policy import SidecarPolicy
from slicekeeper.config.settings import Settings

TOKEN_VOLUME: Final = "slicekeeper-token"  # noqa: S105 - a volume's name
SPOOL_VOLUME: Final = "slicekeeper-spool"
TOKEN_FOLDER: Final = "/var/run/secrets/slicekeeper"  # noqa: S105 - a folder
CONTAINERS_VARIABLE: Final = names.ENV_PREFIX + "SIDECAR_CONTAINERS"

_TOKEN_SECONDS: Final = 3600
_USER: Final = 65532

_BY_FIELD: Final = (
    (names.ENV_PREFIX + "SIDECAR_NAMESPACE", "metadata.namespace"),
    (names.ENV_PREFIX + "SIDECAR_POD_NAME", "metadata.name"),
    (names.ENV_PREFIX + "SIDECAR_POD_UID", "metadata.uid"),
)


def sidecar_container(settings: Settings, policy: SidecarPolicy) -> dict[str, Any]:
    """Return the container without the variable that names the GPU containers, which differs between pods."""
    literal = {
        names.ENV_PREFIX + "SIDECAR_REPORT_SECONDS": f"{settings.webhook.report_seconds:g}",
        names.ENV_PREFIX + "TIMEKEEPER_CLIENT_URL": settings.timekeeper_client.url,
        names.ENV_PREFIX + "TIMEKEEPER_CLIENT_TOKEN_FILE": f"{TOKEN_FOLDER}/token",
    }
    if _speaks_tls(settings):
        literal[names.ENV_PREFIX + "TIMEKEEPER_CLIENT_CA_FILE"] = f"{TOKEN_FOLDER}/{names.CA_KEY}"
    resources = {"cpu": policy.cpu, "memory": policy.memory}
    if settings.webhook.injection != "meter":
        # Through its seat it gets its pod's usage from the node's agent, which needs no `hostPath`.
        resources[settings.resources.seat] = "1"
    return {
        "name": names.SIDECAR,
        "image": policy.image or settings.images.of("sidecar"),
        "args": ["sidecar", "run"],
        "restartPolicy": "Always",
        "env": [
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in _BY_FIELD),
            *({"name": name, "value": value} for name, value in literal.items()),
        ],
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [
            {"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True},
            {"name": SPOOL_VOLUME, "mountPath": settings.sidecar.spool_dir},
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsGroup": _USER,
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def volumes(settings: Settings) -> list[dict[str, Any]]:
    """Return the volumes that only the sidecar mounts."""
    token = {"audience": settings.timekeeper.audience, "expirationSeconds": _TOKEN_SECONDS, "path": "token"}
    sources: list[dict[str, Any]] = [{"serviceAccountToken": token}]
    if _speaks_tls(settings):
        # By name and not by value: the pod does not change when CAs are rotated.
        items = [{"key": names.CA_KEY, "path": names.CA_KEY}]
        sources.append({"configMap": {"name": names.CA_CONFIG_MAP, "items": items}})
    return [{"name": TOKEN_VOLUME, "projected": {"sources": sources}}, {"name": SPOOL_VOLUME, "emptyDir": {}}]


def _speaks_tls(settings: Settings) -> bool:
    return settings.timekeeper_client.url.startswith("https://")


def is_ours(container: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether a container with the sidecar's name does the same as ours.

    Another mutator may have changed image, resources and security context (a registry mirror, defaults, a security
    policy), or added variables and mounts; the list of GPU containers is updated in each pass.
    """
    fixed = {key: ours[key] for key in ("args", "restartPolicy", "volumeMounts")}
    env = [entry for entry in ours["env"] if entry["name"] != CONTAINERS_VARIABLE]
    return not container.get("command") and covers(container, {**fixed, "env": env})


def covers(theirs: object, ours: object) -> bool:
    """Whether `theirs` has all that `ours` has; lists of named things are compared by name, in any order."""
    if theirs == ours:  # nearly always, and one comparison in C
        return True
    if isinstance(ours, dict):
        return isinstance(theirs, dict) and all(key in theirs and covers(theirs[key], ours[key]) for key in ours)
    if isinstance(ours, list):
        if not isinstance(theirs, list):
            return False
        if ours and isinstance(ours[0], dict) and "name" in ours[0]:
            return _covers_by_name(theirs, ours)
        return len(theirs) == len(ours) and all(map(covers, theirs, ours))
    return False


def _covers_by_name(theirs: list[Any], ours: list[Mapping[str, Any]]) -> bool:
    named: dict[str, list[Mapping[str, Any]]] = {entry["name"]: [] for entry in ours}
    for entry in theirs:
        name = entry.get("name") if isinstance(entry, dict) else None
        if isinstance(name, str) and name in named:
            named[name].append(entry)
    return all(named[entry["name"]] and all(covers(same, entry) for same in named[entry["name"]]) for entry in ours)
