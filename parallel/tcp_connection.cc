#include "parallel/tcp_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>

namespace trainer {
namespace {

/// A message of at most this size is kept when it comes before it is asked for; a longer one waits in the socket. Of
/// two ranks' messages only the descriptions of collectives come early by much.
constexpr std::int64_t kKeptEarly = 4096;

bool same(const TcpMessage& message, std::uint64_t group, std::uint64_t number) {
  return message.group == group && message.number == number;
}

}  // namespace

void TcpConnection::receive(const std::shared_ptr<TcpMessage>& message) {
  const auto early = std::find_if(early_.begin(), early_.end(),
                                  [&](const auto& m) { return same(*m, message->group, message->number); });
  if (early == early_.end()) {
    receives_.push_back(message);
    return;
  }
  const std::shared_ptr<TcpMessage> source = *early;
  early_.erase(early);
  message->received = source->bytes;
  message->too_long = source->bytes > message->bytes;
  message->done = !message->too_long;
  if (message->done && source->bytes > 0)
    std::memcpy(message->data, source->data, static_cast<std::size_t>(source->bytes));
}

void TcpConnection::progress() {
  while (!sends_.empty() && send_some()) {
  }
  while (!receives_.empty() || target_) {
    if (!receive_some()) break;
  }
}

bool TcpConnection::send_some() {
  TcpMessage& message = *sends_.front();
  const Header header{message.group, message.number, message.bytes};
  constexpr auto kHeader = static_cast<std::int64_t>(sizeof header);
  const std::int64_t of_header = std::min(sent_, kHeader), of_data = sent_ - of_header;
  iovec parts[2];
  parts[0].iov_base = const_cast<char*>(reinterpret_cast<const char*>(&header)) + of_header;
  parts[0].iov_len = static_cast<std::size_t>(kHeader - of_header);
  parts[1].iov_base = message.data + of_data;
  parts[1].iov_len = static_cast<std::size_t>(message.bytes - of_data);
  msghdr whole{};
  whole.msg_iov = parts;
  whole.msg_iovlen = 2;
  const ssize_t moved = sendmsg(socket_.fd(), &whole, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (moved <= 0) return false;
  sent_ += moved;
  if (sent_ == kHeader + message.bytes) {
    message.done = true;
    sends_.pop_front();
    sent_ = 0;
  }
  return true;
}

/// False when nothing more can be done now.
bool TcpConnection::receive_some() {
  constexpr auto kHeader = static_cast<std::int64_t>(sizeof header_);
  if (got_ < kHeader) {
    const ssize_t moved = recv(socket_.fd(), reinterpret_cast<char*>(&header_) + got_,
                               static_cast<std::size_t>(kHeader - got_), MSG_DONTWAIT);
    if (moved <= 0) return false;
    got_ += moved;
    return true;
  }
  if (!target_ && !choose_target()) return false;
  const std::int64_t left = kHeader + header_.bytes - got_;
  if (left > 0) {
    const ssize_t moved =
        recv(socket_.fd(), target_->data + (got_ - kHeader), static_cast<std::size_t>(left), MSG_DONTWAIT);
    if (moved <= 0) return false;
    got_ += moved;
  }
  if (got_ == kHeader + header_.bytes) arrived();
  return true;
}

std::shared_ptr<TcpMessage> TcpConnection::take_posted(std::uint64_t group, std::uint64_t number) {
  const auto posted =
      std::find_if(receives_.begin(), receives_.end(), [&](const auto& m) { return same(*m, group, number); });
  if (posted == receives_.end()) return nullptr;
  std::shared_ptr<TcpMessage> message = *posted;
  receives_.erase(posted);
  return message;
}

/// False: the message must wait in the socket.
bool TcpConnection::choose_target() {
  target_ = take_posted(header_.group, header_.number);
  if (target_ && header_.bytes <= target_->bytes) return true;
  if (!target_ && header_.bytes > kKeptEarly) return false;
  const bool early = target_ == nullptr;
  if (target_) {
    target_->received = header_.bytes;
    target_->too_long = true;
  }
  target_ = std::make_shared<TcpMessage>();
  target_->early = early;
  target_->group = header_.group;
  target_->number = header_.number;
  target_->bytes = header_.bytes;
  target_->owned.resize(static_cast<std::size_t>(header_.bytes));
  target_->data = target_->owned.data();
  return true;
}

void TcpConnection::arrived() {
  const std::shared_ptr<TcpMessage> message = std::exchange(target_, nullptr);
  got_ = 0;
  message->received = header_.bytes;
  message->done = true;
  if (!message->early) return;
  early_.push_back(message);
  // It may have been asked for while it came.
  if (const auto posted = take_posted(message->group, message->number)) receive(posted);
}

void TcpConnection::abandon(const std::shared_ptr<TcpMessage>& message) {
  if (message->done) return;
  receives_.erase(std::remove(receives_.begin(), receives_.end(), message), receives_.end());
  if (target_ == message) {
    message->owned.resize(static_cast<std::size_t>(message->bytes));
    message->data = message->owned.data();
  }
  const auto queued = std::find(sends_.begin(), sends_.end(), message);
  if (queued == sends_.end()) return;
  if (queued == sends_.begin() && sent_ > 0) {
    message->owned.assign(message->data, message->data + message->bytes);
    message->data = message->owned.data();
  } else {
    sends_.erase(queued);
  }
}

}  // namespace trainer
