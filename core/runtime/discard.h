// Giving up a file that cannot be written.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace trainer {

/// What is written to `descriptor` from now on goes nowhere, and is never refused for want of room: a library that has
/// to write before it can close (HDF5 crashes when the process ends, if it could not) gets a file in memory for it.
inline void discard_writes(int descriptor) {
  const int memory = ::memfd_create("discarded", MFD_CLOEXEC);
  if (memory < 0) return;
  ::dup2(memory, descriptor);
  ::close(memory);
}

}  // namespace trainer
