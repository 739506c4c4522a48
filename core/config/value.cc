#include "core/config/value.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/config/number.h"
#include "core/config/spelling.h"

namespace trainer {
namespace {

/// What is wrong with a value, and what would be right. `advice` may name the nearest valid value.
std::string wrong_value(const ConfigItem& item, const YamlNode& node, const std::string& what,
                        const std::string& advice = "") {
  const std::string value =
      node.kind == YamlNode::Kind::scalar ? fmt::format(" (value '{}')", printable(node.text)) : "";
  return fmt::format("{}{}; right would be {}{}{}", what, value, expectation(item), advice.empty() ? "" : "; ", advice);
}

std::string wrong_kind(const ConfigItem& item, const YamlNode& node) {
  return wrong_value(item, node, std::string("is ") + kind_text(node));
}

std::string store(const ConfigItem& item, const YamlNode& node, bool* value) {
  if (node.kind != YamlNode::Kind::scalar) return wrong_kind(item, node);
  const bool yes = node.text == "true" || node.text == "True" || node.text == "TRUE";
  const bool no = node.text == "false" || node.text == "False" || node.text == "FALSE";
  if (!yes && !no) return wrong_value(item, node, "is neither true nor false");
  *value = yes;
  return {};
}

std::string store(const ConfigItem& item, const YamlNode& node, std::int64_t* value) {
  if (node.kind != YamlNode::Kind::scalar) return wrong_kind(item, node);
  const Parsed<std::int64_t> number = parse_integer(node.text);
  if (!number) return wrong_value(item, node, number.fault);
  const double real = static_cast<double>(number.value);
  if (!in_range(real, item.range)) {
    const double low = item.range.low_is_open ? item.range.low + 1 : item.range.low;
    const double nearest = std::clamp(real, low, item.range.high);
    return wrong_value(item, node, "is out of range", fmt::format("the nearest is {}", format_real(nearest)));
  }
  *value = number.value;
  return {};
}

std::string store(const ConfigItem& item, const YamlNode& node, double* value) {
  if (node.kind != YamlNode::Kind::scalar) return wrong_kind(item, node);
  const Parsed<double> number = parse_real(node.text);
  if (!number) return wrong_value(item, node, number.fault);
  if (!in_range(number.value, item.range)) return wrong_value(item, node, "is out of range");
  *value = number.value;
  return {};
}

std::string store(const ConfigItem& item, const YamlNode& node, std::string* value) {
  if (node.kind != YamlNode::Kind::scalar) return wrong_kind(item, node);
  if (node.text.find('\0') != std::string::npos) return wrong_value(item, node, "has a NUL character");
  *value = node.text;
  return {};
}

/// A single text stands for a list of one.
std::string store(const ConfigItem& item, const YamlNode& node, std::vector<std::string>* value) {
  if (node.kind == YamlNode::Kind::map || node.kind == YamlNode::Kind::null) return wrong_kind(item, node);
  std::vector<std::string> list;
  for (const YamlNode& entry : node.kind == YamlNode::Kind::list ? node.items : std::vector<YamlNode>{node}) {
    std::string text;
    const std::string wrong = store(item, entry, &text);
    if (!wrong.empty()) return fmt::format("entry {} {}", list.size() + 1, wrong);
    list.push_back(std::move(text));
  }
  *value = std::move(list);
  return {};
}

std::string store(const ConfigItem& item, const YamlNode& node, const EnumRef& choice) {
  if (node.kind != YamlNode::Kind::scalar) return wrong_kind(item, node);
  const auto found = std::find(choice.names.begin(), choice.names.end(), node.text);
  if (found == choice.names.end()) {
    const std::string nearest = nearest_choice(node.text, {choice.names.begin(), choice.names.end()});
    return wrong_value(item, node, "is not a choice", nearest.empty() ? "" : "did you mean " + nearest);
  }
  *choice.index = static_cast<unsigned char>(found - choice.names.begin());
  return {};
}

}  // namespace

std::string store_value(const ConfigItem& item, const YamlNode& node) {
  return std::visit([&](const auto& value) { return store(item, node, value); }, item.value.value());
}

const char* kind_text(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::null:
      return "empty";
    case YamlNode::Kind::scalar:
      return "a single value";
    case YamlNode::Kind::list:
      return "a list";
    case YamlNode::Kind::map:
      return "a map of keys";
  }
  return "";
}

}  // namespace trainer
