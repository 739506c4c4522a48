#include "core/config/yaml_guard.h"

#include <vector>

#include "core/config/yaml.h"
#include "core/runtime/check.h"
#include "core/runtime/utf8.h"

namespace trainer {
namespace {

class Guard {
 public:
  Guard(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  void check_bytes() {
    if (text_.size() > max_yaml_bytes) {
      fail(ExitCode::config, "{}: has {} bytes or more; right would be at most {}", name_, text_.size(),
           max_yaml_bytes);
    }
    if (text_.starts_with("\xff\xfe") || text_.starts_with("\xfe\xff")) {
      refuse({1, 1}, "is UTF-16; right would be UTF-8 (iconv -f UTF-16 -t UTF-8)");
    }
    const std::size_t start = text_.starts_with("\xef\xbb\xbf") ? 3 : 0;  // a byte order mark is no text
    for (position_ = line_start_ = start; position_ < text_.size();) check_byte();
    position_ = line_start_ = start;
    line_ = 1;
  }

  void check_structure() {
    while (position_ < text_.size()) step();
    if (!open_.empty()) refuse(open_.back().place, "'{}' is never closed", open_.back().bracket);
  }

 private:
  /// What stands before the current character in its entry.
  enum class Last { nothing, dash, scalar, colon, open, comma, closed };
  struct Open {
    char bracket;
    Place place;
  };

  template <class... Args>
  [[noreturn]] void refuse(Place place, fmt::format_string<Args...> format, Args&&... args) const {
    fail(ExitCode::config, "{}:{}:{}: {}", name_, place.line, place.column,
         fmt::format(format, std::forward<Args>(args)...));
  }

  Place here() const { return {line_, static_cast<int>(position_ - line_start_) + 1}; }
  char peek(std::size_t ahead = 0) const { return position_ + ahead < text_.size() ? text_[position_ + ahead] : '\n'; }
  bool in_flow() const { return !open_.empty(); }
  static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
  static bool is_space(char c) { return is_blank(c) || c == '\n'; }
  static bool is_flow(char c) { return c == ',' || c == '[' || c == ']' || c == '{' || c == '}'; }
  /// A ':' before this character ends a key.
  bool ends_key(char c) const { return is_space(c) || (in_flow() && is_flow(c)); }

  void check_byte() {
    const char c = peek();
    const unsigned byte = static_cast<unsigned char>(c);
    if (c == '\n') return new_line();
    if (byte == 0) refuse(here(), "has a NUL byte; right would be text in UTF-8");
    if ((byte < 0x20 && c != '\t' && !(c == '\r' && peek(1) == '\n')) || byte == 0x7f) {
      refuse(here(), "has the control character 0x{:02x}; right would be text in UTF-8", byte);
    }
    const std::size_t length = utf8_length(text_.substr(position_));
    if (length == 0) refuse(here(), "is not valid UTF-8 (byte 0x{:02x})", byte);
    position_ += length;
  }

  void new_line() {
    ++position_;
    ++line_;
    line_start_ = position_;
    in_indentation_ = true;
  }

  void step() {
    const char c = peek();
    if (c == '\n') {
      new_line();
      if (!in_flow()) start_entry(Last::nothing);
    } else if (is_blank(c)) {
      blank(c);
    } else if (c == '#' && (position_ == line_start_ || is_blank(text_[position_ - 1]))) {
      while (peek() != '\n') ++position_;
    } else if (position_ == line_start_ && is_marker()) {
      marker();
    } else {
      if (ended_) refuse(here(), "a second document starts here; right would be one document in a file");
      has_content_ = true;
      in_indentation_ = false;
      token(c);
    }
  }

  void blank(char c) {
    if (c == '\t' && in_indentation_ && !in_flow()) refuse(here(), "is indented with a tab; right would be spaces");
    ++position_;
  }

  void start_entry(Last last) {
    last_ = last;
    has_colon_ = false;
  }

  bool is_marker() const {
    const std::string_view three = text_.substr(position_, 3);
    return (three == "---" || three == "...") && is_space(peek(3));
  }

  void marker() {
    if (in_flow()) refuse(open_.back().place, "'{}' is never closed", open_.back().bracket);
    const bool start = peek() == '-';
    if (start && (has_content_ || has_start_))
      refuse(here(), "a second document starts here; right would be one document in a file");
    has_start_ = true;
    ended_ = ended_ || !start;
    position_ += 3;
  }

  void token(char c) {
    if (last_ == Last::closed && !(in_flow() && (c == ',' || c == ']' || c == '}'))) {
      refuse(here(), "something follows a closing bracket; right would be a new line{}",
             in_flow() ? " or a comma" : "");
    }
    switch (c) {
      case '"':
      case '\'':
        return quoted(c);
      case '[':
      case '{':
        return open(c);
      default:
        break;
    }
    if (in_flow() && (c == ']' || c == '}')) return close(c);
    if (in_flow() && c == ',') return comma();
    if (c == ':' && (ends_key(peek(1)) || in_flow())) return colon();
    if (c == '-' && is_space(peek(1))) return dash();
    refuse_unused(c);
    plain();
  }

  void refuse_unused(char c) const {
    const char* what = nullptr;
    if (c == '&') what = "an anchor";
    if (c == '*') what = "an alias";
    if (c == '!') what = "a tag";
    if (c == '%' || c == '@' || c == '`') what = "a reserved meaning";
    if (c == '|' || c == '>') what = "a block text";
    if (c == '?' && (is_space(peek(1)) || in_flow())) what = "an explicit key";
    if (c == '#') what = "a comment (with a blank before it)";
    if (c == ']' || c == '}' || c == ',') what = "a list or map in brackets, and none is open,";
    if (what != nullptr) {
      refuse(here(),
             "'{}' stands for {} in YAML, which is not used here; right would be plain values, and quotes around a "
             "text that starts so",
             c, what);
    }
    if (text_.substr(position_).starts_with("<<") && (peek(2) == ':' || is_blank(peek(2)))) {
      refuse(here(), "merge keys (<<) are not used here; right would be each key written out");
    }
  }

  /// A scalar behind another one in the same entry has no meaning here, though YAML would join plain ones.
  void scalar_starts() {
    if (last_ == Last::scalar && in_flow()) {
      refuse(here(), "a text follows another in the '{}' of {}:{}; right would be a comma, or the closing bracket",
             open_.back().bracket, open_.back().place.line, open_.back().place.column);
    }
    if (last_ == Last::scalar) refuse(here(), "a text follows another; right would be a new line between them");
    last_ = Last::scalar;
  }

  void quoted(char quote) {
    const Place start = here();
    scalar_starts();
    for (++position_;; ++position_) {
      const char c = peek();
      if (c == '\n') refuse(start, "the quoted text is not closed on its line; right would be a closing {}", quote);
      const bool escaped = quote == '"' ? c == '\\' && peek(1) != '\n' : c == quote && peek(1) == quote;
      if (escaped) {
        ++position_;
      } else if (c == quote) {
        break;
      }
    }
    ++position_;
  }

  void plain() {
    scalar_starts();
    for (;; ++position_) {
      const char c = peek();
      if (c == '\n' || (in_flow() && is_flow(c))) break;
      if (c == ':' && ends_key(peek(1))) break;
      if (c == '#' && is_blank(text_[position_ - 1])) break;
    }
  }

  void open(char bracket) {
    if (last_ == Last::scalar)
      refuse(here(), "'{}' follows a text; right would be a comma or a new line between them", bracket);
    if (static_cast<int>(open_.size()) >= max_yaml_depth) {
      refuse(here(), "is nested more than {} deep; right would be sections, keys and flat lists", max_yaml_depth);
    }
    open_.push_back({bracket, here()});
    start_entry(Last::open);
    ++position_;
  }

  void close(char bracket) {
    const Open opened = open_.back();
    if ((opened.bracket == '[') != (bracket == ']')) {
      refuse(here(), "'{}' closes the '{}' of {}:{}", bracket, opened.bracket, opened.place.line, opened.place.column);
    }
    open_.pop_back();
    start_entry(Last::closed);
    ++position_;
  }

  void comma() {
    if (last_ == Last::open || last_ == Last::comma) refuse(here(), "an entry is missing before the comma");
    start_entry(Last::comma);
    ++position_;
  }

  void colon() {
    if (last_ != Last::scalar) refuse(here(), "':' without a key before it");
    if (has_colon_) refuse(here(), "a second ': ' in one entry; right would be quotes around the text that has it");
    last_ = Last::colon;
    has_colon_ = true;
    ++position_;
  }

  void dash() {
    if (in_flow()) refuse(here(), "'-' in a bracketed list; right would be commas between the entries");
    if (last_ != Last::nothing && last_ != Last::dash) refuse(here(), "'-' starts a list on its own line");
    start_entry(Last::dash);
    ++position_;
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t position_ = 0;
  std::size_t line_start_ = 0;
  int line_ = 1;
  Last last_ = Last::nothing;
  bool in_indentation_ = true;
  bool has_colon_ = false;  // this entry has its ':'
  bool has_content_ = false;
  bool has_start_ = false;  // "---" was seen
  bool ended_ = false;      // "..." was seen
  std::vector<Open> open_;
};

}  // namespace

void guard_bytes(std::string_view text, const std::string& name) {
  Guard(text, name).check_bytes();
}

void guard_yaml(std::string_view text, const std::string& name) {
  Guard guard(text, name);
  guard.check_bytes();
  guard.check_structure();
}

}  // namespace trainer
