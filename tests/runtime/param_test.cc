// Where parameters lie: the pieces of all ranks make up each global tensor exactly once (times its copies).
#include "core/runtime/param.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace trainer {
namespace {

constexpr std::int64_t kKvHeads = 2;

std::vector<ParamDecl> declarations() {
  std::vector<ParamDecl> decls;
  decls.push_back({.name = "embed", .block = 0, .rows = 13, .cols = 3, .padded_rows = 16, .split = ParamSplit::rows});
  decls.push_back({.name = "norm", .block = 1, .dims = 1, .rows = 7, .arrival = GradArrival::partial});
  decls.push_back({.name = "norm_bias", .block = 1, .dims = 1, .rows = 70, .arrival = GradArrival::partial});
  decls.push_back({.name = "q", .block = 1, .rows = 16, .cols = 5, .split = ParamSplit::rows});
  decls.push_back({.name = "k", .block = 1, .rows = 4, .cols = 5, .split = ParamSplit::kv_rows});
  decls.back().fused_with_previous = true;
  decls.push_back({.name = "v", .block = 1, .rows = 4, .cols = 5, .split = ParamSplit::kv_rows});
  decls.back().fused_with_previous = true;
  decls.push_back({.name = "o", .block = 1, .rows = 3, .cols = 16, .split = ParamSplit::columns});
  decls.push_back({.name = "o_bias", .block = 1, .dims = 1, .rows = 5, .arrival = GradArrival::partial});
  decls.push_back({.name = "whole", .block = 2, .rows = 9, .cols = 3});
  for (ParamDecl& decl : decls) decl.init_std = 0.5;
  return decls;
}

ParamLayout layout_of(int rank, int tp, int zero = 1) {
  return {declarations(), {.rank = rank, .size = tp, .kv_heads = kKvHeads}, zero};
}

ParamId id_of(const ParamLayout& layout, const std::string& name) {
  for (ParamId id = 0; id < layout.num_params(); ++id)
    if (layout.decl(id).name == name) return id;
  ADD_FAILURE() << name;
  return 0;
}

/// Vectors packed apart from the matrices: in memory order, aligned as they are in the flat buffer, fused ones
/// together.
TEST(ParamLayout, VectorsCanLieApart) {
  std::vector<ParamDecl> decls = declarations();
  decls.push_back({.name = "q_bias", .block = 1, .dims = 1, .rows = 16, .split = ParamSplit::rows});
  decls.push_back({.name = "k_bias", .block = 1, .dims = 1, .rows = 4, .split = ParamSplit::kv_rows});
  decls.back().fused_with_previous = true;
  const ParamLayout layout(decls, {.rank = 0, .size = 1, .kv_heads = kKvHeads}, 1);
  EXPECT_EQ(layout.vector_numel(0), 0);
  EXPECT_EQ(layout.vector_numel(1), 4 * 64 + 16 + 4) << "7 and 70, each to a multiple of 64, then 5, 16 and 4";
  std::vector<float> flat(static_cast<std::size_t>(layout.numel(1)));
  std::vector<float> vectors(static_cast<std::size_t>(layout.vector_numel(1)));
  const auto over = [](std::vector<float>& data) {
    return tensor_over(data.data(), Dtype::f32, 1, static_cast<std::int64_t>(data.size()));
  };
  const BlockGrads together{.flat = over(flat), .vectors = {}}, apart{.flat = over(flat), .vectors = over(vectors)};
  const auto place = [&](const BlockGrads& grads, const char* first, const char* last) {
    return grads.view(layout, id_of(layout, first), id_of(layout, last)).as<float>();
  };
  EXPECT_EQ(place(apart, "q", "v"), place(together, "q", "v")) << "a matrix";
  EXPECT_EQ(place(apart, "norm", "norm"), vectors.data());
  EXPECT_EQ(place(apart, "norm_bias", "norm_bias"), vectors.data() + 64);
  EXPECT_EQ(place(apart, "o_bias", "o_bias"), vectors.data() + 3 * 64);
  EXPECT_EQ(place(apart, "q_bias", "k_bias"), vectors.data() + 4 * 64);
  EXPECT_EQ(apart.view(layout, id_of(layout, "q_bias"), id_of(layout, "k_bias")).rows, 20);
  EXPECT_NE(place(together, "norm", "norm"), vectors.data());
}

TEST(ParamLayout, PiecesOfAllRanksCoverEachGlobalElementOncePerCopy) {
  for (const int tp : {1, 2, 4, 8})
    for (ParamId id = 0; id < layout_of(0, tp).num_params(); ++id) {
      std::map<std::pair<std::int64_t, std::int64_t>, int> held, counted;
      int copies = 0;
      for (int rank = 0; rank < tp; ++rank) {
        const ParamLayout layout = layout_of(rank, tp);
        const LocalParam& local = layout.local(id);
        copies = local.copies;
        for (std::int64_t r = 0; r < local.rows; ++r)
          for (std::int64_t c = 0; c < local.cols; ++c) {
            const std::pair at{local.global_row + r, local.global_col + c};
            ++held[at];
            counted[at] += local.copy_index == 0 ? 1 : 0;
          }
      }
      const ParamDecl decl = layout_of(0, tp).decl(id);
      const std::int64_t rows = decl.padded_rows > 0 ? decl.padded_rows : decl.rows;
      ASSERT_EQ(held.size(), static_cast<std::size_t>(rows * decl.cols)) << decl.name << " at tp " << tp;
      EXPECT_EQ(held.rbegin()->first, (std::pair{rows - 1, decl.cols - 1})) << decl.name;
      for (const auto& [at, times] : held) ASSERT_EQ(times, copies) << decl.name << " at tp " << tp;
      for (const auto& [at, times] : counted) ASSERT_EQ(times, 1) << decl.name << " counts once in a norm";
    }
}

TEST(ParamLayout, KvHeadsAreCopiedByNeighbouringRanksWhenThereAreMoreRanks) {
  const auto k_of = [](int rank, int tp) {
    const ParamLayout layout = layout_of(rank, tp);
    return layout.local(id_of(layout, "k"));
  };
  // 4 rows are 2 heads of 2 rows.
  EXPECT_EQ(k_of(1, 2).rows, 2);
  EXPECT_EQ(k_of(1, 2).global_row, 2);
  EXPECT_EQ(k_of(1, 2).copies, 1);
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(k_of(rank, 8).rows, 2);
    EXPECT_EQ(k_of(rank, 8).global_row, rank < 4 ? 0 : 2);
    EXPECT_EQ(k_of(rank, 8).copies, 4);
    EXPECT_EQ(k_of(rank, 8).copy_index, rank % 4);
  }
}

TEST(ParamLayout, PaddingRowsComeLastAndAreCounted) {
  std::int64_t real = 0;
  for (int rank = 0; rank < 8; ++rank) {
    const ParamLayout layout = layout_of(rank, 8);
    const LocalParam& embed = layout.local(id_of(layout, "embed"));
    EXPECT_EQ(embed.rows, 2);
    EXPECT_EQ(embed.real_rows, rank < 6 ? 2 : rank == 6 ? 1 : 0);
    real += embed.real_range().count;
  }
  EXPECT_EQ(real, 13 * 3);
}

TEST(ParamLayout, ParametersOfABlockDoNotOverlapAndStartAligned) {
  for (const int tp : {1, 2, 4, 8})
    for (const int zero : {1, 3, 4}) {
      const ParamLayout layout = layout_of(tp - 1, tp, zero);
      ASSERT_EQ(layout.num_blocks(), 3);
      std::int64_t total = 0;
      for (int block = 0; block < 3; ++block) {
        std::int64_t end = 0;
        for (const ParamId id : layout.params(block)) {
          const LocalParam& local = layout.local(id);
          EXPECT_EQ(layout.decl(id).block, block);
          EXPECT_GE(local.offset, end);
          if (layout.decl(id).fused_with_previous)
            EXPECT_EQ(local.offset, end) << layout.decl(id).name;
          else
            EXPECT_EQ(local.offset % 64, 0) << layout.decl(id).name;
          end = local.offset + local.numel();
        }
        EXPECT_LE(end, layout.numel(block));
        EXPECT_EQ(layout.numel(block) % (64 * zero), 0);
        EXPECT_LT(layout.numel(block) - end, 64 * zero) << "more padding than needed";
        total += layout.numel(block);
      }
      EXPECT_EQ(layout.numel(), total);
    }
}

TEST(ParamLayout, ShardsOfABlockAreEqualAndAdjacent) {
  const ParamLayout layout = layout_of(0, 2, 4);
  for (int block = 0; block < layout.num_blocks(); ++block)
    for (const int parts : {1, 2, 4}) {
      std::int64_t next = 0;
      for (int i = 0; i < parts; ++i) {
        const FlatRange range = layout.shard(block, i, parts);
        EXPECT_EQ(range.first, next);
        EXPECT_EQ(range.count * parts, layout.numel(block));
        next += range.count;
      }
      EXPECT_EQ(next, layout.numel(block));
    }
}

TEST(ParamLayout, PartialRangesHoldExactlyThePartialParameters) {
  for (const int tp : {1, 2, 4, 8}) {
    const ParamLayout layout = layout_of(0, tp);
    for (int block = 0; block < layout.num_blocks(); ++block) {
      const auto covered_by = [](const std::vector<FlatRange>& ranges, std::int64_t at) {
        int times = 0;
        for (const FlatRange& range : ranges) times += at >= range.first && at < range.first + range.count ? 1 : 0;
        return times;
      };
      for (const ParamId id : layout.params(block)) {
        const ParamDecl& decl = layout.decl(id);
        const LocalParam& local = layout.local(id);
        const int in_tp = decl.arrival == GradArrival::partial && tp > 1 ? 1 : 0;
        const int in_kv = decl.split == ParamSplit::kv_rows && tp > kKvHeads ? 1 : 0;
        for (std::int64_t i = local.offset; i < local.offset + local.numel(); ++i) {
          ASSERT_EQ(covered_by(layout.tp_partial(block), i), in_tp) << decl.name << " tp " << tp;
          ASSERT_EQ(covered_by(layout.kv_partial(block), i), in_kv) << decl.name << " tp " << tp;
        }
      }
    }
    // norm and norm_bias are neighbours: one message; k and v too.
    EXPECT_EQ(layout.tp_partial(1).size(), tp > 1 ? 2U : 0U);
    EXPECT_EQ(layout.kv_partial(1).size(), tp > kKvHeads ? 1U : 0U);
  }
}

TEST(ParamLayout, ViewsSeeTheirParametersAndFusedOnesAsOneTensor) {
  const ParamLayout layout = layout_of(1, 2);
  std::vector<float> flat(static_cast<std::size_t>(layout.numel(1)));
  for (std::size_t i = 0; i < flat.size(); ++i) flat[i] = static_cast<float>(i);
  const Tensor block = tensor_over(flat.data(), Dtype::f32, 1, layout.numel(1));
  const ParamId q = id_of(layout, "q"), k = id_of(layout, "k"), v = id_of(layout, "v");
  const Tensor qkv = layout.fused_view(block, q, v);
  EXPECT_EQ(qkv.rows, 8 + 2 + 2);
  EXPECT_EQ(qkv.cols, 5);
  EXPECT_EQ(qkv.as<float>()[0], static_cast<float>(layout.local(q).offset));
  EXPECT_EQ(layout.view(block, k).data, qkv.row_range(8, 2).data);
  EXPECT_EQ(layout.view(block, v).data, qkv.row_range(10, 2).data);
  EXPECT_EQ(layout.view(block, v).rows, 2);
  EXPECT_THROW(layout.fused_view(block, v, id_of(layout, "o")), Error) << "o has other columns";
}

TEST(ParamLayout, CountsTheModelWithoutPaddingOrCopies) {
  const std::int64_t expected = 13 * 3 + 7 + 70 + (16 + 4 + 4) * 5 + 3 * 16 + 5 + 9 * 3;
  for (const int tp : {1, 2, 8}) EXPECT_EQ(layout_of(0, tp).global_numel(), expected);
}

TEST(ParamLayout, RefusesASplitThatDoesNotDivideAndNamesBothNumbers) {
  try {
    layout_of(0, 3);
    FAIL() << "3 does not divide 16 rows";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::config);
    EXPECT_STREQ(e.what(), "embed: 16 does not divide by tensor_parallel_size 3");
  }
}

TEST(ParamLayout, RefusesKeyValueHeadsThatCanBeNeitherSplitNorCopied) {
  const std::vector<ParamDecl> kv = {{.name = "k", .rows = 24, .cols = 5, .split = ParamSplit::kv_rows}};
  EXPECT_NO_THROW(ParamLayout(kv, {.rank = 0, .size = 8, .kv_heads = 4}, 1));
  EXPECT_NO_THROW(ParamLayout(kv, {.rank = 0, .size = 2, .kv_heads = 4}, 1));
  try {
    ParamLayout(kv, {.rank = 0, .size = 6, .kv_heads = 4}, 1);
    FAIL() << "6 ranks cannot share 4 heads evenly";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("k: tensor parallel size 6 and 4 KV heads"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace trainer
