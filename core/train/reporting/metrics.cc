#include "core/train/reporting/metrics.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

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
  if (in.bad() || !out) fail(ExitCode::other, "cannot rewrite '{}' through '{}'", path, temporary);
  std::filesystem::rename(temporary, path);
}

}  // namespace

std::string to_json(const StepRecord& record) {
  nlohmann::ordered_json json;
  for_each_metric(record, [&](const char* key, const char*, auto value) { json[key] = value; });
  return json.dump();  // the library writes NaN and infinities as null
}

MetricsWriter::MetricsWriter(std::string path, std::int64_t completed_steps) : path_(std::move(path)) {
  try {
    const auto folder = std::filesystem::path(path_).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder);
    truncate_records(path_, completed_steps);
  } catch (const std::filesystem::filesystem_error& e) {
    fail(ExitCode::other, "cannot prepare '{}': {}", path_, e.what());
  }
  file_.reset(std::fopen(path_.c_str(), "ab"));
  if (!file_) fail(ExitCode::other, "cannot open '{}': {}", path_, std::strerror(errno));
}

void MetricsWriter::append(const StepRecord& record) {
  const std::string line = to_json(record) + "\n";
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size();
  if (std::fflush(file_.get()) != 0 || !written)
    fail(ExitCode::other, "cannot write step {} to '{}': {}", record.step, path_, std::strerror(errno));
}

}  // namespace trainer
