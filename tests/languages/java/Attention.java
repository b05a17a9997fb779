import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_SHORT;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** Attention from Java: on the CPU, checked against plain double precision, then on a Hopper GPU.
 *
 * <pre>../declarations.py java ../../../include/fa3.h Fa3.java
 * javac *.java && LD_LIBRARY_PATH=FOLDER_OF_LIBFA3 java --enable-native-access=ALL-UNNAMED Attention</pre> */
public final class Attention {
  static final int BATCH = 2, SEQLEN_Q = 40, SEQLEN_K = 48, HEADS = 4, HEADS_KV = 2, HEAD_DIM = 64;
  static final int Q_SIZE = BATCH * SEQLEN_Q * HEADS * HEAD_DIM, KV_SIZE = BATCH * SEQLEN_K * HEADS_KV * HEAD_DIM;
  static final int LSE_SIZE = BATCH * HEADS * SEQLEN_Q;

  // ---- numbers ---------------------------------------------------------------------------------------------------

  /** The nearest; of two, the even one. */
  static short toBf16(float x) {
    int bits = Float.floatToRawIntBits(x);
    return (short) (bits + 0x7fff + (bits >>> 16 & 1) >>> 16);
  }

  static float at(MemorySegment x, long i) {
    return Float.intBitsToFloat(x.getAtIndex(JAVA_SHORT, i) << 16);
  }

  static long state = 1; // of Lehmer's generator

  /** Between -2 and 2. */
  static MemorySegment randomNumbers(Arena arena, int n) {
    MemorySegment x = arena.allocate(2L * n, 16);
    for (int i = 0; i < n; ++i) {
      state = state * 16807 % 2147483647;
      x.setAtIndex(JAVA_SHORT, i, toBf16((float) (state / 2147483647.0 * 4 - 2)));
    }
    return x;
  }

  static long checksum(MemorySegment... segments) {
    long sum = 0;
    for (MemorySegment x : segments)
      for (short bits : x.toArray(JAVA_SHORT)) sum = (sum * 31 + Short.toUnsignedInt(bits)) % 2147483647;
    return sum;
  }

  // ---- attention, plainly ----------------------------------------------------------------------------------------

  /** O and LSE in double precision. A causal mask that ends in the bottom right corner: query i sees key j if
   * j <= i + seqlen_k - seqlen_q. */
  static void attention(MemorySegment q, MemorySegment k, MemorySegment v, double[] o, double[] lse) {
    for (int b = 0; b < BATCH; ++b)
      for (int h = 0; h < HEADS; ++h)
        for (int i = 0; i < SEQLEN_Q; ++i) {
          int row = ((b * SEQLEN_Q + i) * HEADS + h) * HEAD_DIM;
          double sum = 0;
          for (int j = 0; j <= i + SEQLEN_K - SEQLEN_Q; ++j) {
            int key = ((b * SEQLEN_K + j) * HEADS_KV + h / (HEADS / HEADS_KV)) * HEAD_DIM;
            double score = 0;
            for (int c = 0; c < HEAD_DIM; ++c) score += (double) at(q, row + c) * at(k, key + c);
            double p = Math.exp(score / Math.sqrt(HEAD_DIM));
            for (int c = 0; c < HEAD_DIM; ++c) o[row + c] += p * at(v, key + c);
            sum += p;
          }
          for (int c = 0; c < HEAD_DIM; ++c) o[row + c] /= sum;
          lse[(b * HEADS + h) * SEQLEN_Q + i] = Math.log(sum);
        }
  }

  static void expect(boolean right, String what) {
    if (!right) throw new IllegalStateException(what);
  }

  // ---- parameters ------------------------------------------------------------------------------------------------

  /** All of it on the host, or all on the device. */
  record Problem(MemorySegment q, MemorySegment k, MemorySegment v, MemorySegment o, MemorySegment lse) {
    Fa3.Struct forward(Arena arena) {
      int bf16 = Fa3.FA3_DTYPE_BF16;
      return Fa3.Struct.of(arena, Fa3.FORWARD_PARAMS)
          .set("q", Fa3.tensor(arena, q, bf16, BATCH, SEQLEN_Q, HEADS, HEAD_DIM))
          .set("k", Fa3.tensor(arena, k, bf16, BATCH, SEQLEN_K, HEADS_KV, HEAD_DIM))
          .set("v", Fa3.tensor(arena, v, bf16, BATCH, SEQLEN_K, HEADS_KV, HEAD_DIM))
          .set("o", Fa3.tensor(arena, o, bf16, BATCH, SEQLEN_Q, HEADS, HEAD_DIM))
          .set("lse", Fa3.tensor(arena, lse, Fa3.FA3_DTYPE_FP32, BATCH, HEADS, SEQLEN_Q))
          .set("mask", Fa3.FA3_MASK_CAUSAL_BOTTOM_RIGHT); // softmax_scale 0: 1/sqrt(head_dim)
    }
  }

  // ---- on the CPU ------------------------------------------------------------------------------------------------

  static void onCpu(Problem host, Arena arena) {
    System.out.println("inputs: checksum " + checksum(host.q, host.k, host.v));
    Fa3.Struct params = host.forward(arena);
    Fa3.referenceForward(params, 0);
    double[] o = new double[Q_SIZE], lse = new double[LSE_SIZE];
    attention(host.q, host.k, host.v, o, lse);
    for (int i = 0; i < Q_SIZE; ++i) // half a unit in the last of bf16's 8 bits is at most 2^-8 of the number
      expect(Math.abs(at(host.o, i) - o[i]) <= Math.abs(o[i]) / 256 + 1e-6, "O is not as in double precision");
    for (int i = 0; i < LSE_SIZE; ++i)
      expect(Math.abs(host.lse.getAtIndex(JAVA_FLOAT, i) - lse[i]) <= 1e-6 * Math.max(1, Math.abs(lse[i])),
          "LSE is not as in double precision");
    System.out.println("cpu: O and LSE as in double precision");

    Fa3.Struct k = params.get("k");
    long stride = k.get("stride", 1);
    try {
      k.set("stride", 1, stride + 1);
      Fa3.forwardCheck(params);
      throw new IllegalStateException("a wrong stride was accepted");
    } catch (Fa3.Refused refused) {
      System.out.println("refused: " + refused.getMessage());
    }
    k.set("stride", 1, stride);

    Fa3.forwardCheck(params);
    System.out.println("workspace: " + Fa3.forwardWorkspaceSize(params, 132) + " bytes on 132 multiprocessors");
  }

  // ---- on the GPU ------------------------------------------------------------------------------------------------

  static void onGpu(Problem host, Arena arena) throws Throwable {
    Cuda cuda;
    long bytes;
    try {
      cuda = new Cuda();
      bytes = Fa3.forwardWorkspaceSize(host.forward(arena), 0);
    } catch (IllegalArgumentException | IllegalStateException | Fa3.Refused why) {
      System.out.println("no Hopper GPU: " + why.getMessage());
      return;
    }
    Problem device = new Problem(cuda.copy(host.q), cuda.copy(host.k), cuda.copy(host.v),
        cuda.allocate(host.o.byteSize()), cuda.allocate(host.lse.byteSize()));
    MemorySegment workspace = cuda.allocate(bytes);
    Fa3.forward(device.forward(arena), workspace, bytes, MemorySegment.NULL);

    MemorySegment o = arena.allocate(host.o.byteSize(), 16), lse = arena.allocate(host.lse.byteSize(), 16);
    cuda.copy(device.o, o);
    cuda.copy(device.lse, lse);
    float largest = 0;
    for (int i = 0; i < Q_SIZE; ++i) largest = Math.max(largest, Math.abs(at(host.o, i)));
    for (int i = 0; i < Q_SIZE; ++i) // a few roundings to bf16, which has 8 bits, may lie between them
      expect(Math.abs(at(o, i) - at(host.o, i)) <= largest / 64, "O is not as on the CPU");
    for (int i = 0; i < LSE_SIZE; ++i)
      expect(Math.abs(lse.getAtIndex(JAVA_FLOAT, i) - host.lse.getAtIndex(JAVA_FLOAT, i)) <= 1e-4f,
          "LSE is not as on the CPU");
    System.out.println("gpu: O and LSE as on the CPU");
    for (MemorySegment memory : new MemorySegment[] {device.q, device.k, device.v, device.o, device.lse, workspace})
      cuda.free(memory);
  }

  public static void main(String[] arguments) throws Throwable {
    if (arguments.length > 0 && arguments[0].equals("--layout")) {
      Layout.print();
      return;
    }
    try (Arena arena = Arena.ofConfined()) {
      Problem host = new Problem(randomNumbers(arena, Q_SIZE), randomNumbers(arena, KV_SIZE),
          randomNumbers(arena, KV_SIZE), arena.allocate(2L * Q_SIZE, 16), arena.allocate(4L * LSE_SIZE, 16));
      onCpu(host, arena);
      onGpu(host, arena);
    } catch (IllegalStateException | Fa3.Refused error) {
      System.out.println("failed: " + error.getMessage());
      System.exit(1);
    }
  }
}
