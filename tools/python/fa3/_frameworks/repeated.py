"""Calls that were made before, with torch tensors of the same shapes, strides and dtypes and the same other arguments:
their parameters are kept as the library takes them, and only addresses are filled in. That takes the host a third of
the time that checking and describing all arguments takes. The library itself checks parameters in every call.

A key has all that a call's parameters follow from, but for addresses. Whoever makes the call sees to it that nothing
but its result is wanted (`is_plain`)."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, NamedTuple, Optional, Sequence

import torch
import torch.autograd.forward_ad as forward_mode

from .. import _abi, _arrays
from .._calls import arguments as _arguments
from .._calls import forward as _forward
from .._debug import checks as _checks
from .._debug import log as _log

MOST = 1024  # calls that are kept
_SCALARS = frozenset((type(None), bool, int, float, str, tuple, torch.dtype))


_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def is_plain(tensors):
    """Whether nothing but a result is wanted of a call with these tensors: neither a derivative nor a trace, and no
    mode or subclass of tensors looks at it; and whether their memory has what they are, as that of tensors with torch's
    negative bit has not. Then it need not be a custom op, which takes 20 us of the host."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_mode._current_level >= 0:
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False
    if torch.autograd._profiler_enabled():  # which shows ops by their names
        return False
    differentiated = torch.is_grad_enabled()
    for x in tensors:
        if x is None:
            continue
        if type(x) not in _PLAIN_TYPES or not (x.is_cuda or x.is_cpu) or x.is_nested or x.layout != torch.strided:
            return False
        if x.is_neg():
            return False
        if differentiated and x.requires_grad:
            return False
    return True


def written(*tensors):
    """What an op with mutates_args tells autograd."""
    for x in tensors:
        if x is not None and not x.is_inference():
            torch.autograd.graph.increment_version(x)


def key(tensors: Sequence[Optional[torch.Tensor]], scalars: Sequence[Any]) -> Optional[tuple]:
    """None if a scalar is of a kind that may say more than its value does."""
    for x in scalars:
        if type(x) not in _SCALARS:
            return None
    return (
        *scalars,
        torch.are_deterministic_algorithms_enabled(),
        *[None if x is None else (x.shape, x.stride(), x.dtype, x.device) for x in tensors],
    )


class Call:
    """What is kept of a call. params: with addresses; fields: of the tensors that come with each call, by names;
    reference, on the CPU, and run: the library's functions, size: of the memory that run gets, or None."""

    def __init__(self, params: _abi.Params, fields: Sequence[str], device: torch.device, run: str,
                 size: Optional[int], reference_arguments: tuple = ()):  # fmt: skip
        self.words = (ctypes.c_uint64 * (ctypes.sizeof(params) // 8)).from_buffer_copy(params)
        kind = type(params)
        self.places = [getattr(kind, name).offset // 8 for name in fields]
        self.device, self.size = device, size
        raw = _abi.library().raw
        self.reference = getattr(raw, f"fa3_reference_{params.call}") if device.type == "cpu" else None
        self.reference_arguments = reference_arguments
        self.run = getattr(raw, run)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Optional[torch.Tensor]:
        """The memory that the call got (on the CPU, and if it gets none, an empty tensor); None if it failed, and
        nothing was done. tensors: in the order of `fields`."""
        words = type(self.words).from_buffer_copy(self.words)
        for place, x in zip(self.places, tensors):
            words[place] = x.data_ptr()
        params = ctypes.c_void_p(ctypes.addressof(words))
        if self.reference:
            done = self.reference(params, *self.reference_arguments) == _abi.OK
            return torch.empty(0, dtype=torch.uint8) if done else None
        index = self.device.index
        if torch.cuda.current_device() != index:
            return None
        stream = ctypes.c_void_p(torch.cuda.current_stream(index).cuda_stream)
        space = torch.empty(self.size or 0, dtype=torch.uint8, device=self.device)
        memory = () if self.size is None else (ctypes.c_void_p(space.data_ptr()), ctypes.c_size_t(self.size))
        return space if self.run(params, *memory, stream) == _abi.OK else None


def calls() -> Dict[tuple, Any]:
    """Those of the library that is loaded."""
    return _abi.library().repeated


def keep(made: tuple, call: Any) -> None:
    if _checks.ASKED or _log.ASKED:  # which look at each call
        return
    known = calls()
    if len(known) >= MOST:
        known.clear()
    known[made] = call


def multiprocessors(device: torch.device) -> int:
    return _arrays.multiprocessors(device.index) if device.type == "cuda" else 0


# ---- forward and forward_schedule ----

_NUMBERS = {name: x for name, x in _arguments.defaults(_arguments.Forward).items()
            if name not in (*_forward.ALL_TENSORS, "out")}  # fmt: skip
_READ = tuple(name for name in _forward.ALL_TENSORS if name != "schedule")  # what a schedule is made for


class RepeatedForward(NamedTuple):
    """Of forward: how to call it, what of a call's tensors it takes, and what it writes. Of forward_schedule likewise,
    where o and lse lend their addresses."""

    call: Call
    names: tuple
    outputs: tuple  # of o and lse: dims and dtype
    made_for: Optional[tuple]  # what a schedule knows


def forward_key(kind, q, k, v, given):
    """(key, key without schedule and out) of a call of fa3.forward, or None if it must be made anew."""
    schedule, out = given.get("schedule"), given.get("out")
    tensors = (q, k, v, *map(given.get, _READ))
    if not is_plain((*tensors, schedule, out)):
        return None
    if torch.is_autocast_enabled(q.device.type):
        return None
    read = key(tensors, [given.get(name, default) for name, default in _NUMBERS.items()])
    if read is None or schedule is not None and getattr(schedule, "fa3_read", None) != read:
        return None
    return (kind, read, key((schedule, out), ())), read


def repeated(made_of, q, k, v, given):
    """What the call with this key gives: o, lse and the memory that it got, or None if it was not made before."""
    made = calls().get(made_of[0])
    if made is None:
        return None
    if q.is_cpu and made.names:
        window, chunk = given.get("window"), given.get("chunk") or 0
        maxima = given.get("max_seqlen_q"), given.get("max_seqlen_k")
        _checks.lengths(q, k, maxima, -1 if window is None else window[0], chunk, {x: given[x] for x in made.names})
    out = given.get("out")
    (o_dims, dtype), (lse_dims, lse_dtype) = made.outputs
    o = torch.empty(o_dims, dtype=dtype, device=q.device) if out is None else out
    lse = torch.empty(lse_dims, dtype=lse_dtype, device=q.device)
    space = made.call((q, k, v, o, lse, *map(given.get, made.names)))
    if space is None:
        return None
    if made.made_for:
        space.fa3_made_for = made.made_for
    written(out)
    return o, lse, space


def remember(made_of, q, k, v, given, how, named, o=None, lse=None, made_for=None):
    """A call that was made, of forward, or without o of forward_schedule, whose result knows what it was made for."""
    numbers = {name: x for name, x in named.items() if name != "out"}
    mask, softmax_scale, flags, out_dtype, kernel = how
    device, plans = q.device, o is None
    params = _forward.forward_params(q, k, v, mask, softmax_scale, flags, kernel, **numbers)
    if plans:
        o_dims, dtype, lse_dims = _forward.outputs(q, v, out_dtype, "cu_seqlens_q" in named)
        o = torch.empty(o_dims, dtype=getattr(torch, dtype), device=device)
        lse = torch.empty(lse_dims, dtype=torch.float32, device=device)
    params.o, params.lse = _arrays.describe("o", o), _arrays.describe("lse", lse)
    if torch.are_deterministic_algorithms_enabled():
        params.flags |= _abi.FLAG_DETERMINISTIC
    size = None
    if device.type == "cuda":
        size_of = _abi.library().schedule_size if plans else _abi.library().workspace_size
        size = size_of(params, multiprocessors(device))
    names = tuple(name for name in _forward.ALL_TENSORS if given.get(name) is not None)
    names = tuple(name for name in names if name != "schedule" or given[name].numel())
    run = "fa3_forward_schedule" if plans else "fa3_forward"
    call = Call(params, ("q", "k", "v", "o", "lse", *names), device, run, size, (0,))
    keep(made_of[0], RepeatedForward(call, names, ((o.shape, o.dtype), (lse.shape, lse.dtype)), made_for))


# ---- append ----

WRITTEN = ("k_cache", "v_cache", "q_out")


def append_again(flags, tensors):
    """Whether the call was made before, and is now, once more."""
    given = [tensors[name] for name in _arrays.APPENDED]
    call = calls().get(key(given, ("append", flags))) if is_plain(given) else None
    if call is None or call([x for x in given if x is not None]) is None:
        return False
    written(*(tensors[name] for name in WRITTEN))
    return True
