"""Varlen sequences, pages, windows, chunks and sinks through the structs of tools/python/fa3, with the standard library
alone: every field is read as it was written, by results of the CPU reference. Argument: the library."""

import ctypes
import math
import random
import sys

from support import fa3, refused

from fa3 import _abi

HEADS, HEADS_KV, D = 4, 2, 8
QUERIES, KEYS = [3, 1, 0, 4], [7, 5, 2, 4]  # of each sequence
BATCH = len(QUERIES)
SCALE = 0.4
GENERATOR = random.Random(5)
ALIVE = []  # arrays whose addresses tensors hold


def floats(*dims):
    return tensor((ctypes.c_float * math.prod(dims))(*(GENERATOR.gauss(0, 1) for _ in range(math.prod(dims)))), *dims)


def ints(values, *dims):
    return tensor((ctypes.c_int32 * len(values))(*values), *(dims or (len(values),)), dtype="int32")


def tensor(array, *dims, dtype="float32"):
    ALIVE.append(array)
    return fa3.make_tensor(ctypes.addressof(array), dtype, dims)


def element(t, *index):
    return ctypes.cast(t.data, ctypes.POINTER(ctypes.c_float))[sum(i * s for i, s in zip(index, t.stride))]


def prefix_sums(counts):
    return [sum(counts[:i]) for i in range(len(counts) + 1)]


# Where key j of sequence b is in k and v, for the ways in which they can lie, and the fields that say so.
def packed_keys():
    """With two rows of padding before each sequence, and two behind that are not in use."""
    sums = prefix_sums([n + 4 for n in KEYS])
    fields = {"cu_seqlens_k": ints(sums), "leftpad_k": ints([2] * BATCH), "seqused_k": ints([n + 2 for n in KEYS])}
    return (sums[-1],), {**fields, "max_seqlen_k": 11}, lambda b, j: (sums[b] + 2 + j,)


def paged_keys():
    size, most = 3, 4  # rows of a page, pages of a sequence
    pages = GENERATOR.sample(range(20), BATCH * most)
    table = [page if i % most * size < KEYS[i // most] else 12345 for i, page in enumerate(pages)]
    fields = {"page_table": ints(table, BATCH, most), "seqused_k": ints(KEYS)}
    return (20, size), fields, lambda b, j: (pages[b * most + j // size], j % size)


def cached_keys():
    entries = [2, 5, 0, 2]
    fields = {"cache_batch_idx": ints(entries), "seqused_k": ints(KEYS)}
    return (6, 9), {**fields, "max_seqlen_k": 8}, lambda b, j: (entries[b], j)


def packed_queries():
    """Behind each sequence lies a row that is not in use."""
    sums = prefix_sums([n + 1 for n in QUERIES])
    fields = {"cu_seqlens_q": ints(sums), "seqused_q": ints(QUERIES), "max_seqlen_q": 5}
    return (sums[-1],), fields, lambda b, i: (sums[b] + i,)


def batched_queries():
    return (BATCH, 5), {"seqused_q": ints(QUERIES), "max_seqlen_q": 5}, lambda b, i: (b, i)


def sees(how, b, i, j):
    position, mask = i + KEYS[b] - QUERIES[b], how.get("mask", 0)
    left, right = how.get("window_left", 0), how.get("window_right", 0)
    if mask == fa3.MASKS["window"]:
        return (left < 0 or j >= position - left) and (right < 0 or j <= position + right)
    if mask == fa3.MASKS["chunk"]:
        return j // left == position // left and (right < 0 or j <= position)
    return mask == 0 or j <= (i if mask == fa3.MASKS["causal_top_left"] else position)


def computed(library, queries, keys, how, with_sinks):
    """Against plain floats."""
    (rows_q, fields_q, place_q), (rows_k, fields_k, place_k) = queries(), keys()
    q, o = (floats(*rows_q, HEADS, D) for _ in range(2))
    k, v = (floats(*rows_k, HEADS_KV, D) for _ in range(2))
    lse = floats(HEADS, *rows_q) if len(rows_q) == 1 else floats(BATCH, HEADS, rows_q[1])
    sinks = floats(HEADS) if with_sinks else fa3.Tensor()
    params = fa3.ForwardParams(q=q, k=k, v=v, o=o, lse=lse, sinks=sinks, softmax_scale=SCALE, **fields_q, **fields_k,
                               **how)  # fmt: skip
    before = ctypes.string_at(o.data, 4 * math.prod(rows_q) * HEADS * D)
    library.reference(params, 1)

    written = set()
    for b in range(BATCH):
        for i in range(QUERIES[b]):
            for h in range(HEADS):
                row, head_kv = (*place_q(b, i), h), h // (HEADS // HEADS_KV)
                seen = [(*place_k(b, j), head_kv) for j in range(KEYS[b]) if sees(how, b, i, j)]
                weights = [math.exp(SCALE * sum(element(q, *row, c) * element(k, *key, c) for c in range(D)))
                           for key in seen]  # fmt: skip
                total = sum(weights) + (math.exp(element(sinks, h)) if with_sinks else 0)
                for c in range(D):
                    expected = sum(w * element(v, *key, c) for w, key in zip(weights, seen)) / total if seen else 0
                    found = element(o, *row, c)
                    assert abs(found - expected) < 1e-5, (how, b, i, h, c, found, expected)
                    written.add(sum(n * s for n, s in zip((*row, c), o.stride)))
                at = (h, *place_q(b, i)) if len(rows_q) == 1 else (b, h, i)
                expected, found = math.log(total) if total else -math.inf, element(lse, *at)
                assert found == expected or abs(found - expected) < 1e-5, (how, b, i, h, found, expected)
    after = ctypes.string_at(o.data, len(before))
    for at in set(range(len(before) // 4)) - written:
        assert before[4 * at : 4 * at + 4] == after[4 * at : 4 * at + 4], f"element {at} of o belongs to no sequence"


def main():
    library = fa3.Library(sys.argv[1])
    window, chunk = fa3.MASKS["window"], fa3.MASKS["chunk"]
    masks = [{}, *({"mask": fa3.MASKS[name]} for name in ("causal_top_left", "causal_bottom_right"))]
    masks += [{"mask": window, "window_left": left, "window_right": right} for left, right in ((2, 0), (1, 1), (-1, 2))]
    masks += [{"mask": chunk, "window_left": 3, "window_right": right} for right in (0, -1)]
    count = 0
    for queries in (packed_queries, batched_queries):
        for keys in (packed_keys, paged_keys, cached_keys):
            for how in masks:
                computed(library, queries, keys, how, with_sinks=count % 2 == 1)
                count += 1
    # A flag that changes no result here, and a schedule, which the reference does not look at.
    more = {"flags": _abi.FLAG_BATCH_INVARIANT, "schedule": 1, "schedule_bytes": 5}
    computed(library, packed_queries, paged_keys, more, with_sinks=True)

    # A call that has nothing of it needs no plan.
    half = lambda place, *dims: fa3.make_tensor(place << 40, "bfloat16", dims)
    plain = dict(q=half(1, 1, 64, 2, 64), k=half(2, 1, 64, 2, 64), v=half(3, 1, 64, 2, 64), o=half(4, 1, 64, 2, 64))
    assert library.schedule_size(fa3.ForwardParams(**plain), 132) == 0
    library.enqueue_schedule(fa3.ForwardParams(**plain), None, 0, None)
    wrong = fa3.ForwardParams(**plain, mask=window, window_left=-2)
    refused(fa3.Fa3Error, "window_left is -2", library.schedule_size, wrong, 132)
    refused(fa3.Fa3Error, "window_left is -2", library.enqueue_schedule, wrong, None, 0, None)
    refused(fa3.Fa3Error, "schedule is NULL", library.check, fa3.ForwardParams(**plain, schedule_bytes=1))
    print(f"{count} calls with lengths of their own")


if __name__ == "__main__":
    main()
