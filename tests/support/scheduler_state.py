# SPDX-License-Identifier: Apache-2.0
"""A scheduler's state that gets nodes and pods from a test, and what the extender answers by it."""

import orjson
from support.gang_world import Jobs
from support.manual_clock import ManualClock
from support.scheduled_pods import container, managed

from scheduler.extender import filter_nodes, gpu_pod, prioritize_nodes
from scheduler.gangs import Gangs
from scheduler.placement.learner import Learner
from scheduler.pods import read_pod
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory

HOLD, LOST = 30, 60
GPU_MIB = 8192


def node(name, gpus=1, memory=GPU_MIB, **annotations):
    value = inventory.encode([inventory.Gpu(f"{name}-{g}", "A100", memory) for g in range(gpus)])
    return {"metadata": {"name": name, "annotations": {names.NODE_GPUS: value, **annotations}}}


def pod(name, core=60, blocks=4, *, on="", gpus=None, phase="Pending", annotations=None, spec=None):
    given_ = {**(annotations or {}), **({names.gpu_annotation("c"): gpus} if gpus else {})}
    return managed(name, container(core, blocks), on=on, phase=phase, annotations=given_, **(spec or {}))


def new_state(clock, *nodes):
    made = SchedulerState(Resources(), Learner("best-fit"), clock, hold_seconds=HOLD, lost_seconds=LOST)
    made.intake.set_nodes(list(nodes) or [node("n0"), node("n1")])
    made.intake.set_pods([])
    return made


def no_gangs(state):
    return Gangs(state, ManualClock(), None, Jobs(), hold_seconds=HOLD)


def read(obj):
    return read_pod(obj, Resources())


def judged(state, obj, *among):
    return orjson.loads(filter_nodes(state, no_gangs(state), gpu_pod(state, obj), orjson.dumps(among or ["n0", "n1"])))


def fitting(state, obj, *among):
    return judged(state, obj, *among)["NodeNames"]


def placed(state, obj, *among):
    names = orjson.dumps(among or ["n0", "n1"])
    answer = filter_nodes(state, no_gangs(state), gpu_pod(state, obj), names, best_alone=True)
    state.look_ahead()
    return orjson.loads(answer)["NodeNames"]


def points(state, obj, *among):
    scored = orjson.loads(prioritize_nodes(state, no_gangs(state), gpu_pod(state, obj), orjson.dumps(among)))
    return {entry["Host"]: entry["Score"] for entry in scored}


def free(state):
    return state.totals()[2]
