import static java.lang.foreign.MemoryLayout.PathElement.groupElement;
import static java.lang.foreign.MemoryLayout.sequenceLayout;
import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** fa3.h for java.lang.foreign (Java 22 and newer): constants, structs and functions as they are in C. fa3.h is the
 * manual. Functions that are refused throw {@link Refused}, with the library's words. */
public final class Fa3 {
  public static final int FA3_OK = 0;
  public static final int FA3_ERROR_INVALID_ARGUMENT = 1;
  public static final int FA3_ERROR_UNSUPPORTED = 2;
  public static final int FA3_ERROR_WORKSPACE_TOO_SMALL = 3;
  public static final int FA3_ERROR_NO_DRIVER = 4;
  public static final int FA3_ERROR_NO_CONTEXT = 5;
  public static final int FA3_ERROR_WRONG_DEVICE = 6;
  public static final int FA3_ERROR_NOT_LOADED = 7;
  public static final int FA3_ERROR_CUDA = 8;
  public static final int FA3_ERROR_OUT_OF_MEMORY = 9;

  public static final int FA3_DTYPE_NONE = 0;
  public static final int FA3_DTYPE_BF16 = 1;
  public static final int FA3_DTYPE_FP16 = 2;
  public static final int FA3_DTYPE_FP32 = 3;
  public static final int FA3_DTYPE_E4M3 = 4;
  public static final int FA3_DTYPE_E5M2 = 5;
  public static final int FA3_DTYPE_INT32 = 6;
  public static final int FA3_DTYPE_INT64 = 7;

  public static final int FA3_MASK_NONE = 0;
  public static final int FA3_MASK_CAUSAL_TOP_LEFT = 1;
  public static final int FA3_MASK_CAUSAL_BOTTOM_RIGHT = 2;
  public static final int FA3_MASK_WINDOW = 3;
  public static final int FA3_MASK_CHUNK = 4;

  public static final int FA3_FLAG_DETERMINISTIC = 1;
  public static final int FA3_FLAG_TWO_LEVEL = 2;
  public static final int FA3_FLAG_BATCH_INVARIANT = 4;
  public static final int FA3_FLAG_CENTERED_K = 8;
  public static final int FA3_FLAG_ACCUMULATE = 16;
  public static final int FA3_QUANTIZE_INCOHERENT = 1;
  public static final int FA3_QUANTIZE_ROTARY_INTERLEAVED = 2;
  public static final int FA3_APPEND_ROTARY_INTERLEAVED = 1;

  public static final int FA3_KERNEL_FORWARD = 1;
  public static final int FA3_KERNEL_BACKWARD = 2;
  public static final int FA3_KERNEL_PASS = 3;

  public static final int FA3_MAX_RANK = 5;
  public static final int FA3_SCALE_ROWS = 64;
  public static final int FA3_LATENT_SCALE_COLUMNS = 128;
  public static final int FA3_FORWARD_WORKSPACE_BYTES = 64;

  // ---- structs ---------------------------------------------------------------------------------------------------

  public static final StructLayout TENSOR = struct("fa3_tensor",
      ADDRESS.withName("data"), JAVA_INT.withName("dtype"), JAVA_INT.withName("rank"),
      sequenceLayout(FA3_MAX_RANK, JAVA_LONG).withName("dim"),
      sequenceLayout(FA3_MAX_RANK, JAVA_LONG).withName("stride"));

  public static final StructLayout FORWARD_PARAMS = struct("fa3_forward_params",
      JAVA_LONG.withName("struct_size"), JAVA_LONG.withName("flags"), tensors("q", "k", "v", "o", "lse"),
      JAVA_INT.withName("mask"), JAVA_FLOAT.withName("softmax_scale"), ADDRESS.withName("kernel"),
      tensors("q_scale", "k_scale", "v_scale", "o_scale", "v_mean", "lse_offset"),
      ints("window_left", "window_right", "max_seqlen_q", "max_seqlen_k"),
      tensors("sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k", "page_table",
          "cache_batch_idx"),
      ADDRESS.withName("schedule"), JAVA_LONG.withName("schedule_bytes"), JAVA_FLOAT.withName("softcap"),
      JAVA_INT.withName("reserved"), tensors("alibi_slopes", "qv"));

  public static final StructLayout BACKWARD_PARAMS = struct("fa3_backward_params",
      JAVA_LONG.withName("struct_size"), JAVA_LONG.withName("flags"),
      tensors("q", "k", "v", "o", "lse", "dout", "dq", "dk", "dv"),
      JAVA_INT.withName("mask"), JAVA_FLOAT.withName("softmax_scale"), ADDRESS.withName("kernel"), tensors("dlse"),
      ints("window_left", "window_right"),
      tensors("sinks", "dsinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"),
      ints("max_seqlen_q", "max_seqlen_k"), JAVA_FLOAT.withName("softcap"), JAVA_INT.withName("reserved"),
      tensors("alibi_slopes", "q_scale", "k_scale", "v_scale", "v_mean", "lse_offset"));

  public static final StructLayout QUANTIZE_PARAMS = struct("fa3_quantize_params",
      JAVA_LONG.withName("struct_size"), JAVA_LONG.withName("flags"), JAVA_LONG.withName("seed"),
      tensors("x", "y", "scale", "mean", "rotary_cos", "rotary_sin", "k_mean", "lse_offset"),
      JAVA_FLOAT.withName("softmax_scale"), JAVA_INT.withName("reserved"));

  public static final StructLayout APPEND_PARAMS = struct("fa3_append_params",
      JAVA_LONG.withName("struct_size"), JAVA_LONG.withName("flags"),
      tensors("k", "v", "k_cache", "v_cache", "cache_seqlens", "cu_seqlens_new", "seqused_new", "page_table",
          "cache_batch_idx", "slot_mapping", "q", "q_out", "rotary_cos", "rotary_sin", "rotary_positions", "k_scale",
          "v_scale", "q_scale"));

  public static final StructLayout COMBINE_PARAMS = struct("fa3_combine_params",
      JAVA_LONG.withName("struct_size"), JAVA_LONG.withName("flags"), tensors("o_parts", "lse_parts", "o", "lse"));

  public static final StructLayout KERNEL_INFO = struct("fa3_kernel_info",
      JAVA_LONG.withName("struct_size"), sequenceLayout(64, JAVA_BYTE).withName("name"),
      ints("kind", "dtype", "head_dim", "head_dim_v", "causal", "block_q", "block_kv", "stages", "threads",
          "producer_registers", "consumer_registers", "shared_memory_bytes", "chosen", "launches", "grid",
          "multiprocessors"),
      JAVA_LONG.withName("tiles"), JAVA_LONG.withName("pieces"));

  private static MemoryLayout[] tensors(String... names) {
    return Arrays.stream(names).map(TENSOR::withName).toArray(MemoryLayout[]::new);
  }

  private static MemoryLayout[] ints(String... names) {
    return Arrays.stream(names).map(JAVA_INT::withName).toArray(MemoryLayout[]::new);
  }

  /** Of members and arrays of members. */
  private static StructLayout struct(String name, Object... members) {
    List<MemoryLayout> all = new ArrayList<>();
    for (Object member : members)
      if (member instanceof MemoryLayout[] several) all.addAll(List.of(several));
      else all.add((MemoryLayout) member);
    return MemoryLayout.structLayout(all.toArray(MemoryLayout[]::new)).withName(name);
  }

  /** A struct in memory, whose members are set and asked by name. */
  public record Struct(MemorySegment memory, StructLayout layout) {
    /** Zeroed, which means "default" or "none", and with its struct_size. */
    public static Struct of(Arena arena, StructLayout layout) {
      Struct struct = new Struct(arena.allocate(layout), layout);
      return layout == TENSOR ? struct : struct.set("struct_size", layout.byteSize());
    }

    private MemorySegment member(String name) {
      return memory.asSlice(layout.byteOffset(groupElement(name)), layout.select(groupElement(name)));
    }

    public Struct set(String name, int value) {
      member(name).set(JAVA_INT, 0, value);
      return this;
    }

    public Struct set(String name, long value) {
      member(name).set(JAVA_LONG, 0, value);
      return this;
    }

    public Struct set(String name, float value) {
      member(name).set(JAVA_FLOAT, 0, value);
      return this;
    }

    public Struct set(String name, MemorySegment address) {
      member(name).set(ADDRESS, 0, address);
      return this;
    }

    public Struct set(String name, Struct value) {
      member(name).copyFrom(value.memory);
      return this;
    }

    public Struct get(String name) {
      return new Struct(member(name), (StructLayout) layout.select(groupElement(name)));
    }

    public long get(String name, int index) {
      return member(name).getAtIndex(JAVA_LONG, index);
    }

    public Struct set(String name, int index, long value) {
      member(name).setAtIndex(JAVA_LONG, index, value);
      return this;
    }
  }

  /** A tensor without gaps. */
  public static Struct tensor(Arena arena, MemorySegment data, int dtype, long... dims) {
    Struct tensor = Struct.of(arena, TENSOR).set("data", data).set("dtype", dtype).set("rank", dims.length);
    for (int i = 0; i < dims.length; ++i) tensor.set("dim", i, dims[i]);
    tensorPack(tensor);
    return tensor;
  }

  // ---- functions -------------------------------------------------------------------------------------------------

  private static final Linker LINKER = Linker.nativeLinker();
  private static final SymbolLookup LIBRARY = SymbolLookup.libraryLookup("libfa3.so.1", Arena.global());

  private static MethodHandle function(String name, MemoryLayout result, MemoryLayout... arguments) {
    return LINKER.downcallHandle(LIBRARY.find(name).orElseThrow(() -> new UnsatisfiedLinkError(name)),
        FunctionDescriptor.of(result, arguments));
  }

  private static final MethodHandle TENSOR_PACK = function("fa3_tensor_pack", JAVA_INT, ADDRESS);
  private static final MethodHandle FORWARD_CHECK = function("fa3_forward_check", JAVA_INT, ADDRESS);
  private static final MethodHandle FORWARD_WORKSPACE_SIZE =
      function("fa3_forward_workspace_size", JAVA_INT, ADDRESS, JAVA_INT, ADDRESS);
  private static final MethodHandle FORWARD =
      function("fa3_forward", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
  private static final MethodHandle FORWARD_SCHEDULE_SIZE =
      function("fa3_forward_schedule_size", JAVA_INT, ADDRESS, JAVA_INT, ADDRESS);
  private static final MethodHandle FORWARD_SCHEDULE =
      function("fa3_forward_schedule", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
  private static final MethodHandle REFERENCE_FORWARD =
      function("fa3_reference_forward", JAVA_INT, ADDRESS, JAVA_INT);
  private static final MethodHandle BACKWARD_CHECK = function("fa3_backward_check", JAVA_INT, ADDRESS);
  private static final MethodHandle BACKWARD_WORKSPACE_SIZE =
      function("fa3_backward_workspace_size", JAVA_INT, ADDRESS, ADDRESS);
  private static final MethodHandle BACKWARD =
      function("fa3_backward", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
  private static final MethodHandle REFERENCE_BACKWARD =
      function("fa3_reference_backward", JAVA_INT, ADDRESS, JAVA_INT);
  private static final MethodHandle QUANTIZE_CHECK = function("fa3_quantize_check", JAVA_INT, ADDRESS);
  private static final MethodHandle QUANTIZE_WORKSPACE_SIZE =
      function("fa3_quantize_workspace_size", JAVA_INT, ADDRESS, ADDRESS);
  private static final MethodHandle QUANTIZE =
      function("fa3_quantize", JAVA_INT, ADDRESS, ADDRESS, JAVA_LONG, ADDRESS);
  private static final MethodHandle REFERENCE_QUANTIZE = function("fa3_reference_quantize", JAVA_INT, ADDRESS);
  private static final MethodHandle APPEND_CHECK = function("fa3_append_check", JAVA_INT, ADDRESS);
  private static final MethodHandle APPEND = function("fa3_append", JAVA_INT, ADDRESS, ADDRESS);
  private static final MethodHandle REFERENCE_APPEND = function("fa3_reference_append", JAVA_INT, ADDRESS);
  private static final MethodHandle COMBINE_CHECK = function("fa3_combine_check", JAVA_INT, ADDRESS);
  private static final MethodHandle COMBINE = function("fa3_combine", JAVA_INT, ADDRESS, ADDRESS);
  private static final MethodHandle REFERENCE_COMBINE = function("fa3_reference_combine", JAVA_INT, ADDRESS);
  private static final MethodHandle FORWARD_KERNEL_INFO =
      function("fa3_forward_kernel_info", JAVA_INT, ADDRESS, JAVA_INT, JAVA_INT, ADDRESS);
  private static final MethodHandle BACKWARD_KERNEL_INFO =
      function("fa3_backward_kernel_info", JAVA_INT, ADDRESS, JAVA_INT, JAVA_INT, ADDRESS);
  private static final MethodHandle KERNEL_COUNT = function("fa3_kernel_count", JAVA_INT);
  private static final MethodHandle KERNEL_INFO_AT = function("fa3_kernel_info_at", JAVA_INT, JAVA_INT, ADDRESS);
  private static final MethodHandle PRELOAD = function("fa3_preload", JAVA_INT);
  private static final MethodHandle VERSION = function("fa3_version", JAVA_INT);
  private static final MethodHandle ABI_VERSION = function("fa3_abi_version", JAVA_INT);
  private static final MethodHandle STATUS_STRING = function("fa3_status_string", ADDRESS, JAVA_INT);
  private static final MethodHandle LAST_ERROR_MESSAGE = function("fa3_last_error_message", ADDRESS);

  /** A refusal of the library. */
  public static final class Refused extends RuntimeException {
    public final int status;

    private Refused(int status) {
      super(text(() -> (MemorySegment) STATUS_STRING.invokeExact(status)) + ": "
          + text(() -> (MemorySegment) LAST_ERROR_MESSAGE.invokeExact()));
      this.status = status;
    }
  }

  private interface Call<Result> {
    Result run() throws Throwable;
  }

  private static <Result> Result call(Call<Result> call) {
    try {
      return call.run();
    } catch (RuntimeException | Error error) {
      throw error;
    } catch (Throwable error) {
      throw new AssertionError(error); // a handle of a C function throws nothing else
    }
  }

  private static String text(Call<MemorySegment> address) {
    return call(address).reinterpret(Long.MAX_VALUE).getString(0);
  }

  private static void check(Call<Integer> function) {
    int status = call(function);
    if (status != FA3_OK) throw new Refused(status);
  }

  private static long size(java.util.function.Function<MemorySegment, Call<Integer>> function) {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment bytes = arena.allocate(JAVA_LONG);
      check(function.apply(bytes));
      return bytes.get(JAVA_LONG, 0);
    }
  }

  public static void tensorPack(Struct tensor) {
    check(() -> (int) TENSOR_PACK.invokeExact(tensor.memory));
  }

  public static void forwardCheck(Struct params) {
    check(() -> (int) FORWARD_CHECK.invokeExact(params.memory));
  }

  /** On a device of so many multiprocessors; 0: on the current context's. */
  public static long forwardWorkspaceSize(Struct params, int multiprocessors) {
    return size(bytes -> () -> (int) FORWARD_WORKSPACE_SIZE.invokeExact(params.memory, multiprocessors, bytes));
  }

  public static void forward(Struct params, MemorySegment workspace, long bytes, MemorySegment stream) {
    check(() -> (int) FORWARD.invokeExact(params.memory, workspace, bytes, stream));
  }

  /** On a device of so many multiprocessors; 0: on the current context's. */
  public static long forwardScheduleSize(Struct params, int multiprocessors) {
    return size(bytes -> () -> (int) FORWARD_SCHEDULE_SIZE.invokeExact(params.memory, multiprocessors, bytes));
  }

  public static void forwardSchedule(Struct params, MemorySegment schedule, long bytes, MemorySegment stream) {
    check(() -> (int) FORWARD_SCHEDULE.invokeExact(params.memory, schedule, bytes, stream));
  }

  public static void referenceForward(Struct params, int threads) {
    check(() -> (int) REFERENCE_FORWARD.invokeExact(params.memory, threads));
  }

  public static void backwardCheck(Struct params) {
    check(() -> (int) BACKWARD_CHECK.invokeExact(params.memory));
  }

  public static long backwardWorkspaceSize(Struct params) {
    return size(bytes -> () -> (int) BACKWARD_WORKSPACE_SIZE.invokeExact(params.memory, bytes));
  }

  public static void backward(Struct params, MemorySegment workspace, long bytes, MemorySegment stream) {
    check(() -> (int) BACKWARD.invokeExact(params.memory, workspace, bytes, stream));
  }

  public static void referenceBackward(Struct params, int threads) {
    check(() -> (int) REFERENCE_BACKWARD.invokeExact(params.memory, threads));
  }

  public static void quantizeCheck(Struct params) {
    check(() -> (int) QUANTIZE_CHECK.invokeExact(params.memory));
  }

  public static long quantizeWorkspaceSize(Struct params) {
    return size(bytes -> () -> (int) QUANTIZE_WORKSPACE_SIZE.invokeExact(params.memory, bytes));
  }

  public static void quantize(Struct params, MemorySegment workspace, long bytes, MemorySegment stream) {
    check(() -> (int) QUANTIZE.invokeExact(params.memory, workspace, bytes, stream));
  }

  public static void referenceQuantize(Struct params) {
    check(() -> (int) REFERENCE_QUANTIZE.invokeExact(params.memory));
  }

  public static void appendCheck(Struct params) {
    check(() -> (int) APPEND_CHECK.invokeExact(params.memory));
  }

  public static void append(Struct params, MemorySegment stream) {
    check(() -> (int) APPEND.invokeExact(params.memory, stream));
  }

  public static void referenceAppend(Struct params) {
    check(() -> (int) REFERENCE_APPEND.invokeExact(params.memory));
  }

  public static void combineCheck(Struct params) {
    check(() -> (int) COMBINE_CHECK.invokeExact(params.memory));
  }

  public static void combine(Struct params, MemorySegment stream) {
    check(() -> (int) COMBINE.invokeExact(params.memory, stream));
  }

  public static void referenceCombine(Struct params) {
    check(() -> (int) REFERENCE_COMBINE.invokeExact(params.memory));
  }

  public static void forwardKernelInfo(Struct params, int multiprocessors, int launch, Struct info) {
    check(() -> (int) FORWARD_KERNEL_INFO.invokeExact(params.memory, multiprocessors, launch, info.memory));
  }

  public static void backwardKernelInfo(Struct params, int multiprocessors, int launch, Struct info) {
    check(() -> (int) BACKWARD_KERNEL_INFO.invokeExact(params.memory, multiprocessors, launch, info.memory));
  }

  public static int kernelCount() {
    return Fa3.<Integer>call(() -> (int) KERNEL_COUNT.invokeExact());
  }

  public static void kernelInfoAt(int index, Struct info) {
    check(() -> (int) KERNEL_INFO_AT.invokeExact(index, info.memory));
  }

  public static void preload() {
    check(() -> (int) PRELOAD.invokeExact());
  }

  public static int version() {
    return Fa3.<Integer>call(() -> (int) VERSION.invokeExact());
  }

  public static int abiVersion() {
    return Fa3.<Integer>call(() -> (int) ABI_VERSION.invokeExact());
  }
}
