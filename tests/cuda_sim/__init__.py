"""Runs CUDA kernels on the CPU, so that machines without a GPU can test them.

What is run is what nvcc emits: each source becomes PTX, the PTX becomes C, one function for each kernel in which a
PTX register is a variable and a load or store a checked access (`translate`). A thread of the GPU is a fiber; which
one runs next is drawn at random (`runtime`). The result is a library with the functions of NVIDIA's driver
(`build`): whoever opens it in the place of ``libcuda.so.1`` runs all of its own host code as it is.

A launch fails with a text that names the fault, the line of the source, the block and the thread, for:

* reads and writes out of bounds, misaligned, of memory that was freed, of another device, of another thread's stack;
* reads of what nobody wrote, in shared and in global memory; writes to read-only buffers;
* races between threads and between blocks, found from the order that barriers make, not from what happened;
* barriers and warp functions that some threads do not reach, deadlocks, loops that wait for nothing;
* cp.async, TMA, mbarrier and wgmma used without the waits, fences and arrivals that they need;
* shared memory beyond what was allowed, more threads than the launch bounds.

PTX that has no model stops the build. What this cannot show: speed, faults of ptxas, memory order weaker than fences
promise, the last bits of tensor cores and of ``.approx`` functions, races between lanes of a warp that arrive at an
mbarrier one by one, accumulators of wgmma that are read before the wait. Clusters and fp8 are refused.
"""
