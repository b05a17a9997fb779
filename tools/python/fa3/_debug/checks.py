"""Numbers in lengths, tables, slopes and sinks, which the kernels read on the device and nobody refuses: read back and
checked before a call, with an error that says which is wrong. On the CPU always, on a GPU where the environment has
FA3_CHECK=1, as the host waits for it; not while a CUDA graph is captured, which has no numbers yet. Rows that `append`
leaves out, and those beyond a maximum, are no faults: they are checked only with FA3_CHECK=1."""

from __future__ import annotations

import math
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .. import _abi

ASKED = os.environ.get("FA3_CHECK", "0") not in ("", "0")


def wanted(x: Any) -> bool:
    """Whether the numbers of a call with this tensor or array are looked at."""
    if getattr(getattr(x, "device", None), "type", "cpu") != "cuda":  # NumPy's arrays have no such device
        return True
    import torch

    return ASKED and not torch.cuda.is_current_stream_capturing()


def _wrong(text: str) -> _abi.InvalidArgument:
    return _abi.InvalidArgument(text, _abi.INVALID_ARGUMENT)


def _within(name: str, numbers: List[int], most: List[int], what: str) -> None:
    """That each number is from 0 to its most."""
    for b, (number, bound) in enumerate(zip(numbers, most)):
        if not 0 <= number <= bound:
            raise _wrong(f"{name}[{b}] is {number}, must be from 0 to {bound}, {what} {b}")


def _lengths(name: str, sums: Any, rows: int, of: str) -> List[int]:
    """Of each sequence, by prefix sums. Zeros behind the others are places of a batch that are not in use."""
    numbers = sums.tolist()
    in_use = max((b for b, number in enumerate(numbers) if number), default=0) + 1
    for b, number in enumerate(numbers[:in_use]):
        least = numbers[b - 1] if b else 0
        if number < least:
            raise _wrong(f"{name}[{b}] is {number}, must be at least {f'{name}[{b - 1}], ' if b else ''}{least}")
        if number > rows:
            raise _wrong(f"{name}[{b}] is {number}, but {of} has {rows} rows")
    return [max(end - start, 0) for start, end in zip(numbers, numbers[1:])]


def _below(name: str, lengths: List[int], maximum: Optional[int]) -> None:
    for b, length in enumerate(lengths):
        if maximum and length > maximum:  # 0 is for the library to refuse
            raise _wrong(f"{name} is {maximum}, but sequence {b} has {length} rows")


def lengths(q: Any, k: Any, maxima: Tuple[Optional[int], Optional[int]], left: int, chunk: int,
            tensors: Mapping[str, Any]) -> None:  # fmt: skip
    """Of a forward or backward call. left: of its window, -1 for no bound; chunk: of its positions, 0 for none;
    tensors: by `forward`'s names. Dims and dtypes that do not fit are left for the library to refuse."""
    found: Dict[str, Any] = {name: x for name, x in tensors.items() if x is not None}
    _scores(found)
    sums_q, sums_k = found.get("cu_seqlens_q"), found.get("cu_seqlens_k")
    table, entries = found.get("page_table"), found.get("cache_batch_idx")
    if q.ndim != (4 if sums_q is None else 3) or k.ndim != (4 if sums_k is None else 3):
        return
    batch = q.shape[0] if sums_q is None else sums_q.shape[0] - 1
    queries = [q.shape[1]] * batch if sums_q is None else _lengths("cu_seqlens_q", sums_q, q.shape[0], "q")
    if "seqused_q" in found:
        used = found["seqused_q"].tolist()
        _within("seqused_q", used, queries, "the rows of sequence")
        queries = used
    if sums_k is not None:
        room = _lengths("cu_seqlens_k", sums_k, k.shape[0], "k")
    else:
        room = [k.shape[1] if table is None else k.shape[1] * table.shape[1]] * batch
    ends = room
    if "seqused_k" in found:
        ends = found["seqused_k"].tolist()
        _within("seqused_k", ends, room, "the keys that there is room for in sequence")
    keys = ends
    if "leftpad_k" in found:
        padding = found["leftpad_k"].tolist()
        _within("leftpad_k", padding, ends, "the keys in use of sequence")
        keys = [end - start for end, start in zip(ends, padding)]
    if ASKED:  # of longer sequences the first rows are taken: defined, and rarely meant
        if sums_q is not None or "seqused_q" in found:
            _below("max_seqlen_q", queries, maxima[0])
        if sums_k is not None or "seqused_k" in found:
            _below("max_seqlen_k", keys, maxima[1])
    if entries is not None:
        _within("cache_batch_idx", entries.tolist(), [k.shape[0] - 1] * batch, "the entries of k, for sequence")
    if table is not None:
        for b, pages in enumerate(table.tolist()[:batch]):
            place = keys[b] - queries[b]  # of the first query
            first = place - left if left >= 0 else place // chunk * chunk if chunk else 0
            _pages(f"page_table[{b}]", pages, k, max(first - 128, 0), keys[b])


def _pages(name: str, pages: List[int], k: Any, start: int, end: int) -> None:
    """Of a row of a table, those that hold these keys."""
    for j in range(start // max(k.shape[1], 1), -(-end // max(k.shape[1], 1))):
        if not 0 <= pages[j] < k.shape[0]:
            raise _wrong(f"{name}[{j}] is {pages[j]}, must be from 0 to {k.shape[0] - 1}, the pages, as it holds keys "
                         f"in use, of {end}")  # fmt: skip


def _scores(found: Mapping[str, Any]) -> None:
    """Slopes are at least 0, and sinks numbers or -inf."""
    for name, least in (("alibi_slopes", 0.0), ("sinks", -math.inf)):
        x = found.get(name)
        if x is None:
            continue
        for at, number in enumerate(x.reshape(-1).tolist()):
            if not least <= number < math.inf:
                place = [at] if x.ndim < 2 else list(divmod(at, x.shape[-1]))
                must = "at least 0, and finite" if name == "alibi_slopes" else "a number below inf"
                raise _wrong(f"{name}{place} is {number}, must be {must}")


def appended(tensors: Mapping[str, Any]) -> None:
    """Of fa3.append, by its names: that no row is left out for a number that is wrong."""
    found: Dict[str, Any] = {name: x for name, x in tensors.items() if x is not None}
    new, cache = found.get("k", found.get("q")), found.get("k_cache")
    sums, table, slots = (found.get(name) for name in ("cu_seqlens_new", "page_table", "slot_mapping"))
    if new is None or new.ndim not in (3, 4) or new.ndim == 3 and sums is None and slots is None:
        return
    if cache is not None and slots is not None:
        most = cache.shape[0] * cache.shape[1]
        for row, slot in enumerate(slots.tolist()):
            if slot >= most:
                raise _wrong(f"slot_mapping[{row}] is {slot}, must be below {most}, the rows of all pages")
        return
    if sums is not None:
        rows = _lengths("cu_seqlens_new", sums, new.shape[0], "k" if "k" in found else "q")
    else:
        rows = [new.shape[1]] * new.shape[0]
    if "seqused_new" in found:
        used = found["seqused_new"].tolist()
        _within("seqused_new", used, rows, "the new rows of sequence")
        rows = used
    before = found["cache_seqlens"].tolist() if "cache_seqlens" in found else []
    if cache is None or not before:
        return
    room = cache.shape[1] * (1 if table is None else table.shape[1])
    _within("cache_seqlens", before, [room - more for more in rows], f"as {room} keys have room beside new ones, for "
            "sequence")  # fmt: skip
    if "cache_batch_idx" in found:
        entries = found["cache_batch_idx"].tolist()
        _within("cache_batch_idx", entries, [cache.shape[0] - 1] * len(entries), "the entries of k_cache, for sequence")
    if table is not None:
        for b, pages in enumerate(table.tolist()[: len(before)]):
            if rows[b]:
                _pages(f"page_table[{b}]", pages, cache, before[b], before[b] + rows[b])
