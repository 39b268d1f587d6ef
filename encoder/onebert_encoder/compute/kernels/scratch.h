// Working memory of a kernel's threads, and how a kernel says that there is not enough.
#pragma once
#include <omp.h>

#include <cstdint>
#include <exception>
#include <vector>

namespace {

// One block for all threads, taken before they start: an exception that leaves a parallel region ends the process.
class Scratch {
  public:
    Scratch(std::int64_t threads, std::int64_t floats) : each(floats), all(threads * floats) {}
    // Of the calling thread: zeros until it writes.
    float *own() { return all.data() + omp_get_thread_num() * each; }

  private:
    std::int64_t each;
    std::vector<float> all;
};

// Runs a kernel: 0, or 1 where memory cannot be had and nothing was computed.
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
