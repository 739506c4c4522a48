#include "data/text_line.h"

#include <cerrno>
#include <system_error>

#include "core/runtime/utf8.h"

namespace trainer {

void TextLine::check_utf8() const {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = text[at] == '\0' ? 0 : utf8_length(text.substr(at));
    if (length == 0)
      refuse("is not text in UTF-8: byte 0x{:02x} at column {}", static_cast<unsigned char>(text[at]), at + 1);
    at += length;
  }
}

std::ifstream open_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ExitCode::data, "{}: cannot be opened: {}", path, std::generic_category().message(errno));
  return file;
}

void for_each_line(const std::string& path, const std::function<void(const TextLine&)>& use) {
  std::ifstream file = open_text(path);
  std::int64_t number = 0;
  for (std::string line; std::getline(file, line);) use({path, ++number, line});
  if (file.bad()) fail(ExitCode::data, "{}: cannot be read behind line {}", path, number);
}

}  // namespace trainer
