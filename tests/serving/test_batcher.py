"""The batcher: sizes and waits that adapt, a bounded queue, images computed once, second tries."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from vitrail.serving.batcher import Batcher, Rules, Task
from vitrail.serving.problems import Overloaded, Unavailable


@dataclass
class FakeSlots:
    """Processes that compute nothing until the test says so."""

    total: int = 2
    sent: list[list[Task]] = field(default_factory=list)
    busy: int = 0

    @property
    def free(self) -> int:
        return self.total - self.busy

    def send(self, batch: list[Task]) -> None:
        self.busy += 1
        self.sent.append(batch)


def task(key: bytes | None = None, *, seconds: float = 10.0, pooled: bool = False) -> Task:
    want = "features" if pooled else "scores"
    return Task(want, b"image", False, time.monotonic() + seconds, key)  # type: ignore[arg-type]


def answers(batch: list[Task]) -> list[Any]:
    return [np.array([number], np.float32) for number in range(len(batch))]


def finish(batcher: Batcher, slots: FakeSlots, batch: list[Task]) -> None:
    slots.busy -= 1
    batcher.finish(batch, answers(batch))


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@in_loop
async def test_an_idle_service_sends_an_image_at_once_and_alone() -> None:
    slots = FakeSlots()
    batcher = Batcher(Rules(), slots)
    batcher.submit([task()])
    assert [len(batch) for batch in slots.sent] == [1]


@in_loop
async def test_images_are_shared_out_among_slots() -> None:
    slots = FakeSlots(total=2)
    batcher = Batcher(Rules(), slots)
    batcher.submit([task() for _ in range(10)])
    assert [len(batch) for batch in slots.sent] == [5, 5]


@in_loop
async def test_batches_are_whole_runs_of_the_engine() -> None:
    """An engine that is built for 8 computes 8 also for 6: the rest goes with the next batch."""
    slots = FakeSlots(total=3)
    batcher = Batcher(Rules(), slots)
    batcher.sizes = (1, 4, 8)
    batcher.submit([task() for _ in range(20)])  # 7 for each slot
    assert [len(batch) for batch in slots.sent] == [4, 4, 4]
    batcher.submit([task() for _ in range(12)])  # 11 for each
    for batch in list(slots.sent):
        finish(batcher, slots, batch)
    assert [len(batch) for batch in slots.sent[3:]] == [8, 8, 4]  # 10, 8 and 7 for each
    assert batcher.count == 0


@in_loop
async def test_batches_grow_with_the_load_up_to_the_limit() -> None:
    slots = FakeSlots(total=1)
    batcher = Batcher(Rules(batch_size=8, max_wait=0), slots)
    batcher.submit([task()])
    batcher.submit([task() for _ in range(20)])
    finish(batcher, slots, slots.sent[-1])
    finish(batcher, slots, slots.sent[-1])
    assert [len(batch) for batch in slots.sent] == [1, 8, 8]
    assert batcher.count == 4


@in_loop
async def test_a_partial_batch_waits_while_others_compute_and_no_longer_than_it_may() -> None:
    slots = FakeSlots(total=3)
    batcher = Batcher(Rules(max_wait=0.05), slots)
    batcher.submit([task() for _ in range(12)])  # 4 in each of three slots
    finish(batcher, slots, slots.sent[0])
    began = time.monotonic()
    batcher.submit([task()])
    assert len(slots.sent) == 3
    while len(slots.sent) == 3:
        await asyncio.sleep(0.002)
    assert 0.02 < time.monotonic() - began < 0.5
    assert [len(batch) for batch in slots.sent] == [4, 4, 4, 1]


@in_loop
async def test_a_batch_that_fills_up_does_not_wait_for_the_clock() -> None:
    slots = FakeSlots(total=3)
    batcher = Batcher(Rules(max_wait=60), slots)
    batcher.submit([task() for _ in range(12)])
    finish(batcher, slots, slots.sent[0])
    for _ in range(4):
        batcher.submit([task()])
    assert [len(batch) for batch in slots.sent] == [4, 4, 4, 4]


@in_loop
async def test_a_batch_has_one_output() -> None:
    slots = FakeSlots(total=1)
    batcher = Batcher(Rules(max_wait=0), slots)
    batcher.submit([task()])
    batcher.submit([task(), task(pooled=True), task(), task(pooled=True)])
    for _ in range(2):
        finish(batcher, slots, slots.sent[-1])
    assert [[one.want for one in batch] for batch in slots.sent[1:]] == [
        ["scores"] * 2,
        ["features"] * 2,
    ]


@in_loop
async def test_a_full_queue_refuses_all_of_a_request_and_says_when_to_come_again() -> None:
    slots = FakeSlots(total=1)
    batcher = Batcher(Rules(queue=4, batch_size=2), slots)
    batcher.submit([task()])
    batcher.submit([task() for _ in range(3)])
    with pytest.raises(Overloaded) as refusal:
        batcher.submit([task(), task()])
    assert batcher.count == 3
    assert int(refusal.value.headers["retry-after"]) >= 1
    batcher.submit([task()])
    assert batcher.is_full


@in_loop
async def test_the_same_image_is_computed_once() -> None:
    slots = FakeSlots(total=1)
    batcher = Batcher(Rules(), slots)
    one, two = batcher.submit([task(b"a"), task(b"a")])
    (three,) = batcher.submit([task(b"a")])
    (other,) = batcher.submit([task(b"b")])
    assert one is two is three
    assert other is not one
    finish(batcher, slots, slots.sent[0])
    assert (await one.done).tolist() == [0.0]  # type: ignore[union-attr]
    finish(batcher, slots, slots.sent[1])
    (again,) = batcher.submit([task(b"a")])
    assert again.done.done()
    assert len(slots.sent) == 2
    assert batcher.shared == 3


@in_loop
async def test_an_answer_is_kept_for_its_window_only() -> None:
    slots, now = FakeSlots(), [0.0]
    batcher = Batcher(Rules(window=5), slots, now=lambda: now[0])
    batcher.submit([Task("scores", b"x", False, 1e9, b"a")])
    finish(batcher, slots, slots.sent[0])
    now[0] = 6.0
    (again,) = batcher.submit([Task("scores", b"x", False, 1e9, b"a")])
    assert not again.done.done()
    assert len(slots.sent) == 2


@in_loop
async def test_without_a_window_every_image_is_computed() -> None:
    slots = FakeSlots(total=4)
    batcher = Batcher(Rules(window=0), slots)
    one, two = batcher.submit([task(b"a"), task(b"a")])
    assert one is not two


@in_loop
async def test_an_image_nobody_waits_for_is_not_computed() -> None:
    slots = FakeSlots(total=1)
    batcher = Batcher(Rules(max_wait=0), slots)
    batcher.submit([task()])
    gone, kept = batcher.submit([task(b"a"), task(b"b")])
    (also_kept,) = batcher.submit([task(b"b")])
    batcher.leave(gone)
    batcher.leave(kept)
    assert batcher.count == 1
    finish(batcher, slots, slots.sent[0])
    assert slots.sent[1] == [also_kept]
    (fresh,) = batcher.submit([task(b"a")])  # not the cancelled one
    assert fresh is not gone


@in_loop
async def test_an_image_whose_time_is_over_is_not_computed() -> None:
    slots = FakeSlots(total=1)
    batcher = Batcher(Rules(max_wait=0), slots)
    batcher.submit([task()])
    (late,) = batcher.submit([task(seconds=-1)])
    finish(batcher, slots, slots.sent[0])
    assert late.done.cancelled()
    assert len(slots.sent) == 1
    assert batcher.idle.is_set()


@in_loop
async def test_images_of_a_dead_process_are_tried_again_one_by_one_and_then_given_up() -> None:
    slots = FakeSlots(total=1)
    batcher = Batcher(Rules(max_wait=0), slots)
    first, second = batcher.submit([task(), task()])
    assert slots.sent == [[first, second]]
    slots.busy = 0
    batcher.retry(slots.sent[0])
    assert slots.sent[1:] == [[first]]
    assert not batcher.idle.is_set()
    slots.busy = 0
    batcher.retry(slots.sent[1])
    with pytest.raises(Unavailable):
        await first.done
    assert slots.sent[2:] == [[second]]
    finish(batcher, slots, slots.sent[2])
    assert (await second.done).tolist() == [0.0]  # type: ignore[union-attr]
    assert batcher.idle.is_set()


@in_loop
async def test_waiting_for_the_end_of_all_work() -> None:
    slots = FakeSlots(total=1)
    batcher = Batcher(Rules(max_wait=0), slots)
    assert batcher.idle.is_set()
    batcher.submit([task()])
    assert not batcher.idle.is_set()
    batcher.submit([task()])
    finish(batcher, slots, slots.sent[0])
    assert not batcher.idle.is_set()
    finish(batcher, slots, slots.sent[1])
    assert batcher.idle.is_set()


@in_loop
async def test_retry_after_is_the_time_that_the_queue_takes() -> None:
    slots, now = FakeSlots(total=1), [0.0]
    batcher = Batcher(Rules(queue=1000, batch_size=10), slots, now=lambda: now[0])
    batcher.submit([Task("scores", b"x", False, 1e9) for _ in range(200)])
    for second in range(1, 11):  # ten images a second
        now[0] = float(second)
        finish(batcher, slots, slots.sent[-1])
    assert 8 <= batcher.retry_after() <= 10


@in_loop
async def test_a_line_that_has_left_does_not_stop_the_other() -> None:
    slots = FakeSlots(total=1, busy=1)
    batcher = Batcher(Rules(), slots)
    (left,) = batcher.submit([task(pooled=True)])
    (stays,) = batcher.submit([task()])
    batcher.leave(left)
    slots.busy = 0
    batcher.pump()
    assert slots.sent == [[stays]]
