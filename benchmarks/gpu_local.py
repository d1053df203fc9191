"""What a threadblock of a GPU does alone: ``python -m benchmarks.gpu_local``, with CuPy and a GPU.

Fits of measured collectives leave three constants of ``measured:`` open, as links hide them: how
fast a threadblock copies and adds, and how long a threadblock that waits for another's flag takes.
Here kernels do what the runtimes' interpreters do inside one GPU: each thread loads four times 16
bytes and stores them (eight are no faster); a flag is a fence and a store, read by one thread
before a barrier. Rates are of bytes copied (sums: added), as in topology files, by so many
threadblocks at once, each over a region of its own, again and again. Every number is the median of
several launches.
"""

import argparse
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from statistics import median
from types import ModuleType

Kernels = Callable[[str], Callable[..., None]]
"""A kernel by its name: called with threadblocks, threads of each, and its arguments."""

THREADS = (512, 640, 1024)
"""Of a threadblock: NCCL's Simple has 512 that move data, its LL128 640, MSCCL++'s plans 1024."""

BYTES = (4 << 10, 32 << 10, 256 << 10, 2 << 20)
"""Of a step of one threadblock: a slice of LL, one of Simple, ... a message of Simple."""

BLOCKS = (1, 16, 64)
"""Threadblocks at once."""

MOVED = 16 << 20
"""Bytes that a threadblock moves in one launch, in so many passes over its region."""

LAUNCHES = 9
"""Of which the median is taken, after one that does not count."""

TURNS = 2000
"""Flags each way."""

KERNELS = r"""
typedef unsigned long long u64;
__device__ u64 now() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
__device__ float4 plus(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
template <bool ADDS> __device__ void work(
    const float4* from, float4* to, u64 count, int passes, u64* took)
{
    from += blockIdx.x * count; to += blockIdx.x * count;
    __syncthreads();
    u64 began = now();
    for (int pass = 0; pass < passes; pass++) {
        for (u64 at = threadIdx.x; at < count; at += 4 * blockDim.x) {
            float4 got[4], had[4];
            #pragma unroll
            for (int u = 0; u < 4; u++) {
                u64 i = at + u * blockDim.x;
                if (i < count) got[u] = __ldcv(from + i);
                if (ADDS && i < count) had[u] = __ldcv(to + i);
            }
            #pragma unroll
            for (int u = 0; u < 4; u++) {
                u64 i = at + u * blockDim.x;
                if (i < count) to[i] = ADDS ? plus(got[u], had[u]) : got[u];
            }
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) took[blockIdx.x] = now() - began;
}
extern "C" __global__ void copy(const float4* a, float4* b, u64 n, int passes, u64* took) {
    work<false>(a, b, n, passes, took);
}
extern "C" __global__ void add(const float4* a, float4* b, u64 n, int passes, u64* took) {
    work<true>(a, b, n, passes, took);
}
extern "C" __global__ void flags(volatile int* flag, int turns, u64* took) {
    u64 began = now();
    for (int turn = 1; turn <= turns; turn++) {
        // One sets, then waits; the other waits, then sets: two flags a turn.
        for (int half = 0; half < 2; half++) {
            if ((half == 0) == (blockIdx.x == 0)) {
                __syncthreads();
                if (threadIdx.x == 0) { __threadfence(); flag[32 * blockIdx.x] = turn; }
            } else {
                if (threadIdx.x == 0) while (flag[32 * (1 - blockIdx.x)] < turn);
                __syncthreads();
            }
        }
    }
    if (threadIdx.x == 0) took[blockIdx.x] = now() - began;
}
"""


def rows_of(cupy: ModuleType, kernels: Kernels) -> Iterator[dict[str, object]]:
    """Yield GB/s of one threadblock, by what it does, its threads, bytes of a step, and others.

    `cupy` is the module, and `kernels` gives one of KERNELS by its name.
    """
    for what, threads, size, blocks in product(("copy", "add"), THREADS, BYTES, BLOCKS):
        source, target = (cupy.zeros(blocks * size // 4, dtype="float32") for _ in range(2))
        took, passes, found = cupy.zeros(blocks, dtype="uint64"), max(1, MOVED // size), []
        for _ in range(1 + LAUNCHES):
            given = (source, target, size // 16, passes, took)
            kernels(what)((blocks,), (threads,), given)
            found.append(passes * size / float(took.max()))
        yield {
            "what": what, "threads": threads, "bytes": size, "threadblocks": blocks,
            "GB/s of each": round(median(found[1:]), 1),
        }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print one JSON object a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.parse_args(arguments)
    try:
        cupy = importlib.import_module("cupy")
    except ImportError:
        parser.error("this needs a GPU and CuPy: pip install cupy-cuda12x")
    module = cupy.RawModule(code=KERNELS, options=("-std=c++17",))
    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(json.dumps({"gpu": device}))
    for row in rows_of(cupy, module.get_function):
        print(json.dumps(row), flush=True)
    for threads in THREADS:
        told: list[float] = []
        for _ in range(1 + LAUNCHES):
            flag, took = cupy.zeros(64, dtype="int32"), cupy.zeros(2, dtype="uint64")
            module.get_function("flags")((2,), (threads,), (flag, TURNS, took))
            told.append(float(took.max()) / 2 / TURNS / 1000)
        print(json.dumps({"what": "flag", "threads": threads, "us": round(median(told[1:]), 3)}))


if __name__ == "__main__":
    main()
