#include "data/jsonl.h"

#include <nlohmann/json.hpp>

#include "core/config/yaml.h"
#include "data/text_line.h"

namespace trainer {
namespace {

using Json = nlohmann::json;

/// A message may hold much of a long line.
constexpr std::size_t kMostShown = 200;

/// What the parser says, without its name for it and without where: its "line 1" is a line of ours.
std::string reason(const Json::exception& error) {
  const std::string text = error.what();
  const std::size_t where = text.find(": "), name = text.find("] ");
  const bool says_where = text.find("column ") < where;
  return printable(text.substr(says_where ? where + 2 : name + 2), kMostShown);
}

Json parse(const TextLine& line) {
  try {
    return Json::parse(line.text);
  } catch (const Json::parse_error& error) {
    line.refuse("is not JSON at column {}: {}", error.byte, reason(error));
  } catch (const Json::out_of_range& error) {
    line.refuse("has a number that float64 cannot hold: {}", reason(error));
  }
}

std::string names_of(const Json& object) {
  std::string names;
  for (const auto& [name, value] : object.items()) {
    if (names.size() > kMostShown) return names + ", ...";
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", printable(name));
  }
  return names.empty() ? "none" : names;
}

/// The string under `key`, moved out of the object.
std::string text_of(Json object, const std::string& key, const TextLine& line) {
  if (!object.is_object())
    line.refuse("is JSON, but {} and no object like {{\"{}\": \"...\"}}", object.type_name(), key);
  const auto found = object.find(key);
  if (found == object.end())
    line.refuse("has no key '{}'; it has {} (--jsonl-key says which holds the text)", key, names_of(object));
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
