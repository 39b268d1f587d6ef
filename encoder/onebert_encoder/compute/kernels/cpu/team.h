// Threads that help with a call while it runs. Work is taken in units from a counter, by whoever comes: nobody waits for
// a thread that the operating system has not given a processor yet, neither in the middle of a call nor at its end.
#pragma once
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

// Not in a namespace of each file, where each would have a team of its own; hidden, since two libraries, as in tests, share
// none.
namespace onebert __attribute__((visibility("hidden"))) {

using std::int64_t;

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    asm volatile("" ::: "memory");
#endif
}

// Turns of a waiting loop before it lets others have the processor, and before a helper without work sleeps.
constexpr int YIELD_AFTER = 4000, SLEEP_AFTER = 1000;

// Returns once `ready()`.
template <typename Ready>
inline void wait_until(Ready ready) {
    for (int turns = 0; !ready(); ++turns) {
        if (turns < YIELD_AFTER) pause_briefly();
        else sched_yield();
    }
}

// The units of one phase: how many are taken, and how many done. On cache lines of their own, since all threads write here.
struct alignas(64) Phase {
    std::atomic<int64_t> taken{0};
    alignas(64) std::atomic<int64_t> done{0};

    // Does units until none is left, then waits for those that other threads still work on.
    template <typename Unit>
    void run(int64_t units, Unit unit) {
        int64_t own = 0;
        for (int64_t i; (i = taken.fetch_add(1, std::memory_order_relaxed)) < units; ++own) unit(i);
        if (own) done.fetch_add(own, std::memory_order_release);
        wait_until([&] { return done.load(std::memory_order_acquire) >= units; });
    }
};

class Team {
  public:
    // Of this process: a child process that was forked has none of its parent's threads, and starts its own.
    static Team &own() {
        static std::atomic<Team *> current{nullptr};
        Team *team = current.load(std::memory_order_acquire);
        if (team && team->process_ == getpid()) return *team;
        // Never deleted: its helpers sleep on it until the process ends.
        Team *made = new Team;
        if (current.compare_exchange_strong(team, made)) return *made;
        delete made;  // another thread was quicker; no helper of this one has been started
        return *team;
    }

    // Runs `work(thread)` on this thread as number 0 and on up to `threads - 1` helpers, as many as come in time. A
    // second call at the same time does all of its work on its own thread.
    template <typename Work>
    void call(int64_t threads, const Work &work) {
        std::unique_lock<std::mutex> only(busy_, std::try_to_lock);
        if (threads <= 1 || !only) return work(int64_t{0});
        start(threads - 1);
        work_ = &work;
        run_ = [](const void *any, int64_t thread) { (*static_cast<const Work *>(any))(thread); };
        helpers_ = std::min(threads - 1, started_);
        turn_.fetch_add(1);  // odd: helpers may come
        turn_.notify_all();
        work(int64_t{0});
        turn_.fetch_add(1);
        wait_until([&] { return inside_.load() == 0; });
    }

  private:
    // Fewer helpers, or none, are fine: the caller does what they do not. The system may have no more threads to give.
    void start(int64_t helpers) try {
        for (; started_ < helpers; ++started_) std::thread([this, number = started_ + 1] { help(number); }).detach();
    } catch (const std::system_error &) {
    }

    void help(int64_t number) {
        for (std::uint32_t seen = 0;;) {
            std::uint32_t turn = turn_.load();
            const auto nothing_new = [&] { return turn == seen || turn % 2 == 0; };
            for (int turns = 0; turns < SLEEP_AFTER && nothing_new(); ++turns) pause_briefly(), turn = turn_.load();
            if (nothing_new()) {
                turn_.wait(turn);
                continue;
            }
            inside_.fetch_add(1);
            // Read again: after the call has ended its work must not be touched, and before that it waits for who is inside.
            if (turn_.load() == turn && number <= helpers_) run_(work_, number);
            seen = turn;
            inside_.fetch_sub(1);
        }
    }

    const pid_t process_ = getpid();
    std::mutex busy_;
    int64_t started_ = 0;
    std::atomic<std::uint32_t> turn_{0};
    std::atomic<int> inside_{0};
    const void *work_ = nullptr;
    void (*run_)(const void *, int64_t) = nullptr;
    int64_t helpers_ = 0;
};

}  // namespace onebert

using onebert::Phase;
using onebert::Team;
using std::int64_t;
