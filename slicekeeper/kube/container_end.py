# SPDX-License-Identifier: Apache-2.0
"""Whether a container has ended for good, or kubelet starts it again. Its own fields count before the pod's.

The first of its `restartPolicyRules` that matches the exit code decides, then its `restartPolicy`, then the pod's
(KEP-5307, KEP-5532). A native sidecar is started again until all app containers have ended. A plain init container
that ended with 0 is done, whatever its policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from slicekeeper.kube.pod import has_ended
from slicekeeper.kube.pod_manifest import container_name, containers
from slicekeeper.untyped_json import as_list, as_map

RESTART_ALL: Final = "RestartAllContainers"
"""The action of a rule that starts every container of the pod again, init containers and those that are done too."""

_RESTARTS: Final = ("Restart", RESTART_ALL)
_RESTARTING_ALL: Final = "RestartingAllContainers"
"""The reason that kubelet gives for the end of each container that it ended to start all of them again."""


def action_on_exit(container: Mapping[str, Any], exit_code: int | None) -> str:
    """Return the action of the first rule that matches an exit code; empty if none does, or if it is not known."""
    for rule in map(as_map, as_list(container.get("restartPolicyRules"))):
        codes = as_map(rule.get("exitCodes"))
        wanted = {"In": True, "NotIn": False}.get(str(codes.get("operator")))
        if exit_code is not None and (exit_code in as_list(codes.get("values"))) is wanted:
            return str(rule.get("action"))
    return ""


def starts_again(container: Mapping[str, Any], exit_code: int | None, pod_policy: object) -> bool:
    """Whether kubelet starts a container again after an exit; of an exit code that is not known, whether it may."""
    if action_on_exit(container, exit_code) in _RESTARTS:
        return True
    policy = container.get("restartPolicy") or pod_policy
    return exit_code != 0 if policy == "OnFailure" else policy != "Never"


class ContainerEnd(NamedTuple):
    """What a pod's record shows of one container."""

    kind: str
    """As `pod_manifest.containers` has it."""
    has_ended: bool
    failed: bool
    """Whether its last run has ended with another exit code than 0."""
    starts_again: bool
    """Whether kubelet would start it again, or may if it is not known how it ended."""

    @property
    def for_good(self) -> bool:
        """Whether it has ended, and kubelet will not start it again."""
        return self.has_ended and not self.starts_again


def container_ends(pod: Mapping[str, Any]) -> list[ContainerEnd]:
    """Return what a pod's record shows of each of its containers."""
    spec, status = as_map(pod.get("spec")), as_map(pod.get("status"))
    statuses = {
        str(entry.get("name")): entry
        for key in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
        for entry in map(as_map, as_list(status.get(key)))
    }
    found = [(kind, one, as_map(statuses.get(container_name(one)))) for _, kind, one in containers(spec)]
    policy, all_restart = spec.get("restartPolicy", "Always"), _all_restart(status, found)
    ends = []
    for kind, container, its in found:
        run = _last_run(its)
        code = _exit_code(run)
        done = kind == "ephemeral" or (kind == "init" and code == 0)
        again = all_restart or run.get("reason") == _RESTARTING_ALL
        again = again or (not done and starts_again(container, code, policy))
        ends.append(ContainerEnd(kind, bool(as_map(its.get("state")).get("terminated")), bool(code), again))
    return ends


def apps_ended(pod: Mapping[str, Any]) -> bool:
    """Whether all app containers have ended for good, so that only native sidecars are left."""
    if has_ended(pod):
        return True
    apps = [end.for_good for end in container_ends(pod) if end.kind == "app"]
    return bool(apps) and all(apps)


def waited_for_a_restart(pod: Mapping[str, Any]) -> bool:
    """Whether kubelet would have started an app container of an ended pod again, so that the pod ended from outside."""
    ends = container_ends(pod)
    if any(end.kind == "init" and end.failed and not end.starts_again for end in ends):
        return False  # its app containers would never have been started
    return any(end.starts_again for end in ends if end.kind == "app")


def _all_restart(status: Mapping[str, Any], found: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]) -> bool:
    """Whether kubelet is about to start all containers again."""
    for condition in map(as_map, as_list(status.get("conditions"))):
        if (condition.get("type"), condition.get("status")) == ("AllContainersRestarting", "True"):
            return True
    ended = ((one, as_map(as_map(its.get("state")).get("terminated"))) for _, one, its in found)
    return any(action_on_exit(container, _exit_code(run)) == RESTART_ALL for container, run in ended)


def _last_run(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how a container ended, the run before if it waits for another; empty if it runs or never did."""
    state = as_map(status.get("state"))
    if state.get("running") is not None:
        return {}
    return as_map(state.get("terminated")) or as_map(as_map(status.get("lastState")).get("terminated"))


def _exit_code(run: Mapping[str, Any]) -> int | None:
    code = run.get("exitCode")
    return code if isinstance(code, int) else None
