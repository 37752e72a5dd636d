# SPDX-License-Identifier: Apache-2.0
"""Bind pods: choose GPUs, write one Binding that contains them, and find out the result.

The answer to a Binding may be lost before or after the API server has executed it. So if the answer is not clear, the
pod itself is read: it shows whether it is bound, and to which node. If it is not bound yet, the GPUs stay held, and a
second try writes the same ones. The Binding names the pod's UID, so it never binds a later pod of the same name.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from scheduler.agent_readiness import NodeAgents
from scheduler.bind_lease import BindLease, NotHolder
from scheduler.extender import gpu_pod, placeable
from scheduler.gangs import Gangs
from scheduler.held_places import Place
from scheduler.pending_bindings import NoPlace
from scheduler.pods import KnownPod
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.errors import Conflict, NotFound, ServiceError, Unavailable
from slicekeeper.kube.client import PODS, KubeClient, Object
from slicekeeper.kube.pod_manifest import asks_for
from slicekeeper.units import format_instant
from slicekeeper.untyped_json import as_map
from slicekeeper.wire.extender import BindingArgs

log = logging.getLogger(__name__)

TOO_MANY_REQUESTS: Final = 429

REQUEST_SECONDS: Final = 60.0
"""kube-apiserver's default --request-timeout: a binding that was not executed by then never will be."""


@dataclass(frozen=True)
class Result:
    """The result of one attempt: `node` is where the pod is bound, `message` why it is not where it should be."""

    outcome: Literal["bound", "refused", "lost"]
    node: str = ""
    message: str = ""


class Binder:
    """Executes `bind`, and checks bindings that no watch has confirmed."""

    def __init__(
        self,
        client: KubeClient,
        state: SchedulerState,
        clock: Clock,
        agents: NodeAgents,
        bind_lease: BindLease,
        gangs: Gangs,
    ) -> None:
        self._client = client
        self._state = state
        self._clock = clock
        self._agents = agents
        self._bind_lease = bind_lease
        self._gangs = gangs

    def bind(self, args: BindingArgs) -> str:
        """Bind a pod; return why it is not bound to that node, empty if it is, now or before."""
        uid, node = args["PodUID"], args["Node"]
        try:
            pod = self._state.pod(uid)
            if pod is None:
                obj = self._read(args)
                pod = gpu_pod(self._state, obj)
                if pod is None:
                    return self._try(args, {}).message
            if pod.node:
                return "" if pod.node == node else f"the pod is bound to node {pod.node} already"
            refusal = placeable(pod)
            if refusal:
                return refusal
            not_now = self._why_not_now(pod, node)
            if not_now:
                return f"node {node}: {not_now}"
            if pod.gang is not None:
                with self._bind_lease.held():  # so that only the Bindings can fail once all have arrived
                    self._gangs.wait_for_gang(pod, node)
            with self._bind_lease.held() as term:
                return self._give(args, pod, term)
        except (NoPlace, NotHolder) as error:
            return f"node {node}: {error}"
        except ServiceError as error:
            return f"pods could not be read: {error}"

    def _give(self, args: BindingArgs, pod: KnownPod, term: int) -> str:
        """Choose GPUs, hold them and bind the pod; return why not, empty if it is bound.

        If the result is unknown, the GPUs stay held, and no other process may bind until the request is over: the API
        server may still execute it.
        """
        uid, node = args["PodUID"], args["Node"]
        place = self._state.bindings.choose(pod, node)
        result = Result("lost")
        try:
            annotations = self._annotations(place)
            if self._bind_lease.is_still_held(term):
                result = self._try(args, annotations)
            else:
                lost = "the lease for binding was lost while GPUs were chosen; the pod is tried again"
                result = Result("refused", message=f"node {node}: {lost}")
        finally:
            if result.outcome == "bound":
                self._state.bindings.bound(uid, result.node)
            elif result.outcome == "refused":
                self._state.bindings.refused(uid, node)
            else:
                self._state.bindings.lost(uid, node)
                self._bind_lease.need(REQUEST_SECONDS)
        return result.message

    def stop(self) -> None:
        """Stop asking agents."""
        self._agents.stop()

    def look_at_overdue(self) -> None:
        """Ask the API server about pods whose binding no watch has shown in time."""
        for pod in self._state.bindings.overdue():
            try:
                obj: Object | None = self._client.get(PODS, pod.name, pod.namespace)
            except NotFound:
                obj = None
            except ServiceError as error:
                log.info("pod %s stays held: %s", pod.key, error)
                continue
            self._state.bindings.looked(pod.uid, obj)

    def _why_not_now(self, pod: KnownPod, node: str) -> str:
        """Return the node agent's objection to a pod; empty if there is none."""
        if not asks_for(pod.waiting or {}, (self._state.resources.seat,)):
            return ""
        why_not = self._agents.why_not(node, self._state.agent(node))
        if why_not and self._agents.has_answered(node):
            self._state.avoid(node)
        return why_not

    def _annotations(self, place: Place) -> dict[str, str]:
        mode, why = place.pod.demand.mode_on(slices=place.hold.on_slices)
        return {
            **{names.gpu_annotation(container): ",".join(gpus) for container, gpus in place.gpus.items()},
            names.BOUND_AT: format_instant(self._clock.now_ms()),
            names.SHARING_MODE: f"{mode}: {why}; {place.why}",
        }

    def _try(self, args: BindingArgs, annotations: Mapping[str, str]) -> Result:
        """Write the Binding, and find out its result."""
        node = args["Node"]
        metadata = {"name": args["PodName"], "namespace": args["PodNamespace"], "uid": args["PodUID"]}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {**metadata, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            self._client.create(PODS, binding, args["PodNamespace"], name=args["PodName"], subresource="binding")
        except Conflict as error:
            return self._look(args, error, clear=True)
        except Unavailable as error:
            return self._look(args, error, clear=error.status == TOO_MANY_REQUESTS)
        except ServiceError as error:
            return Result("refused", message=f"the binding was refused: {error}")
        return Result("bound", node)

    def _look(self, args: BindingArgs, error: ServiceError, *, clear: bool) -> Result:
        """Read the pod after a failed attempt; `clear` is whether the API server has confirmed that it did nothing."""
        failed: Literal["refused", "lost"] = "refused" if clear else "lost"
        try:
            pod = self._read(args)
        except NotFound as gone:
            return Result("refused", message=str(gone))
        except ServiceError:
            return Result(failed, message=f"the binding failed: {error}")
        bound_to = as_map(pod.get("spec")).get("nodeName")
        if not bound_to:
            return Result(failed, message=f"the binding failed: {error}")
        node = args["Node"]
        return Result("bound", bound_to, "" if bound_to == node else f"the pod is bound to node {bound_to} already")

    def _read(self, args: BindingArgs) -> Object:
        """Return the pod. Raises NotFound if it is gone, even if another one has its name now."""
        obj = self._client.get(PODS, args["PodName"], args["PodNamespace"])
        if as_map(obj.get("metadata")).get("uid") != args["PodUID"]:
            raise NotFound(f"pod {args['PodNamespace']}/{args['PodName']} is not the one with UID {args['PodUID']}")
        return obj
