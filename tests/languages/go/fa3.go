package main

// #cgo LDFLAGS: -lfa3
// #include <fa3.h>
// #include <stdlib.h>
import "C"

import (
	"errors"
	"math"
	"unsafe"
)

// check makes a status an error, with the library's words. They are the calling thread's: see main.
func check(status C.fa3_status) error {
	if status == C.FA3_OK {
		return nil
	}
	return errors.New(C.GoString(C.fa3_status_string(status)) + ": " + C.GoString(C.fa3_last_error_message()))
}

// bf16 is a number as it is in memory.
type bf16 uint16

// toBf16 takes the nearest; of two, the even one.
func toBf16(x float32) bf16 {
	bits := math.Float32bits(x)
	return bf16((bits + 0x7fff + bits>>16&1) >> 16)
}

func (x bf16) float() float64 {
	return float64(math.Float32frombits(uint32(x) << 16))
}

// allocate returns memory of C's: structs with pointers to Go's own memory must not be passed to C.
func allocate[T any](n int) []T {
	var element T
	memory := C.malloc(C.size_t(n) * C.size_t(unsafe.Sizeof(element)))
	return unsafe.Slice((*T)(memory), n)
}

func address[T any](slice []T) unsafe.Pointer {
	return unsafe.Pointer(&slice[0])
}

func free[T any](slice []T) {
	C.free(address(slice))
}

// packed is a tensor without gaps.
func packed(data unsafe.Pointer, dtype C.int32_t, dims ...int) C.fa3_tensor {
	tensor := C.fa3_tensor{data: data, dtype: dtype, rank: C.int32_t(len(dims))}
	stride := 1
	for i := len(dims) - 1; i >= 0; i-- {
		tensor.dim[i], tensor.stride[i] = C.int64_t(dims[i]), C.int64_t(stride)
		stride *= dims[i]
	}
	return tensor
}

func queries(data unsafe.Pointer) C.fa3_tensor {
	return packed(data, C.FA3_DTYPE_BF16, batch, seqlenQ, heads, headDim)
}

func keys(data unsafe.Pointer) C.fa3_tensor {
	return packed(data, C.FA3_DTYPE_BF16, batch, seqlenK, headsKV, headDim)
}

// problem is all on the host or all on the device.
type problem struct{ q, k, v, o, lse unsafe.Pointer }

func (at problem) forward() C.fa3_forward_params {
	var params C.fa3_forward_params
	params.struct_size = C.size_t(unsafe.Sizeof(params))
	params.q, params.k, params.v, params.o = queries(at.q), keys(at.k), keys(at.v), queries(at.o)
	params.lse = packed(at.lse, C.FA3_DTYPE_FP32, batch, heads, seqlenQ)
	params.mask = C.FA3_MASK_CAUSAL_BOTTOM_RIGHT // softmax_scale 0: 1/sqrt(head_dim)
	return params
}

// workspaceSize is in bytes, for a device of so many multiprocessors; 0: the current context's.
func workspaceSize(params *C.fa3_forward_params, multiprocessors int) (bytes C.size_t, err error) {
	err = check(C.fa3_forward_workspace_size(params, C.int32_t(multiprocessors), &bytes))
	return bytes, err
}
