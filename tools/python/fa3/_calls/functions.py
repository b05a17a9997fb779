"""fa3's functions: what they take is checked and named here, then the call is torch's custom op, or the
library's call on NumPy arrays."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Iterator, Literal, Optional, Tuple, Union, overload

from .. import _arrays
from . import arguments as _arguments
from . import backward as _backward
from . import forward as _forward
from .._abi import (
    APPEND_ROTARY_INTERLEAVED,
    QUANTIZE_INCOHERENT,
    QUANTIZE_ROTARY_INTERLEAVED,
    Tensor,
    library,
    make_tensor,
)
from .arguments import Append, Array, Attention, AttentionFp8, Backward, Forward, Quantized, Scales

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _torch_ops(x: Any) -> Any:
    """The custom ops, if x is a torch tensor."""
    if not _arrays.is_torch(x):
        return None
    from .._frameworks import torch as _torch

    return _torch


@overload
def attention(q: Array, k: Array, v: Array, *, return_lse: Literal[False] = ...,
              **given: Unpack[Attention[Array]]) -> Array: ...  # fmt: skip
@overload
def attention(q: Array, k: Array, v: Array, *, return_lse: Literal[True],
              **given: Unpack[Attention[Array]]) -> Tuple[Array, Array]: ...  # fmt: skip
@overload
def attention(q: Array, k: Array, v: Array, *, return_lse: bool,
              **given: Unpack[Attention[Array]]) -> Union[Array, Tuple[Array, Array]]: ...  # fmt: skip
@_arguments.takes("attention")
def attention(q: Any, k: Any, v: Any, *, return_lse: bool = False, **given: Any) -> Any:
    """Attention that torch's autograd can differentiate, through o and through lse.

    q: (batch, seqlen_q, heads, head_dim); k: (batch, seqlen_k, heads_kv, head_dim); v: (batch, seqlen_k, heads_kv,
    head_dim_v), all of one dtype. causal: query i sees key j if j <= i + seqlen_k - seqlen_q; "top_left": if j <= i.
    softmax_scale: 1 / sqrt(head_dim) if None. deterministic: the backward pass gives the same bits each time, up to 10%
    slower, and more with few heads (also if torch.use_deterministic_algorithms is set). centered_k: the gradient of q
    is more exact where channels of k have means, as those of trained models do, and the backward pass slower; it is
    refused with sinks, softcap and alibi_slopes, and with a gradient of lse. Under autocast q, k and v are cast to its
    dtype. planned: `forward`'s arguments for windows, chunks, sinks, varlen sequences, caches and pages, from window to
    batch_invariant, softcap, alibi_slopes and qv. Sinks may have a gradient, too, alibi_slopes have none. With
    page_table, leftpad_k, cache_batch_idx, qv and head dimensions above 256 there is no backward pass, so where a
    tensor needs a gradient they are a NotImplementedError that names them.

    head_dim and head_dim_v are multiples of 8 up to 256, or more, as `forward` says; heads is a multiple of heads_kv;
    dtypes are bfloat16 and float16, on the CPU float32, too. Any strides will do, as long as head_dim is contiguous,
    the others are multiples of 16 bytes and data is aligned to 16 bytes (on the CPU any). For torch this, forward,
    backward, quantize, append and combine are custom ops, so torch.compile takes them with fullgraph=True; they are
    registered when fa3 is imported after torch, otherwise by the first call. Derivatives are there in reverse mode,
    also by torch.func.grad, vjp, jacrev and vmap of them; those in forward mode, and of the other calls, are refused.

    Returns o: (batch, seqlen_q, heads, head_dim_v), of q's dtype; with return_lse (o, lse), lse: (batch, heads,
    seqlen_q) in float32, the natural logarithm of each row's sum of exponentials. Rows that see no key: 0 and -inf.
    The gradient itself cannot be differentiated again."""
    _arguments.refuse_others("attention", given)
    how, named = _arguments.resolved(given, q, k, v)
    calls = _torch_ops(q) or _forward
    tensors = {name: x for name, x in named.items() if name in _forward.ALL_TENSORS}
    names = _backward.without_gradients(**tensors)
    names += [wide] if (wide := _backward.too_wide(q, v)) else []
    if names and calls is not _forward:
        if any(calls.is_differentiated(x) for x in (q, k, v, *tensors.values())):
            raise NotImplementedError(
                f"fa3.attention has no backward pass with {' and '.join(names)}: call it under torch.no_grad()"
            )
    o, lse = calls.forward(q, k, v, *how, **named)
    return (o, lse) if return_lse else o


@overload
def attention_fp8(q: Array, k: Array, v: Array, *, return_lse: Literal[False] = ...,
                  **given: Unpack[AttentionFp8]) -> Array: ...  # fmt: skip
@overload
def attention_fp8(q: Array, k: Array, v: Array, *, return_lse: Literal[True],
                  **given: Unpack[AttentionFp8]) -> Tuple[Array, Array]: ...  # fmt: skip
@overload
def attention_fp8(q: Array, k: Array, v: Array, *, return_lse: bool,
                  **given: Unpack[AttentionFp8]) -> Union[Array, Tuple[Array, Array]]: ...  # fmt: skip
@_arguments.takes("attention_fp8")
def attention_fp8(q: Any, k: Any, v: Any, *, return_lse: bool = False, scales: Scales = "head",
                  seed: Optional[int] = 0, **given: Any) -> Any:  # fmt: skip
    """`attention` of torch tensors in bfloat16 or float16 whose products are FP8's: q, k and v are quantized first, as
    by `quantize`, k and v without their means. o and the gradients have q's dtype. The gradients are those at the
    quantized q, k and v, by products in 16 bits, and rounding to FP8 is taken for the identity ("straight through").

    scales: "head", "tensor" or "block", as of `quantize`. seed: of the random signs for incoherent processing of q and
    k; None is no incoherent processing. The rest as of `attention`; head dimensions are multiples of 16."""
    ops = _torch_ops(q)
    if not ops:
        raise TypeError(f"q is {type(q).__name__}, must be a torch tensor")
    _arguments.refuse_others("attention_fp8", given)
    how, _ = _arguments.resolved(given, q, k, v)
    o, lse = ops.attention_fp8(q, k, v, *how[:3], scales, None if seed is None else _arguments.seed(seed))
    return (o, lse) if return_lse else o


@overload
def forward(q: Array, k: Array, v: Array, *, return_lse: Literal[False] = ...,
            **given: Unpack[Forward[Array]]) -> Array: ...  # fmt: skip
@overload
def forward(q: Array, k: Array, v: Array, *, return_lse: Literal[True],
            **given: Unpack[Forward[Array]]) -> Tuple[Array, Array]: ...  # fmt: skip
@overload
def forward(q: Array, k: Array, v: Array, *, return_lse: bool,
            **given: Unpack[Forward[Array]]) -> Union[Array, Tuple[Array, Array]]: ...  # fmt: skip
@_arguments.takes("forward")
def forward(q: Any, k: Any, v: Any, *, return_lse: bool = False, **given: Any) -> Any:
    """`attention` with all that the forward pass can do: in FP8, by a kernel of one's choice, and on sequences that
    have lengths of their own, packed, in caches or in pages.

    FP8: q, k and v of float8_e4m3fn, v also as tiles, with q_scale, k_scale and v_scale, as `quantize` makes them; the
    fields of fa3.h. v_mean: (batch, heads_kv, head_dim_v), added to o. lse_offset: as lse, added to it. o_scale: (1,),
    if out_dtype is float8_e4m3fn. two_level: sums that do not shrink where v has a mean. Autograd has no derivative
    of it: `attention_fp8` has, and `backward` is there.
    Also k and v alone, a cache under q of 16 bits, with k_scale and v_scale; o is of q's dtype then. And v alone, with
    v_scale: see "Latent attention".
    out_dtype: of o; q's dtype, of FP8 bfloat16, if None; others with FP8 and on the CPU, and under q of 16 bits float32
    (not with k and v of FP8, softcap, alibi_slopes, qv and head dimensions above 256). kernel: its name, of
    `kernels()`; the CPU's reference does not look at it.

    Masks. With i for a sequence's queries, j for its keys, position p = i + seqlen_k - seqlen_q: window (left, right)
    lets a query see the keys p - left <= j <= p + right, -1 being no bound; chunk n those of its own n positions, from
    p // n * n on. With causal both see none behind p, whatever right is. sinks: (heads,) in float32, in each row's sum
    of exponentials one addend exp(sink) without a value; lse includes it.

    Scores. softcap: a score s, softmax_scale included, becomes softcap * tanh(s / softcap) before it is masked; None or
    0 is none. alibi_slopes: (heads,) or (batch, heads) in float32, at least 0: query i's score for key j loses slope *
    abs(p - j), with p as above, behind the cap. alibi_slopes are not for FP8, chunk or batch_invariant.

    Latent attention. head_dim up to 576 and head_dim_v up to 512, in 16 bits (on the CPU also float32). qv: (batch,
    seqlen_q, heads, head_dim_v), or packed like q: scores are those of q and k plus those of qv and v, softmax_scale is
    1 / sqrt(head_dim + head_dim_v) if None, and head_dim is up to 64. A cache in one tensor k, with v = k[...,
    :head_dim_v] of it (up to 64 columns fewer), is the same call and as fast: MLA's decoding is forward(q, cache,
    cache[..., :512], ...). Other head_dims above 256 end at 512. None of it with alibi_slopes, and of FP8 only with v
    alone beside qv, a latent cache, without softcap: then v_scale lies as v does, (batch, seqlen_k, heads_kv, groups),
    packed or in pages if v is, and each number is for up to 128 columns of one row. FlashMLA's tokens of 656 bytes are
    such: k is cache[..., 528:].view(q.dtype), v cache[..., :512].view(torch.float8_e4m3fn), and v_scale
    cache[..., 512:528].view(torch.float32).

    Lengths, all int32 on q's device, where they are read when the kernels run, never by the host:
      cu_seqlens_q    (batch + 1,): q is packed, (total_q, heads, head_dim), and sequence b has the rows cu_seqlens_q[b]
                      to cu_seqlens_q[b + 1] - 1. Then o is (total_q, heads, head_dim_v) and lse (heads, total_q).
      cu_seqlens_k    (batch + 1,): k and v likewise, (total_k, heads_kv, head_dim).
      seqused_q       (batch,): only so many rows of each sequence are in use, the first ones.
      seqused_k       (batch,): of its keys, padding among them. How many keys a cache has, for example.
      leftpad_k       (batch,): so many of the keys in use are padding, the first ones.
      page_table      (batch, pages of a sequence): k and v are pages, (pages, page_size, heads_kv, head_dim), and key j
                      of sequence b is row j % page_size of page page_table[b, j // page_size].
      cache_batch_idx (batch,): sequence b has the keys k[cache_batch_idx[b]].
    max_seqlen_q, max_seqlen_k: ints, the most rows that a sequence has; from longer ones the first are taken. How work
    is laid out and how large the workspace is follows from them, so give them. If None they are what the shapes allow,
    as fa3 does not look into cu_seqlens: total_q with cu_seqlens_q, total_k with cu_seqlens_k, without these the rows
    of q, and of k or of a sequence's pages. Without cu_seqlens_q max_seqlen_q can only be the rows of q.

    schedule: what `forward_schedule` returned for the same arguments. batch_invariant: a sequence has the same bits
    alone and in any batch, with its queries at once and in parts; slower. out: where o is written, which is returned
    then; errors call it o. No gradient flows through it.

    Rows of o and lse that belong to no sequence are not written: without out they hold anything; their gradients are
    not read, and those of such rows of q, k and v are 0. There is no backward pass with page_table, leftpad_k,
    cache_batch_idx, qv and head dimensions above 256. Errors name the argument: a ValueError for an int tensor of
    another dtype or device, and whatever else contradicts fa3.h; a TypeError for a max_seqlen that is a tensor, as
    reading it would wait for the device; a NotImplementedError for what cannot be had together: page_table with
    cu_seqlens_k, leftpad_k or cache_batch_idx, cache_batch_idx with cu_seqlens_k, and what "Scores" names. Wrong
    numbers in lengths, tables, alibi_slopes and sinks are a ValueError on the CPU, and on a GPU with FA3_CHECK=1 in the
    environment, which waits for it. Otherwise they are no errors on a GPU: nothing outside of the tensors is read or
    written, and results of the sequences that have them mean nothing."""
    _arguments.refuse_others("forward", given)
    ops = _torch_ops(q)
    key = ops and ops.repeated.forward_key("forward", q, k, v, given)
    done = ops.repeated.repeated(key, q, k, v, given) if key else None
    if done is None:
        how, named = _arguments.resolved(given, q, k, v)
        done = (ops or _forward).forward(q, k, v, *how, **named)
        if key:
            ops.repeated.remember(key, q, k, v, given, how, named, *done)
    o, lse = done[:2]
    return (o, lse) if return_lse else o


@_arguments.takes("forward_schedule")
def forward_schedule(q: Array, k: Array, v: Array, *, return_lse: bool = False,
                     **given: Unpack[Forward[Array]]) -> Array:  # fmt: skip
    """Plans the lengths of `forward` once for several calls, those of all layers of a model, which then spare a launch:

        schedule = fa3.forward_schedule(q, k_cache, v_cache, seqused_k=seqused_k, causal=True)
        for layer in layers: ... fa3.forward(q, k_cache, v_cache, seqused_k=seqused_k, causal=True, schedule=schedule)

    return_lse and given: `forward`'s arguments. They must be the same in the calls that get the schedule, also shapes,
    strides and dtypes, and the numbers in all lengths and in cache_batch_idx, which alone are read; what else is in
    the tensors may differ. forward refuses a schedule for other shapes, dtypes, masks or maxima (not in compiled code,
    nor if it is a copy), but other numbers it cannot see: then results mean nothing, and memory outside of the tensors
    may be touched.

    Returns a tensor of uint8 on q's device, without elements where no plan is needed: without lengths, windows and
    sinks, and on the CPU, whose reference does not look at it. A captured call plans again at each replay.
    torch.compile with fullgraph=True refuses it: call it before what is compiled."""
    _arguments.refuse_others("forward_schedule", given)
    ops = _torch_ops(q)
    key = ops and ops.repeated.forward_key("schedule", q, k, v, given)
    done = ops.repeated.repeated(key, q, k, v, given) if key and q.is_cuda else None
    if done is None:
        how, named = _arguments.resolved(given, q, k, v)
        made = (ops or _forward).schedule(q, k, v, *how, **named)
        if key and q.is_cuda:
            ops.repeated.remember(key, q, k, v, given, how, named, made_for=made.fa3_made_for)
    else:
        made = done[2]
    if key:
        made.fa3_read = key[1]
    return made


@overload
def backward(dout: Array, q: Array, k: Array, v: Array, o: Array, lse: Array, *, sinks: None = ...,
             **given: Unpack[Backward[Array]]) -> Tuple[Array, Array, Array]: ...  # fmt: skip
@overload
def backward(dout: Array, q: Array, k: Array, v: Array, o: Array, lse: Array, *, sinks: Array,
             **given: Unpack[Backward[Array]]) -> Tuple[Array, Array, Array, Array]: ...  # fmt: skip
@_arguments.takes("backward")
def backward(dout: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, **given: Any) -> Any:
    """(dq, dk, dv) for the gradients of o and of lse (0 if None), with sinks (dq, dk, dv, dsinks). o and lse are what
    the forward pass gave for the same q, k, v and the same other arguments, which are `forward`'s. Rows of no sequence,
    and those that are not in use, have gradients of 0. dout is copied if its strides are not those that q may have.
    centered_k: as in `attention`; lse must be of exactly these keys. out: where dq, dk, dv are written, in q's dtype,
    or all in float32. accumulate: they are added to out, which is float32: for keys that are worked on part by part.

    FP8: q, k and v of float8_e4m3fn, v also as tiles, with the forward call's scales, v_mean and lse_offset. Gradients
    have dout's dtype; dv is never tiles. They are those of the elements, scales included: with incoherent processing
    those of the transformed q and k. v_mean and lse_offset are constants to them."""
    _arguments.refuse_others("backward", given)
    dlse, out, sinks = (given.get(name) for name in ("dlse", "out", "sinks"))
    tensors = {name: given[name] for name in _backward.ALL_TENSORS if given.get(name) is not None}
    if out is not None and (not isinstance(out, (tuple, list)) or len(out) != 3):
        raise TypeError("out must be three tensors, dq, dk and dv")
    into = dict(zip(("dq", "dk", "dv"), out or ()))
    _arrays.check({"dout": dout, "q": q, "k": k, "v": v, "o": o, "lse": lse, **into}, {"dlse": dlse, **tensors})
    _forward.check_ranks(q, k, v, tensors)
    mask, window = _forward.mask(given.get("causal", False), given.get("window"), given.get("chunk"))
    if given.get("accumulate") and out is None:
        raise ValueError("accumulate is True, and there is no out that gradients could be added to")
    how = (
        mask, _arguments.scale(given.get("softmax_scale")), _arguments.flags(given),
        _arguments.kernel(given.get("kernel")), window, _forward.maxima(given.get("max_seqlen_q"), given.get("max_seqlen_k")),
        _arguments.cap(given.get("softcap"))
    )  # fmt: skip
    inputs = (dout, q, k, v, o, lse, dlse, *how, sinks is not None, into)
    ops = _torch_ops(q)
    if not ops:
        return _backward.backward(*inputs, **tensors)
    gradients, dsinks = ops.backward(*inputs, **tensors)
    return gradients if dsinks is None else (*gradients, dsinks)


def quantize(x: Array, *, scales: Scales = "block", tiles: bool = False, mean: bool = False, incoherent: bool = False,
             seed: int = 0, rotary_cos: Optional[Array] = None, rotary_sin: Optional[Array] = None,
             rotary_interleaved: bool = False, k_mean: Optional[Array] = None,
             softmax_scale: Optional[float] = None) -> Quantized[Array]:  # fmt: skip
    """x, (batch, seqlen, heads, head_dim) in bfloat16 or float16, as float8_e4m3fn with scales in float32: a named
    tuple y, scale, mean and lse_offset.

    scales: "block", one for each 64 rows of a head, "head" or "tensor". tiles: y is V as the kernels read it. mean: y
    is without its mean over the sequence, which is returned (for v_mean). incoherent: random signs of this seed and a
    Hadamard transform, for q and k alike. rotary_cos, rotary_sin: (seqlen, rotary_dim / 2) in float32, applied first.
    k_mean: the mean of k's quantization; for q, so that lse_offset is returned, for this softmax_scale."""
    _arrays.check({"x": x}, {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "k_mean": k_mean})
    flags = QUANTIZE_INCOHERENT if incoherent else 0
    flags |= QUANTIZE_ROTARY_INTERLEAVED if rotary_interleaved else 0
    scale = _arguments.scale(softmax_scale)
    calls = _torch_ops(x) or _arrays
    return calls.quantize(x, scales, tiles, mean, flags, _arguments.seed(seed), rotary_cos, rotary_sin, k_mean, scale)


@overload
def append(k: Optional[Array], v: Optional[Array], k_cache: Optional[Array], v_cache: Optional[Array], *, q: Array,
           **given: Unpack[Append[Array]]) -> Array: ...  # fmt: skip
@overload
def append(k: Optional[Array], v: Optional[Array], k_cache: Optional[Array], v_cache: Optional[Array], *,
           q: None = ..., **given: Unpack[Append[Array]]) -> None: ...  # fmt: skip
@_arguments.takes("append")
def append(k: Any, v: Any, k_cache: Any, v_cache: Any, *, q: Any = None, **given: Any) -> Any:
    """Writes new rows k and v, (batch, rows, heads_kv, head_dim), into k_cache and v_cache, with rotary embedding of k
    and q; returns q rotated, if there is one. k, v and q may be None.

    Row i of sequence b goes to position cache_seqlens[b] + i of k_cache[b], (batch, seqlen, heads_kv, head_dim); of
    k_cache[cache_batch_idx[b]]; or, with page_table, (batch, pages of a sequence), of the pages k_cache, (pages,
    page_size, heads_kv, head_dim). Packed rows are (rows, heads_kv, head_dim): those of sequence b from
    cu_seqlens_new[b] to cu_seqlens_new[b + 1]; or each goes to its slot, slot_mapping[i], of all rows of the pages,
    none if that is negative. seqused_new: only so many rows of each sequence are new.

    rotary_cos, rotary_sin: (positions, rotary_dim / 2) in float32; position i of sequence b is cache_seqlens[b] + i, or
    rotary_positions[b] + i, with slot_mapping rotary_positions[i]. Caches of float8_e4m3fn hold k divided by k_scale, v
    by v_scale, (batch or 1, heads_kv or 1, 1) in float32; with q_scale so does what is returned for q. q_out: where
    that is written to; q itself, for example. Lengths and page numbers are int32, slots and positions also int64. Of
    wrong numbers rows are left out. fa3.h says the rest."""
    _arguments.refuse_others("append", given)
    q_out = given.get("q_out")
    if q is not None and q_out is None:
        _arrays.check({"q": q})
        q_out = _arrays.place_of(q=q).empty(q.shape, _arrays.append_output(q, given.get("q_scale")))
    given.update(k=k, v=v, k_cache=k_cache, v_cache=v_cache, q=q, q_out=q_out)
    tensors = {name: given.get(name) for name in _arrays.APPENDED}
    first = "q" if k is None else "k"
    flags = APPEND_ROTARY_INTERLEAVED if given.get("rotary_interleaved") else 0
    ops = _torch_ops(tensors[first])
    if not (ops and ops.repeated.append_again(flags, tensors)):
        _arrays.check({first: tensors[first]}, tensors)
        (ops or _arrays).append(flags, **tensors)
    return q_out


@overload
def combine(o_parts: Array, lse_parts: Array, *, out_dtype: Any = ..., return_lse: Literal[True] = ...,
            out: Optional[Array] = ...) -> Tuple[Array, Array]: ...  # fmt: skip
@overload
def combine(o_parts: Array, lse_parts: Array, *, out_dtype: Any = ..., return_lse: Literal[False],
            out: Optional[Array] = ...) -> Array: ...  # fmt: skip
@overload
def combine(o_parts: Array, lse_parts: Array, *, out_dtype: Any = ..., return_lse: bool,
            out: Optional[Array] = ...) -> Union[Array, Tuple[Array, Array]]: ...  # fmt: skip
def combine(o_parts: Any, lse_parts: Any, *, out_dtype: Any = None, return_lse: bool = True, out: Any = None) -> Any:
    """(o, lse) over all keys from results over some each: o_parts (parts, batch, seqlen, heads, head_dim) in bfloat16,
    float16 or float32, lse_parts (parts, batch, heads, seqlen) in float32. out_dtype: of o; o_parts' if None. out:
    where o is written, which is returned then."""
    _arrays.check({"o_parts": o_parts, "lse_parts": lse_parts}, {"out": out})
    if out is not None and out_dtype is not None:
        raise ValueError("out and out_dtype are given, must be one of them")
    ops = _torch_ops(o_parts)
    if ops and out_dtype is not None:
        import torch

        out_dtype = getattr(torch, _arrays.dtype_name(out_dtype))
    o, lse = (ops or _arrays).combine(o_parts, lse_parts, out_dtype, out)
    return (o, lse) if return_lse else o


@_arguments.takes("kernel_info")
def kernel_info(q: Array, k: Array, v: Array, *, multiprocessors: int = 132, return_lse: bool = False,
                **given: Unpack[Forward[Array]]) -> types.SimpleNamespace:  # fmt: skip
    """The kernel that `forward` would run with these arguments of it on a device of so many multiprocessors: the fields
    of fa3_kernel_info. Nothing is computed, no GPU is needed, and the tensors may be torch's on the device meta."""
    _arguments.refuse_others("kernel_info", given)
    (*how, out_dtype, kernel), named = _arguments.resolved(given, q, k, v)
    out = named.pop("out", None)
    params = _forward.forward_params(q, k, v, *how, kernel, **named)
    o_dims, dtype, _ = _forward.outputs(q, v, out_dtype, "cu_seqlens_q" in named)
    params.o = make_tensor(0, dtype, o_dims) if out is None else describe(out, "out")
    return library().kernel_info(params, multiprocessors)


def describe(x: Optional[Array], name: str = "a tensor") -> Tensor:
    """The fa3_tensor of a torch tensor or NumPy array, for those who fill in parameters themselves; of None an absent
    one. name: what errors call it."""
    return _arrays.describe(name, x)


def kernels() -> Iterator[types.SimpleNamespace]:
    """fa3_kernel_info of every kernel of the library."""
    return library().kernels()


def version() -> str:
    """The library's, as in "0.2.0"."""
    return library().version()


def preload(device: Any = None) -> None:
    """Loads the kernels onto torch's CUDA device (the current one if None), so that later calls load nothing: before a
    CUDA graph is captured, and for an even first call."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("fa3.preload loads kernels onto a GPU, and torch finds none here")
    with torch.cuda.device(device):
        torch.zeros(1, device="cuda")  # torch's context exists now, and is current
        library().preload()
