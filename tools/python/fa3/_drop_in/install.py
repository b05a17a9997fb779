"""fa3 in the places of other packages, on demand."""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any, Dict, Literal, NamedTuple, Optional, Tuple

from .._debug import log as _log

Place = Literal["flash_attn_interface", "flash_attn", "flash_attn.cute", "vllm.vllm_flash_attn", "flash_mla"]


class _Package(NamedTuple):
    """module: that of fa3. same: the names of the package's own modules that have the same functions. distribution:
    that whose version programs ask for. spares: by their places the modules of fa3 for what else is imported beside or
    below it, or None for a package that only holds others; they count where nothing else is found."""

    module: str
    same: Tuple[str, ...] = ()
    distribution: Optional[str] = None
    spares: Dict[str, Optional[str]] = {}


def _rotary(package: str) -> Dict[str, Optional[str]]:
    packages: Dict[str, Optional[str]] = {f"{package}.{x}": None for x in ("layers", "ops", "ops.triton")}
    return {**packages, **{f"{package}.{x}.rotary": "_drop_in.rotary" for x in ("layers", "ops.triton")}}


PLACES = {
    "flash_attn_interface": _Package("flash_attn_interface", (), "flash_attn_3", {
        "flash_attn_3": None, "flash_attn_3.flash_attn_interface": "flash_attn_interface",
        "flash_attn_3._C": "_drop_in.flash_attn_3", "flash_attn_3.flash_attn_config": "_drop_in.flash_attn_config",
        "flash_attn_config": "_drop_in.flash_attn_config"}),
    "flash_attn": _Package("flash_attn", ("flash_attn_interface", "bert_padding"), "flash_attn", {
        **_rotary("flash_attn"), "flash_attn_2_cuda": "_drop_in.flash_attn_2_cuda"}),
    "flash_attn.cute": _Package("flash_attn_cute", ("interface",)),
    "vllm.vllm_flash_attn": _Package("vllm_flash_attn", ("flash_attn_interface",), None,
                                     _rotary("vllm.vllm_flash_attn")),
    "flash_mla": _Package("flash_mla", ("flash_mla_interface",)),
}  # fmt: skip


def _known(name: str) -> _Package:
    if name not in PLACES:
        raise ValueError(f"name is {name!r}, must be one of {', '.join(PLACES)}")
    return PLACES[name]


def _module(name: Optional[str]) -> Any:
    return name and importlib.import_module(f"fa3.{name}")


def install(name: Place, *, replace: bool = False) -> types.ModuleType:
    """Puts fa3 where programs import attention from; returns the module. From then on `import flash_attn_interface`,
    for example, means fa3, until `uninstall`. With FA3_LOG=1 in the environment it says so on stderr.

    name: "flash_attn_interface", official FlashAttention-3's (`fa3.flash_attn_interface`, torch.ops.flash_attn_3, and
    the package flash_attn_3); "flash_attn", FlashAttention-2's (`fa3.flash_attn`); "flash_attn.cute",
    FlashAttention-4's (`fa3.flash_attn_cute`); "vllm.vllm_flash_attn" (`fa3.vllm_flash_attn`), before vLLM imports it;
    or "flash_mla", FlashMLA's decoding on dense caches (`fa3.flash_mla`). If another module of that name is loaded
    already it is a RuntimeError, unless replace is set: who has imported functions from it keeps those.
    importlib.metadata.version("flash_attn") is then that of FlashAttention-2's interface, fa3.flash_attn.__version__,
    whatever else is installed; that of "flash_attn_3" is fa3.flash_attn_interface.__version__ likewise.

    Names that fa3 has no computation for can be imported, too; using one is a NotImplementedError that names it. Rotary
    embedding (flash_attn.layers.rotary, vllm.vllm_flash_attn.layers.rotary) is torch's own operations, where that
    package itself is not there."""
    package = _known(name)
    module = _module(package.module)
    for place in (name, *(f"{name}.{x}" for x in package.same)):
        loaded = sys.modules.get(place)
        empty = getattr(loaded, "__path__", None) == [] and getattr(loaded, "__file__", None) is None
        if loaded not in (None, module) and not empty and not replace:
            raise RuntimeError(f"{place} is loaded from {getattr(loaded, '__file__', None)}: call install before it is "
                               "imported, or with replace=True")  # fmt: skip
    spares = {place: _module(spare) for place, spare in package.spares.items()}
    _module("_drop_in.places").put(name, module, package.same, package.distribution, spares)
    if _log.ASKED:
        _log.say(f"{name} is {module.__name__} from now on ({module.__file__})")
    return module


def uninstall(name: Place) -> None:
    """Undoes `install`: the module that was there before is there again, or `import` looks for one. Who has imported
    functions of fa3 by that name keeps them."""
    package = _known(name)
    places = _module("_drop_in.places")
    places.take(name, _module(package.module), package.same, package.distribution, package.spares)
    if name == "flash_attn_interface" and "fa3._drop_in.flash_attn_3" in sys.modules:
        sys.modules.pop("fa3._drop_in.flash_attn_3").forget()


def install_asked() -> None:
    """What FA3_INSTALL names, parted by commas, as `import fa3` does."""
    for name in filter(None, os.environ.get("FA3_INSTALL", "").split(",")):
        install(name.strip(), replace=True)  # type: ignore[arg-type]


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
    from .._frameworks import transformers as _transformers

    _transformers.register(name)


def register_diffusers(name: str = "fa3") -> None:
    """Makes `model.set_attention_backend("fa3")`, and diffusers' attention_backend("fa3"), known to diffusers: full and
    causal attention, grouped heads, and bool masks of keys, whose hidden keys are left out of copies of k and v. Other
    masks, dropout and context parallelism are a NotImplementedError that names the argument."""
    from .._frameworks import diffusers as _diffusers

    _diffusers.register(name)
