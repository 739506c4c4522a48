// One rank's end of the connection to one other rank: messages of many groups, one after another, in both directions.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "parallel/socket.h"

namespace trainer {

struct TcpMessage {
  std::uint64_t group = 0;
  std::uint64_t number = 0;
  char* data = nullptr;
  std::int64_t bytes = 0;     // receive: room
  std::int64_t received = 0;  // receive: what came
  bool done = false;
  bool too_long = false;    // receive: more came than there is room for
  bool early = false;       // came before it was asked for
  std::vector<char> owned;  // behind `data` when nobody else holds it
};

class TcpConnection {
 public:
  explicit TcpConnection(Socket socket) : socket_(std::move(socket)) {}

  // `message->data` must stay until the message is done or abandoned.
  void send(const std::shared_ptr<TcpMessage>& message) { sends_.push_back(message); }
  void receive(const std::shared_ptr<TcpMessage>& message);
  /// Sends and receives what can be without waiting.
  void progress();
  /// Takes a message back. What has begun is ended with memory of our own, so that the next message is understood.
  void abandon(const std::shared_ptr<TcpMessage>& message);
  /// The other rank is gone. Any thread may ask.
  bool lost() const { return closed_by_peer(socket_); }

 private:
  /// Before the bytes of each message.
  struct Header {
    std::uint64_t group = 0;
    std::uint64_t number = 0;
    std::int64_t bytes = 0;
  };

  bool send_some();
  bool receive_some();
  bool choose_target();
  void arrived();
  std::shared_ptr<TcpMessage> take_posted(std::uint64_t group, std::uint64_t number);

  Socket socket_;
  std::deque<std::shared_ptr<TcpMessage>> sends_;
  std::int64_t sent_ = 0;  // of the first, with its header
  std::deque<std::shared_ptr<TcpMessage>> receives_;
  std::deque<std::shared_ptr<TcpMessage>> early_;  // came before they were asked for
  Header header_;                                  // of the message that is coming in
  std::int64_t got_ = 0;                           // of it, with the header
  std::shared_ptr<TcpMessage> target_;             // where it goes
};

}  // namespace trainer
