// Working memory of a kernel's threads, and the status for too little of it.
#pragma once
#include <omp.h>

#include <cstdint>
#include <exception>
#include <vector>

namespace {

// One block of memory for all threads, allocated before they start: an exception from an allocation inside a parallel
// region would end the process.
class Scratch {
  public:
    Scratch(std::int64_t threads, std::int64_t floats) : each(floats), all(threads * floats) {}
    // The calling thread's part of the block, zeros until it writes.
    float *own() { return of(omp_get_thread_num()); }
    // A team thread's part.
    float *of(std::int64_t thread) { return all.data() + thread * each; }

  private:
    std::int64_t each;
    std::vector<float> all;
};

// Runs a kernel; returns 0, or 1 if its memory could not be allocated and nothing was computed.
template <typename Kernel>
int status_of(Kernel kernel) {
    try {
        kernel();
        return 0;
    } catch (const std::exception &) {
        return 1;
    }
}

}  // namespace
