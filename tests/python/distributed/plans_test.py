"""Layouts and calls of fa3.distributed for many sizes, its cost model, and whether the library takes each call of its
plans: without processes. Argument: the library. Skipped without torch."""

import itertools
import math
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import ROOT, fa3, need  # noqa: E402

need("torch")
import torch  # noqa: E402

import fa3.distributed as parallel  # noqa: E402
from fa3.distributed import cost_model, kernels, layouts, plans  # noqa: E402


def positions(pieces):
    return [x for start, end in pieces for x in range(start, end)]


def sees(i, j, left, right):
    return (left < 0 or j >= i - left) and (right < 0 or j <= i + right)


def pairs(call, q, k):
    """The positions that a call's mask, in the bottom right corner of each document, brings together."""
    cu_q = call.cu_seqlens_q or (0, call.q_end - call.q_start)
    cu_k = call.cu_seqlens_k or (0, call.k_end - call.k_start)
    for a, b, c, d in zip(cu_q, cu_q[1:], cu_k, cu_k[1:]):
        for i, j in itertools.product(range(b - a), range(d - c)):
            if sees(i + (d - c) - (b - a), j, call.left, call.right):
                yield q[call.q_start + a + i], k[call.k_start + c + j]


def layouts_exhaustively():
    """Each position is on one rank, and each pair that the mask of the whole shows is in one call."""
    for ranks, seqlen, layout in itertools.product((1, 2, 3, 4), (0, 1, 2, 5, 7, 12, 13), layouts.NAMES):
        parts = [layouts.pieces(layout, ranks, seqlen, rank) for rank in range(ranks)]
        assert sorted(x for part in parts for x in positions(part)) == list(range(seqlen)), (parts, seqlen)
        assert max(map(layouts.rows, parts)) - min(map(layouts.rows, parts)) <= 1, parts
        whole = layouts.union(parts)
        steps = layouts.transfers(parts, whole)
        assert [positions(parts[i])[place + x] for _, i, place, n in steps for x in range(n)] == positions(whole)
        documents = {(0, seqlen), (0, seqlen // 3, seqlen // 3, seqlen), tuple(range(seqlen + 1)) if seqlen else (0, 0)}
        for cu, left, right in itertools.product(documents, (-1, 0, 1, 3, 20), (-1, 0, 1, 3, 20)):
            number = {x: i for i, ends in enumerate(zip(cu, cu[1:])) for x in range(*ends)}
            # A batch has one document.
            for q, k, packed in itertools.product(parts, (*parts, whole), (True, False)[: 1 + (len(cu) == 2)]):
                calls = layouts.calls(q, k, cu, left, right, packed)
                assert packed or not any(call.cu_seqlens_q for call in calls), calls
                expected = [(i, j) for i in positions(q) for j in positions(k)
                            if number[i] == number[j] and sees(i, j, left, right)]  # fmt: skip
                for some in (calls, layouts.fused(calls)):
                    found = [pair for call in some for pair in pairs(call, positions(q), positions(k))]
                    assert sorted(found) == expected, (q, k, cu, left, right, some)
                    assert layouts.products(some) == len(expected), (q, k, cu, left, right, some)
                first, end = layouts.extent(calls)
                assert all(call.k_start >= 0 for call in layouts.moved(calls, first)) and end <= layouts.rows(k)


def few_calls():
    """Zigzag chunks are two ordinary causal calls on a prefix of all keys; documents of a chunk are one call."""
    whole = (layouts.Piece(0, 64),)
    for rank in range(4):
        calls = layouts.calls(layouts.pieces("zigzag", 4, 64, rank), whole, (0, 64), -1, 0, False)
        ends = (rank + 1) * 8, (8 - rank) * 8
        assert [call.k_end for call in calls] == (list(ends) if rank < 3 else [40]), calls
        assert all((call.k_start, call.left, call.right) == (0, -1, 0) for call in calls), calls
    for rank, other in itertools.product(range(4), range(4)):  # one call for any other rank's keys
        mine, theirs = (layouts.pieces("zigzag", 4, 64, x) for x in (rank, other))
        (call,) = layouts.fused(layouts.calls(mine, theirs, (0, 64), -1, 0, False))
        rows, keys = (0 if other <= rank else 8, 16), (0, 8 if other < rank else 16)
        assert call == layouts.Call(*rows, *keys, -1, 0 if other == rank else -1), call
    calls = layouts.calls(layouts.pieces("contiguous", 2, 64, 1), whole, (0, 10, 20, 40, 50, 64), -1, 0, True)
    assert calls == (layouts.Call(0, 32, 20, 64, -1, 0, (0, 8, 18, 32), (0, 20, 30, 44)),), calls


def costs_without_processes():
    """By the numbers of a card with one second for a product or a byte sent."""
    slow = cost_model.Card(1.0, 1.0, 1.0, 1.0, 0.0, math.inf)
    problem = cost_model.Problem(4, 0, "zigzag", 64, (0, 64), -1, 0, 1, 8, 2, 4, 4, 2)
    found = {cost.method: cost for cost in cost_model.table(problem, slow)}
    assert set(found) == {"all_gather", "ring", "all_to_all"}, found
    chunk = 16 * 2 * (4 + 4) * 2  # bytes of k and v
    products = 64 * 65 // 2 * 8 * 2 * (4 + 4) / 4  # a rank's share of what a causal mask shows
    gathered = found["all_gather"]
    assert gathered.sent_forward == 3 * chunk and gathered.sent_backward == 3 * 3 * chunk, gathered
    assert gathered.forward == products + 3 * chunk, (gathered, products)
    ring = found["ring"]  # whose results are float32, and whose transfers hide
    assert ring.memory <= gathered.memory and math.isclose(ring.forward, cost_model.UNROUNDED * products), found
    merging = cost_model.table(problem, slow._replace(memory=1.0))
    (ring,) = [cost for cost in merging if cost.method == "ring"]
    # The last rank has results of all of its 16 rows for each rank; they are read once in float32, and written merged.
    assert ring.forward - found["ring"].forward == (4 * 16 * 4 + 16 * 2) * 8 * 4, (ring, found["ring"])
    # Gradients of keys go home as they are where one call has them all.
    assert found["ring"].sent_backward == 2 * found["ring"].sent_forward, found["ring"]
    # A window takes the ring to its neighbours alone.
    window = problem._replace(layout="contiguous", left=4)
    (best, *_) = cost_model.table(window, slow)
    assert best.method == "ring" and best.sent_forward == chunk / 4, best
    lines = str(cost_model.table(problem, cost_model.CARDS["H100"])).splitlines()
    assert len(lines) == 4 and "memory MB" in lines[0], lines


def slots():
    """Each row's results have slots of their own; all of them are merged where there are more than so many."""
    for ranks, seqlen, layout in itertools.product((1, 2, 5, 8), (3, 40), layouts.NAMES):
        nodes = tuple(layouts.pieces(layout, ranks, seqlen, rank) for rank in range(ranks))
        windows = (-1, 0), (-1, -1), (3, 1)
        for method, rank, window in itertools.product(("ring", "all_gather"), range(ranks), windows):
            seat = plans.Seat(rank, ranks)
            plan = plans.Plan(plans.Spread(plans.ALONE, seat, method, (), nodes, (0, seqlen), *window, 1))
            have, results = [set() for _ in range(plan.rows)], [0] * plan.rows
            for job in (job for step in plan.steps for job in step.jobs):
                rows = range(job.call.q_start, job.call.q_end)
                if job.folds:
                    have = [{0} if some else set() for some in have]
                assert job.slot < plan.slots <= plans.SLOTS and not any(job.slot in have[i] for i in rows), (plan, job)
                assert job.is_first == all(results[i] == 0 for i in rows), (plan, job)
                assert plan.mixes or len({results[i] == 0 for i in rows}) == 1, (plan, job)
                for i in rows:
                    have[i].add(job.slot)
                    results[i] += 1
            assert max(results, default=0) == plan.most and (method == "ring" or plan.most <= 1), (plan, results)
            assert plan.has_gaps or all(len(some) == plan.slots for some in have), (plan, have)
            assert all(results), (plan, results)  # each row sees itself


class Kernels(kernels.Place):
    """Where a CUDA device would be: it is asked what an H100 takes."""

    def __init__(self):
        self.device, self.library = torch.device("cpu"), fa3._abi.library()

    def workspace_size(self, params):
        return self.library.workspace_size(params, 132)

    def check(self, params):
        self.library.check(params)


INT32_MAX = 2**31 - 1
MASKS = [(True, None), (False, None), (True, (64, 0)), (True, (3, 0)), (False, (2, 9)), (False, (-1, 4)),
         (False, (7, -1)), (True, (INT32_MAX, 0)), (False, (INT32_MAX, INT32_MAX))]  # fmt: skip


def small_plans():
    """(ranks, ranks of a node, method, layout, mask, tokens, where documents begin or None)"""
    for ranks, layout, mask in itertools.product(range(1, 9), layouts.NAMES, MASKS):
        pairs = [("two_level", inside) for inside in {4: (2,), 6: (2, 3), 8: (2, 4)}.get(ranks, ())]
        for method, inside in [("all_gather", 1), ("ring", 1), ("all_to_all", 1), *pairs]:
            for seqlen in (2, 13, 64 * ranks + 5):
                for cu in (None, (0, seqlen // 3, seqlen // 3, seqlen // 2 + 1, seqlen)):
                    yield ranks, inside, method, layout, mask, seqlen, cu


def taken():
    """The library takes each call of each rank's plan, forward and backward: of all methods, layouts and masks, packed
    and in a batch, for 1 to 8 ranks with as many tokens or not, some with none."""
    places, asked = (Kernels(), kernels.Place(torch.device("cpu"))), {}
    for n, (ranks, inside, method, layout, mask, seqlen, cu) in enumerate(small_plans()):
        place, dtype, d = places[0], torch.bfloat16, 64
        if n % 7 == 0:  # the reference takes other head_dims, too, but merges by eights
            place, dtype, d = places[1], torch.float32, 8 if method in ("ring", "two_level") else 5
        how, has_sinks = kernels.How(0.0, 2.0 if n % 3 == 0 else 0.0, False), n % 5 < 2
        problem = cost_model.Problem(
            ranks, inside if method == "two_level" else 0, layout, seqlen, cu or (0, seqlen),
            *layouts.sides(*mask, seqlen), 1 if cu else 2, 2 * ranks, ranks, d, d, dtype.itemsize, cu is not None,
        )  # fmt: skip
        assert cost_model.refusal(method, problem) is None, (method, problem)
        call = parallel._Call(problem, dtype, place.device, how, has_sinks, False, True)
        known = asked.setdefault((ranks, inside, method == "all_to_all", d, cu is None, how, has_sinks), set())
        for rank in range(ranks):
            seats = [plans.Seat(*x) for x in zip(divmod(rank, inside), (ranks // inside, inside))]
            try:
                call.rehearsed(method, *seats, place, known)
            except ValueError as error:
                raise AssertionError(f"{method}, rank {rank} of {problem}: {error}") from error
    assert n > 3000, n


def light():
    """import fa3 imports neither torch nor fa3.distributed."""
    code = 'import sys, fa3; assert not {"torch", "fa3.distributed"} & set(sys.modules), "heavy"'
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools/python")}
    subprocess.run([sys.executable, "-B", "-c", code], env=environment, check=True)


fa3.load(sys.argv[1])
for case in (light, layouts_exhaustively, few_calls, slots, taken, costs_without_processes):
    case()
    print(case.__name__, flush=True)
