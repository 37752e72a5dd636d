# SPDX-License-Identifier: Apache-2.0
"""Gangs start whole, and no GPU is given twice, under any interleaving of pods, watches, binds and restarts."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from support.gang_world import HOLD, World, node, pod

from scheduler.pods import read_pod
from slicekeeper import names
from slicekeeper.config.settings import Resources

SIZE = {"g0": 2, "g1": 3, "g2": 4}


class Story:
    """The API server's objects are the truth, and kube-scheduler tries any pod.

    The watch shows the objects late, in order, and some twice; answers to Bindings may be lost.
    """

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.nodes = [node(f"n{i}", 2) for i in range(3)]
        self.world = World(*self.nodes)
        self.truth, self.behind, self.shown, self.turn = {}, [], [], 0

    def tell(self, obj):
        self.truth[obj["metadata"]["name"]] = obj
        self.behind.append(obj)

    def gang(self, obj):
        return obj["metadata"]["annotations"].get(names.GANG, "")

    def members(self, gang, *, bound):
        return [p for p in self.truth.values() if self.gang(p) == gang and ("nodeName" in p["spec"]) == bound]

    def check(self):
        sums = {}
        for obj in self.truth.values():
            core = int(obj["spec"]["containers"][0]["resources"]["limits"]["tencent.com/vcuda-core"])
            for gpu in filter(None, obj["metadata"]["annotations"].get(names.gpu_annotation("c"), "").split(",")):
                sums[gpu] = sums.get(gpu, 0) + core
        assert all(core <= 100 for core in sums.values())

    # What may happen; `n` and `core` are drawn.

    def new(self, n, core):
        self.turn += 1
        self.tell(pod(f"p{self.turn}", core, gang=f"g{n}", size=SIZE[f"g{n}"]))

    def single(self, n, core):
        self.turn += 1
        self.tell(pod(f"p{self.turn}", core, gang="", size=0))

    def watch(self, n, core):
        again = self.shown[len(self.shown) - self.rng.choice([0, 0, n]) :]  # the watch starts again a little earlier
        self.shown += self.behind[: 2 * n + 1]
        for obj in again + self.behind[: 2 * n + 1]:
            if obj.get("gone"):
                self.world.state.intake.drop_pod(obj["metadata"]["uid"])
            else:
                self.world.state.intake.set_pod(obj)
        del self.behind[: 2 * n + 1]

    def attempt(self, n, core):
        free = [p for p in self.truth.values() if "nodeName" not in p["spec"]]
        for obj in self.rng.sample(free, min(2 * n + 1, len(free))):
            among = self.rng.sample(self.world.nodes, self.rng.choice([2, 3, 3, 3]))
            found = self.world.fits(obj, *among)
            assert set(found) <= set(among)
            gang = self.gang(obj)
            new_gang = gang and not self.world.gangs.has_started(read_pod(obj, Resources()))
            new_gang = new_gang and not self.members(gang, bound=True)
            # Who is gone counts until the watch has shown that.
            known = [*self.members(gang, bound=False), *(p for p in self.behind if p.get("gone"))]
            there = self.world.state.places_of(p["metadata"]["uid"] for p in known if self.gang(p) == gang)
            lost = self.rng.choice([None] * 8 + [False, True])
            if found and (bound := self.world.bind(obj, self.rng.choice(found), lost=lost)) is not None:
                assert not new_gang or len({p.pod.uid for p in there}) >= SIZE[gang], "all have a place, or none"
                self.tell(bound)

    def end(self, n, core):
        there = [p for p in self.truth.values() if "nodeName" in p["spec"]] or list(self.truth.values())
        for obj in self.rng.sample(there, min(n + 1, len(there))):
            self.behind.append({**self.truth.pop(obj["metadata"]["name"]), "gone": True})

    def clock(self, n, core):
        self.world.clock.advance([500, 5_000, HOLD * 1000 + 1][n])

    def look(self, n, core):
        self.world.gangs.look()

    def overdue(self, n, core):
        for late in self.world.state.bindings.overdue():
            self.world.state.bindings.looked(late.uid, self.truth.get(late.name))

    def restart(self, n, core):
        self.behind.clear()
        self.shown.clear()
        self.world = World(*self.nodes, clock=self.world.clock)
        self.world.state.intake.set_pods(list(self.truth.values()))

    def finish(self):
        """When all is known and nothing is in the way, each gang starts that is whole and fits; then nothing stays."""
        self.watch(len(self.behind), 0)
        self.overdue(0, 0)
        for obj in [p for p in self.truth.values() if "nodeName" in p["spec"]]:
            self.truth.pop(obj["metadata"]["name"])
            self.world.state.intake.drop_pod(obj["metadata"]["uid"])
        self.world.clock.advance(100 * HOLD * 1000)
        self.overdue(0, 0)
        for gang, size in SIZE.items():
            members = self.members(gang, bound=False)
            bound = self.world.starts(*members)
            assert (len(bound) >= size) == (len(members) >= size), "there are GPUs for each"
            for obj in members:
                self.world.state.intake.drop_pod(obj["metadata"]["uid"])
                del self.truth[obj["metadata"]["name"]]
        for obj in self.truth.values():
            self.world.state.intake.drop_pod(obj["metadata"]["uid"])
        self.world.gangs.look()
        assert self.world.state.totals()[2] == 600
        assert not self.world.state.counts()
        assert not self.world.gangs._known


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["new"] * 4 + ["attempt"] * 5 + ["watch"] * 3 + ["end", "clock", "look", "overdue", "restart", "single"]
        ),
        st.integers(0, 2),
        st.sampled_from([30, 60, 100]),
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 2**32))
def test_under_any_interleaving_gangs_start_whole_and_no_gpu_is_given_twice(steps, seed):
    story = Story(seed)
    for kind, n, core in steps:
        getattr(story, kind)(n, core)
        story.check()
    story.finish()
