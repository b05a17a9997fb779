// wgmma: asynchronous products of a warpgroup (PTX ISA, Asynchronous Warpgroup Level Matrix Multiply-
// Accumulate Instructions).
//
// D (64 x n, float32, in registers) += A (64 x k) B (k x n). Wrappers are overloaded on the accumulator array: n / 2
// registers a thread, n 8 or a multiple of 16. Thread t of the warpgroup (warp w = t / 32, lane l = t % 32) holds
// D[16 w + l / 4 + 8 i][8 g + 2 (l % 4) + c] in d[4 g + 2 i + c].
//   _ss: A and B are described by shared-memory descriptors (tile/gemm.cuh).
//   _rs: A comes from registers, four a k-step.
// scale_d == 0 overwrites D instead of adding to it. TransA is 1 if A is stored with its rows contiguous, TransB if B
// is with n contiguous; 8-bit types have no such choice, their k is always contiguous. Their sums are kept to about 13
// bits and cut off, not rounded.
//
// A wgmma runs on after the instruction: its accumulators and register operands belong to it until the wgmma.wait_group
// that covers its group. ptxas serialises the pipeline (C7510 .. C7515) if the code touches them earlier.
#pragma once
#include "common.cuh"

namespace fa3::ptx {

// ptx: wgmma.fence.sync.aligned;  (wgmma.fence)
FA3_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// ptx: wgmma.commit_group.sync.aligned;  (wgmma.commit_group)
FA3_DEVICE void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// ptx: wgmma.wait_group.sync.aligned Pending;  (wgmma.wait_group)
template <int Pending>
FA3_DEVICE void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// No instruction: tells the compiler that the registers change here, so that nothing which reads them moves above.
// Used on what a wgmma in flight owns, right after the wait that gives it back.
template <int Count>
FA3_DEVICE void wgmma_owned(float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; i++) asm volatile("" : "+f"(d[i])::"memory");
}
// No instruction: the same for register operands.
template <int Count>
FA3_DEVICE void wgmma_owned(uint32_t (&a)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; i++) asm volatile("" : "+r"(a[i])::"memory");
}

// Operand lists. FA3_LIST_n: the first n operands; FA3_OUT_n(d): the constraints of d[0 .. n-1].
#define FA3_LIST_4 "%0, %1, %2, %3"
#define FA3_LIST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FA3_LIST_16 FA3_LIST_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FA3_LIST_24 FA3_LIST_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FA3_LIST_32 FA3_LIST_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define FA3_LIST_40 FA3_LIST_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FA3_LIST_48 FA3_LIST_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FA3_LIST_56 FA3_LIST_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define FA3_LIST_64 FA3_LIST_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define FA3_LIST_72 FA3_LIST_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define FA3_LIST_80 FA3_LIST_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define FA3_LIST_88 FA3_LIST_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define FA3_LIST_96 FA3_LIST_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define FA3_LIST_104 FA3_LIST_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define FA3_LIST_112 FA3_LIST_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define FA3_LIST_120 FA3_LIST_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define FA3_LIST_128 FA3_LIST_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define FA3_OUT(d, i)                                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define FA3_OUT_4(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define FA3_OUT_8(d) FA3_OUT(d, 0)
#define FA3_OUT_16(d) FA3_OUT_8(d), FA3_OUT(d, 8)
#define FA3_OUT_24(d) FA3_OUT_16(d), FA3_OUT(d, 16)
#define FA3_OUT_32(d) FA3_OUT_24(d), FA3_OUT(d, 24)
#define FA3_OUT_40(d) FA3_OUT_32(d), FA3_OUT(d, 32)
#define FA3_OUT_48(d) FA3_OUT_40(d), FA3_OUT(d, 40)
#define FA3_OUT_56(d) FA3_OUT_48(d), FA3_OUT(d, 48)
#define FA3_OUT_64(d) FA3_OUT_56(d), FA3_OUT(d, 56)
#define FA3_OUT_72(d) FA3_OUT_64(d), FA3_OUT(d, 64)
#define FA3_OUT_80(d) FA3_OUT_72(d), FA3_OUT(d, 72)
#define FA3_OUT_88(d) FA3_OUT_80(d), FA3_OUT(d, 80)
#define FA3_OUT_96(d) FA3_OUT_88(d), FA3_OUT(d, 88)
#define FA3_OUT_104(d) FA3_OUT_96(d), FA3_OUT(d, 96)
#define FA3_OUT_112(d) FA3_OUT_104(d), FA3_OUT(d, 104)
#define FA3_OUT_120(d) FA3_OUT_112(d), FA3_OUT(d, 112)
#define FA3_OUT_128(d) FA3_OUT_120(d), FA3_OUT(d, 120)

// The predicate operand scale-d has no register constraint in inline assembly, hence the setp.
// r is n / 2 and r1 .. r6 are the operand numbers after it.
#define FA3_WGMMA_TYPE(type, n, r, r1, r2, r3, r4, r5, r6)                                                             \
  /* ptx: wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{type}.{type} {d}, a, b, scale_d, 1, 1, TransA, TransB;          \
          (wgmma.mma_async) */                                                                                         \
  template <int TransA, int TransB>                                                                                    \
  FA3_DEVICE void wgmma_m64k16_f32_##type##_ss(float (&d)[r], uint64_t a, uint64_t b, int scale_d) {                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r2 ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type                                     \
                 " {" FA3_LIST_##r "}, %" #r ", %" #r1 ", p, 1, 1, %" #r3 ", %" #r4 ";\n}\n"                           \
                 : FA3_OUT_##r(d)                                                                                      \
                 : "l"(a), "l"(b), "r"(scale_d), "n"(TransA), "n"(TransB));                                            \
  }                                                                                                                    \
  /* ptx: wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{type}.{type} {d}, {a0, a1, a2, a3}, b, scale_d, 1, 1, TransB;   \
          (wgmma.mma_async) */                                                                                         \
  template <int TransB>                                                                                                \
  FA3_DEVICE void wgmma_m64k16_f32_##type##_rs(float (&d)[r], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,      \
                                               uint64_t b, int scale_d) {                                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r5 ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." #type "." #type                                     \
                 " {" FA3_LIST_##r "}, {%" #r ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #r4 ", p, 1, 1, %" #r6 ";\n}\n"     \
                 : FA3_OUT_##r(d)                                                                                      \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(scale_d), "n"(TransB));                             \
  }

#define FA3_WGMMA_8BIT(type, n, r, r1, r2, r3, r4, r5)                                                                 \
  /* ptx: wgmma.mma_async.sync.aligned.m64n{n}k32.f32.{type}.{type} {d}, a, b, scale_d, 1, 1;  (wgmma.mma_async) */    \
  FA3_DEVICE void wgmma_m64k32_f32_##type##_ss(float (&d)[r], uint64_t a, uint64_t b, int scale_d) {                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r2 ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." #type "." #type                                     \
                 " {" FA3_LIST_##r "}, %" #r ", %" #r1 ", p, 1, 1;\n}\n"                                               \
                 : FA3_OUT_##r(d)                                                                                      \
                 : "l"(a), "l"(b), "r"(scale_d));                                                                      \
  }                                                                                                                    \
  /* ptx: wgmma.mma_async.sync.aligned.m64n{n}k32.f32.{type}.{type} {d}, {a0, a1, a2, a3}, b, scale_d, 1, 1;           \
          (wgmma.mma_async) */                                                                                         \
  FA3_DEVICE void wgmma_m64k32_f32_##type##_rs(float (&d)[r], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,      \
                                               uint64_t b, int scale_d) {                                              \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r5 ", 0;\n"                                                     \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." #type "." #type                                     \
                 " {" FA3_LIST_##r "}, {%" #r ", %" #r1 ", %" #r2 ", %" #r3 "}, %" #r4 ", p, 1, 1;\n}\n"               \
                 : FA3_OUT_##r(d)                                                                                      \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(scale_d));                                          \
  }

#define FA3_WGMMA(n, r, r1, r2, r3, r4, r5, r6)      \
  FA3_WGMMA_TYPE(bf16, n, r, r1, r2, r3, r4, r5, r6) \
  FA3_WGMMA_TYPE(f16, n, r, r1, r2, r3, r4, r5, r6)  \
  FA3_WGMMA_8BIT(e4m3, n, r, r1, r2, r3, r4, r5)
FA3_WGMMA(8, 4, 5, 6, 7, 8, 9, 10)
FA3_WGMMA(16, 8, 9, 10, 11, 12, 13, 14)
FA3_WGMMA(32, 16, 17, 18, 19, 20, 21, 22)
FA3_WGMMA(48, 24, 25, 26, 27, 28, 29, 30)
FA3_WGMMA(64, 32, 33, 34, 35, 36, 37, 38)
FA3_WGMMA(80, 40, 41, 42, 43, 44, 45, 46)
FA3_WGMMA(96, 48, 49, 50, 51, 52, 53, 54)
FA3_WGMMA(112, 56, 57, 58, 59, 60, 61, 62)
FA3_WGMMA(128, 64, 65, 66, 67, 68, 69, 70)
FA3_WGMMA(144, 72, 73, 74, 75, 76, 77, 78)
FA3_WGMMA(160, 80, 81, 82, 83, 84, 85, 86)
FA3_WGMMA(176, 88, 89, 90, 91, 92, 93, 94)
FA3_WGMMA(192, 96, 97, 98, 99, 100, 101, 102)
FA3_WGMMA(208, 104, 105, 106, 107, 108, 109, 110)
FA3_WGMMA(224, 112, 113, 114, 115, 116, 117, 118)
FA3_WGMMA(240, 120, 121, 122, 123, 124, 125, 126)
FA3_WGMMA(256, 128, 129, 130, 131, 132, 133, 134)

#undef FA3_WGMMA
#undef FA3_WGMMA_TYPE
#undef FA3_WGMMA_8BIT

}  // namespace fa3::ptx
