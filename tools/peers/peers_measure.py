"""How peers.py measures a point: its inputs, the calls, what they return, and the time that they take on the GPU."""

import re
import statistics
import time

import prepared
from peers_fwd import NO_ATTENTION
from peers_row import difference

LEAST_REPS = 5


def runs(ms, options):
    """Warm-ups and timed runs for calls of this length: the protocol's, or what fits into --point-ms."""
    protocol = options.protocol
    reps = min(protocol.reps, max(LEAST_REPS, int(options.point_ms / ms))) if ms > 0 else protocol.reps
    return protocol.warmups if reps == protocol.reps else min(protocol.warmups, 1), reps


def time_call(call, options):
    """Milliseconds of each run on the GPU, and what one call took on the host, head start deducted."""
    import torch

    def events(count):
        return [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]

    ((start, stop),) = events(1)
    start.record()
    call()
    stop.record()
    torch.cuda.synchronize()
    warmups, reps = runs(start.elapsed_time(stop), options)
    pairs = events(reps)
    time.sleep(options.protocol.idle_ms / 1000)
    if options.head_start_ms:
        torch.cuda._sleep(int(options.head_start_ms * 2e6))  # cycles of about 2 GHz
    began = time.perf_counter()
    for _ in range(warmups):
        call()
    for start, stop in pairs:
        start.record()
        call()
        stop.record()
    host = ((time.perf_counter() - began) * 1e3 - options.head_start_ms) / (warmups + reps)
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) for start, stop in pairs], host


def inputs(point, dtype, seed):
    """q, k and v of N(0,1): the same numbers in every dtype."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(seqlen, heads, head_dim):
        shape = (point.batch, seqlen, heads, head_dim)
        numbers = torch.randn(shape, generator=generator, dtype=torch.float32, device="cuda")
        return numbers.to(getattr(torch, prepared.TORCH_DTYPE[dtype]))

    q = normal(point.seqlen, point.heads, point.head_dim)
    return q, *(normal(point.seqlen_k, point.kv_heads, dim) for dim in (point.head_dim, point.head_dim_v))


def reason(error):
    """In one plain line. Errors of FlashAttention-4's compiler begin with an empty line, are in colour, and have what
    happened as `message`, below an explanation that is the same for all."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(getattr(error, "message", "") or error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip() if lines else ''}"


def measure(row, prepare, number, options):
    """One pass, its number counted from 0, of one point. prepare: {name: maker}, the first library's first."""
    import torch

    torch.cuda.empty_cache()  # what the last point's peers left
    point, seed = row.point, options.protocol.seed
    shared = inputs(point, point.dtype, seed)
    calls = {}
    for name, make in prepare.items():
        if name in row.notes:
            continue
        try:
            dtype = getattr(make, "input_dtype", point.dtype)
            # Drawn again, not cast back: V on e4m3's grid, rounded without its small mean, keeps it and gets it twice.
            call = make(point, *(shared if dtype == point.dtype else inputs(point, dtype, seed)))
            if call is None:
                row.notes[name] = "not supported"
                continue
            out = call()
            torch.cuda.synchronize()
        except Exception as error:  # a peer may refuse a point in any way, and goes without a figure there
            if name == row.first:
                raise
            row.notes[name] = reason(error)
            continue
        if name == row.first:
            ours, row.kernel = out, call.kernel
        elif name not in NO_ATTENTION and name not in row.differences:
            row.differences[name] = difference(ours, out, getattr(call, "output_scale", 1.0))
        calls[name] = call

    # The order rotates, so that no peer always runs on a card that another has warmed.
    names = list(calls)
    turn = number % len(names)
    for name in names[turn:] + names[:turn]:
        scale = getattr(calls[name], "time_scale", 1.0)
        times, host = time_call(calls[name], options)
        if host > 0.9 * statistics.median(times):  # the GPU waited for the host, and the figure is not the kernel's
            row.host_bound[name] = host
        row.add_pass(name, [scale * ms for ms in times])
