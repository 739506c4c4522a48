// YAML text to a plain tree with places. Only what a configuration needs is accepted: one document of maps, lists and
// scalars. Anchors, aliases, merge keys, tags and block scalars are refused, and so is every input that makes a YAML
// parser loop or recurse; see yaml_guard.h.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

/// A place in a text, counted from 1; columns count bytes. Line 0: not in a text.
struct Place {
  int line = 0;
  int column = 0;
};

struct YamlNode {
  enum class Kind { null, scalar, list, map };
  struct Key {
    std::string text;
    Place place;
  };

  Kind kind = Kind::null;
  std::string text;             // scalar: the value, quotes removed
  Place place;                  // of the value; of its key when the value is missing
  std::vector<Key> keys;        // map: in file order, duplicates kept
  std::vector<YamlNode> items;  // list: entries; map: the values of `keys`
};

/// Throws Error(config), "name:line:col: what", on anything that is not such a document. Takes time and memory linear
/// in the text, which is limited to 1 MiB.
YamlNode parse_yaml(std::string_view text, const std::string& name);

/// A text from the outside for a message: at most `limit` bytes, control characters escaped.
std::string printable(std::string_view text, std::size_t limit = 80);

}  // namespace trainer
