// Threads that help with a call while it runs. A call hands out units of work one by one, so no thread ever waits for one
// that the operating system has not scheduled before it took a unit, neither during a call nor at its end.
#pragma once
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>

// Not in an anonymous namespace, which would give each file its own team; hidden, since two libraries (as in tests)
// must not share one.
namespace onebert __attribute__((visibility("hidden"))) {

using std::int64_t;

inline void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    asm volatile("" ::: "memory");
#endif
}

// Turns of a waiting loop before it yields the processor, and before a thread without work leaves or sleeps.
constexpr int YIELD_AFTER = 4000, SLEEP_AFTER = 1000;

// Returns once `ready()`.
template <typename Ready>
inline void wait_until(Ready ready) {
    for (int turns = 0; !ready(); ++turns) {
        if (turns < YIELD_AFTER) pause_briefly();
        else sched_yield();
    }
}

// The units of one phase: counts of taken and finished units, each on its own cache line, since all threads write them.
struct alignas(64) Phase {
    std::atomic<int64_t> taken{0};
    alignas(64) std::atomic<int64_t> done{0};

    // Runs units until all are taken, then waits for the ones that other threads still run.
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
    // This process's team: a forked child has none of its parent's threads, and starts its own.
    static Team &own() {
        static std::atomic<Team *> current{nullptr};
        Team *team = current.load(std::memory_order_acquire);
        if (team && team->process_ == getpid()) return *team;
        // Never deleted: its helpers sleep on it until the process ends.
        Team *made = new Team;
        if (current.compare_exchange_strong(team, made)) return *made;
        delete made;  // another thread was faster; this team has not started a helper
        return *team;
    }

    // Runs `work(thread)` on this thread as number 0, and on the helpers (at most `threads - 1`) that arrive in time. A
    // concurrent call does all of its work on its own thread.
    template <typename Work>
    void call(int64_t threads, const Work &work) {
        if (threads <= 1) return work(int64_t{0});
        std::unique_lock<std::mutex> only(busy_, std::try_to_lock);
        if (!only) return work(int64_t{0});
        start(threads - 1);
        work_ = &work;
        run_ = [](const void *any, int64_t thread) { (*static_cast<const Work *>(any))(thread); };
        helpers_ = std::min(threads - 1, started_);
        turn_.fetch_add(1);  // odd: helpers may enter
        turn_.notify_all();
        work(int64_t{0});
        turn_.fetch_add(1);
        wait_until([&] { return inside_.load() == 0; });
    }

  private:
    // Starting fewer helpers, or none, is fine: the caller does the remaining work. The system may refuse more threads.
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
            // Read again: once the call has ended its work is gone; before its end the call waits for every thread
            // inside.
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
using onebert::SLEEP_AFTER;
using onebert::Team;
using onebert::pause_briefly;
using std::int64_t;
