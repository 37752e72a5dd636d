# SPDX-License-Identifier: Apache-2.0
"""The node agents' data about their seats, read through the API server: this needs `get` on `pods/proxy`.

If an agent is down, or the user has no such right, its node's figures are unknown; nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any, Final

from slicekeeper import typed_json
from slicekeeper.cli.connection import cluster
from slicekeeper.cli.main import Context
from slicekeeper.cli.output import Column, memory, percent
from slicekeeper.errors import ServiceError
from slicekeeper.gpu import inventory
from slicekeeper.gpu.inventory import Gpu, Part
from slicekeeper.kube import agent_address
from slicekeeper.kube.client import PODS, Object
from slicekeeper.untyped_json import as_list, as_map
from slicekeeper.wire.live_seats import PATH, NodeSeats, SeatUse

ANSWER_SECONDS: Final = 3.0
AT_ONCE: Final = 64
"""Number of concurrent requests to agents: if as many do not answer, the others wait for `ANSWER_SECONDS` more."""

_SELECTOR: Final = "app.kubernetes.io/name=nodeagent"

FIGURES: Final = ("GIVEN", "USED", "MEMORY-USED")


class Agents:
    """The agents of a cluster's nodes."""

    def __init__(self, context: Context) -> None:
        self._client = cluster(context, ANSWER_SECONDS)
        self.silent: dict[str, str] = {}
        """By node, why its agent did not answer the last request."""

    def ask(self, nodes: Sequence[Object]) -> dict[str, list[SeatUse]]:
        """Return the seats of each node whose agent answers."""
        self.silent = {}
        wanted = {node["metadata"]["name"]: agent_address.of_node(node) for node in nodes}
        wanted = {name: value for name, value in wanted.items() if value}
        if not wanted:
            return {}
        try:
            pods, _ = self._client.list(PODS, label_selector=_SELECTOR)
        except ServiceError as error:
            self.silent = dict.fromkeys(wanted, str(error))
            return {}
        by_ip = {pod.get("status", {}).get("podIP"): pod for pod in pods}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = pool.map(self._ask, wanted, wanted.values(), repeat(by_ip))
            return {name: seats for name, seats in zip(wanted, answers, strict=True) if seats is not None}

    def _ask(self, node: str, value: str, by_ip: Mapping[str, Object]) -> list[SeatUse] | None:
        """Ask the pod whose address the node names, because any user may give a pod the agents' label."""
        try:
            ip, port = agent_address.decode(value)
            metadata = by_ip[ip]["metadata"]
            answer = self._client.ask_pod(metadata["namespace"], metadata["name"], port, PATH)
            return typed_json.convert(answer, NodeSeats).seats
        except KeyError:
            self.silent[node] = f"no pod of the node agent has the address {value}"
        except (ServiceError, ValueError) as error:
            self.silent[node] = str(error)
        return None


def figures(seats: Iterable[SeatUse] | None) -> dict[str, Any]:
    """Return the given and used time of some seats together, for display; None if it is not known of all of them.

    Work that still runs when a seat's gate closes counts as given too: the seat has the GPU until it ends.
    """
    known = None if seats is None else list(seats)
    return {
        "givenPercent": _sum(None if known is None else [_given(seat) for seat in known]),
        "usedPercent": _sum(None if known is None else [seat.used_percent for seat in known]),
        "memoryUsedMib": _sum(None if known is None else [seat.memory_mib for seat in known]),
    }


def _given(seat: SeatUse) -> float | None:
    if seat.given_percent is None or seat.used_percent is None:
        return seat.given_percent
    return max(seat.given_percent, seat.used_percent)


def parts(
    nodes: Iterable[Object], by_node: Mapping[str, list[SeatUse]]
) -> Iterator[tuple[dict[str, Any], Part, list[SeatUse] | None]]:
    """Yield each GPU of the nodes, or each of its MIG slices: what it is, and its seats; None if they are unknown."""
    for node in nodes:
        seats = by_node.get(node["metadata"]["name"])
        for gpu in inventory.readable_of(node):
            for part in gpu.parts:
                here = None if seats is None else [seat for seat in seats if seat.gpu == part.uuid]
                yield _described(node, gpu, part), part, here


def _described(node: Object, gpu: Gpu, part: Part) -> dict[str, Any]:
    return {
        "node": node["metadata"]["name"],
        "nodeTrouble": _trouble(node),
        "gpu": part.uuid,
        "model": gpu.model_of(part),
        "memoryMib": part.memory_mib,
        "healthy": part.healthy,
        "trouble": "" if part.healthy else gpu.trouble,
    }


def _trouble(node: Object) -> str:
    """Return why a node gets no pods; empty if nothing of that kind is known."""
    conditions = map(as_map, as_list(as_map(node.get("status")).get("conditions")))
    ready = next((one.get("status") for one in conditions if one.get("type") == "Ready"), "True")
    cordoned = bool(as_map(node.get("spec")).get("unschedulable"))
    return ", ".join(["cordoned"] * cordoned + ["not ready"] * (ready != "True"))


def node_cell(row: Mapping[str, Any]) -> str:
    """Return the name of a GPU's node, and why it gets no pods."""
    return f"{row['node']} ({row['nodeTrouble']})" if row["nodeTrouble"] else str(row["node"])


def cells(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return what is under `FIGURES` in a table."""
    return percent(row["givenPercent"]), percent(row["usedPercent"]), memory(row["memoryUsedMib"])


def figure_columns() -> tuple[Column[dict[str, Any]], ...]:
    """Return the columns of what is given and used; what is used fits a narrow table too."""
    return (
        Column("GIVEN", lambda row: cells(row)[0], wide=True),
        Column("USED", lambda row: cells(row)[1]),
        Column("MEMORY-USED", lambda row: cells(row)[2], wide=True),
    )


def _sum(values: Sequence[float | None] | None) -> float | None:
    if values is None or None in values:
        return None
    return round(sum(value for value in values if value is not None), 1)
