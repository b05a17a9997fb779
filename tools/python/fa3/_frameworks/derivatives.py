"""Derivatives of custom ops: which an op has, and which are refused."""

from __future__ import annotations

import torch
import torch.autograd.forward_ad as forward_mode


def differentiable(op, setup_context, backward):
    """`op` as the other files call it, with this derivative: inside torch.func's transforms as a Function, as ops with
    a derivative fail there. Forward-mode derivatives are refused; torch would take them to be zero without a word."""
    op.register_autograd(backward, setup_context=setup_context)
    methods = {"forward": lambda *inputs: tuple(op(*inputs)), "setup_context": setup_context, "backward": backward}
    methods = {name: staticmethod(method) for name, method in methods.items()}
    function = type("Function", (torch.autograd.Function,), {**methods, "generate_vmap_rule": True})

    def call(*inputs):
        compiling = torch.compiler.is_compiling()
        transformed = not compiling and torch._C._are_functorch_transforms_active()
        if forward_mode._current_level >= 0:  # in torch.func.jvp, too
            refused = transformed or compiling  # where other transforms, or the graph, may hide the tangents
            for x in inputs:  # in no function of its own, which torch 2.11 would compile to one that sees no tangents
                refused = refused or isinstance(x, torch.Tensor) and forward_mode.unpack_dual(x).tangent is not None
            if refused:
                raise NotImplementedError(
                    "fa3 has no forward-mode derivatives (jvp, jacfwd, hessian, torch.autograd.forward_ad), only those "
                    "in reverse mode: backward(), torch.autograd.grad, torch.func.grad, vjp, jacrev"
                )
        return (function.apply if transformed else op)(*inputs)

    return call


def _has_tangent(x):
    return forward_mode.unpack_dual(x).tangent is not None


def is_differentiated(x):
    """Whether someone wants a derivative by x."""
    return torch.is_grad_enabled() and x.requires_grad or _has_tangent(x)


def remember_nothing(ctx, inputs, output):
    pass


def no_derivative(name):
    def refuse(ctx, *gradients):
        raise NotImplementedError(f"fa3.{name} has no derivative: no gradient flows through it")

    return refuse


def refuse_gradients(name, tensors):
    """For ops that write to their arguments, which have no place for the refusal that the others have."""
    for argument, x in tensors.items():
        if x is not None and is_differentiated(x):
            raise NotImplementedError(f"{name} has no derivative: no gradient flows through it, and {argument} has one")
