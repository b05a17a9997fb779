"""The library's calls of a plan. Python would take longer to describe their tensors than the GPU takes for a short call,
so each call's parameters are filled in once: what is left are addresses."""

from __future__ import annotations

import contextlib
import functools
from typing import NamedTuple

import torch

import fa3
from fa3 import _abi, _arrays, _backward, _forward


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

    def run(self, params, size):
        if self.device.type == "cpu":
            return self.library.reference(params)
        # The workspace is freed when this returns, and then torch gives it to later work on the same stream only.
        space = torch.empty(size, dtype=torch.uint8, device=self.device)
        try:
            self.library.enqueue(params, space.data_ptr(), size, self.stream)
        except _abi.Fa3Error as error:
            if error.status != _abi.NO_CONTEXT:
                raise
            torch.zeros(1, device=self.device)  # a thread in which torch's context was not current yet
            self.library.enqueue(params, space.data_ptr(), size, self.stream)


def current(device):
    """A context in which the device is torch's current one."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class Launch:
    """A call whose tensors lie elsewhere each time. fields: of each tensor among its parameters the part of it that the
    call is on, as (name of a whole tensor, part); wholes: those by their names."""

    def __init__(self, place, params, fields, wholes, kept):
        self.params, self.kept = params, kept  # tensors whose addresses stay
        self.places = [(x, whole, part.data_ptr() - wholes[whole].data_ptr()) for x, (whole, part) in fields.items()]
        self.size = place.workspace_size(params)

    def run(self, place, wholes):
        params = type(self.params).from_buffer_copy(self.params)  # other threads may run this call, too
        addresses = {name: x.data_ptr() for name, x in wholes.items()}
        for field, whole, offset in self.places:
            getattr(params, field).data = addresses[whole] + offset
        place.run(params, self.size)


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

    def of_lse(self, x):
        """Its rows come last."""
        return self._narrow(x, -1, self.call.q_start, self.call.q_end)

    def as_one(self, x):
        return x.unsqueeze(0) if self.alone else x


def forward(place, job, dim, how, q, k, v, o, lse, sinks=None):
    """A Launch on these whole tensors; o and lse are one for each slot, sinks a tensor or None."""
    part = Part(job.call, dim, how, q.device)
    fields = {"q": ("q", part.rows(q)), "k": ("k", part.keys(k)), "v": ("v", part.keys(v)),
              "o": ("o", part.rows(o[job.slot])), "lse": ("lse", part.of_lse(lse[job.slot]))}  # fmt: skip
    wholes = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    if sinks is not None:
        fields["sinks"], wholes["sinks"] = ("sinks", sinks), sinks
    inputs = [fields[name][1] for name in "qkv"]
    given = {"sinks": sinks} if sinks is not None else {}
    params = _forward.forward_params(*inputs, part.mask, part.scale, **part.named, **given)
    params.o, params.lse = (_arrays.describe(name, fields[name][1]) for name in ("o", "lse"))
    return Launch(place, params, fields, wholes, part.sums)


def backward(place, job, dim, how, into_rows, **wholes):
    """A Launch on the whole tensors dout, q, k, v, o, lse, dq and perhaps dlse, and on dk and dv that are this call's.
    into_rows: dq is whole, too; else this call's."""
    part = Part(job.call, dim, how, wholes["q"].device)
    rows = ("dout", "q", "o", "dq") if into_rows else ("dout", "q", "o")
    views = {name: part.rows(wholes[name]) for name in rows}
    views.update({name: part.keys(wholes[name]) for name in "kv"}, **{name: part.of_lse(wholes[name]) for name in ("lse", "dlse") if name in wholes})
    views.update({name: part.as_one(wholes[name]) for name in ("dq", "dk", "dv") if name not in views})
    fields = {name: (name, x) for name, x in views.items()}
    gradients = {name: views.pop(name) for name in ("dq", "dk", "dv")}
    flags = fa3.FLAG_DETERMINISTIC if how.deterministic else 0
    params = _backward.backward_params(views, gradients, part.mask, part.scale, flags, **part.named)
    return Launch(place, params, fields, wholes, part.sums)


def combine(place, **wholes):
    """A Launch that merges o_parts and lse_parts; those of packed tensors are of a batch of one."""
    views = wholes
    if wholes["o"].ndim == 3:
        views = {name: x.unsqueeze(1 if "parts" in name else 0) for name, x in wholes.items()}
    params = _abi.CombineParams(**{name: _arrays.describe(name, x) for name, x in views.items()})
    return Launch(place, params, {name: (name, x) for name, x in views.items()}, wholes, None)
