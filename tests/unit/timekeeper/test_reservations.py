# SPDX-License-Identifier: Apache-2.0
"""GPU time set aside: what a pod needs at most, and that nobody is promised what another has."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from sqlalchemy.orm import Session
from support.openings import opening

from slicekeeper import names
from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.gpu.inventory import Gpu, MigSlice, by_uuid
from slicekeeper.gpu.request import GpuRequest, PodRequest
from timekeeper.core.budget_record import Rule
from timekeeper.core.pod_need import Need, need_of, span_of
from timekeeper.core.rate import RateBook
from timekeeper.core.refusal import Conflicting, Unknown
from timekeeper.ledger import coverage, hierarchy, movement, reservation, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import set_budget, set_status
from timekeeper.ledger.movement import Order
from timekeeper.ledger.workload import Closing
from timekeeper.store import accounts, audit_chain, idempotent_rows
from timekeeper.store import reservations as store
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.db.models import ReservationRow

T0 = 1_767_225_600_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="100s", period="none", enforcement="safe"))
TEAM, OTHER = AccountRef("uid-team", "team", POLICY), AccountRef("uid-other", "other", POLICY)


def order(amount: int, key: str = "k", now: int = T0) -> Order:
    return Order(amount, "why", key, str(amount).encode(), "me", now)


def find_team(session: Session) -> BudgetAccount | None:
    return accounts.find(session, "default", "uid-team")


def held(books: Books, now: int) -> int:
    return reservation.reserved(books, now)[books.require("team").account.id]


def run(books: Books, uid: str, start: int, *, end: int | None = None, now: int, rate: Fraction = Fraction(1)) -> None:
    closings = [] if end is None else [Closing(uid, end, "finished")]
    workload.apply(books, [opening(uid, start, rate)], closings, {"team": POLICY}, now)


def outcomes(books: Books, now: int) -> dict[str, str]:
    with books.database.reading() as session:
        rows = idempotent_rows.page(session, ReservationRow, books.require("team").account.id, limit=100)
    return {row.pod_uid or row.reason: reservation.outcome_of(row, now) for row in rows}


# What a pod needs


def test_a_span_is_deadline_grace_and_margin() -> None:
    assert span_of({"spec": {"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 5}}, 10_000) == 75_000
    assert span_of({"spec": {"activeDeadlineSeconds": 60}}, 10_000) == 100_000
    assert span_of({"spec": {}}, 10_000) is None
    endless = {"spec": {"activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 2**63 - 1}}
    assert span_of(endless, 10_000) == 2**31 * 1_000 + 9_000


GPUS = (Gpu("a", "A100", 40960), Gpu("b", "A100", 40960), Gpu("t", "T4", 16384))
RATES = RateBook([("A100", 0, Fraction(3, 2)), ("A100", T0 + 1, Fraction(2)), ("T4", 0, Fraction(1, 4))])


@pytest.mark.parametrize(
    ("request_", "rate"),
    [
        # half of an A100's compute at the rate that is to come; all memory of a T4 is cheaper
        (PodRequest((GpuRequest("c", 50, 64),)), Fraction(1)),
        (PodRequest((GpuRequest("c", 50, 64),), gpu_models=("T4",)), Fraction(1, 4)),
        (PodRequest((GpuRequest("c", 50, 64),), gpu_uuid="t"), Fraction(1, 4)),
        (PodRequest((GpuRequest("c", 10, 160),)), Fraction(2)),
        (PodRequest((GpuRequest("c", 200, None), GpuRequest("d", 25, 1))), Fraction(9, 2)),
        (PodRequest((GpuRequest("c", 25, 1),), sharing="exclusive"), Fraction(2)),
        (PodRequest((GpuRequest("c", 50, 1),), gpu_class=names.BACKGROUND), Fraction(1, 2)),
        (PodRequest(held_devices={"nvidia.com/gpu": 2}), Fraction(4)),
        (PodRequest((GpuRequest("c", 50, 64),), gpu_models=("H100",)), None),
    ],
)
def test_a_hold_is_what_the_dearest_place_would_cost(request_: PodRequest, rate: Fraction | None) -> None:
    found = need_of(request_, 1_001, gpus=GPUS, book=RATES, weight="max", background=Fraction(1, 2), quota=None, now=T0)
    assert found == (None if rate is None else Need(-(-1_001 * rate.numerator // rate.denominator), 1_001))


MIG = (MigSlice("MIG-1", 4864, 1, 7), MigSlice("MIG-3", 19968, 3, 7), MigSlice("MIG-7", 40448, 7, 7))


@pytest.mark.parametrize(
    ("request_", "rate"),
    [
        (PodRequest((GpuRequest("c", 14, 4),), sharing="mig"), Fraction(2)),  # all of the largest slice
        (PodRequest((GpuRequest("c", 14, 4),), sharing="mig", gpu_uuid="MIG-3"), Fraction(1)),
        (PodRequest((GpuRequest("c", 14, 4), GpuRequest("d", 50, 4)), sharing="mig"), Fraction(4)),
        (PodRequest((GpuRequest("c", 42, 4),), sharing="mig", gpu_models=("T4",)), None),
        (PodRequest((GpuRequest("c", 99, 160),), sharing="mig"), None),  # more memory than any has
        (PodRequest((GpuRequest("c", 14, 4),)), Fraction(2, 7)),  # adaptive: not on one more than twice as large
        (PodRequest((GpuRequest("c", 25, 4),)), Fraction(1)),
        (PodRequest((GpuRequest("c", 25, 4),), sharing="shared"), Fraction(1, 2)),
        (PodRequest((GpuRequest("c", 25, 4),), affinity="x"), Fraction(1, 2)),
        (PodRequest((GpuRequest("c", 25, 4), GpuRequest("d", 100, None))), Fraction(5, 2)),
    ],
)
def test_a_hold_covers_the_largest_slice_that_the_pod_might_get(request_: PodRequest, rate: Fraction | None) -> None:
    gpus = [*GPUS, *by_uuid(Gpu("m", "A100", 40960, healthy=False, mig=MIG)).values()]
    found = need_of(request_, 7_000, gpus=gpus, book=RATES, weight="max", background=Fraction(1, 2), quota=None, now=T0)
    assert found == (None if rate is None else Need(int(7_000 * rate), 7_000))


# Holds


def test_a_pods_reservation_shrinks_as_it_is_charged_and_its_rest_comes_back_at_once(books: Books) -> None:
    assert reservation.open_for_pod(books, TEAM, "p", "p", Need(60_000, 60_000), T0)
    assert reservation.open_for_pod(books, TEAM, "p", "p", Need(60_000, 60_000), T0), "asked again, the same one"
    assert held(books, T0) == 60_000
    assert not reservation.open_for_pod(books, TEAM, "q", "q", Need(40_001, 1), T0)
    assert reservation.open_for_pod(books, TEAM, "q", "q", Need(40_000, 1), T0)
    run(books, "p", T0 + 1_000, now=T0 + 11_000)
    for now, left in ((T0 + 11_000, 50_000), (T0 + 31_000, 30_000), (T0 + 61_000, 0)):
        assert held(books, now) == left + 40_000
        assert books.require("team").at(now).balance >= held(books, now)
    workload.apply(books, [], [Closing("p", T0 + 41_000, "finished")], {}, T0 + 50_000)
    assert held(books, T0 + 50_000) == 40_000
    assert books.require("team").at(T0 + 50_000).balance == 60_000
    assert reservation.open_for_pod(books, TEAM, "r", "r", Need(20_000, 1), T0 + 50_000)
    books.database.write(lambda session: store.end_pods(session, ["p", "q"], T0 + 50_000))
    assert outcomes(books, T0 + 50_000) == {"p": "settled", "q": "expired", "r": "open"}
    assert held(books, T0 + 50_000) == 20_000


def test_a_pod_on_a_cheaper_gpu_than_feared_keeps_only_what_it_needs_there(books: Books) -> None:
    assert reservation.open_for_pod(books, TEAM, "p", "p", Need(80_000, 40_000), T0)
    run(books, "p", T0, now=T0, rate=Fraction(1, 2))
    assert held(books, T0) == 20_000
    assert held(books, T0 + 10_000) == 15_000


def test_what_is_set_aside_cannot_be_taken_out_and_a_grant_makes_room(books: Books) -> None:
    made, new = reservation.open_by_hand(books, TEAM, order(70_000), expires_at=T0 + 60_000)
    assert (new, made.amount_ms) == (True, 70_000)
    with pytest.raises(Conflicting, match="more than the 30000"):
        movement.transfer(books, TEAM, OTHER, order(30_001, "t"), valid_to=None)
    with pytest.raises(Conflicting, match="more than the 30000"):
        movement.adjust(books, TEAM, order(-30_001, "a"))
    movement.transfer(books, TEAM, OTHER, order(30_000, "t"), valid_to=None)
    assert not reservation.open_for_pod(books, TEAM, "p", "p", Need(1, 1), T0)
    movement.grant(books, TEAM, order(1, "g"), valid_from=T0, valid_to=None)
    assert reservation.open_for_pod(books, TEAM, "p", "p", Need(1, 1), T0)


def test_by_hand_it_is_made_once_and_released_or_expires(books: Books) -> None:
    first, new = reservation.open_by_hand(books, TEAM, order(60_000), expires_at=T0 + 60_000)
    again, repeated = reservation.open_by_hand(books, TEAM, order(60_000), expires_at=T0 + 60_000)
    assert (new, repeated, again.id) == (True, False, first.id)
    with pytest.raises(Conflicting, match="another request"):
        reservation.open_by_hand(books, TEAM, order(50_000), expires_at=T0 + 60_000)
    with pytest.raises(Conflicting, match="the 40000 GPU-ms that team has free"):
        reservation.open_by_hand(books, TEAM, order(40_001, "k2"), expires_at=T0 + 60_000)
    assert (
        reservation.release(books, find_team, "team", first.id, reason="r", actor="me", now=T0 + 1).outcome
        == "released"
    )
    assert (
        reservation.release(books, find_team, "team", first.id, reason="r", actor="me", now=T0 + 2).ended_at == T0 + 1
    )
    assert held(books, T0 + 2) == 0
    short, _ = reservation.open_by_hand(books, TEAM, order(100_000, "k3", T0 + 2), expires_at=T0 + 10_000)
    assert held(books, T0 + 9_999) == 100_000
    assert held(books, T0 + 10_000) == 0
    assert reservation.outcome_of(short, T0 + 10_000) == "expired"
    with pytest.raises(Unknown):
        reservation.release(books, find_team, "team", 999, reason="r", actor="me", now=T0)
    assert reservation.open_for_pod(books, TEAM, "p", "p", Need(1, 1), T0 + 20_000)
    with books.database.reading() as session:
        row: ReservationRow = idempotent_rows.page(session, ReservationRow, books.require("team").account.id, limit=1)[
            0
        ]
    with pytest.raises(Conflicting, match="ends with it"):
        reservation.release(books, find_team, "team", row.id, reason="r", actor="me", now=T0)


def test_the_tightest_budget_above_limits_what_all_under_it_set_aside(books: Books) -> None:
    hierarchy.put_parent_budget(books, "lab", "team", Rule(T0, 50_000, "none", "UTC"), actor="me", if_match=None)
    for place in (TEAM, OTHER):
        hierarchy.set_parent(books, place, "lab", reason="r", actor="me", now=T0)
    now = T0 + 1
    assert reservation.open_for_pod(books, TEAM, "p", "p", Need(30_000, 30_000), now)
    assert not reservation.open_for_pod(books, OTHER, "q", "q", Need(20_001, 1), now)
    standing = books.require("other")
    with books.database.reading() as session:
        cover = coverage.known(session, standing, now)
    assert cover.free(standing.account.id) == (20_000, standing.above[0].id)
    assert cover.most(standing.account.id) == 50_000
    assert reservation.open_for_pod(books, OTHER, "q", "q", Need(20_000, 20_000), now)
    with pytest.raises(Conflicting, match="the 0 GPU-ms that other has free"):
        reservation.open_by_hand(books, OTHER, order(1, now=now), expires_at=T0 + 9)
    run(books, "p", now, end=now + 10_000, now=now + 10_000)
    with books.database.reading() as session:
        standing = books.require("team")
        cover = coverage.known(session, standing, now + 10_000)
    assert cover.free(standing.account.id)[0] == 20_000, "the rest of a pod is free for all under the team"


def test_whoever_pays_more_than_was_set_aside_is_told_of(books: Books) -> None:
    for uid in ("p", "q"):
        assert reservation.open_for_pod(books, TEAM, uid, uid, Need(20_000, 20_000), T0)
    run(books, "p", T0, end=T0 + 20_000, now=T0 + 20_000)
    run(books, "q", T0, end=T0 + 25_000, now=T0 + 25_000)
    reservation.end_pods(books, {"p": ("team", "p"), "q": ("team", "q")}, T0 + 26_000)
    assert outcomes(books, T0 + 26_000) == {"p": "settled", "q": "settled"}
    with books.database.reading() as session:
        (told,) = audit_chain.page(session, "default", "team", 0, 10)
    assert told.action == "reservation-exceeded"
    wanted = {"podUid": "q", "podName": "q", "amountMs": 20_000, "paidMs": 25_000}
    assert json.loads(told.detail) == {**wanted, "namespaceUid": "uid-team"}


def test_a_suspended_budget_sets_nothing_aside(books: Books) -> None:
    set_status(books, TEAM, "suspended", reason="r", actor="me", now=T0)
    assert not reservation.open_for_pod(books, TEAM, "p", "p", Need(1, 1), T0)
    with pytest.raises(Conflicting, match="suspended"):
        reservation.open_by_hand(books, TEAM, order(1), expires_at=T0 + 1)


def test_credit_may_be_set_aside_but_not_more(books: Books) -> None:
    rule = Rule(T0, 10_000, "none", "UTC", credit=5_000)
    set_budget(books, TEAM, rule, actor="me", if_match=None)
    assert not reservation.open_for_pod(books, TEAM, "p", "p", Need(15_001, 1), T0)
    assert reservation.open_for_pod(books, TEAM, "p", "p", Need(15_000, 15_000), T0)
    run(books, "p", T0, end=T0 + 15_000, now=T0 + 15_000)
    state = books.require("team").at(T0 + 15_000)
    assert (state.balance, state.over) == (-5_000, 0)
