"""cuDNN's graphs of planned calls, by the package nvidia-cudnn-frontend: varlen sequences as ragged tensors, pages,
windows, sinks and ALiBi, in both directions. See serving_calls.py for what makers return."""


class Tensors:
    """The tensors of a graph, and their memory. A view is (tensor, dims, strides) in cuDNN's order: batch, heads, rows,
    columns."""

    def __init__(self, cudnn, handle):
        self.cudnn, self.memory = cudnn, {}
        types = cudnn.data_type
        kinds = {"io_data_type": types.BFLOAT16, "intermediate_data_type": types.FLOAT}
        self.graph = cudnn.pygraph(**kinds, compute_data_type=types.FLOAT, handle=handle)

    def type_of(self, x):
        import torch

        types = self.cudnn.data_type
        return {torch.bfloat16: types.BFLOAT16, torch.float32: types.FLOAT, torch.int32: types.INT32,
                torch.int64: types.INT64}[x.dtype]  # fmt: skip

    def input(self, x, dims=None, strides=None, offsets=None):
        dims, strides = list(dims or x.shape), list(strides or x.stride())
        node = self.graph.tensor(dim=dims, stride=strides, data_type=self.type_of(x))
        self.memory[node] = x
        if offsets is not None:
            node.set_ragged_offset(self.numbers(offsets))
        return node

    def numbers(self, x):
        return self.input(x.view(-1, 1, 1, 1))

    def output(self, node, x, dims, strides, offsets=None):
        node.set_output(True).set_dim(list(dims)).set_stride(list(strides)).set_data_type(self.type_of(x))
        self.memory[node] = x
        if offsets is not None:
            node.set_ragged_offset(self.numbers(offsets))

    def build(self, handle, result):
        """A call that returns `result`."""
        import torch

        cudnn, graph = self.cudnn, self.graph
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.validate()
        graph.build_operation_graph()
        graph.deselect_engines(["sdpa_fwd_prefill", "sdpa_bwd_"])  # cuDNN's own plans, not the package's
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")

        def call(memory=self.memory):
            graph.execute(memory, workspace, handle=handle)
            return result

        return call


def view_of(case, x, rows):
    """Of q, o or their gradients, and of packed k and v: batches of `rows` rows, the most that a sequence has."""
    _, heads, columns = x.shape
    return x, (len(case.lengths), heads, rows, columns), (rows * heads * columns, columns, heads * columns, 1)


def pages_of(x):
    pages, page, heads, columns = x.shape
    return x, (pages, heads, page, columns), (page * heads * columns, columns, heads * columns, 1)


class Graphs:
    """Of one case."""

    def __init__(self, case, cudnn, handle):
        self.case, self.cudnn, self.handle = case, cudnn, handle

    def offsets(self, x, sums):
        """Where sequences begin in a packed tensor, in elements."""
        return sums.long() * x.shape[1] * x.shape[2] if self.case.packed and not self.case.page else None

    def masks(self, tensors):
        """What the calls of both directions take."""
        case, cudnn = self.case, self.cudnn
        how = {"attn_scale": case.d**-0.5}
        if case.packed or case.page:
            queries = case.cu_q.diff().int()
            how |= {"use_padding_mask": True, "seq_len_q": tensors.numbers(queries)}
            how["seq_len_kv"] = tensors.numbers(case.used_k)
        if case.causal and (case.max_q > 1 or case.left >= 0 or not case.page):
            corner = cudnn.diagonal_alignment
            how["diagonal_alignment"] = corner.BOTTOM_RIGHT if case.page else corner.TOP_LEFT
            how["diagonal_band_right_bound"] = 0
        if case.left >= 0:
            how["diagonal_band_left_bound"] = case.left + 1  # the diagonal counts, too
        if case.sinks is not None:
            how["sink_token"] = tensors.input(case.sinks.view(1, -1, 1, 1))
        return how | ({"use_alibi_mask": True} if case.slopes is not None else {})

    def inputs(self, tensors):
        case = self.case
        q = tensors.input(*view_of(case, case.q, case.max_q), offsets=self.offsets(case.q, case.cu_q))
        if case.page:
            return q, *(tensors.input(*pages_of(x)) for x in (case.k, case.v))
        views = ((x, view_of(case, x, case.max_k)) for x in (case.k, case.v))
        return q, *(tensors.input(*view, offsets=self.offsets(x, case.cu_k)) for x, view in views)

    def forward(self, statistics=None):
        """A call that returns o. statistics: receives what the backward pass needs."""
        import torch

        case, tensors = self.case, Tensors(self.cudnn, self.handle)
        out = torch.empty(len(case.q), case.heads, case.dv, dtype=torch.bfloat16, device=case.device)
        q, k, v = self.inputs(tensors)
        how = self.masks(tensors) | {"generate_stats": statistics is not None}
        if case.page:
            table = case.table.view(len(case.lengths), 1, -1, 1)
            how |= {"paged_attention_k_table": tensors.input(table), "paged_attention_v_table": tensors.input(table)}
            how["paged_attention_max_seq_len_kv"] = case.max_k
        o, stats = tensors.graph.sdpa(q=q, k=k, v=v, **how)
        tensors.output(o, *view_of(case, out, case.max_q), offsets=self.offsets(out, case.cu_q))
        if statistics is not None:
            tensors.output(stats, statistics, statistics.shape, statistics.stride())
        return tensors.build(self.handle, out)

    def backward(self):
        """A call that returns dq, dk and dv."""
        import torch

        case, tensors = self.case, Tensors(self.cudnn, self.handle)
        dims = (len(case.lengths), case.heads, case.max_q, 1)
        statistics = torch.empty(dims, dtype=torch.float32, device=case.device)
        out = self.forward(statistics)()
        gradients = [torch.empty_like(x) for x in (case.q, case.k, case.v)]
        q, k, v = self.inputs(tensors)
        o, dout = (
            tensors.input(*view_of(case, x, case.max_q), offsets=self.offsets(x, case.cu_q)) for x in (out, case.dout)
        )
        how = self.masks(tensors)
        if case.packed:
            how |= {"max_total_seq_len_q": len(case.q), "max_total_seq_len_kv": len(case.k)}
        if case.sinks is not None:
            sink = torch.empty(1, case.heads, 1, 1, dtype=torch.float32, device=case.device)
            how["dSink_token"] = tensors.input(sink)
        made = tensors.graph.sdpa_backward(q=q, k=k, v=v, o=o, dO=dout, stats=tensors.input(statistics), **how)
        for node, x, rows, sums in zip(made, gradients, (case.max_q, case.max_k, case.max_k),
                                       (case.cu_q, case.cu_k, case.cu_k)):  # fmt: skip
            tensors.output(node, *view_of(case, x, rows), offsets=self.offsets(x, sums))
        return tensors.build(self.handle, gradients)


def make_cudnn():
    import cudnn

    handle = cudnn.create_handle()

    def prepare(case):
        if case.softcap or case.latent or case.key_scale != 1:
            return None
        if case.page and len(set(case.lengths)) > 1:
            return None  # queries of several lengths over pages
        graphs = Graphs(case, cudnn, handle)
        return graphs.backward() if case.backward else graphs.forward()

    return prepare


PEERS = {"cudnn": make_cudnn}
