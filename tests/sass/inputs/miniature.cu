// The forward loop in miniature (d = 64, 16 keys a block), as it should be and, by macro, wrong in one way each. It is
// only ever disassembled: fa3-sass must name the right rule.
//   TOUCHED    O is rescaled while PV is in flight; ptxas gives the pipeline up
//   STARVED    more values are alive than there are registers
//   EARLY      PV is waited for before the softmax
//   REQUIRED   as it should be, and beside it kernels without WGMMAs
#include <cstdint>

#ifdef STARVED
constexpr int carried = 64;
#define REGISTERS __maxnreg__(64)
#else
constexpr int carried = 1;
#define REGISTERS
#endif

template <int add>
__device__ void qk(float (&s)[8], uint64_t q, uint64_t k) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, 1, 1, 0, 0;}"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7])
      : "l"(q), "l"(k), "n"(add));
}

__device__ void pv(float (&o)[32], const uint32_t (&p)[4], uint64_t v) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
      : "+f"(o[0]), "+f"(o[1]), "+f"(o[2]), "+f"(o[3]), "+f"(o[4]), "+f"(o[5]), "+f"(o[6]), "+f"(o[7]), "+f"(o[8]),
        "+f"(o[9]), "+f"(o[10]), "+f"(o[11]), "+f"(o[12]), "+f"(o[13]), "+f"(o[14]), "+f"(o[15]), "+f"(o[16]),
        "+f"(o[17]), "+f"(o[18]), "+f"(o[19]), "+f"(o[20]), "+f"(o[21]), "+f"(o[22]), "+f"(o[23]), "+f"(o[24]),
        "+f"(o[25]), "+f"(o[26]), "+f"(o[27]), "+f"(o[28]), "+f"(o[29]), "+f"(o[30]), "+f"(o[31])
      : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v));
}

__device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int left>
__device__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

__device__ bool ready(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done;
}

extern "C" __global__ void REGISTERS miniature(float* out, uint64_t q, uint64_t k, uint64_t v, uint32_t barrier,
                                               int blocks, float c, float m) {
  float s[8], o[32] = {}, l = 0, values[carried] = {};
  uint32_t p[4] = {};
#pragma unroll 1
  for (int j = 0; j < blocks; j++) {
    while (!ready(barrier, j & 1)) {
    }
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    qk<0>(s, q, k);
    qk<1>(s, q + 2, k + 2);
    qk<1>(s, q + 4, k + 4);
    qk<1>(s, q + 6, k + 6);
    commit();
    pv(o, p, v);
    commit();
#ifdef TOUCHED
    for (float& x : o) x *= c;
#endif
#ifdef EARLY
    wait<0>();
#else
    wait<1>();
#endif
    float sum = 0;
    for (float& x : s) {
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x * c - m));
      sum += x;
    }
    l += sum;
    for (int i = 0; i < carried; i++) values[i] = values[i] * sum + i;
    // A rare branch, as the real kernels have: ptxas does not move the wait above it.
    if (__any_sync(0xffffffffu, sum > 0x1p20f)) {
      for (int i = 0; i < 8; i++) out[1024 + 8 * threadIdx.x + i] = s[i];
      m += __shfl_xor_sync(0xffffffffu, sum, 1);
    }
#ifndef EARLY
    wait<0>();
#endif
    for (int i = 0; i < 4; i++) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(p[i]) : "f"(s[2 * i + 1]), "f"(s[2 * i]));
  }
  for (float x : o) l += x;
  for (float x : values) l += x;
  out[threadIdx.x] = l;
}

#ifdef REQUIRED
// .reqntid: a block has as many threads as this, always. No WGMMAs, no calls, no stack.
extern "C" __global__ void __block_size__((96, 2, 1)) required(float* out) { out[threadIdx.x] = 1; }

// Calls of functions behind the kernel's own code: a division's rare case, which computes no exponential; and one that
// does.
extern "C" __global__ void divided(float* out) { out[threadIdx.x] = __fdiv_rn(out[threadIdx.x], out[0]); }
__noinline__ __device__ float power(float x) { return exp2f(x) * x; }
extern "C" __global__ void raised(float* out) { out[threadIdx.x] = power(power(out[threadIdx.x])); }
#endif
