#include "tests/launch/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tests/support/files.h"

namespace trainer::launch_test {
namespace {

namespace fs = std::filesystem;
constexpr const char* kMarkerName = "TRAINER_TEST_JOB";

/// The environment of a process, "NAME=value" each; empty when it is gone.
std::vector<std::string> environment_of(const std::string& pid) {
  std::vector<std::string> entries;
  std::istringstream all(read_file("/proc/" + pid + "/environ"));
  for (std::string entry; std::getline(all, entry, '\0');) entries.push_back(entry);
  return entries;
}

/// Calls visit(pid, environment) for the living processes with this entry in their environment. A process that has
/// ended and was not waited for yet has none.
template <class Visit>
void for_each_process(const std::string& marker, const Visit& visit) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::vector<std::string> environment = environment_of(name);
    for (const std::string& variable : environment)
      if (variable == marker) visit(static_cast<pid_t>(std::stol(name)), environment);
  }
}

void redirect(const std::string& path, int descriptor) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0 || dup2(file, descriptor) < 0) _exit(126);
}

}  // namespace

Job::Job(const std::string& folder, const std::string& command, const Environment& environment)
    : started_(monotonic_seconds()) {
  static std::atomic<int> jobs{0};
  const int number = ++jobs;
  out_path_ = fmt::format("{}/job-{}.out", folder, number);
  err_path_ = fmt::format("{}/job-{}.err", folder, number);
  const std::string id = fmt::format("{}.{}", getpid(), number);
  marker_ = fmt::format("{}={}", kMarkerName, id);
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ > 0) return;
  if (chdir(folder.c_str()) != 0) _exit(126);
  redirect("/dev/null", STDIN_FILENO);
  redirect(out_path_, STDOUT_FILENO);
  redirect(err_path_, STDERR_FILENO);
  setenv(kMarkerName, id.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread after fork
  for (const auto& [name, value] : environment)
    setenv(name.c_str(), value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread after fork
  execlp("bash", "bash", "-c", command.c_str(), nullptr);
  _exit(127);
}

Job::~Job() {
  kill_all();
  if (!reaped_) waitpid(pid_, nullptr, 0);
}

Result Job::wait(double timeout_seconds) {
  Result result;
  int status = 0;
  rusage usage{};
  result.timed_out = !wait_until([&] { return wait4(pid_, &status, WNOHANG, &usage) != 0; }, timeout_seconds);
  if (result.timed_out) {
    kill_all();
    wait4(pid_, &status, 0, &usage);
  }
  reaped_ = true;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.seconds = monotonic_seconds() - started_;
  result.peak_bytes = static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
  result.out = read_file(out_path_);
  result.err = read_file(err_path_);
  return result;
}

std::vector<pid_t> Job::processes() const {
  std::vector<pid_t> found;
  for_each_process(marker_, [&](pid_t pid, const std::vector<std::string>&) { found.push_back(pid); });
  return found;
}

std::map<int, pid_t> Job::ranks() const {
  std::map<int, pid_t> found;
  for_each_process(marker_, [&](pid_t pid, const std::vector<std::string>& environment) {
    std::error_code gone;
    if (fs::read_symlink(fmt::format("/proc/{}/exe", pid), gone) != fs::canonical(TRAINER_BINARY)) return;
    int rank = 0;
    for (const std::string name : {"OMPI_COMM_WORLD_RANK=", "TRAINER_RANK="})
      for (const std::string& variable : environment)
        if (variable.starts_with(name)) rank = std::stoi(variable.substr(name.size()));
    found[rank] = pid;
  });
  return found;
}

bool Job::is_gone(double seconds) const {
  return wait_until([this] { return processes().empty(); }, seconds);
}

void Job::kill_all() const {
  // Twice: a launcher may have started one more while the first round went on.
  for (int round = 0; round < 2; ++round)
    for (const pid_t pid : processes()) kill(pid, SIGKILL);
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace trainer::launch_test
