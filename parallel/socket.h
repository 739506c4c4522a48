// TCP sockets as far as ranks need them. Nothing here waits without an end.
#pragma once
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

using Deadline = std::chrono::steady_clock::time_point;

/// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Listens on all interfaces; port 0: any that is free. Throws Error(config) when the port is taken.
Socket listen_on(int port);
int port_of(const Socket& listener);
/// The next connection; none when there is none now.
Socket accept_from(const Socket& listener);

/// Numeric addresses of this host, IPv4 first, without loopback.
std::vector<std::string> own_addresses();
/// None, and the reason in `problem`, when that fails or takes longer.
Socket connect_to(const std::string& address, int port, Deadline deadline, std::string& problem);

/// False when the connection ends before all is through, or at the deadline.
bool send_all(const Socket& socket, const void* data, std::size_t bytes, Deadline deadline);
bool receive_all(const Socket& socket, void* data, std::size_t bytes, Deadline deadline);
/// The other side has closed, or is gone. What it has sent before may still wait to be read. Any thread may ask.
bool closed_by_peer(const Socket& socket);

}  // namespace trainer
