"""FlashInfer's calls, by its wrappers, of which each plans before it runs: varlen sequences, pages, sinks and latent
caches. It compiles its modules at the first call, for minutes, and nothing else is to be timed meanwhile: run it once
before. See serving_calls.py for what makers return."""

WORKSPACE = 256 << 20


def pages_of(case):
    """Where the pages of each sequence begin in the list of all, that list, and the keys in each last page."""
    import torch

    counts = [-(-n // case.page) for n in case.lengths_k]
    begins = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).int()
    pages = torch.cat([row[:count] for row, count in zip(case.table, counts)]).int().contiguous()
    last = torch.tensor([(n - 1) % case.page + 1 for n in case.lengths_k], dtype=torch.int32)
    return begins.to(case.device), pages, last.to(case.device)


def make_flashinfer(backend):
    """backend: its FlashAttention-3 or its FlashAttention-2."""

    def make():
        import flashinfer
        import torch

        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")
        bf16 = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}

        def latent(case):
            begins, pages, _ = pages_of(case)
            wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, backend=backend)
            wrapper.plan(case.cu_q, begins, pages, case.used_k, case.heads, case.dv, case.d - case.dv, case.page,
                         case.max_q > 1, case.d**-0.5, torch.bfloat16, torch.bfloat16)  # fmt: skip
            parts = lambda x: (x[..., : case.dv].contiguous(), x[..., case.dv :].contiguous())
            (qn, qr), (kn, kr) = parts(case.q), parts(case.k.squeeze(2))
            return lambda: wrapper.run(qn, qr, kn, kr)

        def with_sinks(case):
            begins, pages, last = pages_of(case)
            wrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper(
                workspace, "NHD", backend=backend, **bf16, head_dim_qk=case.d, head_dim_vo=case.dv,
                window_left=case.left,
            )  # fmt: skip
            wrapper.plan(case.cu_q, begins, pages, last, case.heads, case.kv_heads, case.d, case.page, causal=True,
                         window_left=case.left, **bf16)  # fmt: skip
            return lambda: wrapper.run(case.q, (case.k, case.v), case.sinks, case.d**-0.5)

        def paged(case):
            begins, pages, last = pages_of(case)
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)
            wrapper.plan(case.cu_q, begins, pages, last, case.heads, case.kv_heads, case.d, case.page, causal=True,
                         window_left=case.left, **bf16)  # fmt: skip
            return lambda: wrapper.run(case.q, (case.k, case.v))

        def packed(case):
            wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend=backend)
            wrapper.plan(case.cu_q, case.cu_k, case.heads, case.kv_heads, case.d, causal=True, window_left=case.left,
                         logits_soft_cap=case.softcap or None, **bf16)  # fmt: skip
            return lambda: wrapper.run(case.q, case.k, case.v)

        def prepare(case):
            if case.backward or case.slopes is not None or case.key_scale != 1:
                return None
            if case.latent:
                return latent(case)
            if case.sinks is not None:
                return with_sinks(case) if case.page else None
            return paged(case) if case.page else packed(case)

        return prepare

    return make


PEERS = {f"fi-{backend}": make_flashinfer(backend) for backend in ("fa3", "fa2")}
