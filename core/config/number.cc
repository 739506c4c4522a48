#include "core/config/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace trainer {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// A decimal number taken apart: (-1)^negative x digits x 10^exponent.
struct Decimal {
  bool negative = false;
  std::string digits;  // without the point
  std::int64_t exponent = 0;
  std::string clean;  // as std::from_chars reads it: without underscores and plus sign
};

/// Takes digits, and underscores between digits.
bool take_digits(std::string_view& rest, std::string& digits) {
  bool any = false;
  while (!rest.empty()) {
    if (is_digit(rest[0])) {
      digits += rest[0];
      any = true;
    } else if (rest[0] != '_' || !any || rest.size() < 2 || !is_digit(rest[1])) {
      break;
    }
    rest.remove_prefix(1);
  }
  return any;
}

bool take_exponent(std::string_view& rest, Decimal& number) {
  rest.remove_prefix(1);
  const bool negative = !rest.empty() && rest[0] == '-';
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) rest.remove_prefix(1);
  std::string digits;
  if (!take_digits(rest, digits)) return false;
  constexpr std::int64_t huge = 1'000'000'000;  // more is the same: infinite or zero
  std::int64_t value = 0;
  for (const char c : digits) value = std::min(huge, value * 10 + (c - '0'));
  number.exponent += negative ? -value : value;
  number.clean += fmt::format("e{}{}", negative ? "-" : "", value);
  return true;
}

/// Why the text is not a decimal number, in the words that help most.
std::string not_a_number(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  const auto has = [&](const char* part) { return lower.find(part) != std::string::npos; };
  if (lower.empty()) return "is empty";
  if (has("nan") || has("inf")) return "is not a finite number";
  if (has("0x") || has("0o") || has("0b")) return "is not a decimal number";
  return "is not a number";
}

Parsed<Decimal> parse_decimal(std::string_view text) {
  Decimal number;
  std::string_view rest = text;
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) {
    number.negative = rest[0] == '-';
    rest.remove_prefix(1);
  }
  std::string whole, part;
  bool any = take_digits(rest, whole);
  if (!rest.empty() && rest[0] == '.') {
    rest.remove_prefix(1);
    any = take_digits(rest, part) || any;
  }
  if (!any) return {{}, not_a_number(text)};
  number.digits = whole + part;
  number.exponent = -static_cast<std::int64_t>(part.size());
  number.clean =
      fmt::format("{}{}.{}", number.negative ? "-" : "", whole.empty() ? "0" : whole, part.empty() ? "0" : part);
  if (!rest.empty() && (rest[0] == 'e' || rest[0] == 'E') && !take_exponent(rest, number))
    return {{}, not_a_number(text)};
  if (!rest.empty()) return {{}, not_a_number(text)};
  if (whole.size() > 1 && whole[0] == '0') return {{}, "starts with a zero, which some readers take for octal"};
  return {number, ""};
}

}  // namespace

Parsed<double> parse_real(std::string_view text) {
  const Parsed<Decimal> number = parse_decimal(text);
  if (!number) return {0, number.fault};
  const std::string& clean = number.value.clean;
  double value = 0;
  const auto result = std::from_chars(clean.data(), clean.data() + clean.size(), value);
  if (result.ec == std::errc::result_out_of_range) return {0, "does not fit in float64"};
  if (result.ec != std::errc() || result.ptr != clean.data() + clean.size()) return {0, "is not a number"};
  return {value, ""};
}

Parsed<std::int64_t> parse_integer(std::string_view text) {
  const Parsed<Decimal> number = parse_decimal(text);
  if (!number) return {0, number.fault == "is not a number" ? "is not an integer" : number.fault};
  std::string digits = number.value.digits;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) return {0, ""};
  const std::size_t zeros = digits.size() - 1 - digits.find_last_not_of('0');
  digits.resize(digits.size() - zeros);
  const std::int64_t exponent = number.value.exponent + static_cast<std::int64_t>(zeros);
  if (exponent < 0) return {0, "is not an integer"};
  if (static_cast<std::int64_t>(digits.size()) + exponent > std::numeric_limits<std::int64_t>::digits10 + 1) {
    return {0, "does not fit in 64 bits"};
  }
  const std::string whole = fmt::format("{}{}{}", number.value.negative ? "-" : "", digits,
                                        std::string(static_cast<std::size_t>(exponent), '0'));
  std::int64_t value = 0;
  const auto result = std::from_chars(whole.data(), whole.data() + whole.size(), value);
  if (result.ec != std::errc()) return {0, "does not fit in 64 bits"};
  return {value, ""};
}

std::string format_real(double value) {
  std::string text = fmt::format("{}", value);
  const std::size_t e = text.find('e');
  if (e != std::string::npos && text.find('.') == std::string::npos) text.insert(e, ".0");
  return text;
}

}  // namespace trainer
