# SPDX-License-Identifier: Apache-2.0
"""The instant of the last change of a budget's state that any worker has seen, shared by all workers of one pod.

Each worker fetches the decisions for itself. So one may mutate a pod after a change that another, which validates it,
does not know yet. A worker accepts the class of either state if there was a newer change than its own last fetch.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

_INSTANT: Final = struct.Struct("q")


class StateChangeBoard:
    """One instant of the machine's monotonic clock, shared because it is created before the workers are forked."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _INSTANT.size)

    @property
    def newest_ns(self) -> int:
        """When a change was last seen; 0 if there was none."""
        return int(_INSTANT.unpack_from(self._memory)[0])

    def post(self, now_ns: int) -> None:
        """Publish a change to the other workers, before acting on it."""
        _INSTANT.pack_into(self._memory, 0, now_ns)
