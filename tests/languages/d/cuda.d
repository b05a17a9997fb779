/// The little of the CUDA driver that is needed here, found when the program runs.
module cuda;

import core.sys.posix.dlfcn : dlerror, dlopen, dlsym, RTLD_NOW;
import std.conv : to;
import std.exception : enforce;
import std.string : fromStringz;

private extern (C) nothrow
{
    int function(void** address, size_t bytes) cuMemAlloc;
    int function(void* address) cuMemFree;
    int function(void* to, const void* from, size_t bytes) cuMemcpyHtoD;
    int function(void* to, const void* from, size_t bytes) cuMemcpyDtoH;
}

/// Makes the first device's primary context current in this thread.
void loadCuda()
{
    extern (C) int function(uint flags) cuInit;
    extern (C) int function(int* device, int ordinal) cuDeviceGet;
    extern (C) int function(void** context, int device) cuDevicePrimaryCtxRetain;
    extern (C) int function(void* context) cuCtxSetCurrent;
    void* library = enforce(dlopen("libcuda.so.1", RTLD_NOW), dlerror().fromStringz.idup);

    void find(Function)(ref Function f, const(char)* name)
    {
        f = cast(Function) enforce(dlsym(library, name), "the driver has no " ~ name.fromStringz.idup);
    }

    find(cuInit, "cuInit");
    find(cuDeviceGet, "cuDeviceGet");
    find(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    find(cuCtxSetCurrent, "cuCtxSetCurrent");
    find(cuMemAlloc, "cuMemAlloc_v2");
    find(cuMemFree, "cuMemFree_v2");
    find(cuMemcpyHtoD, "cuMemcpyHtoD_v2");
    find(cuMemcpyDtoH, "cuMemcpyDtoH_v2");
    int device;
    void* context;
    check("cuInit", cuInit(0));
    check("cuDeviceGet", cuDeviceGet(&device, 0));
    check("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    check("cuCtxSetCurrent", cuCtxSetCurrent(context));
}

private void check(string call, int error)
{
    enforce(error == 0, call ~ ": CUDA error " ~ error.to!string);
}

/// Memory of the device.
struct DeviceArray(Type)
{
    private void* at;
    private size_t length;

    this(size_t length)
    {
        this.length = length;
        check("cuMemAlloc", cuMemAlloc(&at, length * Type.sizeof));
    }

    this(const Type[] from)
    {
        this(from.length);
        check("cuMemcpyHtoD", cuMemcpyHtoD(at, from.ptr, from.length * Type.sizeof));
    }

    @disable this(this);

    ~this()
    {
        if (at)
            cuMemFree(at);
    }

    void* address()
    {
        return at;
    }

    /// Waits for what was enqueued on the default stream.
    Type[] toHost()
    {
        auto host = new Type[length];
        check("cuMemcpyDtoH", cuMemcpyDtoH(host.ptr, at, length * Type.sizeof));
        return host;
    }
}
