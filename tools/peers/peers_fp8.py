"""Points of e4m3 in peers.py: what libfa3 and its peers take for them beside q, k and v, whose scales are 1, and the
other ways in which libfa3 does them. Points are those of peers_points.py, the functions that prepare calls those of
peers_fwd.py."""

import functools

import prepared
from prepared import fa3

# --- libfa3 -----------------------------------------------------------------------------------------------------------


def library_arguments(point, v):
    """V as the point has it, and what else prepared.Library.prepare takes."""
    import torch

    more = {"flags": fa3.FLAG_TWO_LEVEL if point.two_level else 0}
    for name, heads, n in (
        ("q_scale", point.heads, point.seqlen),
        ("k_scale", point.kv_heads, point.seqlen_k),
        ("v_scale", point.kv_heads, point.seqlen_k),
    ):
        more[name] = torch.ones(fa3.scale_dims(point.scales, point.batch, heads, n), device=v.device)
    return prepared.tiles_of(v) if point.v == "tiles" else v, more


# --- other ways of libfa3 ---------------------------------------------------------------------------------------------
# Each maker takes a prepared.Library and the function that prepares its calls, and returns the one that prepares
# those of the other way.


def changed(point, **form):
    """The point in another form, whose kernel the library chooses."""
    return type(point)(**{**vars(point), **form, "library_chooses": True})


def make_form(**form):
    """V, scales and sums of another form."""

    def make(_, prepare_library):
        def prepare(point, q, k, v):
            formed = changed(point, **form)
            if not point.is_fp8() or vars(formed) == vars(point):
                return None
            return prepare_library(formed, q, k, v)

        return prepare

    return make


def make_bf16(_, prepare_library):
    """The same numbers in bf16."""
    import torch

    def prepare(point, q, k, v):
        if not point.is_fp8():
            return None
        return prepare_library(changed(point, dtype="bf16"), *(tensor.to(torch.bfloat16) for tensor in (q, k, v)))

    return prepare


def make_quantize(library, _):
    """From bf16, the quantizations included."""

    def prepare(point, q, k, v):
        if not point.is_fp8():
            return None
        out, lse = prepared.forward_outputs(q, point.head_dim_v)
        return prepared.Fp8Attention(library, q, k, v, out, lse, point.mask())

    prepare.input_dtype = "bf16"
    return prepare


FORMS = {
    "tiles": make_form(v="tiles", scales="tensor", two_level=False),
    "two_level": make_form(v="tiles", scales="tensor", two_level=True),
    "blocks": make_form(v="tiles", scales="block", two_level=False),
    "bf16": make_bf16,
    "quantize": make_quantize,
}


# --- peers ------------------------------------------------------------------------------------------------------------


def official_arguments(point, device):
    """What else its flash_attn_func takes."""
    import torch

    one = torch.ones(point.batch, point.kv_heads, dtype=torch.float32, device=device)
    return dict.fromkeys(("q_descale", "k_descale", "v_descale"), one)


def prepare_product(a, b):
    """A call of cuBLAS: a times b transposed."""
    import torch

    one = torch.ones((), dtype=torch.float32, device=a.device)

    def call():
        torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return call


CUDNN_SCALE_P, CUDNN_SCALE_O = 256.0, 64.0  # P is at most 1, |O| at most |V|, which is below 6; e4m3 ends at 448


@functools.cache
def cudnn_handle():
    import cudnn

    return cudnn.create_handle()


def prepare_cudnn(point, q, k, v):
    import cudnn
    import torch

    if point.causal and point.seqlen != point.seqlen_k:
        return None  # the diagonal starts in the other corner
    handle = cudnn_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype, device=q.device)
    graph, pointers = cudnn_graph(cudnn, handle, point.causal, *(x.transpose(1, 2) for x in (q, k, v, out)))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=q.device)

    def call(keep_alive=(q, k, v)):
        graph.execute(pointers, workspace.data_ptr(), handle=handle)
        return out

    call.output_scale = 1 / CUDNN_SCALE_O
    return call


def cudnn_graph(cudnn, handle, causal, q, k, v, out):
    """cuDNN's graph of attention in e4m3, and what its tensors are: (batch, heads, seqlen, head_dim) in any strides."""
    import torch

    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.FP8_E4M3,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    memory = {}

    def describe(tensor):
        dtype = cudnn.data_type.FLOAT if tensor.dtype == torch.float32 else cudnn.data_type.FP8_E4M3
        node = graph.tensor(dim=list(tensor.shape), stride=list(tensor.stride()), data_type=dtype)
        memory[node] = tensor
        return node

    def number(value):
        return torch.full((1, 1, 1, 1), value, dtype=torch.float32, device=q.device)

    names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
    values = (1.0, 1.0, 1.0, 1 / CUDNN_SCALE_P, CUDNN_SCALE_P, CUDNN_SCALE_O)
    scales = {name: describe(number(value)) for name, value in zip(names, values)}
    o, _, amax_s, amax_o = graph.sdpa_fp8(
        q=describe(q),
        k=describe(k),
        v=describe(v),
        **scales,
        generate_stats=False,
        attn_scale=q.shape[3] ** -0.5,
        use_causal_mask=causal,
    )
    for node, tensor in ((o, out), (amax_s, number(0.0)), (amax_o, number(0.0))):
        node.set_output(True).set_dim(list(tensor.shape)).set_stride(list(tensor.stride()))
        node.set_data_type(cudnn.data_type.FLOAT if tensor.dtype == torch.float32 else cudnn.data_type.FP8_E4M3)
        memory[node] = tensor
    return graph, memory
