"""The library's calls of a plan. Python would take longer to describe tensors than the GPU takes for a short call, so
the parameters of each call are filled in once: what is left are addresses."""

from __future__ import annotations

import contextlib
import functools
import struct
from typing import NamedTuple

import torch

import fa3
from fa3 import _abi, _arrays
from fa3._calls import backward as _backward
from fa3._calls import forward as _forward

from . import methods


_ADDRESS = struct.Struct("Q")
FARTHEST = 1 << 41  # bytes: a tensor of the library's is smaller


class How(NamedTuple):
    """What all calls have in common."""

    softmax_scale: float  # as the library has it: 0 for the default
    softcap: float
    deterministic: bool


class Place:
    """Where the calls run: on a CPU by the reference, on a CUDA device by the kernels, on torch's current stream."""

    def __init__(self, device):
        self.device, self.library = device, _abi.library()
        self.stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None

    def workspace_size(self, params):
        if self.device.type == "cpu":
            return 0
        return self.library.workspace_size(params, _arrays.multiprocessors(self.device.index))

    def run(self, params, workspace, size):
        if self.device.type == "cpu":
            return self.library.reference(params)
        try:
            self.library.enqueue(params, workspace, size, self.stream)
        except _abi.Fa3Error as error:
            if error.status != _abi.NO_CONTEXT:
                raise
            torch.zeros(1, device=self.device)  # a thread in which torch's context was not current yet
            self.library.enqueue(params, workspace, size, self.stream)

    def check(self, params):
        """Raises what `run` would, whatever numbers the tensors hold."""
        if self.device.type == "cpu":
            self.library.reference(_without_sequences(params))
        else:
            self.library.check(params)


def _without_sequences(params):
    """The same call in a batch of none: the reference, which has no check of its own, then has nothing to do."""
    found = type(params).from_buffer_copy(params)
    packed = params.call != "combine" and params.cu_seqlens_q.rank
    for name, kind in params._fields_:
        tensor = getattr(found, name)
        if kind is not _abi.Tensor or not tensor.rank or name == "sinks":
            continue
        if name.startswith("cu_seqlens"):
            tensor.dim[0] = 1
        elif not packed:
            tensor.dim[1 if "parts" in name else 0] = 0
    return found


def current(device):
    """A context in which the device is torch's current one."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class Launch:
    """A call whose tensors lie elsewhere each time. views: by name the tensors among its parameters; wholes: those that
    they are parts of, by the same names."""

    def __init__(self, place, params, views, wholes, kept):
        self.kind, self.bytes = type(params), bytes(params)
        self.kept = kept, params  # what is at addresses that stay
        first = _abi.Tensor.data.offset
        self.places = [
            (getattr(self.kind, name).offset + first, name, x.data_ptr() - wholes[name].data_ptr())
            for name, x in views.items()
        ]
        self.size = place.workspace_size(params)

    def _filled(self, addresses):
        numbers = bytearray(self.bytes)
        for at, name, offset in self.places:
            _ADDRESS.pack_into(numbers, at, addresses[name] + offset)
        return self.kind.from_buffer(numbers)

    def run(self, place, addresses, workspace):
        """addresses: of the wholes, by their names."""
        place.run(self._filled(addresses), workspace, self.size)

    def check(self, place):
        """Each whole lies at an address of its own."""
        place.check(self._filled({name: (i + 1) * FARTHEST for i, (_, name, _) in enumerate(self.places)}))


class Calls:
    """Those of one pass, in order. The first pass of its kind prepares them; others, which have tensors of the same
    shapes and strides, run them again."""

    def __init__(self, prepared, kind, device):
        self.prepared, self.kind, self.made, self.number = prepared, kind, [], 0
        self.place, self.known = Place(device), prepared.get(kind)
        # The workspace is freed with this, and then torch gives it to later work on the same stream only.
        self.workspace = self._room(max(x.size for x in self.known)) if self.known else None
        self.address = self.workspace.data_ptr() if self.known else 0

    def _room(self, size):
        return torch.empty(size, dtype=torch.uint8, device=self.place.device)

    def run(self, addresses, make, *arguments, **wholes):
        if self.known:
            launch = self.known[self.number]
        else:
            launch = make(self.place, *arguments, **wholes)
            self.made.append(launch)
            self.workspace = self._room(launch.size)
            self.address = self.workspace.data_ptr()
        self.number += 1
        launch.run(self.place, addresses, self.address)

    def end(self):
        if not self.known:
            self.prepared[self.kind] = tuple(self.made)


@functools.lru_cache(maxsize=256)
def _lengths(cu_seqlens, device):
    return torch.tensor(cu_seqlens, dtype=torch.int32, device=device)


class Part:
    """Rows and keys of one call, in the shapes that the library takes. One document of a packed tensor is a batch of
    one."""

    def __init__(self, call, dim, how, device):
        self.call, self.dim, self.alone = call, dim, dim == 0 and not call.cu_seqlens_q
        self.sums, maxima = {}, (None, None)
        if call.cu_seqlens_q:
            sums = call.cu_seqlens_q, call.cu_seqlens_k
            self.sums = {name: _lengths(x, device) for name, x in zip(("cu_seqlens_q", "cu_seqlens_k"), sums)}
            maxima = tuple(max(b - a for a, b in zip(x, x[1:])) for x in sums)
        mask, window = _forward.mask(False, (call.left, call.right))
        self.mask, self.scale = mask, how.softmax_scale
        self.named = {"window": window, "maxima": maxima, "softcap": how.softcap, **self.sums}

    def _narrow(self, x, dim, first, end):
        part = x.narrow(dim, first, end - first)
        return part.unsqueeze(0) if self.alone else part

    def rows(self, x):
        return self._narrow(x, self.dim, self.call.q_start, self.call.q_end)

    def keys(self, x):
        return self._narrow(x, self.dim, self.call.k_start, self.call.k_end)

    def lse_rows(self, x):
        """Of lse, whose rows come last."""
        return self._narrow(x, -1, self.call.q_start, self.call.q_end)

    def as_one(self, x):
        return x.unsqueeze(0) if self.alone else x


def gives_float32(q, v, how):
    """Has the library a kernel whose o is float32?"""
    return not how.softcap and max(q.shape[-1], v.shape[-1]) <= 256


def forward(place, job, dim, how, merges, q, keys, o, lse, sinks):
    """A Launch on these whole tensors; with merges o and lse are one for each slot. sinks: a tensor or None."""
    part, (k, v) = Part(job.call, dim, how, place.device), keys.tensors()
    wholes = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    o, lse = (o[job.slot], lse[job.slot]) if merges else (o, lse)
    views = {"q": part.rows(q), "k": part.keys(k), "v": part.keys(v), "o": part.rows(o), "lse": part.lse_rows(lse)}
    if sinks is not None:
        wholes["sinks"] = views["sinks"] = sinks
    given = {"sinks": sinks} if sinks is not None else {}
    params = _forward.forward_params(*(views[x] for x in "qkv"), part.mask, part.scale, **part.named, **given)
    params.o, params.lse = (_arrays.describe(name, views[name]) for name in ("o", "lse"))
    return Launch(place, params, views, wholes, part.sums)


def backward(place, job, dim, how, into_rows, inputs, keys, dq, flat, shapes):
    """A Launch. inputs: dout, q, o, lse and perhaps dlse, whole; flat: dk and dv of this call. into_rows: dq is whole,
    too; else this call's."""
    part, (k, v), (dk, dv) = Part(job.call, dim, how, place.device), keys.tensors(), methods.views(flat, shapes)
    wholes = {**inputs, "k": k, "v": v, "dq": dq, "dk": dk, "dv": dv}
    views = {name: part.lse_rows(x) if "lse" in name else part.rows(x) for name, x in inputs.items()}
    views.update(k=part.keys(k), v=part.keys(v))
    gradients = {"dq": part.rows(dq) if into_rows else part.as_one(dq), "dk": part.as_one(dk), "dv": part.as_one(dv)}
    flags = fa3.FLAG_DETERMINISTIC if how.deterministic else 0
    params = _backward.backward_params({"dlse": None, **views}, gradients, part.mask, part.scale, flags, **part.named)
    return Launch(place, params, {**views, **gradients}, wholes, part.sums)


def combine(place, **wholes):
    """A Launch that merges o_parts and lse_parts; those of packed tensors are of a batch of one."""
    views = wholes
    if wholes["o"].ndim == 3:
        views = {name: x.unsqueeze(1 if "parts" in name else 0) for name, x in wholes.items()}
    params = _abi.CombineParams(**{name: _arrays.describe(name, x) for name, x in views.items()})
    return Launch(place, params, views, wholes, None)
