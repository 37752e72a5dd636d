# SPDX-License-Identifier: Apache-2.0
"""What a pod costs that becomes known a month late, in a namespace that had many pods since.

    .venv/bin/python benchmarks/timekeeper/late.py [PODS]

CPU seconds of the transaction, in which everything since is settled again; on SQLite nobody else writes meanwhile.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from ledger import made, opening, table
from load import uid
from statement import NAMESPACE, NOW, POLICY, START, fill

from slicekeeper.units import MS_PER_HOUR, Instant
from timekeeper.ledger import workload
from timekeeper.ledger.books import Books
from timekeeper.ledger.workload import Closing
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

LATE = 5 * 10**8


def main() -> None:
    """Measure and print."""
    pods = int(sys.argv[1]) if len(sys.argv) > 1 else 90_000
    with tempfile.TemporaryDirectory(prefix="slicekeeper-bench-") as folder, made("SQLite", Path(folder)) as it:
        fill(it, pods)
        books = Books(Database(make_engine(it.url)), "default", carry=False)
        begun = time.process_time()
        closing = Closing(uid(LATE), Instant(START + 2 * MS_PER_HOUR), "finished")
        workload.apply(books, [opening(LATE, START + MS_PER_HOUR, NAMESPACE)], [closing], POLICY, Instant(NOW))
        seconds = time.process_time() - begun
        books.database.close()
    table("", ("SQLite: a pod that is a month late", "CPU s"), [(f"{pods:,} pods since", seconds)])


if __name__ == "__main__":
    main()
