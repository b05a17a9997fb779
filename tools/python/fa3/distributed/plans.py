"""What each rank does in one call of attention, in numbers of Python: which keys come and go, which calls are made on
them, and where their results are put. It is worked out once for each kind of call; nothing here needs torch.

Results of calls that have rows in common are merged: each row's first result goes to slot 0, the next one to slot 1 and
so on, with an LSE of -inf where a slot has none for a row. SLOTS of them are merged at a time."""

from __future__ import annotations

import functools
from typing import NamedTuple, Tuple

from . import layouts

SLOTS = 4


class Seat(NamedTuple):
    """Of a process in its group."""

    rank: int
    size: int


ALONE = Seat(0, 1)


class Job(NamedTuple):
    """A call and the slot of its result. folds: all slots are merged into slot 0 before it. is_first: it is the first
    call of all of its rows."""

    call: layouts.Call
    slot: int
    folds: bool
    is_first: bool


class Step(NamedTuple):
    """What is done with the keys of rank `source`: those from first to end - 1 of its rows. sent: those of this rank's
    that go to rank `to` meanwhile. moves: whether any rank sends something in this step; else there is no transfer.
    is_whole: one call has all of these keys, so its dk and dv are theirs."""

    jobs: Tuple[Job, ...]
    source: int
    first: int
    end: int
    to: int
    sent: Tuple[int, int]
    moves: bool
    is_whole: bool
    sent_is_whole: bool  # the same of rank `to` and `sent`


class Spread(NamedTuple):
    """How one call of attention is spread over ranks. First the ranks of `heads` exchange their rows for heads, then
    those of `keys` bring keys to rows, by "all_gather" or "ring"."""

    heads: Seat
    keys: Seat
    method: str
    parts: Tuple[Tuple[layouts.Piece, ...], ...]  # of the ranks of `heads`: the positions that they have
    nodes: Tuple[Tuple[layouts.Piece, ...], ...]  # of those of `keys`: the positions that they have after the exchange
    cu_seqlens: Tuple[int, ...]
    left: int
    right: int
    dim: int  # of the tokens in a tensor: 1, or 0 if they are packed

    @property
    def seen(self):
        """What layouts.calls takes behind the positions."""
        return self.cu_seqlens, self.left, self.right, self.dim == 0


class Plan:
    """Of one rank. slots: how many results are merged at a time; 1 if each row has one call. has_gaps: a slot has no
    result for some rows. most: the calls that a row has. mixes: a call is the first one of some of its rows only."""

    def __init__(self, spread: Spread):
        self.spread, self.dim = spread, spread.dim
        self.heads, self.keys, self.parts, self.nodes = spread.heads, spread.keys, spread.parts, spread.nodes
        self.gathers = spread.method == "all_gather" and self.keys.size > 1
        self.rows = layouts.rows(self.nodes[self.keys.rank])
        self.slots, self.has_gaps, self.mixes = 1, False, False
        self.steps = tuple(self._placed([self._gathered()] if self.gathers else self._round()))

    def _calls(self, receiver: int, sender: int):
        """(calls, (first, end)): what the receiver computes on the sender's keys from first to end - 1."""
        return _calls(self.nodes[receiver], self.nodes[sender], *self.spread.seen)

    def _gathered(self):
        whole = layouts.union(self.nodes)
        calls = layouts.calls(self.nodes[self.keys.rank], whole, *self.spread.seen)
        return Step(calls, self.keys.rank, 0, layouts.rows(whole), self.keys.rank, (0, 0), True, False, False)

    def _round(self):
        rank, size = self.keys
        found = []
        for step in range(size):
            source, to = (rank - step) % size, (rank + step) % size
            calls, (first, end) = self._calls(rank, source)
            receiver_calls, sent = self._calls(to, rank)
            moves = step > 0 and any(self._calls(i, (i - step) % size)[0] for i in range(size))
            found.append(Step(calls, source, first, end, to, sent, moves, _is_whole(calls, first, end),
                              _is_whole(receiver_calls, *sent)))  # fmt: skip
        return found

    def _placed(self, steps):
        """The steps with jobs for calls."""
        bounds = sorted({x for step in steps for call in step.jobs for x in (call.q_start, call.q_end)})
        slots = dict.fromkeys(bounds[:-1], 0)  # how many have a result of the rows from this bound on
        results = dict(slots)
        for step in steps:
            jobs = []
            for call in step.jobs:
                mine = [x for x in slots if call.q_start <= x < call.q_end]
                slot, folds = max(slots[x] for x in mine), False
                if slot == SLOTS:
                    slots, slot, folds = {x: min(count, 1) for x, count in slots.items()}, 1, True
                before = [results[x] for x in mine]
                self.mixes = self.mixes or max(before) > min(before) == 0
                self.has_gaps = self.has_gaps or folds or min(slots[x] for x in mine) < slot
                slots.update({x: slot + 1 for x in mine})
                results.update({x: results[x] + 1 for x in mine})
                self.slots = max(self.slots, slot + 1)
                jobs.append(Job(call, slot, folds, max(before) == 0))
            yield step._replace(jobs=tuple(jobs))
        self.most = max(results.values(), default=0)
        self.has_gaps = self.has_gaps or min(slots.values(), default=self.slots) < self.slots


@functools.lru_cache(maxsize=4096)
def _calls(q, k, *seen):
    calls = layouts.fused(layouts.calls(q, k, *seen))
    first, end = layouts.extent(calls)
    return layouts.moved(calls, first), (first, end)


def _is_whole(calls, first, end):
    return len(calls) == 1 and (calls[0].k_start, calls[0].k_end) == (0, end - first)
