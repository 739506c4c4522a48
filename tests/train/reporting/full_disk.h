// A limit on the size of files stands for a full disk, as long as this lives: what a file takes up to the limit is
// written, the rest is refused.
#pragma once
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

namespace trainer {

class FullDisk {
 public:
  explicit FullDisk(rlim_t most_bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit small{most_bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace trainer
