#include "core/train/reporting/metrics.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/runtime/check.h"

namespace trainer {
namespace {

/// True when the line is a whole record of a step that is not going to be repeated.
bool is_kept(const std::string& line, std::int64_t completed_steps) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  const auto step = json.find("step");
  return step != json.end() && step->is_number_integer() && step->get<std::int64_t>() <= completed_steps;
}

/// Rewrites the file without the lines that the run is going to write again. A crash in between leaves either the old
/// or the new file.
void truncate_records(const std::string& path, std::int64_t completed_steps) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return;  // no earlier attempt
  const std::string temporary = path + ".tmp";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  for (std::string line; std::getline(in, line);)
    if (is_kept(line, completed_steps)) out << line << '\n';
  out.close();
  if (in.bad() || !out) {
    const int error = errno;
    std::filesystem::remove(temporary);
    fail(ExitCode::other, "cannot rewrite '{}' through '{}': {}", path, temporary, std::strerror(error));
  }
  std::filesystem::rename(temporary, path);
}

/// The path of a file that ends with the last step that is not run again.
std::string prepared(const std::string& path, std::int64_t completed_steps) {
  try {
    const auto folder = std::filesystem::path(path).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder);
    truncate_records(path, completed_steps);
  } catch (const std::filesystem::filesystem_error& e) {
    fail(ExitCode::other, "cannot prepare '{}': {}", path, e.what());
  }
  return path;
}

}  // namespace

std::string to_json(const StepRecord& record) {
  nlohmann::ordered_json json;
  for_each_metric(record, [&](const char* key, const char*, auto value) { json[key] = value; });
  return json.dump();  // the library writes NaN and infinities as null
}

MetricsWriter::MetricsWriter(const std::string& path, std::int64_t completed_steps)
    : file_(prepared(path, completed_steps)) {}

}  // namespace trainer
