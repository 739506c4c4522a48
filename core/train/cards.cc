#include "core/train/cards.h"

#include <fmt/ranges.h>

#include <array>
#include <cctype>
#include <cstdlib>

#include "core/runtime/attention_support.h"
#include "core/runtime/check.h"

namespace trainer {
namespace {

struct KnownCard {
  const char* name;
  double gib;
  int sm;
};
/// The H200's as CUDA shows it; the others are estimates of that, the smaller figure where settings (ECC) change it.
constexpr std::array<KnownCard, 20> kCards = {
    {{"b200", 178.3, 100},  {"h200", 139.8, 90},    {"h200nvl", 139.8, 90},   {"h100-80", 79.1, 90},
     {"h100nvl", 93.0, 90}, {"a100-80", 79.1, 80},  {"a100-40", 39.4, 80},    {"l40s", 44.4, 89},
     {"l40", 44.4, 89},     {"l4", 22.0, 89},       {"a40", 44.4, 86},        {"a30", 23.5, 80},
     {"a10", 22.0, 86},     {"rtxa6000", 47.4, 86}, {"rtx6000ada", 44.4, 89}, {"rtx4090", 23.6, 89},
     {"rtx3090", 23.6, 86}, {"t4", 14.6, 75},       {"v100-32", 31.7, 70},    {"v100-16", 15.8, 70}}};

std::int64_t bytes_of(double gib) {
  return static_cast<std::int64_t>(gib * (1 << 30));
}

/// What a name says besides card and size in nvidia-smi: the maker, the form, the kind of memory.
bool says_nothing(std::string_view word) {
  for (const std::string_view filler : {"nvidia", "tesla", "geforce", "generation", "pcie"})
    if (word == filler) return true;
  return word.starts_with("sxm") || word.starts_with("hbm");
}

/// "NVIDIA A100-SXM4-80GB" and "a100_80" as "a10080": small letters and digits of the words that tell cards apart,
/// without the unit.
std::string folded(std::string_view name) {
  std::string text, word;
  const auto end_word = [&] {
    if (!says_nothing(word)) text += word.ends_with("gb") ? word.substr(0, word.size() - 2) : word;
    word.clear();
  };
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else
      end_word();
  }
  end_word();
  return text;
}

/// Cards that go by `name`, or by `name` and a size.
std::vector<KnownCard> cards_called(std::string_view name) {
  const auto size_apart = [](std::string_view full) { return folded(full.substr(0, full.find('-'))); };
  std::vector<KnownCard> found;
  for (const KnownCard& card : kCards)
    if (folded(card.name) == folded(name) || size_apart(card.name) == folded(name)) found.push_back(card);
  return found;
}

std::vector<std::string> names_of(const auto& cards) {
  std::vector<std::string> names;
  names.reserve(std::size(cards));
  for (const KnownCard& card : cards) names.emplace_back(card.name);
  return names;
}

/// A number, alone or with its unit; 0 for anything else.
double gib_of(std::string_view text) {
  if (const std::string small = folded(text); small.ends_with("gib")) text = text.substr(0, text.size() - 3);
  const std::string number(text);
  char* end = nullptr;
  const double gib = std::strtod(number.c_str(), &end);
  const bool whole = !number.empty() && std::string_view(end).find_first_not_of(' ') == std::string_view::npos;
  return whole && gib > 0 && gib < 1e6 ? gib : 0;
}

bool has_cudnn(const Config& config, int sm) {
  return config.data.intra_document_attention ? has_cudnn_documents(sm) : has_cudnn_attention(sm);
}

std::string capability(std::string_view card, int sm) {
  return fmt::format("{} has compute capability {}.{}", card, sm / 10, sm % 10);
}

}  // namespace

Card find_card(std::string_view text) {
  const std::vector<KnownCard> called = cards_called(text);
  if (called.size() == 1) return {called[0].name, bytes_of(called[0].gib), called[0].sm};
  if (called.size() > 1)
    fail(ExitCode::config, "--card '{}': there are several; right would be {}", text,
         fmt::join(names_of(called), " or "));
  if (const double gib = gib_of(text); gib > 0) return {"the card", bytes_of(gib), 0};
  fail(ExitCode::config, "--card '{}' is not known; right would be {}, or the GiB of the card as a number", text,
       fmt::join(names_of(kCards), ", "));
}

std::vector<std::string> card_faults(const Config& config, std::string_view card, int sm) {
  std::vector<std::string> faults;
  if (config.precision.dtype == Precision::bf16 && !has_bf16(sm))
    faults.push_back(fmt::format("precision.dtype: bf16 needs compute capability 8.0, and {}; right would be fp16",
                                 capability(card, sm)));
  if (config.train.attention == AttentionChoice::cudnn && !has_cudnn(config, sm))
    faults.push_back(
        fmt::format("train.attention: cudnn needs compute capability {}, and {}; right would be builtin, "
                    "or auto",
                    config.data.intra_document_attention ? "9.0 for documents" : "8.0", capability(card, sm)));
  // Our own backward pass over heads of 128 wants more shared memory than such a card gives a block.
  const bool sixteen_bit = config.precision.dtype == Precision::bf16 || config.precision.dtype == Precision::fp16;
  const bool ours = config.train.attention == AttentionChoice::builtin || config.data.intra_document_attention ||
                    config.model.attention_dropout > 0;
  if ((sm == 86 || sm == 89) && sixteen_bit && ours && config.model.head_dim == 128)
    faults.push_back(
        fmt::format("model.head_dim: our own attention cannot train heads of 128 where {}; right would be "
                    "train.attention auto, without data.intra_document_attention and attention_dropout",
                    capability(card, sm)));
  return faults;
}

void check_card(const Config& config, std::string_view card, int sm) {
  const std::vector<std::string> faults = card_faults(config, card, sm);
  if (faults.empty()) return;
  fail(ExitCode::config, "the configuration does not run on this card:\n{}", fmt::join(faults, "\n"));
}

Config for_card(Config config, int sm) {
  if (config.precision.dtype == Precision::bf16 && !has_bf16(sm)) config.precision.dtype = Precision::fp16;
  if (config.train.attention == AttentionChoice::cudnn && !has_cudnn(config, sm))
    config.train.attention = AttentionChoice::builtin;
  return config;
}

}  // namespace trainer
