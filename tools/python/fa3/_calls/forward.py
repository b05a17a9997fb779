"""The forward pass: `fa3.forward`'s arguments as the library's numbers, lengths, pages, windows, chunks and sinks among
them, its outputs, and the call. Nothing here reads what a tensor holds."""

from __future__ import annotations

import operator

from .. import _abi, _arrays
from .._debug import checks as _checks

SCALES, INTEGERS = _abi.SCALES.split(), _abi.INTEGERS.split()
# Those beside q, k and v that a call may have; a schedule is no tensor to the library.
ALL_TENSORS = (*SCALES, *INTEGERS, "schedule")
ALL_TENSORS += tuple(x for x in _abi.ForwardParams.tensors() if x not in (*ALL_TENSORS, "q", "k", "v", "o", "lse"))
MAXIMA = ("max_seqlen_q", "max_seqlen_k")
INT32_MAX = 2**31 - 1


def integer(name, x, least):
    """x as an int of at least `least`, as large as the library's fields are."""
    if _arrays.is_torch(x):
        raise TypeError(f"{name} is a tensor, must be an int: fa3 reads no numbers from a device")
    try:
        number = x if isinstance(x, int) else operator.index(x)  # torch.compile would make a constant of the index
    except TypeError:
        raise TypeError(f"{name} is {x!r}, must be an int") from None
    if not least <= number <= INT32_MAX:
        raise ValueError(f"{name} is {number}, must be from {least} to {INT32_MAX}")
    return number


def maxima(max_seqlen_q, max_seqlen_k):
    """Both as the library has them, or None."""
    given = zip(MAXIMA, (max_seqlen_q, max_seqlen_k))
    return tuple(None if x is None else integer(name, x, 0) for name, x in given)


def mask(causal, window=None, chunk=None):
    """(fa3_mask, (window_left, window_right))"""
    names = {False: "none", True: "causal_bottom_right", "bottom_right": "causal_bottom_right",
             "top_left": "causal_top_left"}  # fmt: skip
    try:
        plain = names[causal]
    except (KeyError, TypeError):  # TypeError: it has no hash
        raise ValueError(f"causal is {causal!r}, must be False, True, 'bottom_right' or 'top_left'") from None
    if window is not None and chunk is not None:
        raise ValueError("window and chunk are given, must be one of them")
    if chunk is not None:
        kind, sides = "chunk", (integer("chunk", chunk, 1), -1)
    elif window is not None:
        kind, sides = "window", _sides(window)
    if window is None and chunk is None or sides == (-1, -1):
        return _abi.MASKS[plain], (0, 0)
    if plain == "causal_top_left":
        raise ValueError(f"causal is 'top_left', but with {kind} the diagonal ends in the bottom right corner")
    left, right = sides[0], 0 if plain == "causal_bottom_right" else sides[1]
    if (kind, left, right) == ("window", -1, 0):
        return _abi.MASKS["causal_bottom_right"], (0, 0)
    return _abi.MASKS[kind], (left, right)


def _sides(window):
    try:
        left, right = window
    except (TypeError, ValueError):
        raise TypeError(f"window is {window!r}, must be (left, right)") from None
    return integer("window[0]", left, -1), integer("window[1]", right, -1)


def check_integers(tensors):
    for name, x in tensors.items():
        if name in INTEGERS and _arrays.dtype_name(x.dtype) != "int32":
            raise ValueError(f"{name}.dtype is {_arrays.dtype_name(x.dtype)}, must be int32")


def check_ranks(q, k, v, tensors):
    """That q, k and v have the dims of packed sequences where they come with prefix sums, and nowhere else. Others that
    are wrong are left for the library to refuse."""
    check_integers(tensors)
    for name, x in (("q", q), ("k", k), ("v", v)):
        sums = f"cu_seqlens_{'q' if name == 'q' else 'k'}"
        if x.ndim == 3 and sums not in tensors:
            raise ValueError(f"{name} has 3 dimensions, must have 4: batch, seqlen, heads, head_dim; or give {sums}, "
                             "if these are packed sequences")  # fmt: skip
        if x.ndim == 4 and sums in tensors:
            raise ValueError(f"{name} has 4 dimensions, must have 3 with {sums}: rows of all sequences, heads, "
                             "head_dim")  # fmt: skip


def features(mask, flags, window, maxima, softcap=0.0, **tensors):
    """The names of what makes a call planned by kernels of its own, as the header has it; of maxima any."""
    found = [name for name in tensors if name not in SCALES]
    found += [name for name, x in zip(MAXIMA, maxima) if x is not None]
    found += [name for name in ("window", "chunk") if mask == _abi.MASKS[name]]
    return found + ["batch_invariant"] * bool(flags & _abi.FLAG_BATCH_INVARIANT) + ["softcap"] * bool(softcap)


def numbers(q, k, window, maxima, tensors):
    """The fields of the library's parameters that are for masks and lengths, except the tensors."""
    named = {"window_left": window[0], "window_right": window[1]}
    check_integers(tensors)
    for name, maximum, x, sums in zip(MAXIMA, maxima, (q, k), ("cu_seqlens_q", "cu_seqlens_k")):
        if maximum is None:  # for the library 0 is as many rows as there are, but of packed ones
            maximum = min(max(x.shape[0], 1), INT32_MAX) if sums in tensors and x.ndim else 0
        named[name] = maximum
    schedule = tensors.get("schedule")
    if schedule is not None:
        if _arrays.dtype_name(schedule.dtype) != "uint8" or schedule.ndim != 1:
            raise ValueError(f"schedule is a tensor of {_arrays.dtype_name(schedule.dtype)} with {schedule.ndim} "
                             "dimensions, must be what forward_schedule returned")  # fmt: skip
        if schedule.shape[0]:
            named["schedule"] = schedule.data_ptr() if _arrays.is_torch(schedule) else schedule.ctypes.data
            named["schedule_bytes"] = schedule.shape[0]
    return named


def check_numbers(q, k, mask, window, maxima, tensors):
    """Those of lengths and tables, where they are looked at (_checks.py)."""
    if tensors and _checks.wanted(q):
        left = window[0] if mask == _abi.MASKS["window"] else -1
        _checks.lengths(q, k, maxima, left, window[0] if mask == _abi.MASKS["chunk"] else 0, tensors)


# ---- the call ----


def outputs(q, v, out_dtype=None, packed=False):
    """(dims of o, its dtype's name, dims of lse). packed: q has cu_seqlens_q. Wrong ranks are left for the library to
    refuse."""
    dtype = _arrays.dtype_name(q.dtype if out_dtype is None else out_dtype)
    if out_dtype is None and dtype == "float8_e4m3fn":
        dtype = "bfloat16"
    if q.ndim != (3 if packed else 4) or v.ndim not in (3, 4, 5):
        return tuple(q.shape), dtype, tuple(q.shape[:3])
    head_dim_v = v.shape[3] if v.ndim == 5 else v.shape[-1]
    *batch, rows, heads, _ = q.shape
    return (*batch, rows, heads, head_dim_v), dtype, (*batch, heads, rows)


def forward_params(q, k, v, mask, softmax_scale, flags=0, kernel=None, window=(0, 0), maxima=(None, None), softcap=0.0,
                   **tensors):  # fmt: skip
    """Those of all but o and lse. window: the library's two numbers; tensors: by name, those that are given."""
    fields = numbers(q, k, window, maxima, tensors)
    arrays = {"q": q, "k": k, "v": v, **{name: x for name, x in tensors.items() if name != "schedule"}}
    described = {name: _arrays.describe(name, x) for name, x in arrays.items()}
    flags &= ~_abi.FLAG_CENTERED_K  # the backward pass's alone
    how = {"mask": mask, "softmax_scale": softmax_scale, "flags": flags, "kernel": kernel and kernel.encode()}
    return _abi.ForwardParams(**how, softcap=softcap, **fields, **described)


def _prepared(q, k, v, mask, softmax_scale, flags=0, out_dtype=None, kernel=None, window=(0, 0), maxima=(None, None),
              softcap=0.0, out=None, **tensors):  # fmt: skip
    """Where it runs, its parameters, o, which is `out` if that is given, and lse."""
    place = _arrays.place_of(q=q, k=k, v=v, out=out, **tensors)
    check_numbers(q, k, mask, window, maxima, tensors)
    params = forward_params(q, k, v, mask, softmax_scale, flags, kernel, window, maxima, softcap, **tensors)
    o_dims, dtype, lse_dims = outputs(q, v, out_dtype, "cu_seqlens_q" in tensors)
    o, lse = place.empty(o_dims, dtype) if out is None else out, place.empty(lse_dims, "float32")
    params.o, params.lse = _arrays.describe("o", o), _arrays.describe("lse", lse)
    return place, params, o, lse


def forward(*arguments, **named):
    """(o, lse). Arguments: those of `_prepared`."""
    place, params, o, lse = _prepared(*arguments, **named)
    place.run(params)
    return o, lse


def schedule(*arguments, **named):
    """That of the same call of `forward`, whose outputs only lend their addresses."""
    place, params, *_outputs = _prepared(*arguments, **named)
    return place.plan(params)


def signature(q, k, v, mask, softmax_scale, flags, out_dtype, kernel, window, maxima, softcap, **tensors):
    """What must be the same of the calls that share a schedule, and can be seen without a look at lengths."""
    arrays = {"q": q, "k": k, "v": v, **tensors}
    dims = {name: (x.shape, x.dtype) for name, x in arrays.items() if name != "schedule"}
    flags &= ~_abi.FLAG_CENTERED_K
    return dims, mask, flags, out_dtype, kernel, window, maxima, softcap > 0
