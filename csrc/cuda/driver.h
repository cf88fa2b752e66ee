// The CUDA driver, found when it is first needed: nothing of CUDA is linked, so the module that
// holds this imports anywhere.
//
// Of each device that is used, the primary context is retained, all kernels are loaded, and memory
// for an IdFault is mapped: at the first use, because none of it can happen while a graph is being
// captured. All of it lives as long as the process.
#pragma once

#include <optional>
#include <string>

#include "place.h"

namespace tegula {

// Devices that the driver shows. CudaError without a driver, or with one that is too old.
int device_count();

std::string device_name(int device);
DeviceFacts device_facts(int device);

// A place on a device, its kernels loaded. CudaError where they cannot run, ValueError for a device
// that does not exist.
Place prepared_place(int device, void* stream);

// What kernels found since the last call, if something: without waiting for kernels under way.
std::optional<IdFault> take_id_fault(int device);

// Until all work on the stream is done.
void synchronize(const Place& place);

// A copy to the host, done when this returns. No other operation waits for anything.
void read_back(const Place& place, void* host, const void* device, size_t bytes);

// The device of a pointer that a framework handed over; -1 if the driver does not know it.
int device_of_pointer(const void* pointer);

}  // namespace tegula
