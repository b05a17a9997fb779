import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;

/** The little of the CUDA driver that is needed here, found when the program runs. */
final class Cuda {
  private final SymbolLookup library;
  private final MethodHandle allocate, free, toDevice, toHost;

  /** With the first device's primary context current in this thread; IllegalArgumentException without a driver. */
  Cuda() throws Throwable {
    library = SymbolLookup.libraryLookup("libcuda.so.1", Arena.global());
    allocate = function("cuMemAlloc_v2", ADDRESS, JAVA_LONG);
    free = function("cuMemFree_v2", JAVA_LONG);
    toDevice = function("cuMemcpyHtoD_v2", JAVA_LONG, ADDRESS, JAVA_LONG);
    toHost = function("cuMemcpyDtoH_v2", ADDRESS, JAVA_LONG, JAVA_LONG);
    MethodHandle init = function("cuInit", JAVA_INT), deviceGet = function("cuDeviceGet", ADDRESS, JAVA_INT);
    MethodHandle primaryContext = function("cuDevicePrimaryCtxRetain", ADDRESS, JAVA_INT);
    MethodHandle setCurrent = function("cuCtxSetCurrent", ADDRESS);
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment device = arena.allocate(JAVA_INT), context = arena.allocate(ADDRESS);
      check("cuInit", (int) init.invokeExact(0));
      check("cuDeviceGet", (int) deviceGet.invokeExact(device, 0));
      check("cuDevicePrimaryCtxRetain", (int) primaryContext.invokeExact(context, device.get(JAVA_INT, 0)));
      check("cuCtxSetCurrent", (int) setCurrent.invokeExact(context.get(ADDRESS, 0)));
    }
  }

  private MethodHandle function(String name, MemoryLayout... arguments) {
    MemorySegment address = library.find(name).orElseThrow(() -> new IllegalArgumentException("no " + name));
    return Linker.nativeLinker().downcallHandle(address, FunctionDescriptor.of(JAVA_INT, arguments));
  }

  private static void check(String call, int error) {
    if (error != 0) throw new IllegalStateException(call + ": CUDA error " + error);
  }

  /** Memory of the device: an address, not to be read here. */
  MemorySegment allocate(long bytes) throws Throwable {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment address = arena.allocate(ADDRESS);
      check("cuMemAlloc", (int) allocate.invokeExact(address, bytes));
      return address.get(ADDRESS, 0);
    }
  }

  void free(MemorySegment memory) throws Throwable {
    check("cuMemFree", (int) free.invokeExact(memory.address()));
  }

  MemorySegment copy(MemorySegment from) throws Throwable {
    MemorySegment to = allocate(from.byteSize());
    check("cuMemcpyHtoD", (int) toDevice.invokeExact(to.address(), from, from.byteSize()));
    return to;
  }

  /** Waits for what was enqueued on the default stream. */
  void copy(MemorySegment from, MemorySegment to) throws Throwable {
    check("cuMemcpyDtoH", (int) toHost.invokeExact(to, from.address(), to.byteSize()));
  }
}
