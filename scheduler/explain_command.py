# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper explain`: read the cluster, and tell a pod's owner why it waits or why it has its place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import click

from scheduler.explain_wait import Outlook, outlook
from scheduler.extender import UNMANAGED, placeable
from scheduler.gang_places import places_for
from scheduler.placement.learner import Learner
from scheduler.pods import KnownPod
from scheduler.scheduler_state import SchedulerState
from scheduler.wait_forecast import deadlines
from scheduler.wait_remedies import ROOM
from scheduler.watches import BOUND
from slicekeeper import names
from slicekeeper.cli.connection import cluster, cluster_options, timekeeper
from slicekeeper.cli.main import Context
from slicekeeper.cli.namespaces import current_if_any
from slicekeeper.cli.output import output_option, show
from slicekeeper.cli.plain_text import plain
from slicekeeper.clock import from_settings
from slicekeeper.config.settings import Settings
from slicekeeper.errors import Forbidden, NotFound, SlicekeeperError
from slicekeeper.kube.client import EVENTS, JOBS, NAMESPACES, NODES, PODS, KubeClient, Object
from slicekeeper.kube.pod import has_ended
from slicekeeper.kube.pod_manifest import annotations_of
from slicekeeper.units import as_instant, format_instant
from slicekeeper.untyped_json import as_list, as_map
from slicekeeper.wire.timekeeper import Budget

_STATES: Final = {"waiting": "waits since", "placed": "has its place since", "ended": "has ended; it was there from"}
_SHOWN: Final = 5
"""The maximum number of pods that are named."""


@click.command()
@click.argument("pod", metavar="[NAMESPACE/]POD")
@click.option("-n", "--namespace", default="", help="The pod's namespace. Default: that of the kubeconfig's context.")
@cluster_options
@output_option()
def explain(context: Context, pod: str, namespace: str, output: str) -> None:
    """Say why a pod waits for a GPU, or why it has its place.

    For a waiting pod: what would help too, and when it is expected to start. Reads all nodes and all GPU pods; for a
    user who may not, it shows what the scheduler last said about the pod. The expected time is computed from the
    deadlines (activeDeadlineSeconds) of pods and Jobs, and from when budgets run out.
    """
    namespace, pod = _named(context, pod, namespace)
    client = cluster(context)
    found = _pod(client, pod, namespace)
    placed = found["spec"].get("nodeName", "")
    annotations, metadata = annotations_of(found), found["metadata"]
    said: dict[str, Any] = {
        "namespace": namespace,
        "name": pod,
        "state": "ended" if has_ended(found) else "placed" if placed else "waiting",
        "since": (placed and annotations.get(names.BOUND_AT)) or metadata.get("creationTimestamp"),
        "budgetState": annotations.get(names.BUDGET_STATE, ""),
        "priorityClass": found["spec"].get("priorityClassName", ""),
    }
    if placed:
        gpus = {
            key.removeprefix(names.GPU_PREFIX): value
            for key, value in annotations.items()
            if key.startswith(names.GPU_PREFIX)
        }
        sharing, _, why = annotations.get(names.SHARING_MODE, "").partition("; ")
        said |= {"node": placed, "gpus": gpus, "sharing": sharing, "why": why}
    elif said["state"] == "waiting":
        try:
            said |= _waiting(context, client, found)
        except Forbidden:
            said |= _told(client, found)
    show(said, output, lambda: _in_words(said))


def _named(context: Context, pod: str, namespace: str) -> tuple[str, str]:
    """Return the namespace and the name of a pod, given as POD, pod/POD or NAMESPACE/POD."""
    there, _, name = pod.removeprefix("pod/").rpartition("/")
    if there and namespace and there != namespace:
        raise click.UsageError(f"{pod} names the namespace {there}, and -n names {namespace}: give one of them")
    return there or namespace or current_if_any(context), name


def _pod(client: KubeClient, name: str, namespace: str) -> Object:
    """Return a pod.

    Raises NotFound that says whether the pod or the namespace does not exist.
    """
    try:
        return client.get(PODS, name, namespace)
    except NotFound as error:
        with suppress(Forbidden):  # a user of one namespace may not be allowed to get it
            try:
                client.get(NAMESPACES, namespace)
            except NotFound as missing:
                raise NotFound(f"namespace {namespace} is not found", 404, "namespace-unknown") from missing
        raise NotFound(f"pod {namespace}/{name} is not found", 404) from error


def _waiting(context: Context, client: KubeClient, found: Object) -> dict[str, Any]:
    """Return why a pod waits and what would help, as computed from the cluster by the scheduler's own code."""
    settings = context.loaded.settings
    clock = from_settings(settings.clock)
    learner = Learner(settings.scheduler.policy)
    state = SchedulerState(settings.resources, learner, clock, hold_seconds=0, lost_seconds=0)
    objects, _ = client.list(PODS, label_selector=names.MANAGED_SELECTOR)
    mine = found["spec"].get("schedulerName", "")
    others = _by_scheduler(settings, mine, client.list(NODES)[0])
    state.intake.set_nodes(others.pop(mine, []))
    state.intake.set_pods(objects)
    pod = state.pod(found["metadata"]["uid"])
    refusal = UNMANAGED if pod is None else placeable(pod)
    if pod is None or refusal:
        return {"asks": "", "reasons": [{"reason": refusal, "nodes": len(state.snapshot().nodes)}]}
    gate = _said_of_gpu_time(client, found) if names.GATE in pod.gates else ""
    now_ms, ends = clock.now_ms(), deadlines(objects, _jobs(client))
    run_outs = _run_outs(context, state, pod)
    by_budget = {uid for uid, at in run_outs.items() if at < ends.get(uid, math.inf)}
    ends |= {uid: run_outs[uid] for uid in by_budget}
    forecast = outlook(state.snapshot(), pod, learner.policy, ends, now_ms)
    if ROOM in forecast.helps:  # only now do other pods matter, which may be many: they take CPU and memory
        state.intake.set_others(client.list(PODS, label_selector=f"!{names.MANAGED_LABEL}", field_selector=BOUND)[0])
        forecast = outlook(state.snapshot(), pod, learner.policy, ends, now_ms)
    gang = _gang(state, pod)
    if gang and gang["fitting"] < gang["size"] - gang["placed"]:  # no room for it alone is of use
        helps = [*_help_for_gang(gang), *(text for text in forecast.helps if text is not ROOM)]
        forecast = replace(forecast, helps=tuple(helps))
    elif ROOM not in forecast.helps:
        for name, nodes in others.items():  # as if the nodes of another scheduler were the only ones
            state.intake.set_nodes(nodes)
            if ROOM in outlook(state.snapshot(), pod, learner.policy, {}, now_ms).helps:
                helps = [*forecast.helps, f"{name} has nodes with room for it: create it again with that schedulerName"]
                forecast = replace(forecast, helps=tuple(helps))
    return {
        "asks": pod.demand.asks,
        **_data(forecast, {other.key for other in map(state.pod, by_budget) if other is not None}),
        "gateSaid": gate,
        "gang": gang,
        "schedulerSaid": _last_message(found),
    }


def _run_outs(context: Context, state: SchedulerState, mine: KnownPod) -> dict[str, int]:
    """Return when other namespaces' running pods will go over budget, by UID: then they give way to this one.

    Empty if it is not in budget itself, or if the user may not read the others' budgets.
    """
    if mine.budget_state != names.IN_BUDGET or mine.gpu_class != names.STANDARD:
        return {}
    try:
        budgets = [one for one in timekeeper(context).budgets(Budget) if one.enforcement != "safe" and not one.gone]
    except SlicekeeperError:
        return {}
    at = {one.namespace: as_instant(one.run_out_at) for one in budgets if one.namespace != mine.namespace}
    running = (pod for pod in state.snapshot().pods if pod.node and not pod.finished and not pod.leaving)
    return {pod.uid: found for pod in running if (found := at.get(pod.namespace)) is not None}


def _told(client: KubeClient, pod: Object) -> dict[str, Any]:
    """Return what was said about a waiting pod, for a user who may not read what it is computed from."""
    newest = _newest_events(client, pod)
    shown = [newest[reason] for reason in (names.WAITS_FOR_GPU_TIME, names.WAITS_FOR_GPU) if reason in newest]
    return {
        "told": [{"at": _said_at(event), "message": str(event.get("message", ""))} for event in shown],
        "schedulerSaid": _last_message(pod),
    }


def _newest_events(client: KubeClient, pod: Object) -> dict[str, Object]:
    """Return the last event of each reason about a pod; none if the user may not read them."""
    metadata = pod["metadata"]
    selected = f"involvedObject.uid={metadata['uid']}"
    try:
        about = client.list(EVENTS, namespace=metadata["namespace"], field_selector=selected)[0]
    except Forbidden:
        return {}
    return {str(event.get("reason")): event for event in sorted(about, key=_said_at)}


def _said_at(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _jobs(client: KubeClient) -> list[Object]:
    """Return all Jobs; none if the user may not read them: then only the deadlines of pods are used."""
    try:
        return client.list(JOBS)[0]
    except Forbidden:
        return []


def _by_scheduler(settings: Settings, mine: str, nodes: list[Object]) -> dict[str, list[Object]]:
    """Return the nodes by the names of their schedulers; `mine` is the name that the pod has.

    Settings without shards may be those of a user's machine and not the cluster's: then each label on a node counts as
    a shard. If `mine` does not begin with their name of the first scheduler, that name is `mine` without its shard.
    """
    labels = [as_map(node["metadata"].get("labels")).get(names.SHARD, "") for node in nodes]
    shards = settings.scheduler.shards or set(labels)
    first = settings.webhook.scheduler_name
    if not f"{mine}-".startswith(f"{first}-"):
        first = next((mine.removesuffix(f"-{shard}") for shard in shards if mine.endswith(f"-{shard}")), mine)
    found: dict[str, list[Object]] = {}
    for node, label in zip(nodes, labels, strict=True):
        found.setdefault(f"{first}-{label}" if label and label in shards else first, []).append(node)
    return found


def _gang(state: SchedulerState, pod: KnownPod) -> dict[str, Any] | None:
    """Return the state of a pod's gang; None without one, or if it has started and the pod is placed separately."""
    members = state.gang_members(pod.gang.key) if pod.gang is not None else None
    if members is None or not members.needed:
        return None
    begin = partial(state.trial, {member.uid for member in members.waiting})
    fitting = places_for(begin, members, {}, state.policy)[1]
    return {
        "name": members.gang.name,
        "size": members.gang.size,
        "placed": members.placed,
        "waiting": len(members.waiting),
        "heldBack": members.held_back,
        "missing": max(members.needed - len(members.waiting), 0),
        "fitting": len(fitting),
        "fittingIdle": state.most_if_idle(members),
        "schedulers": members.schedulers,
    }


def _help_for_gang(gang: Mapping[str, Any]) -> Iterator[str]:
    needed = gang["size"] - gang["placed"]
    if gang["heldBack"]:
        yield f"pods of its gang are held back by scheduling gates ({gang['heldBack']}): `slicekeeper explain` them"
    if gang["missing"] > gang["heldBack"]:
        missing = gang["missing"] - gang["heldBack"]
        yield f"create the pods that are missing ({missing}), or name a smaller {names.GANG_SIZE}"
    elif not gang["missing"] and len(gang["schedulers"]) > 1:
        yield f"name one scheduler in all its pods: they name {' and '.join(gang['schedulers'])}"
    elif _is_too_large(gang):
        yield f"name a smaller {names.GANG_SIZE}, or let its pods ask for less"
    elif not gang["missing"]:
        yield f"room for more of its pods at the same time: {gang['fitting']} of {needed} have it now"


def _is_too_large(gang: Mapping[str, Any]) -> bool:
    """Whether not even idle GPUs would hold a gang whose pods are all there."""
    return not gang["missing"] and bool(gang["fittingIdle"] < gang["size"] - gang["placed"])


def _data(forecast: Outlook, by_budget: Set[str]) -> dict[str, Any]:
    """Return an outlook as JSON; `by_budget` are the pods that give way when their budget runs out."""
    expected = forecast.expected
    return {
        "reasons": [{"reason": reason, "nodes": nodes} for reason, nodes in forecast.reasons],
        "ahead": forecast.ahead,
        "giveWay": forecast.give_way,
        "expected": expected
        and {
            "at": format_instant(expected.at_ms),
            "node": expected.node,
            "after": expected.after,
            "afterIsBeingDeleted": expected.is_leaving,
            "afterRunsOutOfBudget": expected.after in by_budget,
        },
        "stuck": forecast.is_stuck,
        "heldBack": forecast.held_back,
        "helps": forecast.helps,
    }


def _said_of_gpu_time(client: KubeClient, pod: Object) -> str:
    """Return when and why the timekeeper last said that a pod waits for GPU time; empty if it said nothing yet."""
    last = _newest_events(client, pod).get(names.WAITS_FOR_GPU_TIME)
    return f"at {_said_at(last)} the timekeeper said: {last.get('message')}" if last is not None else ""


def _last_message(pod: Object) -> str:
    """Return kube-scheduler's last message about the pod; empty if there is none.

    From the pod's condition, because the event keeps the text of the first of several attempts within minutes.
    """
    conditions = map(as_map, as_list(as_map(pod.get("status")).get("conditions")))
    return next((str(of.get("message", "")) for of in conditions if of.get("type") == "PodScheduled"), "")


def _in_words(said: Mapping[str, Any]) -> str:
    budget = ", ".join(filter(None, (said["budgetState"], said["priorityClass"])))
    head = f"Pod {said['namespace']}/{said['name']} {_STATES[said['state']]} {said['since']} ({budget or 'no budget'})"
    if "gpus" in said:
        gpus = [f"  container {container}: {uuids}" for container, uuids in said["gpus"].items()]
        mode = f" ({said['sharing']})" if said["sharing"] else ""
        why = [f"Why there: {said['why']}"] if said["why"] else []
        return "\n".join(map(plain, [head, f"on node {said['node']}{mode}:", *gpus, *why]))
    if "told" in said:
        lines = [head, *(f"At {one['at']}: {one['message']}" for one in said["told"])]
        lines += ["kube-scheduler said last:", f"  {said['schedulerSaid']}"] if said["schedulerSaid"] else []
        if len(lines) == 1:
            lines.append("Nothing has been said about it yet; the scheduler writes an event after a minute.")
        lines.append("More can be computed by a user who may list nodes and all pods.")
        return "\n".join(map(plain, lines))
    if "reasons" not in said:
        return plain(head)
    lines = [head, f"It asks for {said['asks']}." if said["asks"] else "", "Why:", *_why(said)]
    if said.get("gang"):
        lines.append(_of_gang(said["gang"]))
    if said.get("ahead"):
        more = ", …" if len(said["ahead"]) > _SHOWN else ""
        lines.append(f"Ahead of it: {_counted(len(said['ahead']), 'pod')}: {', '.join(said['ahead'][:_SHOWN])}{more}")
    if said.get("giveWay"):
        when = "About to" if said["budgetState"] == names.IN_BUDGET else "With budget again, these would"
        lines.append(f"{when} give way to it: {', '.join(said['giveWay'])}")
    if "expected" in said:
        lines.append(f"Expected: {_when(said)}")
    if said.get("helps"):
        lines += ["What would help:", *(f"  - {text}" for text in said["helps"])]
    if said.get("schedulerSaid"):
        lines += ["kube-scheduler said last:", f"  {said['schedulerSaid']}"]
    return "\n".join(map(plain, filter(None, lines)))


def _of_gang(gang: Mapping[str, Any]) -> str:
    head = f"Gang {gang['name']}: {gang['size']} pods are placed together or not at all; {gang['placed']} have one"
    here = f"{gang['waiting']} wait, of which {gang['fitting']} would fit now together"
    if gang["missing"]:
        held_back = f" ({gang['heldBack']} held back by scheduling gates)" if gang["heldBack"] else ""
        return f"{head}, {here}, and {gang['missing']} must still come{held_back}"
    if _is_too_large(gang):
        return f"{head}, {gang['waiting']} wait; it can never fit: idle GPUs would hold {gang['fittingIdle']} of them"
    return f"{head}, {here}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _why(said: Mapping[str, Any]) -> Iterator[str]:
    """Return why a pod waits, line by line."""
    if said.get("heldBack"):
        yield f"  held back by its scheduling gate: {', '.join(said['heldBack'])}"
    if said.get("gateSaid"):
        yield f"  {said['gateSaid']}"
    for entry in said["reasons"]:
        yield f"  {_counted(entry['nodes'], 'node')}: {entry['reason']}"
    if said.get("gang"):
        yield "  its gang has not started, see below"
    elif not said["reasons"] and not said.get("heldBack"):
        yield "  no node has GPUs that Slicekeeper manages" if said["stuck"] else "  nothing on GPUs: there is room"


def _when(said: Mapping[str, Any]) -> str:
    """Return when a pod's place is expected."""
    expected, gang = said["expected"], said.get("gang")
    if expected and not expected["after"]:
        return f"now, on node {expected['node']}"
    if expected and expected["afterIsBeingDeleted"]:
        return f"soon, on node {expected['node']}, when {expected['after']} has ended, which is being deleted"
    if expected and expected["afterRunsOutOfBudget"]:
        return (
            f"about {expected['at']} on node {expected['node']}, when the budget of {expected['after']} runs out: "
            "then it gives way"
        )
    if expected:
        return f"about {expected['at']} on node {expected['node']}, when {expected['after']} reaches its deadline"
    if said["stuck"] or (gang and _is_too_large(gang)):
        return "never as things are; no pod's end would make room"
    if said["heldBack"]:
        return "unknown; its scheduling gate comes first"
    if gang and gang["missing"]:
        return "unknown; the pods of its gang that are missing or held back come first"
    if said["giveWay"] and said["budgetState"] == names.IN_BUDGET:
        return "soon, when the pods that give way to it have ended"
    return "unknown; no deadline of a pod or Job (activeDeadlineSeconds) shows when there will be room"
