# SPDX-License-Identifier: Apache-2.0
"""Tables of cases: which pods may share a GPU, which GPU is chosen, and how a pod's containers are distributed.

The rules are KubeShare's, in its order: affinity, anti-affinity, exclusion, then best fit, and an idle GPU only if no
shared one is suitable. There is one node with GPUs `g0`, `g1`, …; `here` lists the pods on each.
"""

import pytest
from support.manual_clock import ManualClock
from support.scheduled_pods import container, managed

from scheduler.pending_bindings import NoPlace
from scheduler.placement.learner import Learner
from scheduler.pods import read_pod
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory

AFFINITY, ANTI, EXCLUSION = "gpu-affinity", "gpu-anti-affinity", "gpu-exclusion"
WITH_OTHERS = "affinity or sharing rules exclude them"
FULL = "not enough is free"
TOO_LARGE = "even if they were idle"


def pod(name, *asked, on="", namespace="team-a", **wishes):
    """Return a pod with a container for each percentage asked for, 256 MiB for each 10 percent of a share."""
    containers = [container(core, max(core // 10, 1) if core < 100 else 0, f"c{i}") for i, core in enumerate(asked)]
    annotations = {f"slicekeeper.io/{key.replace('_', '-')}": value for key, value in wishes.items()}
    annotations |= {names.gpu_annotation(f"c{index}"): on for index in range(len(asked))} if on else {}
    return managed(name, *containers, on="n" if on else "", namespace=namespace, annotations=annotations)


def share(core, namespace="team-a", **wishes):
    """Return what makes a pod that holds a share."""
    return lambda name, gpu: pod(name, core, on=gpu, namespace=namespace, **wishes)


def placed(here, asked, wishes, models=(), unhealthy=()):
    """Return the GPUs that a new pod's containers get, or why it waits."""
    state = SchedulerState(Resources(), Learner("best-fit"), ManualClock(), hold_seconds=30, lost_seconds=60)
    listed = [
        inventory.Gpu(f"g{i}", models[i] if models else "A100", 8192, healthy=i not in unhealthy)
        for i in range(len(here))
    ]
    state.intake.set_node({"metadata": {"name": "n", "annotations": {names.NODE_GPUS: inventory.encode(listed)}}})
    for gpu, tenants in enumerate(here):
        for number, tenant in enumerate(tenants):
            state.intake.set_pod(tenant(f"t{gpu}-{number}", f"g{gpu}"))
    read = read_pod(pod("new", *asked, **wishes), Resources())
    assert not read.refusal
    try:
        found = state.bindings.choose(read, "n").gpus
    except NoPlace as error:
        return str(error)
    return " ".join(",".join(found[f"c{index}"]) for index in range(len(asked)))


IDLE, PLAIN, LARGE = [], [share(30)], [share(60)]
FRIEND, FULL_FRIEND = [share(30, gpu_affinity="x")], [share(80, gpu_affinity="x")]
FOE = [share(30, gpu_anti_affinity="x")]
CLUB = [share(30, gpu_exclusion="x")]
WHOLE_FRIEND = [share(100, gpu_affinity="x")]
STRANGER = [share(30, namespace="team-b", gpu_affinity="x", gpu_anti_affinity="x", gpu_exclusion="")]


@pytest.mark.parametrize(
    ("here", "core", "expected"),
    [
        ([PLAIN, IDLE], 30, "g1"),  # no GPU has the label: an idle one, though a shared one fits
        ([IDLE, FRIEND, IDLE], 30, "g1"),
        ([LARGE, FRIEND], 30, "g1"),  # best fit would be g0
        ([FRIEND, [share(50, gpu_affinity="x")]], 30, "g1"),  # the label on two: the one that is left fuller
        ([FRIEND, [share(50, gpu_affinity="x")]], 60, "g0"),  # of the two, the one where it fits
        ([FULL_FRIEND, IDLE], 30, WITH_OTHERS),  # it waits for its friend, though a GPU is idle
        ([[share(50), share(20, gpu_affinity="x")], IDLE], 30, "g0"),  # a friend among others
        ([PLAIN, PLAIN], 30, WITH_OTHERS),  # no friend, and no idle one
        ([[share(30, gpu_affinity="y")], IDLE], 30, "g1"),
        ([STRANGER, IDLE], 30, "g1"),  # another namespace's label is another label
        ([WHOLE_FRIEND, IDLE], 30, "g1"),  # a whole GPU has no company, so its label attracts no pod
        ([FRIEND, IDLE], 99, WITH_OTHERS),
    ],
)
def test_affinity(here, core, expected):
    assert expected in placed(here, (core,), {"gpu_affinity": "x"})


@pytest.mark.parametrize(
    ("here", "core", "expected"),
    [
        ([FOE, PLAIN], 30, "g1"),
        ([FOE, PLAIN, IDLE], 30, "g1"),  # a shared one goes before an idle one
        ([FOE, IDLE], 30, "g1"),
        ([FOE, FOE], 30, WITH_OTHERS),
        ([FOE, [share(90)]], 30, WITH_OTHERS),
        ([[share(30), share(10, gpu_anti_affinity="x")], PLAIN], 30, "g1"),  # one foe among others is enough
        ([[share(30, gpu_anti_affinity="y")], IDLE], 30, "g0"),
        ([STRANGER, IDLE], 30, "g0"),
        ([FRIEND, IDLE], 30, "g0"),  # a label of affinity is none of anti-affinity
        ([WHOLE_FRIEND, FOE], 30, WITH_OTHERS),
    ],
)
def test_anti_affinity(here, core, expected):
    assert expected in placed(here, (core,), {"gpu_anti_affinity": "x"})


def test_a_pod_without_the_label_may_join_a_foe():
    assert placed([FOE, IDLE], (30,), {}) == "g0"


@pytest.mark.parametrize(
    ("here", "label", "expected"),
    [
        ([CLUB, IDLE], "x", "g0"),
        ([CLUB, IDLE], "y", "g1"),
        ([CLUB, IDLE], "", "g1"),  # no label counts as a label
        ([PLAIN, IDLE], "x", "g1"),  # so does that of who is there
        ([PLAIN], "x", WITH_OTHERS),
        ([CLUB], "", WITH_OTHERS),
        ([CLUB, PLAIN], "", "g1"),
        ([[share(80, gpu_exclusion="x")], IDLE], "x", "g1"),  # the club's GPU is full: a new one is opened
        ([[share(80, gpu_exclusion="x")]], "x", FULL),
        (
            [[share(30, gpu_exclusion="x"), share(10)], IDLE],
            "x",
            "g1",
        ),  # another scheduler has mixed them: no pod joins
        ([[share(30, gpu_exclusion="x"), share(10)], IDLE], "", "g1"),
        ([[share(30, namespace="team-b", gpu_exclusion="x")], IDLE], "x", "g1"),
    ],
)
def test_exclusion(here, label, expected):
    assert expected in placed(here, (30,), {"gpu_exclusion": label} if label else {})


@pytest.mark.parametrize(
    ("here", "wishes", "expected"),
    [
        # Affinity leaves g0 alone, and anti-affinity drops it: an idle GPU does not help.
        ([[share(30, gpu_affinity="a", gpu_anti_affinity="b")], IDLE], {AFFINITY: "a", ANTI: "b"}, WITH_OTHERS),
        ([FRIEND, [share(30, gpu_affinity="x", gpu_anti_affinity="b")]], {AFFINITY: "x", ANTI: "b"}, "g0"),
        # Affinity leaves g0 alone, where no label of exclusion is.
        ([FRIEND, IDLE], {AFFINITY: "x", EXCLUSION: "c"}, WITH_OTHERS),
        ([[share(30, gpu_affinity="x", gpu_exclusion="c")], IDLE], {AFFINITY: "x", EXCLUSION: "c"}, "g0"),
        # Of the club's GPUs, the one without a foe.
        (
            [[share(30, gpu_exclusion="c", gpu_anti_affinity="b")], [share(20, gpu_exclusion="c")], IDLE],
            {ANTI: "b", EXCLUSION: "c"},
            "g1",
        ),
        ([CLUB, IDLE], {EXCLUSION: "x", "sharing": "exclusive"}, "g1"),
        ([FRIEND, IDLE], {AFFINITY: "x", "sharing": "exclusive"}, WITH_OTHERS),
        ([IDLE, FRIEND], {AFFINITY: "x", "gpu-uuid": "g0"}, WITH_OTHERS),
        ([IDLE, FRIEND], {AFFINITY: "x", "gpu-uuid": "g1"}, "g1"),
        ([IDLE, FOE], {ANTI: "x", "gpu-uuid": "g1"}, WITH_OTHERS),
    ],
)
def test_wishes_together_are_applied_in_kubeshares_order(here, wishes, expected):
    assert expected in placed(here, (30,), wishes)


@pytest.mark.parametrize(
    ("here", "core", "expected"),
    [
        ([[share(50)], [share(20)], IDLE], 40, "g0"),  # what is left is least there
        ([[share(50)], [share(20)], IDLE], 60, "g1"),
        ([[share(50)], [share(20)], IDLE], 90, "g2"),  # a new shared GPU is opened only if no shared one fits
        ([[share(50)], [share(20)]], 90, FULL),
        # The slides' pair: requests 0.4 and 0.6 share a GPU, whatever their limits (0.7 and 0.8) add up to.
        ([[share(40)], IDLE], 60, "g0"),
        ([[share(60)], IDLE], 40, "g0"),
        ([[share(40), share(60)], IDLE], 10, "g1"),
    ],
)
def test_best_fit_among_what_is_left(here, core, expected):
    assert expected in placed(here, (core,), {})


@pytest.mark.parametrize(
    ("here", "asked", "wishes", "expected"),
    [
        ([PLAIN, IDLE], (30, 30), {}, "g0 g0"),  # containers of one pod may share
        ([LARGE, LARGE], (40, 40), {}, "g0 g1"),
        ([[share(50)], IDLE], (40, 60), {}, "g1 g1"),  # 60 opens g1, and 40 fills it
        ([PLAIN, IDLE], (100, 40), {}, "g1 g0"),
        ([IDLE, IDLE, PLAIN], (40, 200), {}, "g2 g0,g1"),
        ([IDLE, PLAIN], (200,), {}, FULL),
        ([IDLE, PLAIN], (300,), {}, TOO_LARGE),
        # The hardest first: 60 goes where 70 is free, so that 40 finds its 40.
        ([PLAIN, LARGE], (40, 60), {}, "g1 g0"),
        # Only a search finds this: one after the other by best fit, 50 takes the room of 30 and 20.
        ([[share(50)], [share(40)]], (50, 30, 30), {}, "g0 g1 g1"),
        # With affinity all shares of a pod go on one GPU.
        ([LARGE, LARGE, IDLE], (40, 40), {AFFINITY: "x"}, "g2 g2"),
        ([IDLE, IDLE], (60, 60), {AFFINITY: "x"}, TOO_LARGE),
        ([FRIEND, IDLE], (40, 40), {AFFINITY: "x"}, WITH_OTHERS),
        # The label is of no use to a whole GPU, and keeps it from nothing.
        ([FOE, IDLE], (100,), {ANTI: "x"}, "g1"),
        ([CLUB, IDLE], (100,), {EXCLUSION: "x"}, "g1"),
        ([FRIEND, IDLE], (100, 40), {AFFINITY: "x"}, "g1 g0"),
        # A pod is no foe of itself.
        ([IDLE, IDLE], (30, 30), {ANTI: "x"}, "g0 g0"),
        ([IDLE, IDLE], (60, 60), {ANTI: "x"}, "g0 g1"),
        ([IDLE, IDLE], (60, 30), {"sharing": "exclusive"}, "g0 g0"),
    ],
)
def test_containers_of_one_pod(here, asked, wishes, expected):
    assert expected in placed(here, asked, wishes)


A100, A10, H100, T4 = "NVIDIA A100-SXM4-80GB", "NVIDIA A10", "NVIDIA H100 80GB HBM3", "Tesla T4"


@pytest.mark.parametrize(
    ("models", "wishes", "expected"),
    [
        ((T4, A100, A10), {"gpu-model": "A100"}, "g1"),
        ((T4, A100, A10), {"gpu-model": "A10"}, "g2"),  # it does not mean A100
        ((A100, T4), {"gpu-model": "a100"}, "g0"),
        ((A100, H100, T4), {"gpu-model": "T4,H100"}, "g1"),  # any of them, the first among equals
        ((A100, T4), {"gpu-model": "H100"}, "no GPU of model H100"),
        ((A100, T4), {"gpu-uuid": "g1"}, "g1"),
        ((A100, T4), {"gpu-uuid": "g7"}, "GPU g7 is not on this node"),
        ((A100, T4), {"gpu-uuid": "g1", "gpu-model": "A100"}, "no GPU of model A100"),
    ],
)
def test_identity_and_model(models, wishes, expected):
    assert expected in placed([IDLE] * len(models), (30,), wishes, models)


@pytest.mark.parametrize(
    ("here", "unhealthy", "asked", "expected"),
    [
        ([IDLE, IDLE], {0}, (30,), "g1"),
        ([IDLE, IDLE], {0, 1}, (30,), "no healthy GPU"),
        ([IDLE, IDLE, IDLE], {1}, (200,), "g0,g2"),
        ([FRIEND, IDLE], {0}, (30,), "g1"),
    ],
)
def test_health(here, unhealthy, asked, expected):
    assert expected in placed(here, asked, {}, unhealthy=unhealthy)
