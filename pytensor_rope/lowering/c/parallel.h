// Work shared among threads, where there is enough of it.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <new>
#include <thread>

#ifndef _WIN32
#include <pthread.h>
#endif

// As many as there are cores for, or as OMP_NUM_THREADS says.
static inline npy_intp most_threads() {
    const char *asked = std::getenv("OMP_NUM_THREADS");
    const long n = asked == NULL ? 0 : std::strtol(asked, NULL, 10);
    const npy_intp cores = (npy_intp)std::thread::hardware_concurrency();
    return n > 0 ? (npy_intp)n : cores > 0 ? cores : 1;
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
    const std::function<void()> *work = NULL; // What there is to help with.
    std::atomic<npy_intp> wanted{0}, ended{0}, asleep{0};
    npy_intp threads = 0;

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
                if (wanted.load(std::memory_order_relaxed) > 0)
                    return;
                pause_briefly();
            }
        while (std::chrono::steady_clock::now() - start < std::chrono::microseconds(300));
        std::unique_lock<std::mutex> lock(mutex);
        asleep++;
        work_came.wait(lock, [&] { return wanted.load() > 0; });
        asleep--;
    }

    void help() {
        for (;;) {
            wait_for_work();
            if (accept()) {
                (*work)();
                ended++;
            }
        }
    }

    // A thread that can't be made is one helper less.
    void have(npy_intp n) {
        try {
            for (; threads < n; threads++)
                std::thread([this] { help(); }).detach();
        } catch (const std::exception &) {
        }
    }

  public:
    // Calls `work` here and on up to `n` helpers at once, and returns when all that began have ended. `work` does
    // everything if called once, and throws nothing.
    void call(const std::function<void()> &work, npy_intp n) {
        std::unique_lock<std::mutex> alone(in_use, std::try_to_lock);
        if (n < 1 || !alone.owns_lock()) // Nobody waits for helpers that another thread has.
            return work();
        have(n);
        const npy_intp asked = std::min(n, threads);
        this->work = &work;
        ended = 0;
        wanted = asked;
        if (asleep > 0) {
            std::lock_guard<std::mutex> lock(mutex);
            work_came.notify_all();
        }
        work();
        const npy_intp accepted = asked - wanted.exchange(0);
        for (int i = 0; ended.load() < accepted; i++)
            i < 4096 ? pause_briefly() : std::this_thread::yield();
    }
};

static Helpers *helpers_of_process = NULL;

#ifndef _WIN32
// A child of fork has none of its parent's threads.
static void forget_threads() { new (helpers_of_process) Helpers; }
#endif

// The helpers that all kernels of this process share, each a library of its own: a capsule in Python's hands.
static Helpers *helpers() {
    if (helpers_of_process != NULL)
        return helpers_of_process;
    PyObject *names = PyModule_GetDict(PyImport_AddModule("pytensor_rope.lowering.c.kernel"));
    PyObject *capsule = PyDict_GetItemString(names, "_helpers");
    if (capsule != NULL)
        return helpers_of_process = (Helpers *)PyCapsule_GetPointer(capsule, NULL);
    helpers_of_process = new Helpers;
    capsule = PyCapsule_New(helpers_of_process, NULL, NULL);
    if (capsule == NULL || PyDict_SetItemString(names, "_helpers", capsule) != 0)
        PyErr_Clear(); // This kernel's own, then.
    Py_XDECREF(capsule);
#ifndef _WIN32
    pthread_atfork(NULL, NULL, forget_threads);
#endif
    return helpers_of_process;
}

// Calls `work(take, n)`, in which take() gives the next of n pieces that nobody has taken, on as many threads as
// the operations are worth. Returns false where memory ran out. The caller holds Python's lock.
template <typename Work> static bool share(npy_intp n, double operations, const Work &work) {
    const double worth_a_thread = 2e5; // Some ten microseconds: a helper that is awake begins within one.
    const npy_intp worth = (npy_intp)std::min(operations / worth_a_thread, 1e3);
    std::atomic<npy_intp> next(0);
    std::atomic<bool> failed(false);
    const std::function<void()> run = [&] {
        try {
            work([&] { return next++; }, n);
        } catch (const std::bad_alloc &) {
            failed = true;
        }
    };
    helpers()->call(run, std::min(std::min(worth, n), most_threads()) - 1);
    return !failed;
}
