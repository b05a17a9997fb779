"""The paper's own algorithms among the kernels of a build with -Dpaper=true: what each is, and the paper's figure. Which
kernels there are the library knows; a test compares the two."""

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
BACKWARD = {
    "alg3asis": Algorithm("Algorithm 3: FlashAttention-3, backward", "581"),
    "alg3": Algorithm("  in the paper's order, against ptxas", ""),
}

# By fa3-bench's directions.
DIRECTIONS = {"fwd": ALGORITHMS, "bwd": BACKWARD}

# fa3-bench's options for the point of the paper's Table 2.
TABLE_2 = ["--set", "table2"]


def kernels(direction):
    """fa3-bench's options for all of a direction's and the library's own choice."""
    return ["--direction", direction, "--kernel", ",".join([*DIRECTIONS[direction], "auto"])]


def first_cell(kernel):
    """alg2 of fa3_alg2_bf16_..."""
    return kernel.split("_")[1]
