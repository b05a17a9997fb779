"""fa3 in the places of other packages, on demand."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types

# A package's name: the module here, and the names of the package's own modules that have the same functions.
PLACES = {
    "flash_attn_interface": ("flash_attn_interface", ()),
    "flash_attn": ("flash_attn", ("flash_attn_interface", "bert_padding")),
    "flash_attn.cute": ("flash_attn_cute", ("interface",)),
    "vllm.vllm_flash_attn": ("vllm_flash_attn", ("flash_attn_interface",)),
    "flash_mla": ("flash_mla", ("flash_mla_interface",)),
}


def install(name: str, *, replace: bool = False) -> types.ModuleType:
    """Puts fa3 where programs import attention from, and says so on stderr; returns the module. From then on
    `import flash_attn_interface`, for example, means fa3.

    name: "flash_attn_interface", official FlashAttention-3's (`fa3.flash_attn_interface`, and torch.ops.flash_attn_3);
    "flash_attn", FlashAttention-2's (`fa3.flash_attn`); "flash_attn.cute", FlashAttention-4's (`fa3.flash_attn_cute`);
    "vllm.vllm_flash_attn" (`fa3.vllm_flash_attn`), before vLLM imports it; or "flash_mla", FlashMLA's decoding on dense
    caches (`fa3.flash_mla`). If another module of that name is loaded already it is a RuntimeError, unless replace is
    set: who has imported functions from it keeps those."""
    if name not in PLACES:
        raise ValueError(f"name is {name!r}, must be one of {', '.join(PLACES)}")
    ours, inner = PLACES[name]
    module = importlib.import_module(f"fa3.{ours}")
    names = [name, *(f"{name}.{x}" for x in inner)]
    for place in names:
        loaded = sys.modules.get(place)
        if loaded not in (None, module) and not replace:
            raise RuntimeError(f"{place} is loaded from {getattr(loaded, '__file__', None)}: call install before it is "
                               "imported, or with replace=True")  # fmt: skip
    if name == "flash_attn_interface":
        importlib.import_module("fa3._flash_attn_3")
    if name == "flash_attn" and sys.modules.get(name) is not module:
        module.__path__ = _folders(name)
    for place in names:
        sys.modules[place] = module
    print(f"fa3: {name} is {module.__name__} from now on ({module.__file__})", file=sys.stderr)
    return module


def _folders(name):
    """Those of the package of this name, if it is there: its modules that fa3 has nothing for, flash_attn.layers for
    example, are imported from them."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module of that name is loaded that has no spec
        spec = None
    return list(spec.submodule_search_locations or ()) if spec else []


def register_sdpa() -> None:
    """torch's scaled_dot_product_attention, and what else calls torch's flash attention (varlen_attn, for example),
    computes by fa3 on CUDA tensors from now on, wherever it would take its flash backend: without mask, bias and
    dropout, forward and backward. torch.nn.attention.restore_flash_attention_impl() undoes it. It needs a torch that
    has torch.nn.attention.register_flash_attention_impl; with an older one it is a NotImplementedError."""
    import torch

    try:
        from torch.nn.attention import _fa3, activate_flash_attention_impl, register_flash_attention_impl
    except ImportError as error:
        raise NotImplementedError(
            f"torch {torch.__version__} cannot take its flash attention from elsewhere ({error}): it needs "
            "torch.nn.attention.register_flash_attention_impl of a newer one"
        ) from None
    register_flash_attention_impl(
        "libfa3", register_fn=lambda: _fa3.register_flash_attention_fa3("fa3._flash_attn_3")
    )  # fmt: skip
    activate_flash_attention_impl("libfa3")
