"""What the methods send. A tensor has its tokens in dimension `dim`, heads and numbers of a head behind it: 1 if it is
(batch, tokens, heads, head_dim), 0 if it is packed, (tokens, heads, head_dim). All ranks make the same calls in the
same order; where one has nothing to send or to receive, its peer knows that, too."""

from __future__ import annotations

from typing import Any, NamedTuple, Tuple

import torch
import torch.distributed as dist

from . import layouts


class Team(NamedTuple):
    """A process group as this process sees it. group: None if it is alone."""

    group: Any
    rank: int
    size: int


ALONE = Team(None, 0, 1)


class Plan(NamedTuple):
    """How one call of attention is spread over ranks. First the ranks of `heads` exchange their rows for heads, then
    those of `keys` bring keys to rows, by "all_gather" or "ring"."""

    heads: Team
    keys: Team
    method: str
    parts: Tuple[Tuple[layouts.Piece, ...], ...]  # of the ranks of `heads`: the positions that they have
    nodes: Tuple[Tuple[layouts.Piece, ...], ...]  # of those of `keys`: the positions that they have after the exchange
    cu_seqlens: Tuple[int, ...]
    left: int
    right: int
    dim: int

    @property
    def merges(self) -> bool:
        """Whether a row's result comes from several calls."""
        return self.method == "ring" and self.keys.size > 1

    def step(self, receiver: int, sender: int):
        """(calls, (first, end)): what the receiver computes on the sender's keys from first to end - 1."""
        calls = layouts.calls(self.nodes[receiver], self.nodes[sender], self.cu_seqlens, self.left, self.right)
        first, end = layouts.extent(calls)
        return layouts.moved(calls, first), (first, end)


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
    return [torch.cat(some, dim) if some else x.narrow(dim, 0, 0) for some in found]


def _padded(x, rows, dim):
    if x.shape[dim] < rows:
        dims = list(x.shape)
        dims[dim] = rows - x.shape[dim]
        x = torch.cat([x, x.new_zeros(dims)], dim)
    return x.contiguous()


# ---- all ranks at once ----


def gather(team: Team, x, parts, dim):
    """The rows of all ranks, in order of their positions."""
    if team.size == 1:
        return x
    mine = _padded(x, max(map(layouts.rows, parts)), dim)
    every = mine.new_empty((team.size, *mine.shape))
    dist.all_gather_into_tensor(every.flatten(0, 1), mine, group=team.group)
    return in_order(list(every), parts, dim)


def reduce_scatter(team: Team, x, parts, dim):
    """Sums over all ranks of x, which has all rows in order: of those the ones of this rank."""
    if team.size == 1:
        return x
    longest = max(map(layouts.rows, parts))
    every = torch.stack([_padded(part, longest, dim) for part in by_part(x, parts, dim)])
    mine = torch.empty_like(every[0])
    dist.reduce_scatter_tensor(mine, every.flatten(0, 1), group=team.group)
    return mine.narrow(dim, 0, layouts.rows(parts[team.rank]))


def _exchange(team: Team, parts, shapes):
    """Part i goes to rank i; what comes from rank i has shapes[i]."""
    sent = torch.cat([part.reshape(-1) for part in parts])
    sizes = [torch.Size(shape).numel() for shape in shapes]
    came = sent.new_empty(sum(sizes))
    dist.all_to_all_single(came, sent, sizes, [part.numel() for part in parts], group=team.group)
    return [x.view(shape) for x, shape in zip(came.split(sizes), shapes)]


def rows_to_heads(team: Team, x, parts, dim):
    """Of this rank's rows with all heads: the rows of all ranks, in order, with this rank's heads."""
    shares = [layouts.heads_of(x.shape[-2], team.size, rank) for rank in range(team.size)]
    shapes = [list(x.shape) for _ in parts]
    for shape, part in zip(shapes, parts):
        shape[dim], shape[-2] = layouts.rows(part), shares[team.rank][1]
    came = _exchange(team, [x.narrow(-2, *share) for share in shares], shapes)
    return in_order(came, parts, dim)


def heads_to_rows(team: Team, x, parts, dim, heads):
    """The way back, of tensors of so many heads in all. Those that several ranks have are added in float32."""
    shares = [layouts.heads_of(heads, team.size, rank) for rank in range(team.size)]
    shape = list(x.shape)
    shape[dim] = layouts.rows(parts[team.rank])
    came = _exchange(team, by_part(x, parts, dim), [shape] * team.size)
    if heads % team.size == 0:
        return torch.cat(came, -2)
    copies = team.size // heads
    sums = [torch.stack(came[i : i + copies]).float().sum(0) for i in range(0, team.size, copies)]
    return torch.cat(sums, -2).to(x.dtype)


# ---- rank to rank ----


class Transfer:
    """Tensors on their way to one rank and from one."""

    def __init__(self, team: Team, to, sent, source, received):
        self.sent, self.received = sent, received  # both live until the transfer is over
        ops = []
        for operation, peer, tensors in ((dist.isend, to, sent), (dist.irecv, source, received)):
            for tag, x in enumerate(tensors):
                ops.append(dist.P2POp(operation, x, dist.get_global_rank(team.group, peer), team.group, tag))
        self.requests = dist.batch_isend_irecv(ops) if ops else []

    def wait(self):
        for request in self.requests:
            request.wait()
        return self.received


_connected = set()


def connect(team: Team, device):
    """NCCL connects a group at its first call, in which all ranks must take part; in a ring some may have nothing to
    send."""
    if device.type == "cuda" and team.group.group_name not in _connected:
        dist.all_reduce(torch.zeros(1, device=device), group=team.group)
        _connected.add(team.group.group_name)


def chunks(plan: Plan, k, v):
    """For each step of the method (calls, keys, values): what this rank's rows see of them. The next step's are on
    their way meanwhile; k and v hold one chunk, and so do these."""
    team, dim = plan.keys, plan.dim
    if not plan.merges:
        whole = layouts.union(plan.nodes)
        calls = layouts.calls(plan.nodes[team.rank], whole, plan.cu_seqlens, plan.left, plan.right)
        yield calls, *(gather(team, x, plan.nodes, dim) for x in (k, v))
        return
    connect(team, k.device)

    def start(step):
        """Own keys go to the rank `step` further on, those of the rank `step` back come: as many as are seen."""
        to, source = (team.rank + step) % team.size, (team.rank - step) % team.size
        _, (first, end) = plan.step(to, team.rank)
        calls, (begin, behind) = plan.step(team.rank, source)
        sent = [x.narrow(dim, first, end - first).contiguous() for x in (k, v)] if end > first else []
        received = [x.new_empty(_resized(x, dim, behind - begin)) for x in (k, v)] if behind > begin else []
        return calls, Transfer(team, to, sent, source, received)

    following = start(1)
    calls, (first, end) = plan.step(team.rank, team.rank)
    yield calls, *(x.narrow(dim, first, end - first) for x in (k, v))
    for step in range(1, team.size):
        (calls, transfer), following = following, None
        received = transfer.wait()
        if step + 1 < team.size:
            following = start(step + 1)
        yield calls, *(received or (None, None))


def _resized(x, dim, rows):
    dims = list(x.shape)
    dims[dim] = rows
    return dims


class Gradients:
    """Sums dk and dv in float32 where their keys are at home. `add` takes them step by step, as `chunks` gave keys."""

    def __init__(self, plan: Plan, k, v):
        self.plan, self.step, self.underway = plan, 0, None
        self.sums = [torch.zeros_like(x, dtype=torch.float32) for x in (k, v)] if plan.merges else None

    def add(self, gradients):
        plan, team, dim = self.plan, self.plan.keys, self.plan.dim
        if not plan.merges:
            self.sums = [reduce_scatter(team, x, plan.nodes, dim) for x in gradients]
            return
        to, source = (team.rank - self.step) % team.size, (team.rank + self.step) % team.size
        first, end = plan.step(source, team.rank)[1]
        if self.step == 0:
            self._add(gradients, first)
        else:
            received = [x.new_empty(_resized(x, dim, end - first)) for x in self.sums] if end > first else []
            transfer = Transfer(team, to, gradients, source, received)
            self._finish()
            self.underway = transfer, first
        self.step += 1

    def _add(self, gradients, first):
        for total, x in zip(self.sums, gradients):
            total.narrow(self.plan.dim, first, x.shape[self.plan.dim]).add_(x)

    def _finish(self):
        if self.underway:
            transfer, first = self.underway
            self._add(transfer.wait(), first)
            self.underway = None

    def total(self):
        self._finish()
        return self.sums
