// Who may include whom, as docs/architecture.md says it.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

namespace trainer {

struct IncludeRules {
  /// A box ("core/model") and the boxes whose headers it may include, besides its own.
  std::map<std::string, std::set<std::string>> boxes;
  /// Patterns of a library's headers ("hdf5*") and patterns of the files that may include them.
  struct Library {
    std::vector<std::string> headers;
    std::vector<std::string> places;
  };
  std::vector<Library> libraries;
};

/// Reads the two tables whose header rows are `| box | may include |` and `| header | only in |`. Throws Error(other)
/// when one is missing or names a box that has no row.
IncludeRules parse_rules(const std::string& markdown);

/// True when `text` has the form of `pattern`, in which `*` stands for any text.
bool matches(const std::string& pattern, const std::string& text);

/// What is wrong with the #include lines of a file: "path:line: ..." each. `path` is relative to the repository.
std::vector<std::string> violations(const IncludeRules& rules, const std::string& path, const std::string& source);

}  // namespace trainer
