# SPDX-License-Identifier: Apache-2.0
"""Gangs take turns: one at a time is given places, and looks in vain take little of the time."""

import itertools

from support.gang_world import World, node, pod

from scheduler.held_places import HoldKind


def test_two_gangs_take_turns_and_neither_holds_a_part():
    world = World(*[node(f"n{i}") for i in range(6)])
    one, two = [pod(f"a{i}", gang="a") for i in range(4)], [pod(f"b{i}", gang="b") for i in range(4)]
    world.waits(*itertools.chain(*zip(one, two, strict=True)))
    for obj in itertools.chain(*zip(one, two, strict=True)):
        world.fits(obj)
    assert world.held() == {HoldKind.RESERVED: 4}
    assert len(world.starts(*one)) == 4
    assert world.starts(*two) == []
    for obj in one[:2]:
        world.state.intake.drop_pod(obj["metadata"]["uid"])
    assert len(world.starts(*two)) == 4


LOOK_MS = 400


class SlowWorld(World):
    """A look for places takes 0.4 s of the clock; notes which gang was looked at when, in seconds."""

    def __init__(self, *nodes):
        super().__init__(*nodes)
        self.looks, trial = [], self.state.trial

        def slow(without):
            self.clock.advance(LOOK_MS)
            self.looks.append((self.clock.monotonic_ns() / 1e9, min(without).split("-")[1]))
            return trial(without)

        self.state.trial = slow

    def asks(self, gangs, seconds):
        """Let kube-scheduler ask for a pod of each gang in turn while things change and the thread looks."""
        end = self.clock.monotonic_ns() + seconds * 1_000_000_000
        while self.clock.monotonic_ns() < end:
            for members in gangs:
                self.state.intake.set_node(node("changes", 1 + len(self.looks) % 2, spec={"unschedulable": True}))
                self.fits(members[0], "n0")
                self.clock.advance(50)
            self.gangs.look()


def gang_of(name, namespace="team-a", size=2):
    made = [pod(f"{name}-{i}", 100, gang=name, size=size) for i in range(size)]
    for obj in made:
        obj["metadata"]["namespace"] = namespace
    return made


def test_looks_in_vain_take_a_tenth_of_the_time_however_many_gangs_there_are_and_each_has_its_turn():
    world = SlowWorld(node("n0"))
    gangs = [world.waits(*gang_of(f"g{n}")) for n in range(20)]
    world.asks(gangs, 200)
    assert 40 <= len(world.looks) <= 200 / (10 * LOOK_MS / 1000) + 1
    begun = [who for _, who in world.looks]
    assert set(begun[:20]) == {f"g{n}" for n in range(20)}, "the longest waiting first"
    assert begun[20:] == begun[: len(begun) - 20]


def test_a_namespace_with_many_gangs_does_not_keep_another_from_its_turn():
    world = SlowWorld(node("n0"), node("n1"))
    crowd = [world.waits(*gang_of(f"g{n}", size=3)) for n in range(30)]
    world.asks(crowd, 60)
    fits = world.waits(*gang_of("fits", "team-b"))
    before = len(world.looks)
    world.asks([*crowd, fits], 15)
    assert "fits" in [who for _, who in world.looks[before:]][:2]
    assert world.held() == {HoldKind.RESERVED: 2}


def test_a_gang_that_waits_for_its_turn_is_told_so_and_one_that_is_gone_holds_up_nobody():
    world = SlowWorld(node("n0"))
    first, second, third = (world.waits(*gang_of(name)) for name in ("a", "b", "c"))
    assert "can never fit" in world.why(first[0])
    assert world.why(second[0]) == "gang b waits for its turn: places for other gangs are looked for first"
    assert world.fits(third[0]) == []
    for obj in second:
        world.state.intake.drop_pod(obj["metadata"]["uid"])
    world.state.intake.set_node(node("n1"))
    world.clock.advance(10 * LOOK_MS)
    world.gangs.look()
    assert [who for _, who in world.looks][1:] == ["c", "a"], "no gang rests because another one found places"
    assert world.held() == {HoldKind.RESERVED: 2}
