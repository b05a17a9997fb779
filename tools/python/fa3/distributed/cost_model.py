"""What each method costs: bytes that a rank sends, bytes that it needs beyond its own tensors, and time by the numbers
of a card. A model on paper, to choose by: it knows no noise, and that transfers of "ring" hide behind products, those
of the other methods do not."""

from __future__ import annotations

import functools
from typing import NamedTuple, Tuple

from . import layouts, plans


class Card(NamedTuple):
    """Of one GPU and its links, in units of a second."""

    forward: float  # floating-point operations
    backward: float
    inside: float  # bytes to the GPUs of its node
    across: float  # bytes to other nodes
    start: float  # seconds before the first byte of a transfer, the host's included
    memory: float  # bytes read from and written to its own memory


NODE = 8  # ranks of a group that are taken to be in one node
# Read on two H200 (tests/records/diary/several_gpus.md); what an H100 shares with it, and `across`, of their data
# sheets.
CARDS = {
    "H100": Card(750e12, 600e12, 300e9, 40e9, 100e-6, 2.5e12),
    "H200": Card(750e12, 600e12, 300e9, 40e9, 100e-6, 3.5e12),
}
METHODS = ("all_gather", "ring", "all_to_all", "two_level")
FLOAT32 = 4  # bytes
UNROUNDED = 1.045  # so many times as long products take if their results are float32


class Problem(NamedTuple):
    """Of one call on all ranks. inside: how many ranks exchange heads in "two_level", else 0."""

    ranks: int
    inside: int
    layout: str
    seqlen: int
    cu_seqlens: Tuple[int, ...]
    left: int
    right: int
    batch: int
    heads: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    bytes: int  # of a number
    packed: bool = False

    @property
    def seen(self):
        """What layouts.calls takes behind the positions."""
        return self.cu_seqlens, self.left, self.right, self.packed

    def parts(self):
        return tuple(layouts.pieces(self.layout, self.ranks, self.seqlen, rank) for rank in range(self.ranks))

    def nodes(self):
        """The positions of each node's ranks."""
        parts, inside = self.parts(), max(self.inside, 1)
        return tuple(layouts.union(parts[i : i + inside]) for i in range(0, self.ranks, inside))


class Cost(NamedTuple):
    method: str
    sent_forward: float  # bytes
    sent_backward: float
    memory: float  # bytes
    forward: float  # seconds
    backward: float

    @property
    def total(self):
        return self.forward + self.backward


class Table(tuple):
    """Costs, the least time first; str() is a table."""

    def __str__(self):
        lines = ["method      sent fwd MB  sent bwd MB  memory MB    fwd ms    bwd ms"]
        for x in self:
            sizes = f"{x.sent_forward / 1e6:12.2f} {x.sent_backward / 1e6:12.2f} {x.memory / 1e6:10.2f}"
            lines.append(f"{x.method:10} {sizes} {x.forward * 1e3:9.3f} {x.backward * 1e3:9.3f}")
        return "\n".join(lines)


def refusal(method: str, problem: Problem):
    """Why the method cannot be had, or None."""
    if (method == "two_level") != bool(problem.inside):
        given = "a pair" if problem.inside else "one group"
        return f"method is {method!r}, but group is {given}: 'two_level' needs a pair, the others one group"
    exchanging = problem.inside or (problem.ranks if method == "all_to_all" else 1)
    if problem.heads % exchanging:
        return f"q has {problem.heads} heads, for method {method!r} they must be a multiple of {exchanging} ranks"
    if problem.heads_kv % exchanging and exchanging % problem.heads_kv:
        return (f"k has {problem.heads_kv} heads, for method {method!r} they must be a multiple or a divisor of "
                f"{exchanging} ranks")  # fmt: skip
    return None


@functools.lru_cache(maxsize=256)
def table(problem: Problem, card: Card) -> Table:
    """Of the methods that can be had."""
    found = [_cost(method, problem, card) for method in METHODS if refusal(method, problem) is None]
    return Table(sorted(found, key=lambda cost: cost.total))


def _cost(method, problem, card):
    link = card.inside if problem.ranks <= NODE else card.across
    if method == "two_level":
        keys = _ring(problem, problem.nodes(), problem.inside, card, card.across)
        return _with_heads("two_level", problem, keys, problem.inside, card, card.inside)
    if method == "all_to_all":
        whole = (layouts.union(problem.parts()),)
        keys = _ring(problem, whole, problem.ranks, card, link)
        return _with_heads("all_to_all", problem, keys, problem.ranks, card, link)
    keys = (_ring if method == "ring" else _all_gather)(problem, problem.parts(), 1, card, link)
    return Cost(method, *keys)


def _share(heads, ranks):
    return layouts.heads_of(heads, ranks, 0)[1]


def _seconds(problem, products, heads, card):
    """(forward, backward) of the products of one head's pairs: two GEMMs forward, five backward."""
    pairs, d, dv = 2 * products * problem.batch * heads, problem.head_dim, problem.head_dim_v
    return pairs * (d + dv) / card.forward, pairs * (3 * d + 2 * dv) / card.backward


def _row(problem, heads):
    """Numbers of one token's k and v."""
    return problem.batch * heads * (problem.head_dim + problem.head_dim_v)


def _all_gather(problem, nodes, ranks, card, link):
    whole, longest = layouts.union(nodes), max(map(layouts.rows, nodes))
    row, peers = _row(problem, _share(problem.heads_kv, ranks)), len(nodes) - 1
    sent = peers * longest * row * problem.bytes
    reduced = peers * longest * row * FLOAT32
    memory = 2 * problem.seqlen * row * (problem.bytes + FLOAT32)
    on = [layouts.calls(node, whole, *problem.seen) for node in nodes]
    forward, backward = _seconds(problem, max(map(layouts.products, on)), _share(problem.heads, ranks), card)
    # Keys are packed, and come in other places than they have; gradients of each call are added to zeros.
    copied = 2 * (longest + problem.seqlen) * row * problem.bytes / card.memory if peers else 0.0
    keys = max(sum(call.k_end - call.k_start for call in calls) for calls in on)
    added = (problem.seqlen * FLOAT32 + keys * (problem.bytes + 2 * FLOAT32)) * row / card.memory if peers else 0.0
    start = card.start * (peers > 0)
    return (sent, sent + reduced, memory, forward + start + copied + sent / link,
            backward + 2 * start + copied + added + (sent + reduced) / link)  # fmt: skip


def _ring(problem, nodes, ranks, card, link):
    """Of each step the time is that of the slowest rank's products or of the longest transfer. ranks: how many share
    the heads."""
    row, heads, count = _row(problem, _share(problem.heads_kv, ranks)), _share(problem.heads, ranks), len(nodes)
    computed, came, went = [], [], []  # seconds of products; bytes of keys; of their gradients
    called = [0] * count  # rows of all calls of a rank
    for step in range(count):
        on = [layouts.fused(layouts.calls(nodes[i], nodes[i - step], *problem.seen)) for i in range(count)]
        called = [rows + sum(call.q_end - call.q_start for call in calls) for rows, calls in zip(called, on)]
        computed.append(_seconds(problem, max(map(layouts.products, on)), heads, card))
        extents = [layouts.extent(calls) for calls in on]
        numbers = [row * (end - first) * (step > 0) for first, end in extents]
        came.append(max(numbers) * problem.bytes)
        whole = [len(calls) == 1 and (calls[0].k_start, calls[0].k_end) == x for calls, x in zip(on, extents)]
        went.append(max(n * (problem.bytes if one else FLOAT32) for n, one in zip(numbers, whole)))
    took = lambda sent: card.start * (sent > 0) + sent / link  # noqa: E731
    forward = backward = 0.0
    # While a step computes, the next one's keys come and the last one's gradients go.
    for (step_forward, step_backward), keys, gradients in zip(computed, [*came[1:], 0], [0, *went]):
        forward += max(step_forward, took(keys))
        backward += max(step_backward, took(keys) + took(gradients))
    backward += took(went[-1])
    longest = max(map(layouts.rows, nodes))
    more = [(rows - layouts.rows(node), layouts.rows(node)) for rows, node in zip(called, nodes)]
    most = max(extra for extra, _ in more)
    if most:  # results are merged, and those of dq are added
        number = problem.batch * heads / card.memory
        merged = max((extra + rows) * FLOAT32 + rows * problem.bytes for extra, rows in more)
        forward += merged * number * problem.head_dim_v + (UNROUNDED - 1) * sum(products for products, _ in computed)
        backward += 3 * most * number * problem.bytes * problem.head_dim
    if count == 1:
        memory = 2 * longest * row * FLOAT32
    else:  # two chunks of keys, gradients that come, go and are added; results before they are merged
        wide = max(problem.head_dim, problem.head_dim_v)
        memory = longest * row * (4 * problem.bytes + 2 * FLOAT32)
        memory += min(most + longest, plans.SLOTS * longest) * (most > 0) * problem.batch * heads * wide * FLOAT32
    return sum(came), sum(came) + sum(went), memory, forward, backward


def _with_heads(method, problem, keys, ranks, card, link):
    """The same with an exchange of heads before and after it: of q, k, v and o, and of their gradients."""
    rows = max(map(layouts.rows, problem.parts()))
    mine = _share(problem.heads, ranks) * (problem.head_dim + problem.head_dim_v) * problem.batch
    mine += _row(problem, _share(problem.heads_kv, ranks))
    sent = (ranks - 1) * rows * mine * problem.bytes
    # Numbers are copied to be sent, and when they have come.
    time = (2 * card.start + sent / link + 4 * ranks * rows * mine * problem.bytes / card.memory) if ranks > 1 else 0.0
    sent_forward, sent_backward, memory, forward, backward = keys
    memory += 2 * ranks * rows * mine * problem.bytes
    return Cost(method, sent_forward + sent, sent_backward + sent, memory, forward + time, backward + time)
