// Work shared among threads, where there is enough of it.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#ifndef _WIN32
#include <pthread.h>
#endif
#ifdef __linux__
#include <sched.h>
#endif

static inline npy_intp n_core() {
#ifdef __linux__
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        return CPU_COUNT(&allowed);
#endif
    return (npy_intp)std::thread::hardware_concurrency();
}

// As many as OMP_NUM_THREADS says, or as there are cores for: more than 16 hardly read memory any faster.
static inline npy_intp most_threads() {
    const char *asked = std::getenv("OMP_NUM_THREADS");
    const long n = asked == NULL ? 0 : std::strtol(asked, NULL, 10);
    return n > 0 ? (npy_intp)n : std::min(n_core(), (npy_intp)16);
}

static inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Threads that help with one call after the other. The layers of a decoder follow each other within microseconds,
// so a helper watches for more work for a while before it sleeps. Who finds that the work has been done by then
// does nothing, and nobody waits for one that is still asleep.
class Helpers {
    std::mutex mutex, in_use;
    std::condition_variable work_came;
    void (*work)(void *) = NULL; // What there is to help with, and on what.
    void *job = NULL;
    std::atomic<npy_intp> wanted{0}, ended{0}, asleep{0};
    std::atomic<bool> leave{false};
    std::vector<std::thread> threads;

    bool is_called() const { return wanted.load() > 0 || leave.load(); }

    bool accept() {
        npy_intp n = wanted.load();
        while (n > 0)
            if (wanted.compare_exchange_weak(n, n - 1))
                return true;
        return false;
    }

    void wait_for_work() {
        const auto start = std::chrono::steady_clock::now();
        do
            for (int i = 0; i < 64; i++) {
                if (is_called())
                    return;
                pause_briefly();
            }
        while (std::chrono::steady_clock::now() - start < std::chrono::microseconds(300));
        std::unique_lock<std::mutex> lock(mutex);
        asleep++;
        work_came.wait(lock, [&] { return is_called(); });
        asleep--;
    }

    void help() {
        while (!leave) {
            wait_for_work();
            if (accept()) {
                work(job);
                ended++;
            }
        }
    }

    void wake() {
        if (asleep > 0) {
            std::lock_guard<std::mutex> lock(mutex);
            work_came.notify_all();
        }
    }

    // A thread that can't be made is one helper less.
    void have(npy_intp n) {
        try {
            while ((npy_intp)threads.size() < n)
                threads.emplace_back([this] { help(); });
        } catch (const std::exception &) {
        }
    }

  public:
    // Calls `work(job)` here and on up to `n` helpers at once, and returns when all that began have ended. Once is
    // enough for all of it to be done, and it throws nothing.
    void call(void (*work)(void *), void *job, npy_intp n) {
        std::unique_lock<std::mutex> alone(in_use, std::try_to_lock);
        if (n < 1 || !alone.owns_lock()) // Nobody waits for helpers that another thread has.
            return work(job);
        have(n);
        const npy_intp asked = std::min(n, (npy_intp)threads.size());
        this->work = work, this->job = job;
        ended = 0;
        wanted = asked;
        wake();
        work(job);
        const npy_intp accepted = asked - wanted.exchange(0);
        for (int i = 0; ended.load() < accepted; i++)
            i < 4096 ? pause_briefly() : std::this_thread::yield();
    }

    // Around a fork there are no helpers: a child would have none, and a process of one thread forks safely.
    void before_fork() {
        in_use.lock();
        leave = true;
        wake();
        for (std::thread &thread : threads)
            thread.join();
        threads.clear();
        leave = false;
    }
    void after_fork() { in_use.unlock(); }
};

static Helpers *helpers_of_process = NULL;

static void before_fork() { helpers_of_process->before_fork(); }
static void after_fork() { helpers_of_process->after_fork(); }

// The helpers that all kernels of this process share, each a library of its own: a capsule in Python's hands. NULL
// where memory ran out.
static Helpers *helpers() {
    if (helpers_of_process != NULL)
        return helpers_of_process;
    PyObject *names = PyModule_GetDict(PyImport_AddModule("pytensor_rope.lowering.c.kernel"));
    PyObject *capsule = PyDict_GetItemString(names, "_helpers");
    if (capsule != NULL)
        return helpers_of_process = (Helpers *)PyCapsule_GetPointer(capsule, NULL);
    helpers_of_process = new (std::nothrow) Helpers;
    capsule = helpers_of_process == NULL ? NULL : PyCapsule_New(helpers_of_process, NULL, NULL);
    if (capsule == NULL || PyDict_SetItemString(names, "_helpers", capsule) != 0)
        PyErr_Clear(); // This kernel's own, then.
    Py_XDECREF(capsule);
#ifndef _WIN32
    if (helpers_of_process != NULL)
        pthread_atfork(before_fork, after_fork, after_fork);
#endif
    return helpers_of_process;
}

// Pieces of work that threads take one by one.
template <typename Work> struct Pieces {
    const Work &work;
    const npy_intp n;
    std::atomic<npy_intp> next;
    std::atomic<bool> failed;

    static void run(void *pieces) {
        Pieces &self = *(Pieces *)pieces;
        try {
            self.work([&] { return self.next++; }, self.n);
        } catch (...) {
            self.failed = true;
        }
    }
};

// Calls `work(take, n)`, in which take() gives the next of n pieces that nobody has taken, on as many threads as
// the operations are worth. Returns false where memory ran out. The caller holds Python's lock.
template <typename Work> static bool share(npy_intp n, double operations, const Work &work) {
    const double worth_a_thread = 2e5; // Some ten microseconds: a helper that is awake begins within one.
    const npy_intp worth = (npy_intp)std::min(operations / worth_a_thread, 1e3);
    const npy_intp n_helper = std::min(std::min(worth, n), most_threads()) - 1;
    Pieces<Work> pieces{work, n, {0}, {false}};
    Helpers *shared = n_helper < 1 ? NULL : helpers();
    if (shared == NULL)
        Pieces<Work>::run(&pieces);
    else
        shared->call(Pieces<Work>::run, &pieces, n_helper);
    return !pieces.failed;
}

// Calls `work(first, end)` for parts of n rows that don't depend on each other, as `share` does. It throws nothing.
template <typename Work> static void share_rows(npy_intp n, double operations, const Work &work) {
    const npy_intp n_part = std::max(std::min((npy_intp)std::min(operations / 1e5, 1e4), n), (npy_intp)1);
    share(n_part, operations, [&](auto take, npy_intp) {
        for (npy_intp at = take(); at < n_part; at = take())
            work(n * at / n_part, n * (at + 1) / n_part);
    });
}
