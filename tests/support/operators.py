# SPDX-License-Identifier: Apache-2.0
"""Operators whose calls are let through one by one, so that two of them can be interleaved in every way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from support.budget_objects import Killed, ObjectWorld

from objects.budgets.keeper import Keeper
from slicekeeper.errors import ServiceError, Unavailable

Fate = Literal["goes", "killed before", "killed after", "unreachable", "answer lost"]
"""What becomes of a call: the process ends before or after it is carried out, or the call or its answer is lost."""

WAIT_SECONDS = 120


@dataclass(frozen=True)
class Call:
    """A call that was carried out."""

    name: str
    args: tuple[Any, ...]
    refused: ServiceError | None


class Operator:
    """Looks in a thread of its own, which stops before each call; it never runs while its caller does."""

    def __init__(self, world: ObjectWorld) -> None:
        self.leads = True
        """What it believes of itself, right or wrong."""
        self._world = world
        self._look: _Look | None = None

    @property
    def looks(self) -> bool:
        """Whether a look is under way."""
        return self._look is not None

    def call(self, fate: Fate = "goes") -> Call | None:
        """Make the next call, of a new look if none is under way; None if it was not carried out, or there was none."""
        look = self._look or _Look(self._world, lambda: self.leads)
        made = look.call(fate)
        self._look = None if look.is_over else look
        return made

    def end(self) -> Iterator[Call]:
        """Make all calls that are left of the look under way."""
        while self.looks:
            if (made := self.call()) is not None:
                yield made

    def look(self) -> Iterator[Call]:
        """Look once, from its beginning to its end, after the look under way."""
        yield from self.end()
        if (made := self.call()) is not None:
            yield made
        yield from self.end()


class _Look:
    """One pass of the operator, in its own thread, stopped before its first call."""

    def __init__(self, world: ObjectWorld, leads: Callable[[], bool]) -> None:
        self.is_over = False
        self._may, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._fate: Fate = "goes"
        self._made: Call | None = None
        self._wrong: BaseException | None = None
        client: Any = _Gate(world.kube, self._pass)
        timekeeper: Any = _Gate(world.timekeeper, self._pass)
        self._keeper = Keeper(client, timekeeper, world.clock, leads)
        threading.Thread(target=self._run, daemon=True).start()
        _acquire(self._stands)

    def call(self, fate: Fate) -> Call | None:
        self._fate, self._made = fate, None
        self._may.release()
        _acquire(self._stands)
        if self._wrong is not None:
            raise self._wrong
        return self._made

    def _run(self) -> None:
        try:
            self._keeper.keep()
        except (Killed, ServiceError):  # after either, another pass starts over
            pass
        except BaseException as error:  # it is raised in the thread of the test
            self._wrong = error
        finally:
            self.is_over = True
            self._stands.release()

    def _pass(self, name: str, args: tuple[Any, ...], carry_out: Callable[[], Any]) -> Any:
        self._stands.release()
        _acquire(self._may)
        fate = self._fate
        if fate == "killed before":
            raise Killed
        if fate == "unreachable":
            raise Unavailable("unreachable", 503)
        try:
            answer = carry_out()
        except ServiceError as error:
            self._made = Call(name, args, error)
            raise
        self._made = Call(name, args, None)
        if fate == "killed after":
            raise Killed
        if fate == "answer lost":
            raise Unavailable("the answer is lost", 0)
        return answer


class _Gate:
    """Stands before a client."""

    def __init__(self, client: Any, passes: Callable[[str, tuple[Any, ...], Callable[[], Any]], Any]) -> None:
        self._client = client
        self._passes = passes

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            def carry_out() -> Any:
                answer = method(*args, **kwargs)
                return iter(list(answer)) if isinstance(answer, Iterator) else answer  # a list is one call

            return self._passes(name, args, carry_out)

        return call


def _acquire(semaphore: threading.Semaphore) -> None:
    assert semaphore.acquire(timeout=WAIT_SECONDS), "the other thread does not come"
