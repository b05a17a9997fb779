"""What the interfaces of flash-attn have in common: their arguments in fa3's words, in one place. flash_attn_interface,
flash_attn, vllm_flash_attn and the ops flash_attn_3 name their own arguments and call `attend`. No number is read from
a device, but for a max_seqlen that is a tensor without dimensions, and no tensor is copied, but for those that no
stride describes: whose last dimension is not contiguous, and whose head dimension is no multiple of 8, or of 16 in
FP8."""

from __future__ import annotations

import contextlib
import numbers
import re
from typing import Any

import torch

import fa3

from .._calls import backward as _backward
from .._calls import forward as _forward
from .._frameworks import torch as _torch
from . import by_rows

COLUMNS = 256  # of V, in one call, so that it may have gradients
WIDE_COLUMNS = 512  # where q has more than those, or there is qv
FP8 = torch.float8_e4m3fn
Output = Any  # out, or where it is asked for (out, lse): which one, types cannot tell from other packages' signatures
WITHOUT_GRADIENTS = {"page_table", "leftpad_k", "cache_batch_idx", "qv"}


def refuse(**features):
    """Those that are given are what fa3 does not compute."""
    for name, x in features.items():
        if x is not None and x is not False:
            raise NotImplementedError(f"{name} is given, which fa3 does not compute")


@contextlib.contextmanager
def callers_names(called):
    """Errors inside name the caller's arguments. called: {fa3's name: the caller's}."""
    try:
        yield
    except (TypeError, ValueError, NotImplementedError) as error:
        if len(error.args) == 1:
            text = re.sub(r"\b(\w+)\b", lambda name: called.get(name[1], name[1]), str(error.args[0]))
            error.args = (text,)
        raise


def refuse_dropout(dropout_p):
    if dropout_p:
        raise NotImplementedError(f"dropout_p is {dropout_p}: fa3 has no dropout")


def attend(q, k, v, *, softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, k_new=None,
           v_new=None, cu_seqlens_k_new=None, rotary_cos=None, rotary_sin=None, rotary_seqlens=None,
           rotary_interleaved=True, out=None, called=None, **named):  # fmt: skip
    """(o, lse). named: those of `_computed`; q, k and v lie as in `fa3.forward`. k_new and v_new are written into the
    caches k and v first, behind seqused_k, which counts what stands there before. called: what the caller calls fa3's
    arguments, for errors."""
    if called and not torch.compiler.is_compiling():
        new = {"k_new": k_new, "v_new": v_new, "cu_seqlens_k_new": cu_seqlens_k_new, "rotary_seqlens": rotary_seqlens}
        how = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "rotary_interleaved": rotary_interleaved}
        with callers_names(called):
            return attend(q, k, v, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
                          attention_chunk=attention_chunk, out=out, **new, **how, **named)  # fmt: skip
    if softmax_scale is None:
        softmax_scale = (q.shape[-1] + (v.shape[-1] if named.get("qv") is not None else 0)) ** -0.5
    mask = _mask(causal, window_size, attention_chunk)
    rotary = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "rotary_interleaved": rotary_interleaved}
    new = {"k_new": k_new, "v_new": v_new, "cu_seqlens_k_new": cu_seqlens_k_new, "rotary_seqlens": rotary_seqlens}
    multiple = 16 if k.dtype == FP8 else 8
    odd = -q.shape[-1] % multiple, -v.shape[-1] % multiple
    if any(odd):
        return _padded(q, k, v, *odd, softmax_scale=softmax_scale, mask=mask, out=out, **rotary, **new, **named)
    return _with_new(q, k, v, softmax_scale=softmax_scale, mask=mask, out=out, **rotary, **new, **named)


def _mask(causal, window_size, chunk):
    """(left, right, chunk), -1 being no bound, and 0 no chunk."""
    left, right = (-1, -1) if window_size is None else (_side(x) for x in sides(window_size))
    return left, 0 if causal else right, chunk or 0


def sides(window_size):
    """Its two bounds."""
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise TypeError(f"window_size is {window_size!r}, must be (left, right)") from None
    return left, right


def apart(name, x, count, dims=""):
    """q, k and v, or k and v, of a tensor that has them one behind the other before its heads. dims: before those."""
    rank, text = len(dims.split()) + 3, f"{dims} {count} heads head_dim".split()
    if x.dim() != rank or x.shape[-3] != count:
        raise ValueError(f"{name} has dims {tuple(x.shape)}, must have {rank}: {', '.join(text)}")
    return x.unbind(-3)


def _side(x):
    """Of a window, also as a tensor on the CPU."""
    if isinstance(x, torch.Tensor) and x.device.type != "cpu":
        raise TypeError("window_size is a tensor, must be two ints: fa3 reads no numbers from a device")
    return max(int(x), -1)


def _padded(q, k, v, more, more_v, k_new, v_new, out, qv=None, **named):
    """With head dimensions that are no multiples of 8, or of 16 in FP8: on copies, in which zeros follow."""

    def pad(x, n):
        if x is None or x.dtype != FP8:
            return None if x is None else torch.nn.functional.pad(x, (0, n))
        return torch.nn.functional.pad(x.view(torch.uint8), (0, n)).view(FP8)

    keys, values = pad(k, more), pad(v, more_v)
    new = {"k_new": pad(k_new, more), "v_new": pad(v_new, more_v)}
    o, lse = _with_new(pad(q, more), keys, values, out=None, qv=pad(qv, more_v), **new, **named)
    if k_new is not None:
        k.copy_(keys[..., : k.shape[-1]]), v.copy_(values[..., : v.shape[-1]])
    o = o[..., : v.shape[-1]]
    return (o if out is None else out.copy_(o)), lse


def maybe_contiguous(x):
    """x with a contiguous last dimension."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def round_multiple(x, m):
    """The least multiple of m that is at least x."""
    return -(-x // m) * m


def _with_new(q, k, v, *, mask, k_new, v_new, cu_seqlens_k_new, rotary_cos, rotary_sin, rotary_seqlens,
              rotary_interleaved, cu_seqlens_q=None, cu_seqlens_k=None, seqused_k=None, page_table=None,
              cache_batch_idx=None, **named):  # fmt: skip
    """Behind the new rows, if there are any."""
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    if isinstance(seqused_k, int):
        seqused_k = torch.full((batch,), seqused_k, dtype=torch.int32, device=k.device)
    if page_table is not None and cache_batch_idx is not None:
        page_table, cache_batch_idx = page_table.index_select(0, cache_batch_idx), None
    if page_table is not None and cu_seqlens_k is not None:  # they tell lengths, not places
        seqused_k, cu_seqlens_k = cu_seqlens_k.diff() if seqused_k is None else seqused_k, None
    if k_new is not None:
        if v_new is None or seqused_k is None:
            raise ValueError(f"k is given, but {'v' if v_new is None else 'cache_seqlens'} is not")
        where = {"cache_seqlens": seqused_k, "page_table": page_table, "cache_batch_idx": cache_batch_idx}
        turns = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "rotary_interleaved": rotary_interleaved}
        moving = mask != (-1, -1, 0)
        scales = {name: _scale(named.get(name.replace("scale", "descale")), q, 1) for name in ("k_scale", "v_scale")}
        q = _appended(
            q, k_new, v_new, k, v, cu_seqlens_q, cu_seqlens_k_new, rotary_seqlens, moving, where, turns, scales
        )  # fmt: skip
        seqused_k = seqused_k + (k_new.shape[1] if cu_seqlens_k_new is None else cu_seqlens_k_new.diff())
    elif rotary_cos is not None or rotary_sin is not None or v_new is not None:
        raise ValueError(f"{'rotary_cos' if v_new is None else 'v'} is given, but k is not")
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k,
               "page_table": page_table, "cache_batch_idx": cache_batch_idx}  # fmt: skip
    return _computed(q, k, v, mask=mask, **lengths, **named)


# ---- new rows ----


def _appended(q, k_new, v_new, k, v, cu_seqlens_q, cu_seqlens_new, rotary_seqlens, moving, where, turns, scales):
    """q, rotated if there is something to rotate by. moving: queries stand one behind the other, as under each mask;
    otherwise all of a sequence stand at its first new row. scales: of caches of e4m3, for new rows of 16 bits."""
    k_new, v_new, q = (maybe_contiguous(x) for x in (k_new, v_new, q))
    rounds = k.dtype == v.dtype == FP8 and FP8 not in (k_new.dtype, v_new.dtype)
    for name, x, cache in (("k", k_new, k), ("v", v_new, v)):
        if x.dtype != cache.dtype and not rounds:
            raise ValueError(f"{name}.dtype is {x.dtype}, must be that of its cache, {cache.dtype}")
    where = {**where, "cu_seqlens_new": cu_seqlens_new, **(scales if rounds else {})}
    if turns["rotary_cos"] is None or turns["rotary_sin"] is None:
        if turns["rotary_cos"] is not turns["rotary_sin"]:
            raise ValueError("of rotary_cos and rotary_sin one is given, must be both")
        if k.dtype == FP8 and not rounds:  # pairs of bytes, as the library copies 16 bits as they are
            k_new, v_new, k, v = (x.view(torch.bfloat16) for x in (k_new, v_new, k, v))
        fa3.append(k_new, v_new, k, v, **where)
        return q
    turns = {**turns, **{name: turns[name].float() for name in ("rotary_cos", "rotary_sin")}}
    one = {}
    if k.dtype == FP8 and not rounds:
        k_new, v_new = k_new.bfloat16(), v_new.bfloat16()
        one = {name: _scale(None, k, 1) for name in ("k_scale", "v_scale")}
    if q.dtype == FP8:
        q, one["q_scale"] = q.to(k_new.dtype), _scale(None, k, 1)
    start = where["cache_seqlens"] if rotary_seqlens is None else rotary_seqlens
    alone = q.dim() == 4 and q.shape[1] == 1
    same_rows = q.shape[:-2] == k_new.shape[:-2] and cu_seqlens_q is cu_seqlens_new
    if same_rows and (moving or alone):
        return fa3.append(k_new, v_new, k, v, q=q, rotary_positions=start, **where, **turns, **one)
    q_scale = {"q_scale": one.pop("q_scale")} if "q_scale" in one else {}
    fa3.append(k_new, v_new, k, v, rotary_positions=start, **where, **turns, **one)
    turned = lambda q, **rows: fa3.append(None, None, None, None, q=q, **rows, **turns, **q_scale)
    if moving or alone:
        return turned(q, rotary_positions=start, cu_seqlens_new=cu_seqlens_q)
    if q.dim() == 4:
        rows = turned(q.flatten(0, 1), rotary_positions=start.repeat_interleave(q.shape[1]))
        return rows.unflatten(0, q.shape[:2])
    rows = torch.arange(q.shape[0], dtype=torch.int32, device=q.device)
    sequence = torch.searchsorted(cu_seqlens_q[1:], rows, right=True).clamp_(max=start.shape[0] - 1)
    return turned(q, rotary_positions=start[sequence])


# ---- attention ----


def maximum(x):
    """A max_seqlen as the library takes it: of no rows 1, of a tensor without dimensions its number."""
    x = x.item() if isinstance(x, torch.Tensor) and x.dim() == 0 else x
    return x if isinstance(x, torch.Tensor) or x != 0 else 1


def _with_maxima(k, named):
    """`attend`'s arguments, with max_seqlen_q and max_seqlen_k only where they count: without cu_seqlens_q the rows of
    q do, and a cache has no more keys than it has room for."""
    found = {name: maximum(named[name]) for name in _forward.MAXIMA if name in named}
    if "cu_seqlens_q" not in named:
        found.pop("max_seqlen_q", None)
    if "cu_seqlens_k" not in named and isinstance(found.get("max_seqlen_k"), (int, numbers.Integral)):
        found["max_seqlen_k"] = min(found["max_seqlen_k"], keys_of(k, named.get("page_table")))
    return {**{name: x for name, x in named.items() if name not in _forward.MAXIMA}, **found}


def keys_of(k, page_table):
    """How many keys a sequence has room for in a cache."""
    return k.shape[-3] * (1 if page_table is None else page_table.shape[-1])


def _computed(q, k, v, *, mask, q_descale=None, k_descale=None, v_descale=None, softcap=0.0, out=None, qv=None,
              **named):  # fmt: skip
    """named: of `fa3.forward`, and deterministic; None is not given."""
    named = {name: x for name, x in {**named, "qv": maybe_contiguous(qv)}.items() if x is not None}
    q = maybe_contiguous(q)
    if "cu_seqlens_k" in named or not named.keys() & {"seqused_k", "page_table"}:  # caches are not copied
        k, v = maybe_contiguous(k), maybe_contiguous(v)
    named["softcap"] = max(softcap or 0.0, 0.0)
    named = _with_maxima(k, named)
    if k.dtype == FP8:
        groups = q.shape[-2] // max(k.shape[-2], 1)
        scales = {"q_scale": q_descale, "k_scale": k_descale, "v_scale": v_descale}
        if q.dtype != FP8:  # of 16 bits it has no scale
            del scales["q_scale"]
        named.update({name: _scale(x, q, groups if name == "q_scale" else 1) for name, x in scales.items()})
    if "sinks" in named:
        named["sinks"] = named["sinks"].float()
    left, right, chunk = mask
    whole = lambda side: side == -1 or side >= chunk - 1  # of a chunk, whatever the query's place in it
    if not chunk:
        how = {"window": (left, right)}
    elif whole(left) and (whole(right) or right == 0):
        how = {"chunk": chunk, "causal": right == 0}
    else:  # no mask of the library is both: the chunks become sequences, and have the window
        return by_rows.chunks(_columns, q, k, v, chunk, out=out, window=(left, right), **named)
    if "leftpad_k" in named and "page_table" in named:
        k, v, named = by_rows.without_padding(k, v, **named)
    return _columns(q, k, v, out=out, **how, **named)


def _scale(descale, q, groups):
    """What the library takes for (batch, heads_kv), or for none."""
    if descale is None:
        return torch.ones(1, 1, 1, dtype=torch.float32, device=q.device)
    return descale.repeat_interleave(groups, 1)[..., None] if groups > 1 else descale[..., None]


def _columns(q, k, v, *, out=None, **named):
    """Columns of V, and of O, need not meet in one call: more than the library takes at once go in several."""
    columns = WIDE_COLUMNS if q.shape[-1] > COLUMNS or "qv" in named else COLUMNS
    parts = v.split(columns, -1) if v.shape[-1] > columns and "qv" not in named else (v,)
    outs = out.split(columns, -1) if out is not None and len(parts) > 1 else (out,) * len(parts)
    done = [_called(q, k, x, y, **named) for x, y in zip(parts, outs)]
    if out is None:
        out = done[0][0] if len(done) == 1 else torch.cat([o for o, _ in done], -1)
    return out, done[0][1]


def _called(q, k, v, out, deterministic=False, **named):
    """Where there is no backward pass, tensors may need a gradient nevertheless, as in the other packages: only who
    asks for it is refused."""
    wide = q.shape[-1] > COLUMNS or v.shape[-1] > COLUMNS
    if k.dtype == FP8 or out is not None or wide or not WITHOUT_GRADIENTS.isdisjoint(named):
        return fa3.forward(q, k, v, out=out, return_lse=True, **named)
    return fa3.attention(q, k, v, deterministic=deterministic, return_lse=True, **named)


# ---- gradients by themselves ----


def backward_into(gradients, dout, q, k, v, out, lse, *, softmax_scale, causal, window_size, softcap, deterministic,
                  maxima=(None, None), **tensors):  # fmt: skip
    """Writes dq, dk and dv to the tensors that `gradients` has by these names. tensors: of `fa3.backward`."""
    for name, x in gradients.items():
        if x is None:
            raise ValueError(f"{name} is None, must be given: it is not returned")
    left, right, _ = _mask(causal, window_size, 0)
    mask, window = _forward.mask(False, (left, right))
    with torch.no_grad():
        _backward.backward(
            _torch.readable(dout), q, k, v, out, lse, None, mask, softmax_scale or 0.0, int(deterministic),
            window=window, maxima=tuple(map(maximum, maxima)), softcap=max(softcap, 0.0), into=gradients,
            **{name: x for name, x in tensors.items() if x is not None}
        )  # fmt: skip
