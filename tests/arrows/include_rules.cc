#include "tests/arrows/include_rules.h"

#include <fmt/format.h>

#include <regex>
#include <sstream>

#include "core/runtime/check.h"

namespace trainer {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) {
    std::erase_if(part, [](char c) { return c == ' ' || c == '\\'; });  // `\*` is markdown for `*`
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

/// The rows below the header row, each as its two cells.
std::vector<std::pair<std::string, std::string>> table(const std::string& markdown, const std::string& header) {
  std::istringstream in(markdown);
  std::vector<std::pair<std::string, std::string>> rows;
  std::string line;
  while (std::getline(in, line) && line != header) {
  }
  std::getline(in, line);  // |---|---|
  static const std::regex row("\\|([^|]*)\\|([^|]*)\\|");
  std::smatch cells;
  while (std::getline(in, line) && std::regex_match(line, cells, row)) rows.emplace_back(cells[1], cells[2]);
  if (rows.empty()) fail(ExitCode::other, "no table '{}'", header);
  return rows;
}

/// The box that a path lies in: its longest folder with a row; empty when there is none.
std::string box_of(const IncludeRules& rules, const std::string& path) {
  std::string best;
  for (const auto& [box, ignored] : rules.boxes)
    if (path.starts_with(box + "/") && box.size() > best.size()) best = box;
  return best;
}

bool any_matches(const std::vector<std::string>& patterns, const std::string& text) {
  for (const std::string& pattern : patterns)
    if (matches(pattern, text)) return true;
  return false;
}

}  // namespace

IncludeRules parse_rules(const std::string& markdown) {
  IncludeRules rules;
  for (const auto& [box, includes] : table(markdown, "| box | may include |")) {
    const auto names = split(includes, ',');
    rules.boxes[split(box, ',').at(0)] = {names.begin(), names.end()};
  }
  for (const auto& [box, includes] : rules.boxes)
    for (const std::string& other : includes)
      if (!rules.boxes.contains(other)) fail(ExitCode::other, "row {} names '{}', which has no row", box, other);
  for (const auto& [headers, places] : table(markdown, "| header | only in |"))
    rules.libraries.push_back({split(headers, ','), split(places, ',')});
  return rules;
}

bool matches(const std::string& pattern, const std::string& text) {
  const std::size_t star = pattern.find('*');
  if (star == std::string::npos) return pattern == text;
  if (!text.starts_with(pattern.substr(0, star))) return false;
  const std::string rest = pattern.substr(star + 1);
  for (std::size_t at = star; at <= text.size(); ++at)
    if (matches(rest, text.substr(at))) return true;
  return false;
}

std::vector<std::string> violations(const IncludeRules& rules, const std::string& path, const std::string& source) {
  static const std::regex include("\\s*#\\s*include\\s*([<\"])([^>\"]+)[>\"].*");
  const std::string box = box_of(rules, path);
  std::vector<std::string> found;
  if (box.empty()) return {fmt::format("{}: lies in no box of docs/architecture.md", path)};

  std::istringstream in(source);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    std::smatch parts;
    if (!std::regex_match(line, parts, include)) continue;
    const std::string header = parts[2];
    for (const auto& library : rules.libraries)
      if (any_matches(library.headers, header) && !any_matches(library.places, path))
        found.push_back(fmt::format("{}:{}: <{}> does not belong here", path, number, header));
    if (parts[1] != "\"") continue;
    const std::string other = box_of(rules, header);
    // Generated headers lie in the build folder and have no path.
    if (other.empty() && header.find('/') == std::string::npos) continue;
    if (other.empty())
      found.push_back(fmt::format("{}:{}: \"{}\" lies in no box", path, number, header));
    else if (other != box && !rules.boxes.at(box).contains(other))
      found.push_back(fmt::format("{}:{}: {} may not include {} (\"{}\")", path, number, box, other, header));
  }
  return found;
}

}  // namespace trainer
