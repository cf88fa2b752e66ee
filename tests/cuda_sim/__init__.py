"""Runs CUDA kernels on the CPU: the PTX that nvcc emits, as C++, with every access checked."""
