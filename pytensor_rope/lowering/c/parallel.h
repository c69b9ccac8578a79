// Work shared among threads, where there is enough of it.

#include <atomic>
#include <cstdlib>
#include <thread>

// As many as there are cores for, or as OMP_NUM_THREADS says.
static inline npy_intp most_threads() {
    const char *asked = std::getenv("OMP_NUM_THREADS");
    const long n = asked == NULL ? 0 : std::strtol(asked, NULL, 10);
    const npy_intp cores = (npy_intp)std::thread::hardware_concurrency();
    return n > 0 ? (npy_intp)n : cores > 0 ? cores : 1;
}

// Calls `work(take, n)`, in which take() gives the next of n pieces that nobody has taken, on as many threads as
// the operations are worth. The threads end with the call, so that a process may fork after it. Returns false
// where memory ran out.
template <typename Work> static bool share(npy_intp n, double operations, const Work &work) {
    const double worth_a_thread = 2e7; // About a millisecond, beside which making a thread takes little.
    const npy_intp worth = (npy_intp)std::min(operations / worth_a_thread, 1e3) + 1;
    const npy_intp n_thread = std::min(std::min(worth, n), most_threads());
    std::atomic<npy_intp> next(0);
    std::atomic<bool> failed(false);
    auto run = [&] {
        try {
            work([&] { return next++; }, n);
        } catch (const std::bad_alloc &) {
            failed = true;
        }
    };
    std::vector<std::thread> threads;
    try {
        while ((npy_intp)threads.size() + 1 < n_thread)
            threads.emplace_back(run);
    } catch (const std::exception &) {
        // Those that there are do it all.
    }
    run();
    for (std::thread &thread : threads)
        thread.join();
    return !failed;
}
