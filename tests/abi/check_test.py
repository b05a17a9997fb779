#!/usr/bin/env python3
"""The check of the ABI notices every kind of change of the header, and tells those that clients survive from others.

usage: check_test.py CHECK HEADER -- C COMPILER
"""
import pathlib
import subprocess
import sys
import tempfile

check, header, _, *compiler = sys.argv[1:]
SAME, BROKEN, COMPATIBLE, SKIPPED = 0, 1, 2, 77
text = pathlib.Path(header).read_text()

# A field more at the end of a struct.
APPENDED = ("\n} fa3_backward_params;", "\n  fa3_tensor more;\n} fa3_backward_params;")
# A field more before another of that struct, and two of its fields reordered.
INSERTED = ("  fa3_tensor dv;  ", "  int64_t inserted;\n  fa3_tensor dv;  ")
REORDERED = ("  int32_t max_seqlen_q;\n  int32_t max_seqlen_k;\n", "  int32_t max_seqlen_k;\n  int32_t max_seqlen_q;\n")
# What changes, the old text, the new one, and what the check must say.
CHANGES = [
    ("a comment", "/* ---- status", "/* ---- statuses", SAME),
    ("the version", "#define FA3_VERSION_MINOR ", "#define FA3_VERSION_MINOR 1", SAME),
    ("a function removed", "FA3_API int fa3_abi_version(void);", "", BROKEN),
    ("a function renamed", "fa3_status fa3_preload(void)", "fa3_status fa3_load(void)", BROKEN),
    ("a parameter's type", "fa3_kernel_info_at(int index,", "fa3_kernel_info_at(int64_t index,", BROKEN),
    ("a parameter more", "fa3_combine(const fa3_combine_params* params, fa3_stream stream)",
     "fa3_combine(const fa3_combine_params* params, fa3_stream stream, int flags)", BROKEN),
    ("a parameter's struct", "fa3_combine_check(const fa3_combine_params* params)",
     "fa3_combine_check(const fa3_quantize_params* params)", BROKEN),
    ("a result's type", "FA3_API int fa3_kernel_count(void);", "FA3_API int64_t fa3_kernel_count(void);", BROKEN),
    ("a field inserted", *INSERTED, BROKEN),
    ("fields of one size reordered", *REORDERED, BROKEN),
    ("a field resized", "  int32_t mask;        /* fa3_mask */\n"
     "  float softmax_scale; /* > 0, at most 2.3e38; 0: 1/sqrt(head_dim), with qv 1/sqrt(head_dim + head_dim_v) */\n",
     "  int64_t mask;\n  float softmax_scale;\n  int32_t rest;\n", BROKEN),
    ("a field's type, of the same size", "  int32_t reserved;      /* 0 */\n} fa3_q",
     "  float reserved;\n} fa3_q", BROKEN),
    ("a field renamed", "  int32_t reserved;      /* 0 */\n} fa3_q", "  int32_t more;\n} fa3_q", BROKEN),
    ("fields removed at the end", "  fa3_tensor v_mean;\n  fa3_tensor lse_offset;\n} fa3_backward_params;",
     "} fa3_backward_params;", BROKEN),
    ("a field appended to fa3_tensor", "  int64_t stride[FA3_MAX_RANK]; ",
     "  int64_t more;\n  int64_t stride[FA3_MAX_RANK]; ", BROKEN),
    ("a field appended, and one resized", "  char name[64]; ", "  char name[72]; ", BROKEN, "  int64_t pieces; ",
     "  int64_t more; int64_t pieces; "),
    ("a field appended, and another inserted", *APPENDED, BROKEN, *INSERTED),
    ("a field appended, and two reordered", *APPENDED, BROKEN, *REORDERED),
    ("an enumerator's value", "FA3_DTYPE_E4M3 = 4", "FA3_DTYPE_E4M3 = 6", BROKEN),
    ("an enumerator removed", "  FA3_ERROR_CUDA = 8,  ", "  ", BROKEN),
    ("a status' value", "FA3_ERROR_UNSUPPORTED = 2", "FA3_ERROR_UNSUPPORTED = 12", BROKEN),
    ("a flag's bit", "FA3_QUANTIZE_ROTARY_INTERLEAVED = 2", "FA3_QUANTIZE_ROTARY_INTERLEAVED = 4", BROKEN),
    ("a forward flag's bit", "FA3_FLAG_TWO_LEVEL = 2", "FA3_FLAG_TWO_LEVEL = 8", BROKEN),
    ("a kind of kernels", "FA3_KERNEL_PASS = 3", "FA3_KERNEL_PASS = 5", BROKEN),
    ("the rank of tensors", "#define FA3_MAX_RANK 5", "#define FA3_MAX_RANK 6", BROKEN),
    ("rows of a scale", "#define FA3_SCALE_ROWS 64", "#define FA3_SCALE_ROWS 128", BROKEN),
    ("a constant removed", "#define FA3_FORWARD_WORKSPACE_BYTES 64\n", "", BROKEN),
    ("an initialiser", "#define FA3_TENSOR_INIT {NULL, 0, 0, {0}, {0}}",
     "#define FA3_TENSOR_INIT {NULL, 0, 4, {0}, {0}}", BROKEN),
    ("an initialiser that gets shorter", "{sizeof(fa3_combine_params), 0, FA3_TENSOR_INIT, ",
     "{sizeof(fa3_combine_params), 0, ", BROKEN),
    ("the ABI's number", "#define FA3_ABI_VERSION ", "#define FA3_ABI_VERSION 1", BROKEN),
    ("a field appended", *APPENDED, COMPATIBLE),
    ("a field appended, with its initialiser", "\n} fa3_combine_params;",
     "\n  fa3_tensor more;\n} fa3_combine_params;", COMPATIBLE,
     "{sizeof(fa3_combine_params), 0, FA3_TENSOR_INIT, ", "{sizeof(fa3_combine_params), 0, FA3_TENSOR_INIT, "
     "FA3_TENSOR_INIT, "),
    ("a field appended to the info", "} fa3_kernel_info;", "  int64_t more;\n} fa3_kernel_info;", COMPATIBLE),
    ("a new function", "FA3_API int fa3_abi_version(void);", "FA3_API int fa3_abi_version(void);\n"
     "FA3_API fa3_status fa3_more(const fa3_forward_params* params);", COMPATIBLE),
    ("a new enumerator", "FA3_DTYPE_E4M3 = 4,", "FA3_DTYPE_MORE = 7, FA3_DTYPE_E4M3 = 4,", COMPATIBLE),
    ("a new flag", "FA3_FLAG_TWO_LEVEL = 2", "FA3_FLAG_TWO_LEVEL = 2, FA3_FLAG_MORE = 4", COMPATIBLE),
    ("a new struct", "typedef enum fa3_kernel_kind {", "typedef struct fa3_more {\n  size_t struct_size;\n} fa3_more;\n"
     "typedef enum fa3_kernel_kind {", COMPATIBLE),
    ("a new constant", "#define FA3_MAX_RANK 5", "#define FA3_MAX_RANK 5\n#define FA3_MORE 5", COMPATIBLE),
]

wrong = 0
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    changed = folder / "fa3.h"

    def ask(new, *options):
        changed.write_text(new)
        command = [sys.executable, "-B", check, "--header", changed, "--baseline", folder, *options, "--", *compiler]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    # The baseline is that of the header as it is, whatever is committed.
    if ask(text, "--renew").returncode == SKIPPED:
        print(ask(text).stdout)
        sys.exit(SKIPPED)
    for what, old, new, expected, *second in CHANGES:
        mutant = text.replace(old, new, 1)
        assert mutant != text, f"{what}: the header has no {old!r}"
        if second:
            assert second[0] in mutant, f"{what}: the header has no {second[0]!r}"
            mutant = mutant.replace(*second, 1)
        done = ask(mutant)
        says_so = {SAME: done.stdout == "", BROKEN: "\nBROKEN: " in done.stdout,
                   COMPATIBLE: "\ncompatible: " in done.stdout}
        if done.returncode != expected or not says_so[expected]:
            wrong += 1
            print(f"{what}: exit status {done.returncode}, expected {expected}\n{done.stdout}")
print(f"{len(CHANGES)} changes, {wrong} of them misjudged")
sys.exit(wrong > 0)
