"""Which positions of the tokens a rank has, and which calls of attention it makes on which keys. Positions are numbers
of Python: nothing here needs torch.

A layout cuts the positions 0 to seqlen - 1 into chunks whose lengths differ by at most one: "contiguous" into one for
each rank, in order; "zigzag" into two for each, the first and the last for rank 0, the second and the last but one for
rank 1 and so on, so that under a causal mask all ranks have as many products.

A rank's rows are then pieces of positions, and so are the keys that it sees at a time. Where a piece of rows and one of
keys meet inside a document, what is seen is one ordinary call. Its mask ends in the bottom right corner, so bounds are
moved by the distance of the last row and the last key: a row at position p sees keys from p - left to p + right, and in
a call whose rows end before position b and whose keys end before d, that is left + d - b and right + b - d. Both are
at least 0 once rows that see none of the keys, and keys that none of the rows see, are cut off."""

from __future__ import annotations

import bisect
import functools
from typing import NamedTuple, Optional, Tuple

NAMES = ("zigzag", "contiguous")
UNBOUNDED = -1  # as a side of a window


class Piece(NamedTuple):
    """Positions from start to end - 1."""

    start: int
    end: int


class Call(NamedTuple):
    """Rows and keys of one call, as places in the buffers that hold the pieces one behind the other; the sides of its
    window; and, if it is on several documents, where each begins among these rows and keys."""

    q_start: int
    q_end: int
    k_start: int
    k_end: int
    left: int
    right: int
    cu_seqlens_q: Optional[Tuple[int, ...]] = None
    cu_seqlens_k: Optional[Tuple[int, ...]] = None


# ---- which positions a rank has ----


def cuts(seqlen: int, parts: int) -> list:
    """Where chunks begin, and the end of the last one: the first chunks are longer by one if they must be."""
    size, longer = divmod(seqlen, parts)
    return [i * size + min(i, longer) for i in range(parts + 1)]


@functools.lru_cache(maxsize=4096)
def pieces(layout: str, ranks: int, seqlen: int, rank: int) -> Tuple[Piece, ...]:
    """Those of a rank, in the order in which it has their rows."""
    if layout == "contiguous":
        places = cuts(seqlen, ranks)
        found = [Piece(*places[rank : rank + 2])]
    else:
        places, mirrored = cuts(seqlen, 2 * ranks), 2 * ranks - 1 - rank
        found = [Piece(*places[rank : rank + 2]), Piece(*places[mirrored : mirrored + 2])]
    return joined(found)


def joined(found) -> Tuple[Piece, ...]:
    """The same positions in order, as few pieces as can be."""
    result = []
    for piece in sorted(found):
        if piece.start == piece.end:
            continue
        if result and result[-1].end == piece.start:
            piece = Piece(result.pop().start, piece.end)
        result.append(piece)
    return tuple(result)


def rows(found) -> int:
    return sum(piece.end - piece.start for piece in found)


def places(found) -> list:
    """(position, place in the buffer, length) of each piece."""
    result, place = [], 0
    for start, end in found:
        result.append((start, place, end - start))
        place += end - start
    return result


# ---- which calls are made ----


def sides(causal: bool, window, seqlen: int) -> Tuple[int, int]:
    """How many keys before and behind its own position a row sees, of so many."""
    left, right = (UNBOUNDED, UNBOUNDED) if window is None else window
    left, right = (UNBOUNDED if side >= seqlen - 1 else side for side in (left, right))
    return left, 0 if causal else right


def seen(q: Piece, k: Piece, left: int, right: int) -> Optional[Tuple[Piece, Piece]]:
    """The rows of q that see a key of k, and the keys of k that such a row sees."""
    (a, b), (c, d) = q, k
    if right != UNBOUNDED:
        a = max(a, c - right)
    if left != UNBOUNDED:
        b = min(b, d + left)
    if a >= b or c >= d:
        return None
    if left != UNBOUNDED:
        c = max(c, a - left)
    if right != UNBOUNDED:
        d = min(d, b + right)
    return Piece(a, b), Piece(c, d)


@functools.lru_cache(maxsize=4096)
def calls(q: Tuple[Piece, ...], k: Tuple[Piece, ...], cu_seqlens: Tuple[int, ...], left: int, right: int,
          packed: bool) -> Tuple[Call, ...]:  # fmt: skip
    """Those that give the rows of q all that they see of k. cu_seqlens: where documents begin, and the end of all. A
    row is in one call for each piece of k at most; where k is one piece, in one call. packed: the tensors are, so a
    call may be on several documents, or on several parts of one as if they were documents; those of a batch are on one
    part each."""
    found = []
    for q_position, q_place, q_rows in places(q):
        for k_position, k_place, k_rows in places(k):
            q_shift, k_shift = q_place - q_position, k_place - k_position
            q_end, k_end = q_position + q_rows, k_position + k_rows
            # Documents that have positions of both pieces.
            first = bisect.bisect_right(cu_seqlens, max(q_position, k_position)) - 1
            behind = bisect.bisect_left(cu_seqlens, min(q_end, k_end))
            for start, end in zip(cu_seqlens[first:behind], cu_seqlens[first + 1 : behind + 1]):
                some_q = Piece(max(start, q_position), min(end, q_end))
                some_k = Piece(max(start, k_position), min(end, k_end))
                both = seen(some_q, some_k, left, right)
                if both is None:
                    continue
                (a, b), (c, d) = both
                moved = (x if x == UNBOUNDED else x + by for x, by in ((left, d - b), (right, b - d)))
                call = Call(a + q_shift, b + q_shift, c + k_shift, d + k_shift, *moved)
                if not (packed and _continues(found, call, some_k.start + k_shift)):
                    found.append(call)
    return tuple(simplified(call) for call in found)


def _continues(found, call, k_least):
    """Makes a call of packed tensors part of the last one, if its rows and keys follow there and the sides are the
    same; returns whether they do. Its keys may begin earlier for that, from k_least on, where its document does: the
    mask hides them."""
    last = found[-1] if found else None
    if not last or (last.q_end, last.k_end, last.left, last.right) != (call.q_start, k_least, call.left, call.right):
        return False
    cu_q = last.cu_seqlens_q or (0, last.q_end - last.q_start)
    cu_k = last.cu_seqlens_k or (0, last.k_end - last.k_start)
    cu_q, cu_k = (*cu_q, call.q_end - last.q_start), (*cu_k, call.k_end - last.k_start)
    found[-1] = last._replace(q_end=call.q_end, k_end=call.k_end, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    return True


def simplified(call: Call) -> Call:
    """Without a side that hides nothing: a call without a mask, or a causal one, is faster than one with a window."""
    if call.cu_seqlens_q:
        return call
    left = call.left if call.left < call.k_end - call.k_start - 1 else UNBOUNDED
    right = call.right if call.right < call.q_end - call.q_start - 1 else UNBOUNDED
    return call._replace(left=left, right=right)


def fused(found) -> Tuple[Call, ...]:
    """The same rows and keys in fewer calls: those of one document whose keys follow each other, the first of which are
    seen by all rows, then those whose rows follow each other and whose masks are one. So the own chunks of a zigzag
    layout under a causal mask are one causal call, and those of another rank one call without a mask."""
    for join in (_keys_joined, _rows_joined):
        result = []
        for call in found:
            both = join(result[-1], call) if result else None
            if both:
                result[-1] = simplified(both)
            else:
                result.append(call)
        found = result
    return tuple(found)


def _keys_joined(x, y):
    if x.cu_seqlens_q or y.cu_seqlens_q or (x.q_start, x.q_end, x.k_end) != (y.q_start, y.q_end, y.k_start):
        return None
    return y._replace(k_start=x.k_start) if (x.left, x.right, y.left) == (UNBOUNDED,) * 3 else None


def _rows_joined(x, y):
    if x.cu_seqlens_q or y.cu_seqlens_q or (x.q_end, x.k_start) != (y.q_start, y.k_start):
        return None
    if (x.left, y.left) != (UNBOUNDED, UNBOUNDED):
        return None
    if UNBOUNDED in (x.right, y.right):  # then both, on the same keys
        same = (x.right, x.k_end) == (y.right, y.k_end)
    else:  # row q_start + i sees i + ... keys; the last row of x all of its own, and none that only y has
        same = x.right == 0 and x.k_end - x.q_end == y.k_end - y.q_end + y.right
    return y._replace(q_start=x.q_start) if same else None


def extent(found) -> Tuple[int, int]:
    """From the first to the last key that any of these calls reads; (0, 0) if there are none."""
    return min((call.k_start for call in found), default=0), max((call.k_end for call in found), default=0)


def moved(found, by: int) -> Tuple[Call, ...]:
    """The same calls on a buffer of keys that begins `by` later."""
    return tuple(call._replace(k_start=call.k_start - by, k_end=call.k_end - by) for call in found)


def products(found) -> int:
    """How many pairs of a row and a key these calls compute, of one head."""
    total = 0
    for call in found:
        cu_q = call.cu_seqlens_q or (0, call.q_end - call.q_start)
        cu_k = call.cu_seqlens_k or (0, call.k_end - call.k_start)
        for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
            total += _pairs(b - a, d - c, call.left, call.right)
    return total


def _pairs(m: int, n: int, left: int, right: int) -> int:
    """Of m rows and n keys, with this window in the bottom right corner."""

    def sum_to(x):  # of min(y, n) for y from 1 to x
        return 0 if x <= 0 else x * (x + 1) // 2 if x <= n else n * (n + 1) // 2 + (x - n) * n

    def up_to(t):  # pairs of row i and key j with j <= i + t
        return sum_to(m + t) - sum_to(t)

    high = m * n if right == UNBOUNDED else up_to(n - m + right)
    return high - (0 if left == UNBOUNDED else up_to(n - m - left - 1))


# ---- from the buffers of ranks to one buffer ----


def transfers(parts, whole) -> list:
    """(place in `whole`'s buffer, part, place in the part's buffer, length), in the order of `whole`, which has the
    positions of all parts."""
    found, targets = [], places(whole)
    for index, part in enumerate(parts):
        for position, place, length in places(part):
            start, target, _ = max(t for t in targets if t[0] <= position)
            found.append((target + position - start, index, place, length))
    return sorted(found)


def union(parts) -> Tuple[Piece, ...]:
    return joined(piece for part in parts for piece in part)


def heads_of(heads: int, ranks: int, rank: int) -> Tuple[int, int]:
    """(first, count) of the heads that a rank gets of these: its share, or one that several ranks get."""
    if heads % ranks == 0:
        return rank * (heads // ranks), heads // ranks
    return rank * heads // ranks, 1
