// Attention from Go, by cgo: on the CPU, checked against plain double precision, then on a Hopper GPU.
//
//	CGO_CFLAGS=-I.../include CGO_LDFLAGS=-L... go build attention.go cuda.go fa3.go
package main

// #include <fa3.h>
import "C"

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"unsafe"
)

const (
	batch, seqlenQ, seqlenK, heads, headsKV, headDim = 2, 40, 48, 4, 2, 64

	qSize, kvSize = batch * seqlenQ * heads * headDim, batch * seqlenK * headsKV * headDim
	lseSize       = batch * heads * seqlenQ
)

// generator is Lehmer's.
type generator int64

// numbers are between -2 and 2.
func (state *generator) numbers(n int) []bf16 {
	x := allocate[bf16](n)
	for i := range x {
		*state = *state * 16807 % 2147483647
		x[i] = toBf16(float32(float64(*state)/2147483647.0*4 - 2))
	}
	return x
}

func checksum(slices ...[]bf16) (sum int64) {
	for _, x := range slices {
		for _, bits := range x {
			sum = (sum*31 + int64(bits)) % 2147483647
		}
	}
	return sum
}

// attention computes O and LSE in double precision. A causal mask that ends in the bottom right corner: query i sees
// key j if j <= i + seqlen_k - seqlen_q.
func attention(q, k, v []bf16) (o, lse []float64) {
	o, lse = make([]float64, qSize), make([]float64, lseSize)
	for b := 0; b < batch; b++ {
		for h := 0; h < heads; h++ {
			for i := 0; i < seqlenQ; i++ {
				row := ((b*seqlenQ+i)*heads + h) * headDim
				sum := 0.0
				for j := 0; j <= i+seqlenK-seqlenQ; j++ {
					key := ((b*seqlenK+j)*headsKV + h/(heads/headsKV)) * headDim
					score := 0.0
					for c := 0; c < headDim; c++ {
						score += q[row+c].float() * k[key+c].float()
					}
					p := math.Exp(score / math.Sqrt(headDim))
					for c := 0; c < headDim; c++ {
						o[row+c] += p * v[key+c].float()
					}
					sum += p
				}
				for c := 0; c < headDim; c++ {
					o[row+c] /= sum
				}
				lse[(b*heads+h)*seqlenQ+i] = math.Log(sum)
			}
		}
	}
	return o, lse
}

type numbers struct {
	q, k, v, o []bf16
	lse        []float32
}

func (host numbers) problem() problem {
	return problem{address(host.q), address(host.k), address(host.v), address(host.o), address(host.lse)}
}

func onCPU(host numbers) error {
	fmt.Println("inputs: checksum", checksum(host.q, host.k, host.v))
	params := host.problem().forward()
	if err := check(C.fa3_reference_forward(&params, 0)); err != nil {
		return err
	}
	o, lse := attention(host.q, host.k, host.v)
	for i := range o { // half a unit in the last of bf16's 8 bits is at most 2^-8 of the number
		if !(math.Abs(host.o[i].float()-o[i]) <= math.Abs(o[i])/256+1e-6) {
			return errors.New("O is not as in double precision")
		}
	}
	for i := range lse {
		if !(math.Abs(float64(host.lse[i])-lse[i]) <= 1e-6*math.Max(1, math.Abs(lse[i]))) {
			return errors.New("LSE is not as in double precision")
		}
	}
	fmt.Println("cpu: O and LSE as in double precision")

	wrong := params
	wrong.k.stride[1]++
	refusal := check(C.fa3_forward_check(&wrong))
	if refusal == nil {
		return errors.New("a wrong stride was accepted")
	}
	fmt.Println("refused:", refusal)

	if err := check(C.fa3_forward_check(&params)); err != nil {
		return err
	}
	bytes, err := workspaceSize(&params, 132)
	if err != nil {
		return err
	}
	fmt.Println("workspace:", bytes, "bytes on 132 multiprocessors")
	return nil
}

// first is the first error, if there is one.
func first(errors ...error) error {
	for _, err := range errors {
		if err != nil {
			return err
		}
	}
	return nil
}

func onGPU(host numbers) error {
	params := host.problem().forward()
	why := loadCuda()
	var bytes C.size_t
	if why == nil {
		bytes, why = workspaceSize(&params, 0)
	}
	if why != nil {
		fmt.Println("no Hopper GPU:", why)
		return nil
	}

	var device problem
	var workspace unsafe.Pointer
	for _, memory := range []struct {
		at    *unsafe.Pointer
		bytes uintptr
	}{
		{&device.q, 2 * qSize}, {&device.k, 2 * kvSize}, {&device.v, 2 * kvSize},
		{&device.o, 2 * qSize}, {&device.lse, 4 * lseSize}, {&workspace, uintptr(bytes)},
	} {
		address, err := deviceMemory(memory.bytes)
		if err != nil {
			return err
		}
		defer deviceFree(address)
		*memory.at = address
	}
	err := first(toDevice(device.q, host.q), toDevice(device.k, host.k), toDevice(device.v, host.v))
	if err != nil {
		return err
	}
	params = device.forward()
	if err := check(C.fa3_forward(&params, workspace, bytes, nil)); err != nil {
		return err
	}
	o, lse := make([]bf16, qSize), make([]float32, lseSize)
	if err := first(toHost(o, device.o), toHost(lse, device.lse)); err != nil {
		return err
	}

	largest := 0.0
	for _, x := range host.o {
		largest = math.Max(largest, math.Abs(x.float()))
	}
	for i := range o { // a few roundings to bf16, which has 8 bits, may lie between them
		if !(math.Abs(o[i].float()-host.o[i].float()) <= largest/64) {
			return errors.New("O is not as on the CPU")
		}
	}
	for i := range lse {
		if !(math.Abs(float64(lse[i]-host.lse[i])) <= 1e-4) {
			return errors.New("LSE is not as on the CPU")
		}
	}
	fmt.Println("gpu: O and LSE as on the CPU")
	return nil
}

func main() {
	// A CUDA context is current in a thread, and fa3_last_error_message is a thread's: the goroutine has to stay there.
	runtime.LockOSThread()
	random := generator(1)
	host := numbers{q: random.numbers(qSize), k: random.numbers(kvSize), v: random.numbers(kvSize)}
	host.o, host.lse = allocate[bf16](qSize), allocate[float32](lseSize)
	err := onCPU(host)
	if err == nil {
		err = onGPU(host)
	}
	free(host.q)
	free(host.k)
	free(host.v)
	free(host.o)
	free(host.lse)
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
}
