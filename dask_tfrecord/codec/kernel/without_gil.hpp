// Work of the kernel while other threads run Python.
#pragma once

#include <Python.h>

#include <chrono>
#include <thread>

// Releases the GIL in its scope. A daemon thread that asks for the GIL while the interpreter ends does not get it.
// Before 3.14, Python calls pthread_exit instead, and glibc unwinds the stack like an exception. The unwinding would
// abort the process, because nanobind does not rethrow what it catches. Here the thread sleeps until the process has
// ended, as it does in Python 3.14.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }

 private:
  PyThreadState* state_;
};

// Returns work(), which runs while other threads run Python.
template <class Work>
auto without_gil(const Work& work) {
  const WithoutGil no_gil;
  return work();
}
