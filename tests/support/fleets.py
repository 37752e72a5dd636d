# SPDX-License-Identifier: Apache-2.0
"""Small fleets, the demands of pods, and a mix of arrivals, for tests of policies."""

from scheduler.placement.arrivals import Arrival
from scheduler.placement.demand import Demand, Piece
from scheduler.placement.evaluation import evaluate
from scheduler.placement.fleet import Fleet, GpuRow
from scheduler.placement.fleet_version import GpuModel

T4 = GpuModel("Tesla T4", 16_384)
A100 = GpuModel("NVIDIA A100-SXM4-80GB", 81_920)


def arrival(core, weight, *, gpus=1, cpu=4.0, memory=0, models=()):
    return Arrival(core, memory, gpus, cpu, cpu * 4096, models, weight)


MIX = [arrival(50, 0.5), arrival(80, 0.3, cpu=8.0), arrival(100, 0.2, cpu=12.0)]


def share(core, memory=0, cpu=4000, **more):
    return Demand((Piece(("c",), core, memory, whole=core >= 100),), cpu_milli=cpu, ram_mib=cpu * 4, **more)


def row(name, core, model=T4):
    memory = model.capacity if core == 100 else -(-model.capacity * core // 100)
    return GpuRow(name, model.name, model.capacity, core=core, memory=memory, idle=core == 100)


def fleet_of(nodes, cpu=64.0):
    made = Fleet()
    for name, cores in nodes.items():
        made.set(name, [row(f"{name}-{index}", core) for index, core in enumerate(cores)])
        made.set_cpu_memory(name, cpu, cpu * 4096)
    return made


def names_of(fleet):
    return sorted(fleet.publish().row_of)


def judge(fleet, demand, policy):
    names = names_of(fleet)
    return dict(zip(names, evaluate(fleet.view(names, demand), demand, policy).price.tolist(), strict=True))
