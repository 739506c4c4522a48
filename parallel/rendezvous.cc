#include "parallel/rendezvous.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "core/runtime/check.h"

namespace trainer {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr char kMagic[24] = "trainer rendezvous 1";
constexpr auto kPause = 100ms;  // between looks at the file or the listener
constexpr auto kAnswerTime = 5s;
constexpr auto kFirstNotice = 5s;  // rank 0 says for whom it waits
constexpr auto kLostNotice = 15s;  // the others say that they have not found it

/// What a rank says first.
struct Hello {
  char magic[24] = {};
  char nonce[40] = {};
  std::int32_t rank = 0;
  std::int32_t size = 0;
  RendezvousMember member;
};

enum class Verdict : std::int32_t {
  welcome,    // wait for the others
  complete,   // all have come; the members follow
  refused,    // the text says why, the code what to exit with
  other_job,  // what listens here belongs to another start: look at the file again
};
struct Answer {
  char magic[24] = {};
  Verdict verdict = Verdict::welcome;
  ExitCode code = ExitCode::ok;
  char text[400] = {};
};

template <std::size_t n>
void put(char (&field)[n], const std::string& text) {
  std::strncpy(field, text.c_str(), n - 1);
}

void answer(const Socket& socket, Verdict verdict) {
  Answer message;
  put(message.magic, kMagic);
  message.verdict = verdict;
  send_all(socket, &message, sizeof message, Clock::now() + kAnswerTime);
}

void refuse(const Socket& socket, const Error& error) {
  Answer message;
  put(message.magic, kMagic);
  message.verdict = Verdict::refused;
  message.code = error.code();
  put(message.text, error.what());
  send_all(socket, &message, sizeof message, Clock::now() + kAnswerTime);
}

std::optional<Answer> receive_answer(const Socket& socket, Deadline deadline) {
  Answer message;
  if (!receive_all(socket, &message, sizeof message, deadline) ||
      std::strncmp(message.magic, kMagic, sizeof kMagic) != 0)
    return std::nullopt;
  return message;
}

std::string new_nonce() {
  std::random_device random;  // the kernel's
  std::string text;
  for (int word = 0; word < 4; ++word) text += fmt::format("{:08x}", random());
  return text;
}

/// The kernel that runs, and the shared memory that this process sees of it: containers may have their own.
std::string memory_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  struct stat info {};
  const bool found = stat("/dev/shm", &info) == 0;
  // Without either, every process is a host of its own.
  return boot.empty() || !found ? new_nonce() : fmt::format("{} {}", boot, info.st_dev);
}

RendezvousMember this_member(const Socket& listener) {
  RendezvousMember member;
  member.process = this_process();
  put(member.memory, memory_identity());
  std::string addresses;
  for (const std::string& address : own_addresses())
    if (addresses.size() + address.size() + 1 < sizeof member.addresses)
      addresses += (addresses.empty() ? "" : " ") + address;
  put(member.addresses, addresses);
  member.port = port_of(listener);
  return member;
}

std::string text_of(const RendezvousMember& member) {
  return fmt::format("host {} process {}", member.process.host, member.process.pid);
}

/// "rank 3", "ranks 1, 3, 5-9"
std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t first = 0, last = 0; first < ranks.size(); first = last + 1) {
    for (last = first; last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1;) ++last;
    if (last == first + 1) last = first;  // two are no range
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[first]);
    if (last > first) text += fmt::format("-{}", ranks[last]);
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

/// When to say that one waits: soon for the first time, then ever more rarely.
class Notice {
 public:
  explicit Notice(Clock::duration first) : next_(first) {}
  bool is_due() {
    if (Clock::now() - start_ < next_) return false;
    next_ *= 3;
    return true;
  }

 private:
  Clock::time_point start_ = Clock::now();
  Clock::duration next_;
};

// ---- The file ----------------------------------------------------------------------------------

struct Announcement {
  std::string nonce;
  RendezvousMember member;  // rank 0
};

class RendezvousFile {
 public:
  explicit RendezvousFile(const RendezvousOptions& options)
      : folder_(options.folder), path_(folder_ / (options.job + ".rendezvous")) {}

  std::string path() const { return path_.string(); }

  void check_folder() const {
    std::error_code error;
    if (!std::filesystem::is_directory(folder_, error))
      fail(ExitCode::config, "TRAINER_RENDEZVOUS: '{}' is no folder on host {}", folder_.string(), this_process().host);
    if (access(folder_.c_str(), W_OK | X_OK) != 0)
      fail(ExitCode::config, "TRAINER_RENDEZVOUS: cannot write to '{}' on host {}: {}", folder_.string(),
           this_process().host, std::strerror(errno));  // NOLINT(concurrency-mt-unsafe): glibc's is thread-safe
  }

  std::optional<Announcement> read() const {
    // Reading the folder makes a network file system ask its server, where a missing file may be remembered.
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, error))
      if (entry.path().filename() == path_.filename()) break;
    std::ifstream file(path_);
    std::string magic, nonce, host, addresses, memory;
    Announcement found;
    std::getline(file, magic);
    std::getline(file, nonce);
    std::getline(file, host);
    std::getline(file, memory);
    std::getline(file, addresses);
    file >> found.member.process.pid >> found.member.port;
    if (!file || magic != kMagic) return std::nullopt;
    found.nonce = nonce;
    put(found.member.process.host, host);
    put(found.member.memory, memory);
    put(found.member.addresses, addresses);
    return found;
  }

  /// False when there is a file already. What others see of it is whole.
  bool create(const Announcement& announcement) const {
    const RendezvousMember& member = announcement.member;
    const std::filesystem::path draft = folder_ / fmt::format(".{}.draft", announcement.nonce);
    const std::string text = fmt::format("{}\n{}\n{}\n{}\n{}\n{} {}\n", kMagic, announcement.nonce, member.process.host,
                                         member.memory, member.addresses, member.process.pid, member.port);
    const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);  // the nonce is a password
    const bool written =
        file >= 0 && write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(file) == 0;
    const int write_error = errno;
    if (file >= 0) close(file);
    bool linked = written && link(draft.c_str(), path_.c_str()) == 0;
    // A file system without hard links cannot tell which of two came first.
    if (written && !linked && (errno == EPERM || errno == ENOTSUP || errno == ENOSYS))
      linked = rename(draft.c_str(), path_.c_str()) == 0;
    const int error = written ? errno : write_error;
    unlink(draft.c_str());
    if (!linked && error != EEXIST)
      fail(ExitCode::config, "TRAINER_RENDEZVOUS: cannot write '{}': {}", path(),
           std::strerror(error));  // NOLINT(concurrency-mt-unsafe): glibc's is thread-safe
    return linked;
  }

  void remove() const { unlink(path_.c_str()); }

 private:
  std::filesystem::path folder_, path_;
};

// ---- Rank 0 ------------------------------------------------------------------------------------

class Host {
 public:
  Host(const RendezvousOptions& options, const RendezvousFile& file, Rendezvous& result)
      : options_(options), file_(file), result_(result), came_(static_cast<std::size_t>(options.size)) {
    came_[0] = true;
  }

  void bring_together() {
    result_.nonce = new_nonce();
    publish();
    const Deadline deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                 std::chrono::duration<double>(options_.timeout_seconds));
    Notice notice(kFirstNotice);
    try {
      while (!missing().empty()) {
        look_after_those_here(deadline);
        if (notice.is_due())
          fmt::print(stderr, "trainer: rank 0 (host {}) waits for {} of {} through '{}', {} s at most\n",
                     this_process().host, listed(missing()), options_.size, file_.path(), options_.timeout_seconds);
        if (!let_one_in()) std::this_thread::sleep_for(kPause);
      }
    } catch (const Error& e) {
      file_.remove();
      for (const Socket& line : result_.lines)
        if (line) refuse(line, e);
      throw;
    }
    file_.remove();
    assign_nodes();
    for (const Socket& line : result_.lines) {
      if (!line) continue;
      answer(line, Verdict::complete);
      send_all(line, result_.members.data(), result_.members.size() * sizeof(RendezvousMember), deadline + kAnswerTime);
    }
  }

 private:
  /// A file that is there belongs to a rank 0 that waits, or is left from one that is gone.
  void publish() {
    const Announcement mine{result_.nonce, result_.members[0]};
    while (!file_.create(mine)) {
      const auto found = file_.read();
      if (found && answers(*found))
        fail(ExitCode::config,
             "rank 0 was started twice: {} waits for its ranks through '{}'; end it, or give each job its own "
             "TRAINER_JOB_ID",
             text_of(found->member), file_.path());
      file_.remove();
    }
  }

  bool answers(const Announcement& other) const {
    std::string problem;
    const bool same_host = std::strcmp(other.member.memory, result_.members[0].memory) == 0;
    const Socket socket = connect_to(other.member, same_host, Clock::now() + kAnswerTime, problem);
    if (!socket) return false;
    Hello probe;
    put(probe.magic, kMagic);  // without a nonce
    return send_all(socket, &probe, sizeof probe, Clock::now() + kAnswerTime) &&
           receive_answer(socket, Clock::now() + kAnswerTime).has_value();
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < options_.size; ++rank)
      if (!came_[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
    return ranks;
  }

  void look_after_those_here(Deadline deadline) {
    for (int rank = 1; rank < options_.size; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      if (result_.lines[r] && closed_by_peer(result_.lines[r]))
        fail(ExitCode::communication, "rank {} ({}) has ended before all ranks had come", rank,
             text_of(result_.members[r]));
    }
    if (Clock::now() < deadline) return;
    const std::vector<int> ranks = missing();
    fail(ExitCode::communication, "{} of {} {} not come within {} s (TRAINER_RENDEZVOUS_TIMEOUT) through '{}'",
         listed(ranks), options_.size, ranks.size() == 1 ? "has" : "have", options_.timeout_seconds, file_.path());
  }

  /// False when nobody stands before the door.
  bool let_one_in() {
    Socket socket = accept_from(result_.listener);
    if (!socket) return false;
    Hello hello;
    if (!receive_all(socket, &hello, sizeof hello, Clock::now() + kAnswerTime) ||
        std::strncmp(hello.magic, kMagic, sizeof kMagic) != 0)
      return true;  // some other program
    if (std::strncmp(hello.nonce, result_.nonce.c_str(), sizeof hello.nonce) != 0) {
      answer(socket, Verdict::other_job);
      return true;
    }
    const auto rank = static_cast<std::size_t>(hello.rank);
    std::string fault;
    if (hello.size != options_.size || hello.rank < 0 || hello.rank >= options_.size)
      fault = fmt::format("rank {} ({}) was started as one of {} ranks, rank 0 ({}) as one of {}", hello.rank,
                          text_of(hello.member), hello.size, text_of(result_.members[0]), options_.size);
    else if (came_[rank])
      fault = fmt::format("rank {} was started twice: {} and {}", hello.rank, text_of(result_.members[rank]),
                          text_of(hello.member));
    if (!fault.empty()) {
      const Error error(ExitCode::config, fault);
      refuse(socket, error);
      throw error;
    }
    answer(socket, Verdict::welcome);
    result_.members[rank] = hello.member;
    result_.lines[rank] = std::move(socket);
    came_[rank] = true;
    return true;
  }

  void assign_nodes() {
    std::vector<RendezvousMember>& members = result_.members;
    for (std::size_t rank = 0; rank < members.size(); ++rank) {
      RankProcess& process = members[rank].process;
      process.node = static_cast<std::int32_t>(rank);
      process.local_rank = 0;
      for (std::size_t before = rank; before-- > 0;) {
        if (std::strcmp(members[before].memory, members[rank].memory) != 0) continue;
        process.node = members[before].process.node;
        process.local_rank = members[before].process.local_rank + 1;
        break;
      }
    }
  }

  const RendezvousOptions& options_;
  const RendezvousFile& file_;
  Rendezvous& result_;
  std::vector<bool> came_;
};

// ---- The others --------------------------------------------------------------------------------

class Guest {
 public:
  Guest(const RendezvousOptions& options, const RendezvousFile& file, Rendezvous& result, RendezvousMember mine)
      : options_(options), file_(file), result_(result), mine_(mine) {}

  void join() {
    const Deadline deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                 std::chrono::duration<double>(options_.timeout_seconds));
    std::string problem = "there is no such file";
    Deadline lost = Clock::now() + kLostNotice;
    while (!try_once(deadline, problem)) {
      if (Clock::now() >= deadline)
        fail(ExitCode::communication,
             "rank {} of {} (host {}) has not found rank 0 within {} s (TRAINER_RENDEZVOUS_TIMEOUT) through '{}': {}",
             options_.rank, options_.size, this_process().host, options_.timeout_seconds, file_.path(), problem);
      if (Clock::now() >= lost) {
        lost = Deadline::max();  // once: all ranks but one may be waiting here
        fmt::print(stderr, "trainer: rank {} of {} (host {}) looks for rank 0 through '{}': {}\n", options_.rank,
                   options_.size, this_process().host, file_.path(), problem);
      }
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  bool try_once(Deadline deadline, std::string& problem) {
    const auto found = file_.read();
    if (!found) return false;
    const bool same_host = std::strcmp(found->member.memory, mine_.memory) == 0;
    std::string reasons;
    Socket line = connect_to(found->member, same_host, std::min(deadline, Clock::now() + kAnswerTime), reasons);
    if (!line) {
      problem = fmt::format(
          "it names {}, which cannot be reached ({}): it is left from an earlier start, or ports are blocked "
          "(TRAINER_RENDEZVOUS_PORT chooses them)",
          text_of(found->member), reasons);
      return false;
    }
    Hello hello;
    put(hello.magic, kMagic);
    put(hello.nonce, found->nonce);
    hello.rank = options_.rank;
    hello.size = options_.size;
    hello.member = mine_;
    send_all(line, &hello, sizeof hello, Clock::now() + kAnswerTime);
    const auto first = receive_answer(line, Clock::now() + kAnswerTime);
    if (!first || first->verdict == Verdict::other_job) {
      problem = fmt::format("it names {}, where something else listens now", text_of(found->member));
      return false;
    }
    expect(*first, Verdict::welcome);
    await_the_others(line, *found, deadline);
    result_.nonce = found->nonce;
    result_.lines[0] = std::move(line);
    return true;
  }

  void await_the_others(const Socket& line, const Announcement& host, Deadline deadline) {
    // Rank 0 began to wait later than this one, maybe.
    const Deadline patient =
        deadline + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.timeout_seconds));
    const auto second = receive_answer(line, patient);
    if (second) expect(*second, Verdict::complete);
    if (!second || !receive_all(line, result_.members.data(), result_.members.size() * sizeof(RendezvousMember),
                                Clock::now() + 10 * kAnswerTime))
      fail(ExitCode::communication, "rank 0 ({}) has ended before all ranks had come", text_of(host.member));
  }

  static void expect(const Answer& answer, Verdict verdict) {
    if (answer.verdict == verdict) return;
    fail(answer.code, "rank 0 has given up the start: {}", answer.text);
  }

  const RendezvousOptions& options_;
  const RendezvousFile& file_;
  Rendezvous& result_;
  RendezvousMember mine_;
};

}  // namespace

Rendezvous meet(const RendezvousOptions& options) {
  TRAINER_CHECK(options.rank >= 0 && options.rank < options.size, "rank {} of {}", options.rank, options.size);
  const RendezvousFile file(options);
  file.check_folder();
  Rendezvous result;
  result.listener = listen_on(options.port == 0 ? 0 : options.port + options.rank);
  result.members.resize(static_cast<std::size_t>(options.size));
  const RendezvousMember mine = this_member(result.listener);
  if (options.rank == 0) {
    result.members[0] = mine;
    result.lines.resize(result.members.size());
    Host(options, file, result).bring_together();
  } else {
    result.lines.resize(1);
    Guest(options, file, result, mine).join();
  }
  return result;
}

Socket connect_to(const RendezvousMember& other, bool same_host, Deadline deadline, std::string& problem) {
  std::istringstream addresses((same_host ? "127.0.0.1 " : "") + std::string(other.addresses));
  std::string reasons;
  for (std::string address; addresses >> address;) {
    std::string reason;
    Socket socket = connect_to(address, other.port, std::min(deadline, Clock::now() + kAnswerTime), reason);
    if (socket) return socket;
    reasons += (reasons.empty() ? "" : "; ") + reason;
  }
  problem = reasons.empty() ? "it has no address" : reasons;
  return {};
}

}  // namespace trainer
