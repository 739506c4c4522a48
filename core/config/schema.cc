#include "core/config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/config/number.h"

namespace trainer {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

/// The visitor that config.h's describe() functions are written for.
class Collector {
 public:
  explicit Collector(std::vector<ConfigItem>& items) : items_(items) {}

  template <class T>
  void key(const char* name, T& value, const Range& range, const char* doc) {
    add(name, doc).value = reference(value);
    items_.back().range = range;
  }

  template <class T>
  void required(const char* name, T& value, const Range& range, const char* doc) {
    key(name, value, range, doc);
    items_.back().required = true;
  }

  template <class T>
  void section(const char* name, T& members, const char* doc) {
    const std::string outer = prefix_;
    prefix_ = add(name, doc).path + ".";
    ++depth_;
    members.describe(*this);
    --depth_;
    prefix_ = outer;
  }

 private:
  ConfigItem& add(const char* name, const char* doc) {
    ConfigItem item;
    item.path = prefix_ + name;
    item.depth = depth_;
    item.doc = doc;
    return items_.emplace_back(std::move(item));
  }

  template <class T>
  static ValueRef reference(T& value) {
    if constexpr (std::is_enum_v<T>) {
      static_assert(std::is_same_v<std::underlying_type_t<T>, unsigned char>, "EnumRef reads enums as bytes");
      return EnumRef{reinterpret_cast<unsigned char*>(&value), EnumNames<T>::values};
    } else {
      return &value;
    }
  }

  std::vector<ConfigItem>& items_;
  std::string prefix_;
  int depth_ = 0;
};

/// Words that YAML 1.1 readers (PyYAML among them) do not take for text.
bool is_reserved(std::string text) {
  static constexpr std::array words = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"};
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool is_plain(const std::string& text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '/'; };
  const auto inner = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '-'; };
  return !text.empty() && letter(text[0]) && std::all_of(text.begin(), text.end(), inner) && !is_reserved(text);
}

std::string list_text(const std::vector<std::string>& list) {
  std::string text = "[";
  for (const std::string& entry : list) text += (text.size() > 1 ? ", " : "") + yaml_text(entry);
  return text + "]";
}

}  // namespace

const ConfigItem* Schema::find(std::string_view path) const {
  const auto found =
      std::find_if(items.begin(), items.end(), [&](const ConfigItem& item) { return item.path == path; });
  return found == items.end() ? nullptr : &*found;
}

Schema schema_of(Config& config) {
  Schema schema;
  Collector collector(schema.items);
  config.describe(collector);
  return schema;
}

std::string type_name(const ConfigItem& item) {
  return std::visit(
      Overloaded{[](bool*) { return "true or false"; }, [](std::int64_t*) { return "integer"; },
                 [](double*) { return "number"; }, [](std::string*) { return "text"; },
                 [](std::vector<std::string>*) { return "list of texts"; }, [](const EnumRef&) { return "choice"; }},
      item.value.value());
}

bool in_range(double value, const Range& range) {
  const bool low = range.low_is_open ? value > range.low : value >= range.low;
  const bool high = range.high_is_open ? value < range.high : value <= range.high;
  return low && high;
}

std::string range_text(const Range& range) {
  const bool has_low = std::isfinite(range.low);
  const bool has_high = range.high < max_size;
  if (has_low && range.low == range.high) return format_real(range.low);
  if (has_low && has_high && !range.low_is_open && !range.high_is_open) {
    return fmt::format("from {} to {}", format_real(range.low), format_real(range.high));
  }
  std::string text;
  if (has_low) text = fmt::format("{} {}", range.low_is_open ? "above" : "at least", format_real(range.low));
  if (has_low && has_high) text += " and ";
  if (has_high) text += fmt::format("{} {}", range.high_is_open ? "below" : "at most", format_real(range.high));
  return text;
}

std::string expectation(const ConfigItem& item) {
  const auto number = [&](const char* kind) {
    if (item.range.low == item.range.high) return format_real(item.range.low);
    const std::string range = range_text(item.range);
    return range.empty() ? std::string(kind) : fmt::format("{} {}", kind, range);
  };
  return std::visit(
      Overloaded{[](bool*) { return std::string("true or false"); },
                 [&](std::int64_t*) { return number("an integer"); }, [&](double*) { return number("a number"); },
                 [](std::string*) { return std::string("a text"); },
                 [](std::vector<std::string>*) { return std::string("a list of texts, [a, b]"); },
                 [](const EnumRef& e) { return fmt::format("one of {}", fmt::join(e.names, ", ")); }},
      item.value.value());
}

std::string value_text(const ConfigItem& item) {
  return std::visit(Overloaded{[](const bool* value) { return std::string(*value ? "true" : "false"); },
                               [](const std::int64_t* value) { return fmt::format("{}", *value); },
                               [](const double* value) { return format_real(*value); },
                               [](const std::string* value) { return yaml_text(*value); },
                               [](const std::vector<std::string>* value) { return list_text(*value); },
                               [](const EnumRef& e) { return yaml_text(e.names[*e.index]); }},
                    item.value.value());
}

std::string yaml_text(const std::string& text) {
  if (is_plain(text)) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace trainer
