package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// The little of the CUDA driver that is needed here, found when the program runs. Go cannot call a pointer to a
// function of C, so each has a line of C that does.
static struct {
	int (*init)(unsigned);
	int (*device_get)(int *device, int ordinal);
	int (*primary_context)(void **context, int device);
	int (*set_current)(void *context);
	int (*alloc)(void **address, size_t bytes);
	int (*free)(void *address);
	int (*to_device)(void *to, const void *from, size_t bytes);
	int (*to_host)(void *to, const void *from, size_t bytes);
} cuda;

static const char *cuda_load(void) { // NULL, or why there is none
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) return dlerror();
	if (!(cuda.init = dlsym(library, "cuInit"))) return dlerror();
	if (!(cuda.device_get = dlsym(library, "cuDeviceGet"))) return dlerror();
	if (!(cuda.primary_context = dlsym(library, "cuDevicePrimaryCtxRetain"))) return dlerror();
	if (!(cuda.set_current = dlsym(library, "cuCtxSetCurrent"))) return dlerror();
	if (!(cuda.alloc = dlsym(library, "cuMemAlloc_v2"))) return dlerror();
	if (!(cuda.free = dlsym(library, "cuMemFree_v2"))) return dlerror();
	if (!(cuda.to_device = dlsym(library, "cuMemcpyHtoD_v2"))) return dlerror();
	if (!(cuda.to_host = dlsym(library, "cuMemcpyDtoH_v2"))) return dlerror();
	int device;
	void *context;
	if (cuda.init(0) || cuda.device_get(&device, 0)) return "the driver finds no device";
	return cuda.primary_context(&context, device) || cuda.set_current(context) ? "the device has no context" : NULL;
}

static int cuda_alloc(void **address, size_t bytes) { return cuda.alloc(address, bytes); }
static int cuda_free(void *address) { return cuda.free(address); }
static int cuda_to_device(void *to, const void *from, size_t bytes) { return cuda.to_device(to, from, bytes); }
static int cuda_to_host(void *to, const void *from, size_t bytes) { return cuda.to_host(to, from, bytes); }
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// loadCuda makes the first device's primary context current in this thread.
func loadCuda() error {
	if why := C.cuda_load(); why != nil {
		return errors.New(C.GoString(why))
	}
	return nil
}

func checkCuda(call string, result C.int) error {
	if result != 0 {
		return fmt.Errorf("%s: CUDA error %d", call, result)
	}
	return nil
}

func deviceMemory(bytes uintptr) (memory unsafe.Pointer, err error) {
	err = checkCuda("cuMemAlloc", C.cuda_alloc(&memory, C.size_t(bytes)))
	return memory, err
}

func deviceFree(memory unsafe.Pointer) {
	C.cuda_free(memory)
}

func toDevice[T any](to unsafe.Pointer, from []T) error {
	bytes := C.size_t(len(from)) * C.size_t(unsafe.Sizeof(from[0]))
	return checkCuda("cuMemcpyHtoD", C.cuda_to_device(to, address(from), bytes))
}

// toHost waits for what was enqueued on the default stream.
func toHost[T any](to []T, from unsafe.Pointer) error {
	bytes := C.size_t(len(to)) * C.size_t(unsafe.Sizeof(to[0]))
	return checkCuda("cuMemcpyDtoH", C.cuda_to_host(address(to), from, bytes))
}
