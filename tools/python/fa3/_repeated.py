"""Calls that were made before, with torch tensors of the same shapes, strides and dtypes and the same other arguments:
their parameters are kept as the library takes them, and only addresses are filled in. That takes the host a third of
the time that checking and describing all arguments takes. The library itself checks parameters in every call.

A key has all that a call's parameters follow from, but for addresses. Whoever makes the call sees to it that nothing
but its result is wanted (_torch.py)."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Optional, Sequence

import torch

from . import _abi, _arrays

MOST = 1024  # calls that are kept
_SCALARS = frozenset((type(None), bool, int, float, str, tuple, torch.dtype))


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
    known = calls()
    if len(known) >= MOST:
        known.clear()
    known[made] = call


def multiprocessors(device: torch.device) -> int:
    return _arrays.multiprocessors(device.index) if device.type == "cuda" else 0
