# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sidecar.epoch import EpochCounter


def test_first_reading_is_zero_and_later_ones_count_from_it(tmp_path: Path) -> None:
    counter = EpochCounter(tmp_path, "nvidia", now_ns=lambda: 7)
    assert counter.next(1000) == (7, 1, 0)
    assert counter.next(1600) == (7, 2, 600)


def test_unknown_stays_unknown_and_is_never_zero(tmp_path: Path) -> None:
    counter = EpochCounter(tmp_path, "nvidia", now_ns=lambda: 7)
    assert counter.next(None) == (7, 1, None)
    assert counter.next(50)[2] == 0
    assert counter.next(None)[2] is None
    assert counter.next(80)[2] == 30


def test_restart_goes_on_in_the_same_epoch_so_nothing_is_counted_twice(tmp_path: Path) -> None:
    first = EpochCounter(tmp_path, "nvidia", now_ns=lambda: 7)
    first.next(100)
    first.next(150)
    again = EpochCounter(tmp_path, "nvidia", now_ns=lambda: 9)
    assert again.next(400) == (7, 3, 300)


def test_a_counter_that_began_anew_begins_a_greater_epoch_even_if_the_clock_ran_back(tmp_path: Path) -> None:
    counter = EpochCounter(tmp_path, "nvidia", now_ns=lambda: 7)
    counter.next(100)
    counter.next(150)
    assert counter.next(30) == (8, 1, 30)
    assert counter.next(45) == (8, 2, 45)


def test_a_counter_that_says_it_began_anew_is_believed_however_far_it_has_come(tmp_path: Path) -> None:
    counter = EpochCounter(tmp_path, "nvidia", now_ns=lambda: 7)
    counter.next(100, "a")
    assert counter.next(150, "a") == (7, 2, 50)
    assert counter.next(None) == (7, 3, None)
    again = EpochCounter(tmp_path, "nvidia", now_ns=lambda: 9)
    assert again.next(400, "b") == (9, 1, 400)
    assert again.next(450, "b") == (9, 2, 450)


def test_a_counter_of_the_same_name_that_steps_back_adds_nothing(tmp_path: Path) -> None:
    """As the arbiter's does: one that was killed has lost up to a second of what it counted."""
    counter = EpochCounter(tmp_path, "nvidia", now_ns=lambda: 7)
    counter.next(100, "a")
    assert counter.next(36_000, "a") == (7, 2, 35_900)
    assert counter.next(35_200, "a") == (7, 3, 35_900)
    again = EpochCounter(tmp_path, "nvidia", now_ns=lambda: 9)
    assert again.next(35_300, "a") == (7, 4, 35_900)
    assert again.next(36_100, "a") == (7, 5, 36_000)


def test_damaged_place_begins_anew_at_its_first_reading(tmp_path: Path) -> None:
    EpochCounter(tmp_path, "nvidia", now_ns=lambda: 7).next(100)
    (tmp_path / "nvidia.epoch.json").write_text('{"epoch": 7, "se')
    assert EpochCounter(tmp_path, "nvidia", now_ns=lambda: 9).next(500) == (9, 1, 0)


def test_unwritable_folder_counts_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    counter = EpochCounter(tmp_path / "file", "nvidia", now_ns=lambda: 7)
    assert counter.next(100) == (7, 1, 0)
    assert counter.next(130) == (7, 2, 30)


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["on", "on", "restart", "reset"])), max_size=40))
def test_sum_of_epochs_is_what_was_used(tmp_path_factory: object, steps: list[tuple[int, str]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        counter = EpochCounter(Path(folder), "c", now_ns=lambda: 1)
        counter.next(0)
        raw, used, newest = 0, 0, dict[int, int]()
        for amount, event in steps:
            if event == "reset" and raw > amount:
                raw = 0
            if event == "restart":
                counter = EpochCounter(Path(folder), "c", now_ns=lambda: 1)
            raw += amount
            used += amount
            epoch, _, cumulative = counter.next(raw)
            assert cumulative is not None
            newest[epoch] = cumulative
        assert sum(newest.values()) == used
