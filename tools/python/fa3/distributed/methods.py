"""What the methods send. A tensor has its tokens in dimension `dim`, heads and numbers of a head behind it: 1 if it is
(batch, tokens, heads, head_dim), 0 if it is packed, (tokens, heads, head_dim). All ranks make the same calls in the
same order; where one has nothing to send or to receive, its peer knows that, too. Tensors that go the same way go as
one, flat and one behind the other."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from . import layouts


class Team(NamedTuple):
    """A process group as this process sees it. group: None if it is alone."""

    group: Any
    rank: int
    size: int


ALONE = Team(None, 0, 1)


# ---- buffers ----


def in_order(buffers, parts, dim):
    """One tensor with the positions of all parts in order, of the parts' tensors."""
    steps = layouts.transfers(parts, layouts.union(parts))
    return torch.cat([buffers[i].narrow(dim, place, length) for _, i, place, length in steps] or [buffers[0]], dim)


def by_part(x, parts, dim):
    """The parts' tensors of what `in_order` made."""
    found = [[] for _ in parts]
    for place, part, _, length in sorted(layouts.transfers(parts, layouts.union(parts)), key=lambda step: step[1:3]):
        found[part].append(x.narrow(dim, place, length))
    return [torch.cat(some, dim) if len(some) > 1 else some[0] if some else x.narrow(dim, 0, 0) for some in found]


def resized(shape, dim, rows):
    dims = list(shape)
    dims[dim] = rows
    return dims


def packed(tensors):
    """Their numbers, flat."""
    return torch.cat([x.reshape(-1) for x in tensors])


def views(flat, shapes):
    """Tensors of these shapes, one behind the other."""
    found, place = [], 0
    for shape in shapes:
        size = math.prod(shape)
        found.append(flat[place : place + size].view(shape))
        place += size
    return found


# ---- all ranks at once ----


def gather(team: Team, tensors, parts, dim):
    """Of each tensor the rows of all ranks, in order of their positions."""
    if team.size == 1:
        return list(tensors)
    longest = max(map(layouts.rows, parts))
    shapes = [resized(x.shape, dim, longest) for x in tensors]
    if tensors[0].shape[dim] == longest:
        mine = packed(tensors)
    else:
        mine = tensors[0].new_zeros(sum(map(math.prod, shapes)))
        for view, x in zip(views(mine, shapes), tensors):
            view.narrow(dim, 0, x.shape[dim]).copy_(x)
    every = mine.new_empty((team.size, *mine.shape))
    dist.all_gather_into_tensor(every.flatten(), mine, group=team.group)
    buffers = [views(flat, shapes) for flat in every]
    return [in_order(some, parts, dim) for some in zip(*buffers)]


def reduce_scatter(team: Team, found, shapes, parts, dim, device):
    """Sums in float32 over all ranks, of those the rows of this rank. found: (first, tensors) for each call, those of
    rows from `first` on in the order of positions; shapes: of the tensors of this rank."""
    longest = max(map(layouts.rows, parts))
    padded = [resized(shape, dim, longest) for shape in shapes]
    size = sum(map(math.prod, padded))
    every = torch.zeros((team.size, size), dtype=torch.float32, device=device)
    buffers = [views(flat, padded) for flat in every]
    steps = layouts.transfers(parts, layouts.union(parts))
    for first, tensors in found:
        end = first + tensors[0].shape[dim]
        for place, part, part_place, length in steps:
            start, behind = max(first, place), min(end, place + length)
            if start >= behind:
                continue
            for total, x in zip(buffers[part], tensors):
                there = total.narrow(dim, part_place + start - place, behind - start)
                there.add_(x.narrow(dim, start - first, behind - start))
    mine = every.new_empty(size)
    dist.reduce_scatter_tensor(mine, every.flatten(), group=team.group)
    return [x.narrow(dim, 0, shape[dim]) for x, shape in zip(views(mine, padded), shapes)]


def _exchange(team: Team, sent, shapes):
    """The tensors sent[i] go to rank i; what comes from rank i has the shapes shapes[i]."""
    flat = packed([x for tensors in sent for x in tensors])
    sizes = [sum(map(math.prod, some)) for some in shapes]
    came = flat.new_empty(sum(sizes))
    going = [sum(x.numel() for x in tensors) for tensors in sent]
    dist.all_to_all_single(came, flat, sizes, going, group=team.group)
    return [views(x, some) for x, some in zip(came.split(sizes), shapes)]


def rows_to_heads(team: Team, tensors, parts, dim):
    """Of this rank's rows with all heads: the rows of all ranks, in order, with this rank's heads."""
    shares = [[layouts.heads_of(x.shape[-2], team.size, rank) for x in tensors] for rank in range(team.size)]
    shapes = [[resized(x.shape, dim, layouts.rows(part)) for x in tensors] for part in parts]
    for some in shapes:
        for shape, (_, heads) in zip(some, shares[team.rank]):
            shape[-2] = heads
    sent = [[x.narrow(-2, *share) for x, share in zip(tensors, mine)] for mine in shares]
    return [in_order(some, parts, dim) for some in zip(*_exchange(team, sent, shapes))]


def heads_to_rows(team: Team, tensors, parts, dim, heads):
    """The way back, of tensors of so many heads in all. Those that several ranks have are added in float32."""
    shapes = [resized(x.shape, dim, layouts.rows(parts[team.rank])) for x in tensors]
    sent = list(zip(*(by_part(x, parts, dim) for x in tensors)))
    came = zip(*_exchange(team, sent, [shapes] * team.size))
    return [_of_all_heads(team, some, count) for some, count in zip(came, heads)]


def _of_all_heads(team, came, heads):
    if heads % team.size == 0:
        return torch.cat(came, -2)
    copies = team.size // heads
    sums = [torch.stack(came[i : i + copies]).float().sum(0) for i in range(0, team.size, copies)]
    return torch.cat(sums, -2).to(came[0].dtype)


# ---- rank to rank ----


class Transfer:
    """Numbers on their way to one rank and from one. sent: flat, or None; count, dtype: of those that come."""

    def __init__(self, team: Team, to, sent, source, count, dtype, device):
        self.received = came = torch.empty(count, dtype=dtype, device=device)
        if sent is None:
            sent = torch.empty(0, dtype=dtype, device=device)
        elif sent.dtype != dtype:
            sent, came = sent.view(torch.uint8), came.view(torch.uint8)
        self.sent = sent  # lives until the transfer is over
        going, coming = [0] * team.size, [0] * team.size
        going[to], coming[source] = sent.numel(), came.numel()
        self.work = dist.all_to_all_single(came, sent, coming, going, group=team.group, async_op=True)

    def wait(self):
        self.work.wait()
        self.sent = None
        return self.received


class Keys:
    """K and V that came flat, one behind the other, or tensors of their own."""

    def __init__(self, k, v, flat=None, shapes=None):
        self.k, self.v, self.flat, self.shapes = k, v, flat, shapes

    def addresses(self):
        if self.flat is None:
            return self.k.data_ptr(), self.v.data_ptr()
        first = self.flat.data_ptr()
        return first, first + math.prod(self.shapes[0]) * self.flat.element_size()

    def tensors(self):
        return (self.k, self.v) if self.flat is None else views(self.flat, self.shapes)

    def strides(self):
        return None if self.flat is not None else (self.k.stride(), self.v.stride())


# So many bytes are on their way for about as long as the host takes to enqueue a transfer. Before fewer ones the calls
# on a rank's own keys are enqueued, else after them, so that the transfer hides behind those calls.
FEW_BYTES = 24 << 20


def chunks(plan, team: Team, k, v):
    """For each step of the plan (step, keys): what this rank's rows see of them. The next step's are on their way
    meanwhile; k and v hold one chunk, and so do these."""
    dim = plan.dim
    if plan.gathers:
        yield plan.steps[0], Keys(*gather(team, (k, v), plan.nodes, dim))
        return

    def start(step):
        """Own keys go to one rank, those of another come: as many as are seen."""
        if not step.moves:
            return None
        first, end = step.sent
        sent = None
        if end > first:
            sent = [x if end - first == x.shape[dim] else x.narrow(dim, first, end - first) for x in (k, v)]
            sent = torch.cat(sent).reshape(-1) if k.shape == v.shape else packed(sent)
        shapes = [resized(x.shape, dim, step.end - step.first) for x in (k, v)]
        count = math.prod(shapes[0]) + math.prod(shapes[1])
        return shapes, Transfer(team, step.to, sent, step.source, count, k.dtype, k.device)

    own, *remote = plan.steps
    following, own_first = None, (k.numel() + v.numel()) * k.element_size() < FEW_BYTES
    if remote and not own_first:
        following = start(remote[0])
    if (own.first, own.end) == (0, k.shape[dim]):
        yield own, Keys(k, v)
    else:
        yield own, Keys(*(x.narrow(dim, own.first, own.end - own.first) for x in (k, v)))
    if remote and own_first:
        following = start(remote[0])
    for index, step in enumerate(remote):
        underway, keys = following, Keys(None, None)
        if underway:
            shapes, transfer = underway
            keys = Keys(None, None, transfer.wait(), shapes)
        following = start(remote[index + 1]) if index + 1 < len(remote) else None
        yield step, keys


class Gradients:
    """Sums dk and dv where their keys are at home. `add` takes those of each step's calls, as `chunks` gave keys, in
    the tensors' dtype; what is more than one number is added in float32."""

    def __init__(self, plan, team: Team, k, v):
        self.plan, self.team, self.like, self.shapes = plan, team, k, (k.shape, v.shape)
        self.found = []  # (first, tensors)
        self.underway = None

    def add(self, step, found):
        """found: (first, flat, shapes) for each call: of the step's keys from `first` on dk and dv, flat."""
        plan, dim = self.plan, self.plan.dim
        if step is plan.steps[0]:
            self.found += [(step.first + first, views(flat, shapes)) for first, flat, shapes in found]
            return
        if not step.moves:
            return
        sent = None
        if step.is_whole and found:
            sent = found[0][1]
        elif found:
            shapes = [resized(shape, dim, step.end - step.first) for shape in self.shapes]
            sent = self.like.new_zeros(sum(map(math.prod, shapes)), dtype=torch.float32)
            _add(views(sent, shapes), [(first, views(*flat)) for first, *flat in found], dim)
        first, end = step.sent
        shapes = [resized(shape, dim, end - first) for shape in self.shapes]
        dtype, count = self.like.dtype if step.sent_is_whole else torch.float32, sum(map(math.prod, shapes))
        transfer = Transfer(self.team, step.source, sent, step.to, count, dtype, self.like.device)
        self._finish()
        self.underway = first, shapes, transfer

    def _finish(self):
        if self.underway:
            first, shapes, transfer = self.underway
            self.found.append((first, views(transfer.wait(), shapes)))
            self.underway = None

    def total(self):
        """(dk, dv), in the dtype of k."""
        plan, dim = self.plan, self.plan.dim
        self._finish()
        if plan.gathers:
            sums = reduce_scatter(self.team, self.found, self.shapes, plan.nodes, dim, self.like.device)
            return [x.to(self.like.dtype) for x in sums]
        wholes = [found for found in self.found if found[1][0].shape[dim] == self.shapes[0][dim]]
        rest = [found for found in self.found if not wholes or found is not wholes[0]]
        if wholes and len(rest) < 2 and all(tensors[0].dtype == self.like.dtype for _, tensors in rest):
            sums = wholes[0][1]  # one addition is rounded once in this dtype, too
        elif wholes:
            sums = [x.to(torch.float32, copy=True) for x in wholes[0][1]]
        else:
            sums = [self.like.new_zeros(shape, dtype=torch.float32) for shape in self.shapes]
        _add(sums, rest, dim)
        return [x.to(self.like.dtype) for x in sums]


def _add(totals, found, dim):
    for first, tensors in found:
        for total, x in zip(totals, tensors):
            rows = x.shape[dim]
            (total if rows == total.shape[dim] else total.narrow(dim, first, rows)).add_(x)
