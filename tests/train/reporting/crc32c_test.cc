#include "core/train/reporting/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace trainer {
namespace {

// Vectors of RFC 3720, appendix B.4.
TEST(Crc32c, MatchesThePublishedVectors) {
  std::string ascending(32, '\0');
  std::iota(ascending.begin(), ascending.end(), '\0');
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(ascending), 0x46DD794Eu);
  EXPECT_EQ(crc32c(std::string(ascending.rbegin(), ascending.rend())), 0x113FDB5Cu);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

// rotate right by 15, then add 0xA282EAD8: 0xE3069283 >> 15 = 0x1C60D, << 17 = 0x25060000 (mod 2^32).
TEST(Crc32c, MasksByRotationAndOffset) {
  EXPECT_EQ(masked_crc32c("123456789"), 0x2507C60Du + 0xA282EAD8u);
}

}  // namespace
}  // namespace trainer
