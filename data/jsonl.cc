#include "data/jsonl.h"

#include <fmt/ranges.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/text_line.h"

namespace trainer {
namespace {

using Json = nlohmann::json;

/// What the parser says, without where: its "line 1" is a line of ours.
std::string reason(const Json::parse_error& error) {
  const std::string text = error.what();
  const std::size_t column = text.find("column ");
  const std::size_t end = text.find(": ", column == std::string::npos ? 0 : column);
  return end == std::string::npos ? text : text.substr(end + 2);
}

Json parse(const TextLine& line) {
  try {
    return Json::parse(line.text);
  } catch (const Json::parse_error& error) {
    line.refuse("is not JSON at column {}: {}", error.byte, reason(error));
  }
}

/// The string under `key`, moved out of the object.
std::string text_of(Json object, const std::string& key, const TextLine& line) {
  if (!object.is_object())
    line.refuse("is JSON, but {} and no object like {{\"{}\": \"...\"}}", object.type_name(), key);
  const auto found = object.find(key);
  if (found == object.end()) {
    std::vector<std::string> keys;
    for (const auto& [name, value] : object.items()) keys.push_back(fmt::format("'{}'", name));
    line.refuse("has no key '{}'; it has {} (--jsonl-key says which holds the text)", key,
                keys.empty() ? "none" : fmt::format("{}", fmt::join(keys, ", ")));
  }
  if (!found->is_string()) line.refuse("key '{}' is of type {}; right would be a string", key, found->type_name());
  return std::move(found->get_ref<std::string&>());
}

}  // namespace

void for_each_jsonl_text(const std::string& path, const std::string& key,
                         const std::function<void(std::string_view)>& use) {
  for_each_line(path, [&](const TextLine& line) {
    if (line.text.find_first_not_of(" \t\r") == std::string_view::npos) return;
    line.check_utf8();
    use(text_of(parse(line), key, line));
  });
}

}  // namespace trainer
