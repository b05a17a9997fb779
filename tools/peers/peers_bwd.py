"""peers.py's backward pass: how the library, torch's attention and the official kernels compute gradients of a point's
q, k and v, for a gradient of O of N(0,1). A call returns [dq, dk, dv]; the forward pass before it is not part of it."""

import peers_bwd_official
import peers_fwd
import prepared
from prepared import fa3

FLOP = 2.5  # of the forward pass: five products of matrices, not two


def gradient_of_output(out, seed=2):
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(out.shape, generator=generator, dtype=torch.float32, device="cuda").to(out.dtype)


def forward_of(library):
    """Of a prepared.Library: what a backward pass takes beside q, k and v."""

    def compute(point, q, k, v):
        out, lse = prepared.forward_outputs(q, point.head_dim_v)
        library.prepare(q, k, v, out, lse, point.mask())()
        return out, lse, gradient_of_output(out)

    return compute


def make_library(library, flags=0):
    """Of a prepared.Library."""
    import torch

    library.preload_for_torch()
    forward = forward_of(library)

    def prepare(point, q, k, v):
        out, lse, dout = forward(point, q, k, v)
        gradients = [torch.full_like(tensor, float("nan")) for tensor in (q, k, v)]
        call = library.prepare_backward(q, k, v, out, lse, dout, *gradients, mask=point.mask(), flags=flags)
        call.kernel = library.kernel_info(call.params).name
        return call

    return prepare


def make_deterministic(library, _):
    """The sums of dQ in a fixed order."""
    return make_library(library, fa3.FLAG_DETERMINISTIC)


def make_centered(library, _):
    """A dq that is as exact where keys have a mean."""
    return make_library(library, fa3.FLAG_CENTERED_K)


def make_gradients(make):
    """The gradients by torch of a peer's forward pass. make: its maker in peers_fwd.py."""

    def make_peer():
        import torch

        forward = make()

        def prepare(point, q, k, v):
            leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
            with torch.enable_grad():
                attend = forward(point, *leaves)
                if attend is None:
                    return None
                out = attend()
            dout = gradient_of_output(out)
            return lambda: list(torch.autograd.grad(out, leaves, dout, retain_graph=True))

        return prepare

    return make_peer


def make_official(library):
    return peers_bwd_official.make_official(forward_of(library))


PEERS = {name: make_gradients(peers_fwd.PEERS[name]) for name in ("cudnn", "fa2", "fa4")}
PEERS["official"] = make_official
GIVEN_LIBRARY = {"official"}  # peers whose makers take the library, for its O and LSE
FORMS = {"deterministic": make_deterministic, "centered": make_centered}  # makers as those of peers_fp8.py


def useful_peers(_):
    return [*PEERS, *FORMS]
