// Inputs that make YAML parsers loop, recurse or swell. Each is read in a child process with limits, so that a fault
// shows as a failed test and not as a dead machine.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "core/runtime/check.h"
#include "tests/config/support.h"

namespace trainer {
namespace {

constexpr int success = 0, refused = 2, other = 9;

struct Outcome {
  int signal = 0;
  int exit_code = 0;
  double seconds = 0;  // of CPU time
  long max_rss_kib = 0;
  std::string message;
};

/// Runs `action` in a child that may use `cpu_seconds` and 1 GiB of memory. Its return value is the exit code, and what
/// it writes to the descriptor the message.
Outcome run_limited(unsigned cpu_seconds, const std::function<int(int)>& action) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) throw std::runtime_error("pipe");
  const pid_t child = fork();
  if (child == 0) {
    const rlimit cpu{cpu_seconds, cpu_seconds};
    setrlimit(RLIMIT_CPU, &cpu);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they map terabytes
    const rlimit memory{1UL << 30, 1UL << 30};
    setrlimit(RLIMIT_AS, &memory);
#endif
    alarm(cpu_seconds * 20);  // a child that waits for ever uses no CPU time
    _exit(action(pipe_ends[1]));
  }
  close(pipe_ends[1]);
  Outcome outcome;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(pipe_ends[0], buffer, sizeof buffer)) > 0;)
    outcome.message.append(buffer, static_cast<std::size_t>(n));
  close(pipe_ends[0]);
  int status = 0;
  rusage usage{};
  wait4(child, &status, 0, &usage);
  outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.seconds = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                    static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  outcome.max_rss_kib = usage.ru_maxrss;
  return outcome;
}

void say(int descriptor, const std::string& message) {
  [[maybe_unused]] const ssize_t written =
      write(descriptor, message.data(), std::min<std::size_t>(message.size(), 4000));
}

/// Exit code of reading `text`: success, refused, or other.
int read_text(const std::string& text, int descriptor) {
  try {
    config_from_yaml(text, "hostile.yaml");
    return success;
  } catch (const Error& e) {
    say(descriptor, e.what());
    return e.code() == ExitCode::config ? refused : other;
  } catch (const std::exception& e) {
    say(descriptor, std::string("not an Error: ") + e.what());
    return other;
  }
}

std::string repeated(const std::string& part, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

std::string alias_bomb() {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    text += fmt::format("a{}: &a{} [{}*a{}]\n", i, i, repeated(fmt::format("*a{}, ", i - 1), 8), i - 1);
  }
  return text;
}

std::string staircase() {
  std::string text;
  for (int i = 0; i < 1400; ++i) text += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  return text;
}

TEST(ConfigHostile, IsRefusedInTimeAndMemory) {
  const struct {
    const char* name;
    std::string text;
  } cases[] = {
      {"{:", "{:"},
      {"[:", "[:"},
      {"[[:", "[[:"},
      {"{foo:", "{foo:"},
      {"{foo:}", "{foo:}"},
      {"? in brackets", "[?"},
      {"key and {:", "model: {:"},
      {"key and [[:", "data:\n  train: [[:\n"},
      {"empty indentation", "-\n-\n:\n -"},
      {"100,000 [", repeated("[", 100000)},
      {"100,000 {", repeated("{", 100000)},
      {"100,000 [ in a value", "data:\n  train: " + repeated("[", 100000)},
      {"closed brackets", repeated("[", 100000) + repeated("]", 100000)},
      {"{a: {a: ", repeated("{a: ", 100000)},
      {"- - -", repeated("- ", 100000)},
      {"? ? ?", repeated("? ", 100000)},
      {"a: a: a:", repeated("a: ", 100000)},
      {"&a &a", repeated("&a ", 100000)},
      {"!!!", repeated("!", 100000)},
      {"staircase", staircase()},
      {"alias bomb", alias_bomb()},
      {"one long key", std::string(1000000, 'a') + ": 1"},
      {"one long text", "model: " + std::string(1000000, 'a')},
      {"many words", "model: " + repeated("b ", 500000)},
      {"many lines in a text", "model:\n" + repeated("  b\n", 200000)},
      {"many unknown keys", repeated("unknown_key: 1\n", 69000)},
      {"many long unknown keys", repeated(std::string(500, 'k') + ": 1\n", 2000)},
      {"many entries", "data:\n  train: [" + repeated("1,", 500000) + "]\n"},
      {"many small lists", "data:\n  train:\n" + repeated("  - [a, b]\n", 90000)},
      {"blank lines in brackets", "data: [" + repeated("\n", 1000000)},
      {"blanks", std::string(1000000, ' ') + "a"},
      {"only tabs", std::string(100000, '\t')},
      {"quotes", repeated("'", 99999)},
      {"NUL bytes", std::string(100000, '\0')},
      {"random bytes", std::string("\x8b\x1f\x00\xff\xfe\x80", 6)},
  };
  for (const auto& c : cases) {
    const char* name = c.name;
    const Outcome outcome = run_limited(10, [&](int descriptor) { return read_text(c.text, descriptor); });
    EXPECT_EQ(outcome.signal, 0) << name;
    EXPECT_EQ(outcome.exit_code, refused) << name << ": " << outcome.message;
    EXPECT_LT(outcome.seconds, 2) << name;
    EXPECT_LT(outcome.max_rss_kib, 256 * 1024) << name;
    EXPECT_TRUE(std::regex_search(outcome.message, std::regex("hostile\\.yaml:[1-9][0-9]*:[1-9]"))) << outcome.message;
  }
}

/// A file that uses all accepted forms, to be damaged.
const char* const rich_text =
    "# comment\n"
    "model:\n"
    "  hidden_size: 64\n"
    "  num_layers: 2\n"
    "  num_attention_heads: 4  # heads\n"
    "  vocab_size: 2_57\n"
    "  rope_scaling: {type: llama3, factor: 8.0, \"low_freq_factor\": 1}\n"
    "train:\n"
    "  seq_length: 1e2\n"
    "  global_batch_size: 8\n"
    "  output_dir: \"runs/\\u00e9 'x'\"\n"
    "  deterministic: true\n"
    "optimizer: {lr: 2e-5, beta1: .9}\n"
    "data:\n"
    "  train:\n"
    "    - 'a''b.h5'\n"
    "    - b.h5\n"
    "  validation: [c.h5,\n"
    "    \"d e.h5\"]\n";

std::string mutated(std::mt19937& random) {
  static const std::vector<std::string> tokens = {"[",
                                                  "]",
                                                  "{",
                                                  "}",
                                                  ":",
                                                  ": ",
                                                  ",",
                                                  "-",
                                                  "- ",
                                                  "\n",
                                                  "\n  ",
                                                  "  ",
                                                  "#",
                                                  " #",
                                                  "'",
                                                  "\"",
                                                  "?",
                                                  "? ",
                                                  "&a",
                                                  "*a",
                                                  "!",
                                                  "|",
                                                  ">",
                                                  "%",
                                                  "---\n",
                                                  "...\n",
                                                  "<<: ",
                                                  "\t",
                                                  "\r",
                                                  "\\",
                                                  std::string(1, '\0'),
                                                  "\xff",
                                                  "\xc3\xa9",
                                                  "1e999",
                                                  "010",
                                                  "~",
                                                  "{:",
                                                  "[:"};
  std::string text = rich_text;
  const auto place = [&] { return random() % (text.size() + 1); };
  for (auto edits = 1 + random() % 3; edits > 0; --edits) {
    switch (random() % 5) {
      case 0:
        text.insert(place(), tokens[random() % tokens.size()]);
        break;
      case 1:
        text.erase(std::min(place(), text.size()), random() % 8);
        break;
      case 2:
        text.insert(place(), text.substr(place(), random() % 40));
        break;
      case 3:
        if (!text.empty()) text[random() % text.size()] = static_cast<char>(random() % 256);
        break;
      default:
        text.resize(random() % 20 == 0 ? place() : text.size());
        text.insert(place(), tokens[random() % tokens.size()]);
        break;
    }
  }
  return text;
}

TEST(ConfigHostile, DamagedFilesAreReadOrRefused) {
  const auto damage = [](int descriptor) {
    std::mt19937 random(2024);
    int read = 0, turned_down = 0;
    for (int i = 0; i < 2000; ++i) {
      const std::string text = mutated(random);
      try {
        const Config config = config_from_yaml(text, "damaged.yaml");
        const std::string resolved = resolved_yaml(config);
        if (resolved_yaml(config_from_yaml(resolved, "resolved")) != resolved)
          throw std::runtime_error("does not read back");
        ++read;
      } catch (const Error& e) {
        ++turned_down;
        if (e.code() == ExitCode::config && std::string(e.what()).find("damaged.yaml") != std::string::npos) continue;
        say(descriptor, std::string(e.what()) + "\n--- of\n" + text);
        return other;
      } catch (const std::exception& e) {
        say(descriptor, std::string(e.what()) + "\n--- of\n" + text);
        return other;
      }
    }
    say(descriptor, fmt::format("{} read, {} refused", read, turned_down));
    return read > 50 && turned_down > 500 ? success : other;
  };
  const Outcome outcome = run_limited(60, damage);
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_EQ(outcome.exit_code, success) << outcome.message;
}

}  // namespace
}  // namespace trainer
