// Numbers of the configuration. yaml-cpp reads `010` as 8 and refuses `1e3` as an integer, so we read them ourselves:
// decimal only, exact, never out of range in silence.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace trainer {

/// A value, or why the text is not one.
template <class T>
struct Parsed {
  T value{};
  std::string fault;  // empty: fine
  explicit operator bool() const { return fault.empty(); }
};

/// A decimal number: 2e-5, 2.0E-5, .00002, 1_000. The value is the nearest float64.
Parsed<double> parse_real(std::string_view text);

/// A decimal number that is an integer: 1000, 1_000, 1e3, 1.5e3. Exact over all 64 bits.
Parsed<std::int64_t> parse_integer(std::string_view text);

/// The shortest decimal that reads back to the same bits; always a number for YAML 1.1 readers too (1.0e-05).
std::string format_real(double value);

}  // namespace trainer
