"""The paper's own algorithms among the library's kernels: what each is, and the paper's figure. Which kernels there are
the library knows; a test compares the two."""

import collections

Algorithm = collections.namedtuple("Algorithm", "what figure")

# By the first cell of the kernel's name. Figures: TFLOP/s in FP16 on an H100.
ALGORITHMS = {
    "alg2pp": Algorithm("Algorithm 2, pingpong: FlashAttention-3", "661"),
    "alg2asis": Algorithm("  without pingpong", ""),
    "alg2": Algorithm("    in the paper's order, against ptxas", ""),
    "alg1pp": Algorithm("Algorithm 1, pingpong: no GEMM-softmax overlap", "620-640"),
    "alg1": Algorithm("  without pingpong", "582"),
    "alg2nows": Algorithm("Algorithm 2, no warp specialization", "570"),
    "alg4asis": Algorithm("Algorithm 4: 3-stage pipeline", "<2-stage"),
    "alg4": Algorithm("  in the paper's order, against ptxas", ""),
}

# fa3-bench's options for the paper's ablations: all of them and the library's own choice, at the point of its Table 2.
KERNELS = ["--kernel", ",".join([*ALGORITHMS, "auto"])]
TABLE_2 = ["--set", "table2"]


def first_cell(kernel):
    """alg2 of fa3_alg2_bf16_..."""
    return kernel.split("_")[1]
