// What stands before yaml-cpp. Releases of it loop for ever or exhaust the stack on tiny inputs (`{:`, `[[:`, 100,000 x
// `[`), so the text is scanned first, and only text whose structure is beyond doubt is passed on.
#pragma once
#include <string>
#include <string_view>

namespace trainer {

inline constexpr std::size_t max_yaml_bytes = std::size_t{1} << 20;
inline constexpr int max_yaml_depth = 16;

/// Throws Error(config), "name:line:col: what", unless `text` is UTF-8 without control characters and at most
/// max_yaml_bytes long.
void guard_bytes(std::string_view text, const std::string& name);

/// The same, and refuses all but one document whose brackets and quotes are closed and nested at most max_yaml_depth
/// deep. Refuses the YAML that a configuration does not use: anchors, aliases, merge keys, tags, directives, explicit
/// keys, block scalars, and quoted texts over several lines. One pass, no recursion.
void guard_yaml(std::string_view text, const std::string& name);

}  // namespace trainer
