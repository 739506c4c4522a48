#include "core/config/number.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace trainer {
namespace {

TEST(ConfigNumber, FormsOfTheSameReal) {
  for (const char* text : {"2e-5", "2.0E-5", ".00002", "0.00002", "2e-05", "+2e-5", "0.2e-4", "2.e-5", "20_000e-9"}) {
    const auto number = parse_real(text);
    EXPECT_TRUE(number) << text << " " << number.fault;
    EXPECT_EQ(number.value, 2e-5) << text;
  }
  EXPECT_EQ(parse_real("-1.5").value, -1.5);
  EXPECT_EQ(parse_real("0").value, 0);
  EXPECT_EQ(parse_real("5e-324").value, 5e-324);
}

TEST(ConfigNumber, RefusedReals) {
  for (const char* text : {"1e400", "-1e400", "1e-400", "1e99999999999999999999"}) {
    EXPECT_EQ(parse_real(text).fault, "does not fit in float64") << text;
  }
  for (const char* text : {"nan", ".nan", ".inf", "-.Inf", "inf"}) {
    EXPECT_EQ(parse_real(text).fault, "is not a finite number") << text;
  }
  for (const char* text : {"0x10", "0o17", "0b1"}) EXPECT_EQ(parse_real(text).fault, "is not a decimal number") << text;
  for (const char* text : {"010", "00", "00.5", "-01"}) {
    EXPECT_NE(parse_real(text).fault.find("starts with a zero"), std::string::npos) << text;
  }
  for (const char* text :
       {"abc", "1e", "e5", ".", "-", "1 2", "1,5", "1__0", "_1", "1_", "1e5x", "1.2.3", "--1", " 1"}) {
    EXPECT_EQ(parse_real(text).fault, "is not a number") << text;
  }
  EXPECT_EQ(parse_real("").fault, "is empty");
}

TEST(ConfigNumber, FormsOfTheSameInteger) {
  for (const char* text : {"1000", "1_000", "1e3", "1E+3", "1.0e3", "10000e-1", "1000.0", "+1000"}) {
    const auto number = parse_integer(text);
    EXPECT_TRUE(number) << text << " " << number.fault;
    EXPECT_EQ(number.value, 1000) << text;
  }
  EXPECT_EQ(parse_integer("1.5e3").value, 1500);
  EXPECT_EQ(parse_integer("0e99").value, 0);
  EXPECT_EQ(parse_integer("-7").value, -7);
}

TEST(ConfigNumber, IntegersAreExact) {
  EXPECT_EQ(parse_integer("9007199254740993").value, 9007199254740993);  // 2^53 + 1 is no float64
  EXPECT_EQ(parse_integer("9223372036854775807").value, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse_integer("-9223372036854775808").value, std::numeric_limits<std::int64_t>::min());
  for (const char* text : {"9223372036854775808", "1e19", "1e400", "1e999999999999"}) {
    EXPECT_EQ(parse_integer(text).fault, "does not fit in 64 bits") << text;
  }
}

TEST(ConfigNumber, RefusedIntegers) {
  for (const char* text : {"1.5", "1e-1", "abc", "12.34e1", "1e"}) {
    EXPECT_EQ(parse_integer(text).fault, "is not an integer") << text;
  }
  EXPECT_NE(parse_integer("010").fault.find("starts with a zero"), std::string::npos);
  EXPECT_EQ(parse_integer("0x10").fault, "is not a decimal number");
}

TEST(ConfigNumber, RealsReadBackToTheSameBits) {
  std::mt19937_64 random(7);
  int checked = 0;
  while (checked < 10000) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    const auto back = parse_real(format_real(value));
    ASSERT_TRUE(back) << format_real(value) << " " << back.fault;
    ASSERT_EQ(std::bit_cast<std::uint64_t>(back.value), std::bit_cast<std::uint64_t>(value)) << format_real(value);
    ++checked;
  }
}

TEST(ConfigNumber, WrittenRealsHaveAPointBeforeTheExponent) {
  EXPECT_EQ(format_real(1e-5), "1.0e-05");  // PyYAML reads 1e-05 as text
  EXPECT_EQ(format_real(1.5e-7), "1.5e-07");
  EXPECT_EQ(format_real(3e-4), "0.0003");
  EXPECT_EQ(format_real(65536), "65536");
}

}  // namespace
}  // namespace trainer
