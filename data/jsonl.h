// JSON Lines: a JSON object a line.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace trainer {

/// Calls use(text) with the string that each line of the file has under `key`, in order; lines of white space are
/// passed over. Throws Error(data) naming file and line for what is not UTF-8, not a JSON object, or has no string
/// there.
void for_each_jsonl_text(const std::string& path, const std::string& key,
                         const std::function<void(std::string_view)>& use);

}  // namespace trainer
