"""fa3 in the places of other packages, on demand."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Literal

Place = Literal["flash_attn_interface", "flash_attn", "flash_attn.cute", "vllm.vllm_flash_attn", "flash_mla"]
# A package's name: the module here, the names of the package's own modules that have the same functions, and the
# distribution whose version programs ask for.
PLACES = {
    "flash_attn_interface": ("flash_attn_interface", (), "flash_attn_3"),
    "flash_attn": ("flash_attn", ("flash_attn_interface", "bert_padding"), "flash_attn"),
    "flash_attn.cute": ("flash_attn_cute", ("interface",), None),
    "vllm.vllm_flash_attn": ("vllm_flash_attn", ("flash_attn_interface",), None),
    "flash_mla": ("flash_mla", ("flash_mla_interface",), None),
}


def install(name: Place, *, replace: bool = False) -> types.ModuleType:
    """Puts fa3 where programs import attention from, and says so on stderr; returns the module. From then on
    `import flash_attn_interface`, for example, means fa3, until the process ends: nothing undoes it.

    name: "flash_attn_interface", official FlashAttention-3's (`fa3.flash_attn_interface`, and torch.ops.flash_attn_3);
    "flash_attn", FlashAttention-2's (`fa3.flash_attn`); "flash_attn.cute", FlashAttention-4's (`fa3.flash_attn_cute`);
    "vllm.vllm_flash_attn" (`fa3.vllm_flash_attn`), before vLLM imports it; or "flash_mla", FlashMLA's decoding on dense
    caches (`fa3.flash_mla`). If another module of that name is loaded already it is a RuntimeError, unless replace is
    set: who has imported functions from it keeps those. importlib.metadata.version("flash_attn") is then that of
    FlashAttention-2's interface, fa3.flash_attn.__version__, whatever else is installed; that of "flash_attn_3" is
    fa3.flash_attn_interface.__version__ likewise."""
    if name not in PLACES:
        raise ValueError(f"name is {name!r}, must be one of {', '.join(PLACES)}")
    ours, inner, distribution = PLACES[name]
    module = importlib.import_module(f"fa3.{ours}")
    for place in (name, *(f"{name}.{x}" for x in inner)):
        loaded = sys.modules.get(place)
        empty = getattr(loaded, "__path__", None) == [] and getattr(loaded, "__file__", None) is None
        if loaded not in (None, module) and not empty and not replace:
            raise RuntimeError(f"{place} is loaded from {getattr(loaded, '__file__', None)}: call install before it is "
                               "imported, or with replace=True")  # fmt: skip
    if name == "flash_attn_interface":
        importlib.import_module("fa3._drop_in.flash_attn_3")
    importlib.import_module("fa3._drop_in.places").put(name, module, inner, distribution)
    print(f"fa3: {name} is {module.__name__} from now on ({module.__file__})", file=sys.stderr)
    return module


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
        "libfa3", register_fn=lambda: _fa3.register_flash_attention_fa3("fa3._drop_in.flash_attn_3")
    )  # fmt: skip
    activate_flash_attention_impl("libfa3")


def register_transformers(name: str = "fa3") -> None:
    """Makes `attn_implementation="fa3"` known to transformers, for training and generation: causal and full attention,
    sliding windows, chunks (Llama 4), sinks (gpt-oss), softcap (Gemma 2), MLA (DeepSeek), packed sequences, and caches
    of all kinds. Padding costs nothing where it is at the ends of sequences and no gradient flows, or it is on the
    right only; otherwise attention works on copies without it. Whether there is some is looked up once for a forward
    pass, and so is whether position_ids tell of packed sequences, as they do to transformers' flash backends: one
    begins where a position is not above any before it. Each is computed as if it were alone, with a cache, too, if that
    is empty before; of models that give position_ids neither to their masks nor to their attention fa3 does not know
    them. What fa3 cannot do (packed sequences with padding, dropout, position_bias, masks that a model makes itself
    or uses in code of its own, as BLOOM and MPT do with ALiBi) is a NotImplementedError that names the model and the
    argument; models with a list of their own implementations (Falcon, GPT-J, SAM) end in a KeyError of transformers
    when they are loaded.

    Under torch.compile the graph itself asserts that no padding is inside of a sequence, nor on the left where there
    are gradients, and that no sequences are packed; transformers cannot tell there whether they are, so give
    attention_mask or a cache."""
    from .. import _transformers

    _transformers.register(name)


def register_diffusers(name: str = "fa3") -> None:
    """Makes `model.set_attention_backend("fa3")`, and diffusers' attention_backend("fa3"), known to diffusers: full and
    causal attention, grouped heads, and bool masks of keys, whose hidden keys are left out of copies of k and v. Other
    masks, dropout and context parallelism are a NotImplementedError that names the argument."""
    from .. import _diffusers

    _diffusers.register(name)
