#include "parallel/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "core/runtime/check.h"

namespace trainer {
namespace {

std::string reason(int error) {
  return std::strerror(error);  // NOLINT(concurrency-mt-unsafe): glibc's is thread-safe
}

void set_option(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof value);
}

/// Small messages leave at once, and a host that vanishes without a word is noticed after half a minute.
void configure(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 20));
}

/// True when `events` have come, or an error.
bool await(int fd, short events, Deadline deadline) {
  pollfd poll_fd{fd, events, 0};
  int ready = 0;
  do ready = poll(&poll_fd, 1, milliseconds_until(deadline));
  while (ready < 0 && errno == EINTR);
  return ready > 0;
}

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

/// Nothing (length 0) when `text` is not a numeric address.
Address parse_address(const std::string& text, int port) {
  Address address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  const auto network_port = htons(static_cast<std::uint16_t>(port));
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = network_port;
    address.length = sizeof *v4;
  } else if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = network_port;
    address.length = sizeof *v6;
  }
  return address;
}

/// Moves bytes with `move(done)`, which returns what send and recv return.
template <class Move>
bool move_all(int fd, short events, std::size_t bytes, Deadline deadline, const Move& move) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t moved = move(done);
    if (moved > 0) {
      done += static_cast<std::size_t>(moved);
      continue;
    }
    if (moved == 0 || (errno != EAGAIN && errno != EINTR)) return false;
    if (errno == EAGAIN && !await(fd, events, deadline)) return false;
  }
  return true;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Socket listen_on(int port) {
  // One IPv6 socket hears both families; a kernel without IPv6 gets an IPv4 socket.
  Socket socket(::socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const bool v6 = static_cast<bool>(socket);
  if (!v6) socket = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) fail(ExitCode::communication, "cannot open a socket: {}", reason(errno));
  set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (v6) set_option(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  const Address any = parse_address(v6 ? "::" : "0.0.0.0", port);
  if (bind(socket.fd(), reinterpret_cast<const sockaddr*>(&any.storage), any.length) != 0 ||
      listen(socket.fd(), SOMAXCONN) != 0)
    fail(ExitCode::config, "cannot listen on port {}: {}", port, reason(errno));
  return socket;
}

int port_of(const Socket& listener) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&storage), &length);
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
}

Socket accept_from(const Socket& listener) {
  Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket) configure(socket.fd());
  return socket;
}

std::vector<std::string> own_addresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first, freeifaddrs);
  std::vector<std::string> v4, v6;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (entry->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, text, sizeof text);
      v4.emplace_back(text);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;  // means something else on each host
      inet_ntop(AF_INET6, &address, text, sizeof text);
      v6.emplace_back(text);
    }
  }
  v4.insert(v4.end(), v6.begin(), v6.end());
  return v4;
}

Socket connect_to(const std::string& address, int port, Deadline deadline, std::string& problem) {
  const Address target = parse_address(address, port);
  if (target.length == 0) {
    problem = fmt::format("'{}' is no address", address);
    return {};
  }
  Socket socket(::socket(target.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int error = socket ? 0 : errno;
  if (socket && connect(socket.fd(), reinterpret_cast<const sockaddr*>(&target.storage), target.length) != 0) {
    error = errno;
    if (error == EINPROGRESS) {
      socklen_t length = sizeof error;
      if (!await(socket.fd(), POLLOUT, deadline))
        error = ETIMEDOUT;
      else
        getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
  }
  if (error != 0) {
    problem = fmt::format("{} port {}: {}", address, port, reason(error));
    return {};
  }
  configure(socket.fd());
  return socket;
}

bool send_all(const Socket& socket, const void* data, std::size_t bytes, Deadline deadline) {
  return move_all(socket.fd(), POLLOUT, bytes, deadline, [&](std::size_t done) {
    return send(socket.fd(), static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

bool receive_all(const Socket& socket, void* data, std::size_t bytes, Deadline deadline) {
  return move_all(socket.fd(), POLLIN, bytes, deadline, [&](std::size_t done) {
    return recv(socket.fd(), static_cast<char*>(data) + done, bytes - done, MSG_DONTWAIT);
  });
}

bool closed_by_peer(const Socket& socket) {
  pollfd poll_fd{socket.fd(), POLLRDHUP, 0};
  return poll(&poll_fd, 1, 0) > 0;  // POLLHUP and POLLERR come unasked
}

}  // namespace trainer
